"""What torch 2 brought: safe loading, functional calls, sharded and replicated training."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import ovq

VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])
pytestmark = pytest.mark.skipif(VERSION < (2, 6), reason="needs torch 2.6")


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return ovq.LanguageModel.preset("tiny/sw-ovq", vocab_size=32)


def saved_and_loaded(what, path):
    torch.save(what, path)
    return torch.load(path, weights_only=True)


def test_weights_of_models_load_safely(model, tmp_path):
    weights = saved_and_loaded(model.state_dict(), tmp_path / "weights")
    other = ovq.LanguageModel.preset("tiny/sw-ovq", vocab_size=32)
    other.load_state_dict(weights)
    tokens = torch.arange(30).view(1, -1)
    assert torch.equal(model(tokens), other(tokens))


def test_states_load_safely(model, tmp_path):
    tokens = torch.arange(30).view(1, -1)
    layer = ovq.OVQAttention(16, 2, chunk=4, centroids=8)
    x, q = torch.randn(1, 20, 16), torch.randn(1, 20, 2, 8)
    with torch.no_grad():
        _, of_model = model(tokens, return_state=True)
        _, of_layer = layer(x, return_state=True)
        _, of_op = ovq.ovq_attention(q, q, q, 1.0, chunk=4, centroids=8, return_state=True)
        loaded = saved_and_loaded({"model": of_model, "layer": of_layer, "op": of_op}, tmp_path / "states")
        next_token = tokens[:, :1]
        assert torch.equal(model.step(next_token, of_model), model.step(next_token, loaded["model"]))
        assert torch.equal(layer.step(x[:, :1], of_layer), layer.step(x[:, :1], loaded["layer"]))
        one = q[:, :1]
        assert torch.equal(ovq.step(one, one, one, 1.0, of_op), ovq.step(one, one, one, 1.0, loaded["op"]))


def test_functional_call():
    layer, x = ovq.OVQAttention(16, 2, chunk=4, centroids=8), torch.randn(1, 20, 16)
    other = ovq.OVQAttention(16, 2, chunk=4, centroids=8)
    weights = {name: parameter.detach().clone() for name, parameter in other.named_parameters()}
    assert torch.equal(torch.func.functional_call(layer, weights, (x,)), other(x))
    assert not torch.equal(layer(x), other(x))


def test_autocast():
    layer, x = ovq.OVQAttention(16, 2, chunk=4, centroids=8), torch.randn(1, 20, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16 and all(p.grad.dtype == torch.float32 for p in layer.parameters())
    torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.05)


class Block(torch.nn.Module):
    """A residual layer around the op, of plain torch parts."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(16)
        self.qkv, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 2, 8).unbind(2)
        return x + self.out(ovq.ovq_attention(q, k, v, 2.0, chunk=4, centroids=8).flatten(2))


class Layers(torch.nn.Sequential):
    """One of each layer that has no codebook."""

    def __init__(self):
        super().__init__(
            ovq.Attention(16, 2, window=5, rope=True),
            ovq.OVQAttention(16, 2, chunk=4, centroids=8, weighted_writes=True, convolution=True),
            ovq.GatedDeltaNet(16, 2, key_dim=4, value_dim=4),
            ovq.Mamba2(16, head_dim=8),
            ovq.MesaNet(16, 2, key_dim=4, value_dim=4),
            ovq.LinearAttention(16, 2, key_dim=4, value_dim=4),
        )

    def forward(self, x):
        for layer in self:
            x = x + layer(x)
        return x


class Blocks(torch.nn.Sequential):
    def __init__(self):
        super().__init__(Block(), Block())


def trained(make, wrap, rank, ranks):
    """Weights after three steps on this rank's rows of every batch."""
    torch.manual_seed(0)
    model = wrap(make())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        x = torch.randn(4, 12, 16, generator=torch.Generator().manual_seed(step))[rank::ranks]
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return model


def replicated(model):
    return torch.nn.parallel.DistributedDataParallel(model)


def sharded(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def work(rank, make, wrap, directory):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{directory}/store", rank=rank, world_size=2)
    model = trained(make, wrap, rank, 2)
    weights = {
        name.removeprefix("module."): (x.full_tensor() if hasattr(x, "full_tensor") else x).detach()
        for name, x in model.state_dict().items()
    }
    torch.save(weights, os.path.join(directory, f"weights-{rank}"))
    dist.destroy_process_group()


# torch 2.6 has no fully_shard on the CPU: its streams lack record_event.
@pytest.mark.parametrize("wrap", [replicated, sharded] if VERSION > (2, 6) else [replicated])
@pytest.mark.parametrize("make", [Blocks, Layers])
def test_two_processes_train_as_one(make, wrap, tmp_path):
    mp.spawn(work, (make, wrap, str(tmp_path)), nprocs=2)
    one = trained(make, lambda model: model, 0, 1).state_dict()
    for rank in range(2):
        weights = torch.load(tmp_path / f"weights-{rank}", weights_only=True)
        for name, expected in one.items():
            torch.testing.assert_close(weights[name], expected, rtol=1e-4, atol=1e-6)
