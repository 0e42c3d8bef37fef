"""Every layer, with every option, computes what the C++ layer of the same parameters does: outputs, gradients of all
parameters and of x, states, continuing, steps, packed sequences.
"""

import json

import pytest
import torch
from common import assert_near

import ovq

DIM, TIME = 16, 23
HEADS = {
    "": {},
    "kv_heads": dict(heads=4, kv_heads=2),
    "head_dim": dict(head_dim=4),
    "beta_init": dict(beta_init=3.0),
    "value_shift": dict(value_shift=True),
    "convolution": dict(convolution=True),
    "value_shift and convolution": dict(value_shift=True, convolution=True),
}
RECURRENT = {
    "": {},
    "heads": dict(heads=3),
    "key_dim": dict(key_dim=5),
    "value_dim": dict(value_dim=3),
    "conv_width": dict(conv_width=2),
    "no convolution": dict(conv_width=1),
}
# By the mixer's name: what all have, and by name changes of it.
CASES = {
    "attention": (
        dict(heads=2),
        {
            **HEADS,
            "window": dict(window=6),
            "window of one": dict(window=1),
            "rope": dict(rope=True),
            "rope_base": dict(rope=True, rope_base=100.0, window=4, kv_heads=1),
        },
    ),
    "ovq": (
        dict(heads=2, chunk=4, centroids=6),
        {
            **HEADS,
            "chunk": dict(chunk=7),
            "centroids": dict(centroids=100),
            "growth": dict(growth="linear", total_tokens=20),
            "all": dict(growth="all"),
            "square-root": dict(growth="square-root"),
            "new_centroids": dict(new_centroids="random", seed=5),
            "rate": dict(rate=0.1),
            "normalize": dict(normalize=True),
            "rope": dict(rope=True),
            "rope_base": dict(rope=True, rope_base=100.0),
            "value_norms": dict(value_norms=True),
            "weighted_writes": dict(weighted_writes=True),
            "shifted weights": dict(weighted_writes=True, value_shift=True, kv_heads=1),
        },
    ),
    "vq": (
        dict(heads=2, codewords=5, chunk=4),
        {
            **HEADS,
            "codewords": dict(codewords=40),
            "chunk": dict(chunk=3),
            "form": dict(form="linear"),
            "diveq": dict(training="diveq", noise=0.1),
            "ema": dict(training="ema", commitment=0.3, ema_decay=0.9),
            "no_use": dict(no_use=0.5),
            "warmup": dict(warmup=2),
        },
    ),
    "gdn": (dict(heads=2, key_dim=4, value_dim=8), RECURRENT),
    "mamba2": (
        dict(head_dim=4, state=4, groups=2),
        {
            "": {},
            "heads": dict(heads=4),
            "head_dim": dict(head_dim=8),
            "expand": dict(expand=2),
            "state": dict(state=3),
            "groups": dict(groups=1),
            "conv_width": dict(conv_width=2),
        },
    ),
    "mesa": (dict(heads=2, key_dim=4, value_dim=8), {**RECURRENT, "iterations": dict(iterations=3)}),
    "linear": (dict(heads=2, key_dim=4, value_dim=8), RECURRENT),
}
ALL = [(kind, change) for kind in CASES for change in CASES[kind][1]]
every_case = pytest.mark.parametrize("kind, change", ALL)


class CppMixer:
    """The C++ layer, called as the one in Python is."""

    def __init__(self, kind, options):
        self.handle = torch.classes.ovq.Mixer(json.dumps({"type": kind, **options}), DIM)
        self.parameters = self.handle.parameters()
        self.tensors = {**self.parameters, **self.handle.buffers()}

    def __call__(self, x, states=(), cu_seqlens=None):
        return self.handle.forward_with_states(x, list(states), cu_seqlens)


def make_pair(kind, change, **more):
    """A layer in Python and one in C++ with the same parameters, of a size that comparisons can see."""
    options = {**CASES[kind][0], **CASES[kind][1][change], **more}
    torch.manual_seed(0)
    layer, cpp = ovq.make_mixer(kind, DIM, **options), CppMixer(kind, options)
    with torch.no_grad():
        for name, tensor in layer.state_dict().items():
            if name.endswith("proj.weight"):
                tensor.mul_(10)
            elif name.startswith("w_gate") or name in ("alpha", "b", "D", "norm.weight", "A_log", "lambda"):
                tensor.add_(torch.randn_like(tensor) * 0.3)
    copy_parameters(layer, cpp)
    return layer, cpp


def copy_parameters(layer, cpp):
    state_dict = layer.state_dict()
    assert {name: x.shape for name, x in state_dict.items()} == {name: x.shape for name, x in cpp.tensors.items()}
    with torch.no_grad():
        for name, tensor in state_dict.items():
            cpp.tensors[name].copy_(tensor)


def make_evaluated_pair(kind, change):
    layer, cpp = make_pair(kind, change)
    if kind == "vq":
        layer.started.fill_(1)
        cpp.tensors["started"].fill_(1)
    cpp.handle.train(False)
    return layer.eval(), cpp


def make_input(batch=2, seed=1):
    return torch.randn(batch, TIME, DIM, generator=torch.Generator().manual_seed(seed))


def loss_of(y):
    return (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(3))).sum()


def assert_same_state(state, handle):
    tensors, metadata = handle.pack()
    mine, my_metadata = state._packed()
    assert my_metadata == metadata and mine.keys() == tensors.keys()
    for name, tensor in tensors.items():
        if name.endswith(".ovq"):
            dictionary = ovq.State.from_bytes(tensor)
            for part in ("keys", "values", "counts", "pending_keys", "pending_values"):
                assert_near(getattr(state.dictionary, part), getattr(dictionary, part))
        else:
            assert_near(mine[name], tensor)


@every_case
def test_gradients(kind, change):
    layer, cpp = make_evaluated_pair(kind, change)
    x, cpp_x = make_input().requires_grad_(), make_input().requires_grad_()
    y, expected = layer(x), cpp.handle.forward(cpp_x, None)
    assert_near(y, expected, 1e-5)
    loss_of(y).backward()
    loss_of(expected).backward()
    assert_near(x.grad, cpp_x.grad)
    for name, parameter in layer.named_parameters():
        gradient = cpp.parameters[name].grad
        assert (parameter.grad is None) == (gradient is None), name
        if gradient is not None:
            assert gradient.abs().max() > 0 or change == "window of one"  # one logit has no gradient
            assert_near(parameter.grad, gradient, 1e-4)


@every_case
@pytest.mark.parametrize("gradients", [False, True])
def test_states(kind, change, gradients):
    layer, cpp = make_evaluated_pair(kind, change)
    x = make_input()
    with torch.set_grad_enabled(gradients):
        y, state = layer(x[:, :9], return_state=True)
        expected, handles = cpp(x[:, :9])
        assert_near(y, expected, 1e-5)
        y, state = layer(x[:, 9:14], state=state)
        expected, handles = cpp(x[:, 9:14], handles)
        assert_near(y, expected, 1e-5)
        for t in range(14, TIME):
            token = x[:, t : t + 1]
            assert_near(layer.step(token, state), cpp.handle.step(token, handles, None), 1e-5)
    assert state.position == handles[0].position() == TIME
    assert_same_state(state, handles[0])
    if not gradients:
        assert state.nbytes == handles[0].nbytes()


@every_case
def test_gradients_through_states(kind, change):
    layer, cpp = make_evaluated_pair(kind, change)
    x, cpp_x = make_input().requires_grad_(), make_input().requires_grad_()
    first, state = layer(x[:, :9], return_state=True)
    loss_of(torch.cat([first, layer(x[:, 9:], state=state)[0]], 1)).backward()
    first, handles = cpp(cpp_x[:, :9])
    loss_of(torch.cat([first, cpp(cpp_x[:, 9:], handles)[0]], 1)).backward()
    assert_near(x.grad, cpp_x.grad, 1e-4)
    for name, parameter in layer.named_parameters():
        gradient = cpp.parameters[name].grad
        assert (parameter.grad is None) == (gradient is None), name
        if gradient is not None:
            assert_near(parameter.grad, gradient, 1e-4)


@every_case
def test_packed_sequences(kind, change):
    layer, cpp = make_evaluated_pair(kind, change)
    x, cpp_x = make_input(1).requires_grad_(), make_input(1).requires_grad_()
    offsets = torch.tensor([0, 5, 5, 14, TIME])
    y, expected = layer(x, cu_seqlens=offsets), cpp.handle.forward(cpp_x, offsets)
    assert_near(y, expected, 1e-5)
    loss_of(y).backward()
    loss_of(expected).backward()
    assert_near(x.grad, cpp_x.grad)
    with torch.no_grad():
        y, states = layer(x, cu_seqlens=offsets, return_state=True)
        expected, handles = cpp(cpp_x, (), offsets)
        assert_near(y, expected, 1e-5)
        assert [state.position for state in states] == [handle.position() for handle in handles] == [5, 0, 9, 9]
        again = torch.tensor([0, 2, 3, 4, 5])
        token = layer.step(x[:, :5], states, cu_seqlens=again)
        assert_near(token, cpp.handle.step(cpp_x[:, :5], handles, again), 1e-5)


@every_case
def test_autocast(kind, change):
    """Layers in Python round as autocast says; those of the engine compute in float32."""
    layer, cpp = make_evaluated_pair(kind, change)
    x = make_input()
    plain, plain_handles = cpp(x[:, :9])
    token = x[:, 9:10]
    plain_step = cpp.handle.step(token, plain_handles, None)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = layer(x[:, :9], return_state=True)
        expected, handles = cpp(x[:, :9])
        assert y.dtype == torch.bfloat16
        assert torch.equal(expected, plain) and expected.dtype == torch.float32
        assert torch.equal(cpp.handle.step(token, handles, None), plain_step)
        if kind not in ("ovq", "vq"):  # their choices follow the bits
            assert_near(y, expected, 0.05)


@pytest.mark.parametrize("kind", CASES)
def test_states_cross_over(kind, tmp_path):
    """A state of one is a state of the other, also by way of a file."""
    layer, cpp = make_evaluated_pair(kind, "")
    x = make_input()
    with torch.no_grad():
        _, state = layer(x[:, :9], return_state=True)
        _, handles = cpp(x[:, :9])
        state.save(tmp_path / "mine")
        handles[0].save(str(tmp_path / "cpp"), "mixer")
        theirs = torch.ops.ovq.load_states(str(tmp_path / "mine"), "mixer")
        mine = ovq.MixerState.load(tmp_path / "cpp")
        token = x[:, 9:10]
        expected = layer.step(token, state)
        assert_near(layer.step(token, mine), expected, 1e-5)
        assert_near(cpp.handle.step(token, [theirs], None), expected, 1e-5)


@pytest.mark.parametrize("change", CASES["vq"][1])
def test_training_of_codebooks(change):
    """Steps of two forwards each: the same losses, gradients, and codebooks after each."""
    # Noise follows the bits of the keys, which C++ and torch's library compute with different products.
    layer, cpp = make_pair("vq", change, **({} if change == "ema" else dict(training="diveq", noise=0.0)))
    optimizers = [torch.optim.SGD([p for p in parameters if p.requires_grad], 0.1)
                  for parameters in (layer.parameters(), cpp.parameters.values())]
    for step in range(5):
        layer.begin_step(step, 7)
        cpp.handle.begin_step(step, 7)
        copy_parameters(layer, cpp)  # rounding would grow: choices are discrete
        for optimizer in optimizers:
            optimizer.zero_grad()
        for seed in (0, 1):
            x = make_input(seed=10 * step + seed)
            losses = []
            for forward, auxiliary in ((layer, layer.auxiliary_loss), (cpp.handle.forward, cpp.handle.auxiliary_loss)):
                y = forward(x) if forward is layer else forward(x, None)
                losses.append((y - x).square().mean() + (0 if auxiliary() is None else auxiliary()))
                losses[-1].backward()
            assert_near(losses[0], losses[1], 1e-5)
        for name, parameter in layer.named_parameters():
            gradient = cpp.parameters[name].grad
            assert (parameter.grad is None) == (gradient is None), name
            if gradient is not None:
                assert_near(parameter.grad, gradient, 1e-4)
        for optimizer in optimizers:
            optimizer.step()
        layer.end_step()
        cpp.handle.end_step()
        for name, tensor in layer.state_dict().items():
            assert_near(tensor.float(), cpp.tensors[name].float(), 1e-4)
    assert layer.started == cpp.tensors["started"] == 1


@every_case
def test_options_and_sizes(kind, change):
    layer, cpp = make_pair(kind, change)
    assert layer.config == json.loads(cpp.handle.config())
    again = {name: value for name, value in layer.config.items() if name != "type"}
    assert ovq.make_mixer(kind, DIM, **again).config == layer.config
    for tokens in (0, 1, 7, 1000, 2**40):
        for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
            assert layer.state_bytes(tokens, dtype) == cpp.handle.state_bytes(tokens, name)


@pytest.mark.parametrize("kind", CASES)
def test_every_option_is_compared(kind):
    fields = {field["name"] for field in json.loads(torch.ops.ovq.mixer_options(kind))}
    base, changes = CASES[kind]
    compared = {name for change in changes.values() for name in change}
    assert fields - compared - set(base) == set() and compared | set(base) == fields


@pytest.mark.parametrize("kind", CASES)
def test_initial_distributions(kind):
    """The same mean and spread of every parameter, over many draws."""
    torch.manual_seed(0)
    options = CASES[kind][0]
    if kind in ("attention", "ovq", "vq"):
        options = dict(options, convolution=True, value_shift=True)
    draws = 200
    mine, theirs = {}, {}
    for found, make in (
        (mine, lambda: dict(ovq.make_mixer(kind, DIM, **options).named_parameters())),
        (theirs, lambda: CppMixer(kind, options).parameters),
    ):
        for _ in range(draws):
            for name, tensor in make().items():
                found.setdefault(name, []).append(tensor.detach().flatten())
    for name, tensors in theirs.items():
        a, e = torch.cat(mine[name]).double(), torch.cat(tensors).double()
        spread = e.std().item()
        assert abs(a.mean() - e.mean()) <= 5 * spread * (2 / e.numel()) ** 0.5 + 1e-7, name
        assert abs(a.std().item() - spread) <= 0.1 * spread + 1e-7, name
        assert torch.allclose(a.quantile(torch.tensor([0.1, 0.9]).double()), e.quantile(torch.tensor([0.1, 0.9]).double()),
                              rtol=0.1, atol=0.3 * spread + 1e-7), name
