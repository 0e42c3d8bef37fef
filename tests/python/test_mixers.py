"""Every sequence mixer as a layer; test_layers.py compares them with C++."""

import copy
import pickle
import threading

import pytest
import torch
from common import assert_near

import ovq

DIM, TIME = 16, 23
MIXERS = {
    "attention": (ovq.Attention, dict(heads=2, rope=True)),
    "window": (ovq.Attention, dict(heads=2, kv_heads=1, window=6)),
    "ovq": (ovq.OVQAttention, dict(heads=2, chunk=4, centroids=6)),
    "ovq more": (ovq.OVQAttention, dict(heads=2, chunk=4, centroids=6, rope=True, value_shift=True, convolution=True)),
    "attention more": (ovq.Attention, dict(heads=2, value_shift=True, convolution=True)),
    "vq more": (ovq.VQAttention, dict(heads=2, codewords=5, chunk=4, value_shift=True, convolution=True)),
    "ovq weighted": (ovq.OVQAttention, dict(heads=2, chunk=4, centroids=6, value_shift=True, weighted_writes=True)),
    "vq": (ovq.VQAttention, dict(heads=2, codewords=5, chunk=4)),
    "vq ema": (ovq.VQAttention, dict(heads=2, codewords=5, chunk=4, form="linear", training="ema", commitment=0.1)),
    "gdn": (ovq.GatedDeltaNet, dict(heads=2, key_dim=4, value_dim=8)),
    "mamba2": (ovq.Mamba2, dict(head_dim=4, state=4, groups=2)),
    "mesa": (ovq.MesaNet, dict(heads=2, key_dim=4, value_dim=8)),
    "linear": (ovq.LinearAttention, dict(heads=2, key_dim=4, value_dim=8)),
}
every_mixer = pytest.mark.parametrize("name", MIXERS)


def make(name, **options):
    torch.manual_seed(0)
    kind, defaults = MIXERS[name]
    layer = kind(DIM, **{**defaults, **options})
    if hasattr(layer, "started"):
        layer.started.fill_(1)  # the codebook; before that VQ-attention is attention
    with torch.no_grad():  # as if trained: outputs of a size that comparisons can see
        if getattr(layer, "w_gate", None) is not None:
            layer.w_gate.weight.normal_()
        for parameter in layer.parameters():
            if parameter.dim() == 2 and parameter.shape[1] > 4:
                parameter.mul_(10)
    return layer


def make_input(batch=2, dtype=torch.float32):
    return torch.randn(batch, TIME, DIM, generator=torch.Generator().manual_seed(1)).to(dtype)


def tensors_of(state):
    found = dict(state.tensors)
    if state.dictionary is not None:
        found.update(keys=state.keys, values=state.values, counts=state.counts)
    return found


def same_state(a, b):
    a_tensors, b_tensors = tensors_of(a), tensors_of(b)
    return a.position == b.position and a_tensors.keys() == b_tensors.keys() and all(
        torch.equal(a_tensors[name], b_tensors[name]) for name in a_tensors
    )


@every_mixer
def test_gradients_reach_python(name):
    layer, x = make(name), make_input().requires_grad_()
    layer(x).square().sum().backward()
    assert x.grad.abs().sum() > 0
    unused = {"quantizer.codebook"} if name == "vq ema" else set()
    missing = {n for n, p in layer.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0}
    assert missing <= unused
    assert all(isinstance(p, torch.nn.Parameter) and p.is_leaf for p in layer.parameters())


@every_mixer
@pytest.mark.parametrize("gradients", [False, True])
def test_pieces_and_steps_equal_one_pass(name, gradients):
    layer, x = make(name).eval(), make_input()
    with torch.set_grad_enabled(gradients):
        y = layer(x)
        first, state = layer(x[:, :9], return_state=True)
        before = state.clone()
        second, after = layer(x[:, 9:14], state=state)
        again, _ = layer(x[:, 9:14], state=state)
        assert torch.equal(second, again) and same_state(state, before)  # the given state is unchanged
        rest = [layer.step(x[:, t : t + 1], after) for t in range(14, TIME)]
    assert after.position == TIME and after.nbytes > 0
    assert not rest[0].requires_grad
    assert_near(torch.cat([first, second, *rest], 1), y)


class Broken(torch.nn.Module):
    def forward(self, *inputs, **carried):
        raise KeyError("mine")


@every_mixer
@pytest.mark.parametrize("steps", [False, True])
def test_errors_leave_a_whole_state(name, steps):
    """Whatever part of a step throws: the state is as it was, and if it was a part behind the op, as after the step."""
    layer, x = make(name).eval(), make_input()
    with torch.no_grad():
        _, before = layer(x[:, :9], return_state=True)
        if steps:  # caches with room behind them
            layer.step(x[:, 9:10], before)
        token = x[:, 10:11]
        after = before.clone()
        layer.step(token, after)
        broken = 0
        for part, own in list(layer.named_children()):
            state, fresh = before.clone(), ovq.MixerState()
            setattr(layer, part, Broken())
            for one in (state, fresh):
                with pytest.raises(KeyError, match="mine"):
                    layer.step(token, one)
            setattr(layer, part, own)
            behind = part in ("norm", "o_proj", "out_proj")
            assert same_state(state, after if behind else before), part
            assert fresh.position == int(behind) and bool(fresh.nbytes) == behind
            broken += 1
        assert broken >= 3
        expected = layer.step(token, before.clone())
        assert torch.equal(layer.step(token, before), expected)


@every_mixer
def test_gradients_through_states(name):
    layer, x = make(name).eval(), make_input().requires_grad_()
    y, state = layer(x, return_state=True)
    expected = torch.autograd.grad(y.square().sum(), x)[0]
    first, state = layer(x[:, :9], return_state=True)
    second, state = layer(x[:, 9:], state=state)
    assert_near(torch.autograd.grad(torch.cat([first, second], 1).square().sum(), x)[0], expected, 1e-4)


@every_mixer
def test_packed(name):
    layer, x = make(name).eval(), make_input(batch=1)
    with torch.no_grad():
        offsets = torch.tensor([0, 9, TIME])
        y = layer(x, cu_seqlens=offsets)
        with_states, states = layer(x, cu_seqlens=offsets, return_state=True)
        alone = torch.cat([layer(x[:, :9]), layer(x[:, 9:])], 1)
        token = layer.step(x[:, :2], states, cu_seqlens=torch.tensor([0, 1, 2]))
    assert_near(y, alone)
    assert_near(with_states, alone)
    assert token.shape == (1, 2, DIM) and [s.position for s in states] == [10, 15]


@every_mixer
def test_copies_of_the_layer(name):
    layer, x = make(name).eval(), make_input()
    y = layer(x)
    random = torch.get_rng_state()
    copies = [copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))]
    assert torch.equal(random, torch.get_rng_state())
    other = make(name).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.load_state_dict(layer.state_dict())
    for same in (*copies, other):
        assert torch.equal(same(x), y) and same.options == layer.options and not same.training
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    assert all(torch.equal(same(x), y) for same in (*copies, other))


@every_mixer
def test_copies_of_the_state(name, tmp_path):
    layer, x = make(name).eval(), make_input()
    with torch.no_grad():
        y, state = layer(x, return_state=True)
        state.save(tmp_path / "state.safetensors")
        ways = [state.clone(), copy.deepcopy(state), pickle.loads(pickle.dumps(state))]
        ways.append(ovq.MixerState.load(tmp_path / "state.safetensors"))
        assert all(same_state(other, state) for other in ways)
        next_y = layer.step(x[:, :1], state)
        for other in ways:
            assert other.position == TIME and torch.equal(layer.step(x[:, :1], other), next_y)


@every_mixer
def test_double(name):
    """The formula's layer: outputs, gradients and states as those of the kernel's, in pieces, by steps and packed."""
    single, double = make(name).eval(), make(name).double().eval()
    tensors = list(double.parameters()) + list(double.buffers())
    assert all(t.dtype == torch.float64 for t in tensors if t.is_floating_point())
    results = []
    for layer in (single, double):
        x = make_input(dtype=layer.q_proj.weight.dtype if hasattr(layer, "q_proj") else layer.in_proj.weight.dtype)
        x.requires_grad_()
        y = layer(x)
        first, state = layer(x[:, :9], return_state=True)
        second, state = layer(x[:, 9:14], state=state)
        assert_near(torch.cat([first, second], 1), y[:, :14], 1e-5 if layer is single else 1e-10)
        wanted = [p for p in layer.parameters() if p.requires_grad]
        gradients = torch.autograd.grad(y.square().sum(), [x, *wanted], allow_unused=True)
        steps = [layer.step(x[:, t : t + 1], state) for t in range(14, TIME)]
        assert_near(torch.cat(steps, 1), y[:, 14:], 1e-5 if layer is single else 1e-10)
        packed = layer(x[:1], cu_seqlens=torch.tensor([0, 5, 5, TIME]))
        more, states = layer(x[:1], cu_seqlens=torch.tensor([0, 5, 5, TIME]), return_state=True)
        assert_near(more, packed, 1e-5 if layer is single else 1e-10)
        assert [s.position for s in states] == [5, 0, TIME - 5]
        found = [y, packed, *(g for g in gradients if g is not None)]
        for one in (state, *states):
            found += [x for _, x in sorted(tensors_of(one).items()) if x.is_floating_point()]
        results.append(found)
    for a, e in zip(*results):
        assert e.dtype == torch.float64
        assert_near(a, e, 1e-4)
    assert torch.equal(copy.deepcopy(double)(x), double(x))


@every_mixer
def test_training(name):
    layer, x = make(name).train(), make_input()
    target = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    optimizer = torch.optim.AdamW(layer.parameters(), lr=3e-2)
    losses = []
    for i in range(12):
        layer.begin_step(i, 7)
        loss = (layer(x) - target).square().mean()
        auxiliary = layer.auxiliary_loss()
        assert (auxiliary is not None) == (name == "vq ema")
        optimizer.zero_grad()
        (loss if auxiliary is None else loss + auxiliary).backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


@every_mixer
def test_state_bytes(name):
    layer, x = make(name).eval(), make_input(batch=1)
    with torch.no_grad():
        _, state = layer(x, return_state=True)
    assert state.nbytes <= 2 * layer.state_bytes(TIME) + 4096 * len(state.tensors)
    assert "Mixer" not in repr(layer) and f"dim={DIM}" in repr(layer)
    assert repr(state).startswith(f"MixerState(position={TIME}, nbytes=")


@every_mixer
def test_state_bytes_of_any_length(name):
    layer = make(name)
    bytes = [layer.state_bytes(tokens) for tokens in (2**20, 2**30, 2**40, 2**48)]
    assert bytes == sorted(bytes) and bytes[0] > 0
    assert (bytes[0] == bytes[3]) == (name not in ("attention", "attention more"))
    for tokens in (-1, 2**48 + 1):
        with pytest.raises(ValueError, match=rf"\[mixer\] tokens is {tokens}; must be in \[0, 281474976710656\]"):
            layer.state_bytes(tokens)


def test_deepcopy_keeps_optimizers_and_additions():
    layer = make("gdn")
    layer.extra = torch.nn.Linear(2, 2)
    layer.q_proj.weight.requires_grad_(False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    other, other_optimizer = copy.deepcopy((layer, optimizer))
    assert other.extra.weight is not layer.extra.weight and not other.q_proj.weight.requires_grad
    own = {id(p) for p in other.parameters()}
    assert {id(p) for group in other_optimizer.param_groups for p in group["params"]} == own


def test_centroids_may_change():
    layer, x = make("ovq").eval(), make_input()
    layer.set_centroids(20)
    assert layer.options["centroids"] == 20 and layer(x, return_state=True)[1].keys.shape[2] > 6
    with pytest.raises(ValueError, match="for ovq mixers"):
        make("gdn").set_centroids(20)


BAD = {
    'unknown mixer type "gnd"; did you mean "gdn"': lambda: ovq.make_mixer("gnd", 8),
    "heads is 0; must be an integer of at least 1": lambda: ovq.GatedDeltaNet(8, 0),
    "heads is 3; must divide width 8": lambda: ovq.Attention(8, 3),
    "kv_heads is 3; must divide heads 4": lambda: ovq.VQAttention(8, 4, kv_heads=3),
    "iterations is 2.5; must be an integer": lambda: ovq.MesaNet(8, 2, iterations=2.5),
    'form is "cubic"; must be one of "quadratic", "linear"': lambda: ovq.VQAttention(8, 2, form="cubic"),
    "even": lambda: ovq.OVQAttention(8, 2, head_dim=3, rope=True),
    "width is 0": lambda: ovq.Mamba2(0),
    "x has width 4; must have": lambda: make("gdn")(torch.randn(1, 3, 4)),
    "x has 2 dimensions; must have 3": lambda: make("mesa")(torch.randn(3, DIM)),
    "must be 2, one per packed": lambda: make("gdn")(
        torch.randn(1, 4, DIM), cu_seqlens=torch.tensor([0, 2, 4]), state=[ovq.MixerState()]
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_values(message):
    with pytest.raises(ValueError, match=message):
        BAD[message]()


def test_bad_types():
    x = torch.randn(1, 3, DIM)
    layer = make("gdn")
    with pytest.raises(TypeError, match="keyword"):
        ovq.GatedDeltaNet(8, 2, window=3)
    with pytest.raises(TypeError, match=r"\[mixer\] Expected a value of type 'int'"):
        ovq.GatedDeltaNet("8", 2)
    with pytest.raises(TypeError, match=r"\[mixer\] x is a list; must be a tensor"):
        layer([1.0])
    with pytest.raises(TypeError, match="state is a Tensor; must be a MixerState"):
        layer(x, state=x)
    with pytest.raises(TypeError, match=r"\[mixer\] cu_seqlens is a list; must be a tensor"):
        layer(x, cu_seqlens=[0, 3])
    with pytest.raises(TypeError, match="must be a list of MixerStates"):
        layer.step(x, ovq.MixerState(), cu_seqlens=torch.tensor([0, 3]))


@every_mixer
def test_wrong_dtypes(name):
    layer, x = make(name), make_input()
    with pytest.raises(TypeError, match=r"\[mixer\] x has dtype torch.int64; must be a floating one"):
        layer(x.long())
    with pytest.raises(TypeError, match=r"\[projection\] x has dtype torch.float64; must be the weight's torch.float32"):
        layer(x.double())
    with pytest.raises(TypeError, match=r"cu_seqlens has dtype torch.float32; must be an integer one"):
        layer(x[:1], cu_seqlens=torch.tensor([0.0, TIME]))
    with pytest.raises(ValueError, match=r"cu_seqlens has 2 dimensions; must have 1"):
        layer(x[:1], cu_seqlens=torch.tensor([[0, TIME]]))


def test_damaged_states(tmp_path):
    path = tmp_path / "state"
    with pytest.raises(FileNotFoundError):
        ovq.MixerState.load(path)
    path.write_bytes(b"no")
    with pytest.raises(ValueError, match="state"):
        ovq.MixerState.load(path)
    with pytest.raises(OSError, match="missing"):
        ovq.MixerState().save(tmp_path / "missing" / "state")
    double = make("ovq").double()(make_input(dtype=torch.float64), return_state=True)[1]
    with pytest.raises(TypeError, match="cannot pickle this MixerState: .* is of the formula, torch.float64 on cpu"):
        pickle.dumps(double)
    with pytest.raises(TypeError, match="of the formula, torch.float64 on cpu; only states of the kernel can be stored"):
        double.save(path)


def test_other_threads_run_meanwhile():
    layer, x = ovq.Attention(64, 1), torch.randn(1, 4096, 64)
    counted = []

    def count():
        while not done.is_set():
            counted.append(1)
            done.wait(1e-4)

    done = threading.Event()
    thread = threading.Thread(target=count)
    thread.start()
    with torch.no_grad():
        layer(x)
        before = len(counted)
        layer(x)
        after = len(counted)
    done.set()
    thread.join()
    assert after - before > 3


@every_mixer
@pytest.mark.parametrize("begun", ["forward", "step", "clone"])
def test_states_of_inference_mode_go_on_outside(name, begun):
    layer, x = make(name).eval(), make_input()
    with torch.no_grad():
        expected = layer(x)
    with torch.inference_mode():
        if begun == "step":
            state = ovq.MixerState()
            layer.step(x[:, :9], state)
        else:
            state = layer(x[:, :9], return_state=True)[1]
        state = state.clone() if begun == "clone" else state
        pieces = [layer.step(x[:, t : t + 1], state) for t in range(9, 12)]
    pieces += [layer.step(x[:, t : t + 1], state) for t in range(12, 15)]
    with torch.inference_mode():
        pieces.append(layer.step(x[:, 15:17], state))
    with torch.no_grad():
        pieces.append(layer(x[:, 17:20], state=state)[0])
    assert_near(torch.cat(pieces, 1), expected[:, 9:20], 1e-4)


def test_vq_attention_counts_in_bfloat16():
    torch.manual_seed(0)
    layer, x = ovq.VQAttention(DIM, heads=1, codewords=2, chunk=300).eval(), torch.randn(1, 1500, DIM) + 3
    layer.started.fill_(1)
    narrow, x = copy.deepcopy(layer).bfloat16(), x.bfloat16().float()
    with torch.no_grad():
        layer.load_state_dict(narrow.state_dict())
        y, state = layer(x, return_state=True)
        near, after = narrow(x.bfloat16(), return_state=True)
        pieces = [narrow(x[:, :700].bfloat16(), return_state=True)]
        pieces.append(narrow(x[:, 700:].bfloat16(), state=pieces[0][1]))
    assert after.tensors["counts"].sum() == state.tensors["counts"].sum() == 900
    assert after.tensors["counts"].max() > 512
    assert torch.equal(pieces[1][1].tensors["counts"], after.tensors["counts"])
    assert_near(torch.cat([y for y, _ in pieces], 1), near, 0.02)
    assert_near(near, y, 0.05)
