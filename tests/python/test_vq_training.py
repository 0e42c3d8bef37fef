"""Training VQ-attention from Python: steps of several forwards, activation checkpointing, several processes."""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from common import assert_near
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import ovq

DIM = 16
TRAININGS = ["ema", "diveq", "sf-diveq"]


def make(training, **options):
    torch.manual_seed(0)
    options = {**dict(heads=2, codewords=6, no_use=0.05, noise=0.1, commitment=0.3), **options}
    layer = ovq.VQAttention(DIM, training=training, **options)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 2:
                parameter.mul_(10)
    return layer


def inputs(count, batch=2, time=10, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(batch, time, DIM, generator=generator) for _ in range(count)]


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("batch, time", [(2, 0), (0, 5)])
def test_no_tokens(training, batch, time):
    layer = make(training).train()
    layer.started.fill_(1)
    before = learned(layer)
    layer.begin_step(0, 1)
    y = layer(torch.zeros(batch, time, DIM))
    loss = y.sum() + (layer.auxiliary_loss() if training == "ema" else 0)
    assert loss == 0
    loss.backward()
    layer.end_step()
    assert all(p.grad is None or not p.grad.any() for p in layer.parameters())
    assert_same(learned(layer), before)


@pytest.mark.parametrize("kind", [ovq.CausalLM, ovq.LanguageModel])
def test_models_without_tokens(kind):
    config = ovq.LanguageModel.preset("tiny/sw-vq", vocab_size=50, num_hidden_layers=2).config
    config["mixers"]["vq"]["training"] = "ema"
    model = kind(config).train()
    model.load_state_dict({**model.state_dict(), "layers.1.mixer.started": torch.tensor(1)})
    model.begin_step(0, 1)
    assert model(torch.zeros(2, 0, dtype=torch.long)).shape == (2, 0, 50)
    assert model.auxiliary_loss() == 0


def learned(layer):
    """What is not learned by gradients."""
    return {name: x.clone() for name, x in layer.state_dict().items() if "quantizer" in name or name == "started"}


def assert_same(a, b):
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("training", TRAININGS)
def test_nothing_moves_within_a_step(training):
    layer = make(training, codewords=24)
    for step, x in enumerate(inputs(4)):
        layer.begin_step(step, 0)
        before = learned(layer)
        layer(x)
        layer(x.flip(0))
        assert_same(learned(layer), before)
    layer.end_step()
    assert layer.started and any(not torch.equal(x, before[name]) for name, x in learned(layer).items())


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("steps", ["begin_step", "per forward"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_gives_the_same_gradients(training, steps, reentrant):
    def run(forward, keep_auxiliary):
        layer, gradients = make(training), []
        for step, x in enumerate(inputs(5)):
            if steps == "begin_step":
                layer.begin_step(step, 0)
            x.requires_grad_()
            layer.zero_grad(set_to_none=True)
            loss = forward(layer, x).square().sum()
            if keep_auxiliary and layer.auxiliary_loss() is not None:
                loss = loss + layer.auxiliary_loss()
            loss.backward()
            gradients += [x.grad, *(p.grad for p in layer.parameters() if p.grad is not None)]
        layer.end_step()
        return gradients, learned(layer)

    # A reentrant checkpoint's forward has no gradients, and so none of the auxiliary loss.
    again = functools.partial(checkpoint, use_reentrant=reentrant)
    expected, learned_plain = run(lambda layer, x: layer(x), not reentrant)
    actual, learned_again = run(lambda layer, x: again(layer, x), not reentrant)
    assert len(actual) == len(expected) and all(torch.equal(a, e) for a, e in zip(actual, expected))
    assert_same(learned_again, learned_plain)


def test_several_forwards_before_backward_need_begin_step():
    layer = make("sf-diveq")
    for x in inputs(2):
        layer(x)
    a, b = (x.requires_grad_() for x in inputs(2, seed=2))
    y = checkpoint(layer, a, use_reentrant=False) + checkpoint(layer, b, use_reentrant=False)
    with pytest.raises((ValueError, RuntimeError), match=r"\[vq\] backward computes a forward again .* call begin_step"):
        y.sum().backward()

    def gradients(forward):
        layer = make("sf-diveq")
        for step in range(3):
            layer.begin_step(step, 7)
            a, b = (x.requires_grad_() for x in inputs(2, seed=step))
            found = torch.autograd.grad((forward(layer, a) + 2 * forward(layer, b)).square().sum(), [a, b])
        return found

    expected = gradients(lambda layer, x: layer(x))
    assert torch.equal(torch.cat(gradients(lambda layer, x: checkpoint(layer, x, use_reentrant=False))), torch.cat(expected))


def test_auxiliary_loss_without_gradients_is_refused():
    layer = make("ema")
    layer(inputs(1)[0])
    x = inputs(1)[0].requires_grad_()
    checkpoint(layer, x, use_reentrant=True)
    with pytest.raises(ValueError, match="use_reentrant=False"):
        layer.auxiliary_loss()
    with torch.no_grad():
        assert layer.auxiliary_loss() > 0


@pytest.mark.parametrize("training", TRAININGS)
def test_autocast(training):
    layer = make(training, form="linear", chunk=4)
    for step, x in enumerate(inputs(3, time=20)):
        layer.begin_step(step, 0)
        layer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
            loss = y.float().square().mean() + (layer.auxiliary_loss() or 0)
        loss.backward()
        assert y.dtype == torch.bfloat16
        assert all(torch.isfinite(p.grad).all() for p in layer.parameters() if p.grad is not None)
    layer.end_step()
    layer.eval()
    x = inputs(1, time=300)[0]
    with torch.no_grad():
        y = layer(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            half, state = layer(x, return_state=True)
        assert state.tensors["counts"].dtype == torch.float32
        layer.step(x[:, :1], state)  # a state made under autocast goes on without it
    assert_near(half.float(), y, 0.1)


def test_training_with_a_state_is_refused():
    layer, x = make("diveq"), inputs(1)[0]
    with pytest.raises(ValueError, match=r"\[vq\] training with a state"):
        layer(x, return_state=True)
    _, state = layer.eval()(x, return_state=True)
    assert state.position == 10


def train_on(rank, layer, model, training, told):
    """Five steps of two forwards on this rank's rows of two, or with rank None on all rows."""
    optimizer = torch.optim.SGD([p for p in layer.parameters() if p.requires_grad], 0.1)
    for step in range(5):
        if told:
            layer.begin_step(step, 3)
        optimizer.zero_grad()
        for x in inputs(2, seed=step, time=16):
            rows = x if rank is None else x[rank : rank + 1]
            loss = model(rows).square().mean()
            if layer.auxiliary_loss() is not None:
                loss = loss + layer.auxiliary_loss()
            loss.backward()
        optimizer.step()
    layer.end_step()
    return learned(layer)


def ddp_worker(rank, store, out, training, told):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(rank)  # DDP makes the parameters equal
    layer = make(training, codewords=8, noise=0.0) if rank == 0 else ovq.VQAttention(
        DIM, training=training, heads=2, codewords=8, no_use=0.05, noise=0.0, commitment=0.3
    )
    found = train_on(rank, layer, DistributedDataParallel(layer), training, told)
    torch.save({"learned": found, "parameters": layer.state_dict()}, f"{out}-{rank}")
    dist.destroy_process_group()


@pytest.mark.parametrize("training", TRAININGS)
@pytest.mark.parametrize("told", [True, False])
def test_ranks_of_ddp_stay_equal(tmp_path, training, told):
    mp.spawn(ddp_worker, (str(tmp_path / "store"), str(tmp_path / "out"), training, told), nprocs=2)
    first, second = (torch.load(tmp_path / f"out-{rank}") for rank in (0, 1))
    assert first["learned"]["started"] == 1
    assert_same(first["learned"], second["learned"])
    assert_same(first["parameters"], second["parameters"])
    if told and training != "sf-diveq":  # whose noise depends on what a rank sees
        layer = make(training, codewords=8, noise=0.0)
        alone = train_on(None, layer, layer, training, told)
        for name, x in alone.items():
            assert_near(first["learned"][name].float(), x.float(), 1e-4)


