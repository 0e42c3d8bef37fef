"""State: carried across pieces, decoded with, copied and stored."""

import copy
import pickle
import random

import pytest
import torch
from common import OPTIONS, assert_all_near, assert_near, both_paths, formula_path, loss_of, make_inputs

import ovq

SIZES = dict(chunk=8, centroids=12)


def split(time, seed):
    pick = random.Random(seed)
    bounds = sorted({0, time, *(pick.randint(1, time - 1) for _ in range(pick.randint(1, 5)))})
    return list(zip(bounds, bounds[1:]))


def in_pieces(inputs, pieces, path, **options):
    q, k, v, beta = inputs
    outputs, state = [], None
    for a, b in pieces:
        given = dict(path=path, **(SIZES if state is None else {}), **(options if state is None else {}))
        o, state = ovq.ovq_attention(q[:, a:b], k[:, a:b], v[:, a:b], beta, state=state, return_state=True, **given)
        outputs.append(o)
    return torch.cat(outputs, 1), state


def same_state(a, b):
    return a.position == b.position and all(
        torch.equal(getattr(a, name), getattr(b, name))
        for name in ("keys", "values", "counts", "pending_keys", "pending_values")
    )


@pytest.mark.parametrize("name", OPTIONS)
@both_paths
def test_pieces_equal_one_pass(name, path):
    inputs = make_inputs(time=60, group=2, value_dim=5)
    o, state = ovq.ovq_attention(*inputs, return_state=True, path="formula", **SIZES, **OPTIONS[name])
    gradients = torch.autograd.grad(loss_of(o, [state]), inputs)
    for seed in range(2):
        pieces, final = in_pieces(inputs, split(60, seed), path=path, **OPTIONS[name])
        assert final.path == path
        if path == "kernel":
            one_pass, one_state = ovq.ovq_attention(*inputs, return_state=True, **SIZES, **OPTIONS[name])
            assert torch.equal(pieces, one_pass) and same_state(final, one_state)
        assert_near(pieces, o)
        assert_all_near(torch.autograd.grad(loss_of(pieces, [final]), inputs), gradients, 1e-4)


@both_paths
def test_packed_pieces(path):
    dtype = torch.float32 if path == "kernel" else torch.float64
    q, k, v, beta = make_inputs(batch=1, time=60, dtype=dtype)
    o, states = ovq.ovq_attention(q, k, v, beta, cu_seqlens=torch.tensor([0, 25, 60]), return_state=True, **SIZES)

    def select(x, *ranges):
        return torch.cat([x[:, a:b] for a, b in ranges], 1)

    first, second = [(0, 9), (25, 50)], [(9, 25), (50, 60)]
    parts = [select(x, *first) for x in (q, k, v)]
    o1, carried = ovq.ovq_attention(*parts, beta, cu_seqlens=torch.tensor([0, 9, 34]), return_state=True, **SIZES)
    parts = [select(x, *second) for x in (q, k, v)]
    offsets = torch.tensor([0, 16, 26])
    o2, carried = ovq.ovq_attention(*parts, beta, cu_seqlens=offsets, state=carried, return_state=True)
    joined = torch.cat([o1[:, :9], o2[:, :16], o1[:, 9:], o2[:, 16:]], 1)
    if path == "kernel":
        assert torch.equal(joined, o) and all(same_state(a, b) for a, b in zip(carried, states))
    assert_near(joined, o, 1e-12)
    expected = torch.autograd.grad(loss_of(o, states), (q, k, v, beta))
    assert_all_near(torch.autograd.grad(loss_of(joined, carried), (q, k, v, beta)), expected)


@pytest.mark.parametrize("name", OPTIONS)
def test_step_equals_one_pass_bit_for_bit(name):
    q, k, v, beta = (x.detach() for x in make_inputs(time=50, group=2, value_dim=5))
    expected, final = ovq.ovq_attention(q, k, v, beta, return_state=True, **SIZES, **OPTIONS[name])
    o, state = ovq.ovq_attention(q[:, :11], k[:, :11], v[:, :11], beta, return_state=True, **SIZES, **OPTIONS[name])
    outputs = [o]
    for t in range(11, 50):
        outputs.append(ovq.step(q[:, t : t + 1], k[:, t : t + 1], v[:, t : t + 1], beta, state))
    assert torch.equal(torch.cat(outputs, 1), expected)
    assert same_state(state, final)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_step_of_packed_sequences(dtype):
    q, k, v, beta = (x.detach() for x in make_inputs(batch=1, time=30, dtype=dtype))
    _, states = ovq.ovq_attention(q, k, v, beta, cu_seqlens=torch.tensor([0, 10, 30]), return_state=True, **SIZES)
    alone = [state.clone() for state in states]
    token = [x[:, :2] for x in (q, k, v)]
    o = ovq.step(*token, beta, states, cu_seqlens=torch.tensor([0, 1, 2]))
    for i, state in enumerate(alone):
        assert torch.equal(o[:, i : i + 1], ovq.step(*(x[:, i : i + 1] for x in token), beta, state))
        assert same_state(state, states[i])


def test_states_of_one_call_have_one_limit():
    q, k, v, beta = (x.detach() for x in make_inputs(batch=1, time=30))
    offsets = torch.tensor([0, 15, 30])
    states = [ovq.ovq_attention(q, k, v, beta, chunk=8, centroids=n, return_state=True)[1] for n in (12, 20)]
    for call in (
        lambda: ovq.ovq_attention(q, k, v, beta, state=states, cu_seqlens=offsets),
        lambda: ovq.step(q, k, v, beta, states, cu_seqlens=offsets),
    ):
        with pytest.raises(ValueError, match=r"states\[1\] has centroids 20; must equal states\[0\]'s 12"):
            call()
    _, after = ovq.ovq_attention(q, k, v, beta, state=states, cu_seqlens=offsets, centroids=16, return_state=True)
    assert [state.options["centroids"] for state in after] == [16, 16]
    assert [state.options["centroids"] for state in states] == [12, 20]


@both_paths
def test_step_without_gradients(path):
    q, k, v, beta = make_inputs(time=9)
    _, state = ovq.ovq_attention(q, k, v, beta, return_state=True, path=path, **SIZES)
    assert state.keys.requires_grad
    o = ovq.step(q, k, v, beta, state)  # on the state's path
    assert not o.requires_grad and not state.keys.requires_grad and state.position == 18


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_backward_after_step(dtype):
    inputs = make_inputs(time=30, dtype=dtype)
    o, state = ovq.ovq_attention(*inputs, return_state=True, **SIZES)
    o2, _ = ovq.ovq_attention(*inputs, state=state, return_state=True)
    expected = torch.autograd.grad(loss_of(o) + loss_of(o2), inputs, retain_graph=True)
    ovq.step(*inputs, state)
    actual = torch.autograd.grad(loss_of(o) + loss_of(o2), inputs)
    assert all(torch.equal(a, b) for a, b in zip(actual, expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_given_state_is_unchanged(dtype):
    inputs = [x.detach() for x in make_inputs(time=30, dtype=dtype)]
    _, state = ovq.ovq_attention(*inputs, return_state=True, **SIZES)
    before = state.clone()
    o = ovq.ovq_attention(*inputs, state=state)
    assert same_state(state, before)
    assert torch.equal(o, ovq.ovq_attention(*inputs, state=state))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_views_keep_their_contents_after_a_step(dtype):
    inputs = [x.detach() for x in make_inputs(time=30, dtype=dtype)]
    _, state = ovq.ovq_attention(*inputs, return_state=True, **SIZES)
    views = [state.keys, state.values, state.pending_keys, state.pending_values]
    contents = [x.clone() for x in views]
    for _ in range(5):
        ovq.step(*inputs, state)
    assert state.position == 180
    del state
    assert all(torch.equal(a, b) for a, b in zip(views, contents))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_options(dtype):
    inputs = make_inputs(time=30, group=2, value_dim=5, dtype=dtype)
    _, state = ovq.ovq_attention(*inputs, return_state=True, rate=0.1, seed=3, **SIZES)
    size = state.keys.shape[2]
    assert 0 < size <= 12
    assert state.keys.shape == (2, 2, size, 8) and state.values.shape == (2, 2, size, 5)
    assert state.counts.shape == (2, 2, size) and state.counts.dtype == torch.int64
    assert state.pending_keys.shape == (2, 2, 6, 8) and state.pending_values.shape == (2, 2, 6, 5)
    assert (state.counts.sum(-1) == 24).all()
    assert state.position == 30 and state.nbytes > 0
    assert state.options["chunk"] == 8 and state.options["rate"] == pytest.approx(0.1) and state.options["seed"] == 3
    assert "position=30" in repr(state)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_memory_is_bounded(dtype):
    inputs = [x.detach() for x in make_inputs(time=64, dtype=dtype)]
    _, state = ovq.ovq_attention(*inputs, return_state=True, chunk=8, centroids=4)
    sizes = []
    for _ in range(30):
        ovq.step(*inputs, state)
        sizes.append(state.nbytes)
    assert state.position == 31 * 64 and sizes[-1] == sizes[5]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_centroids_may_change_other_options_may_not(dtype):
    inputs = [x.detach() for x in make_inputs(time=40, dtype=dtype)]
    _, state = ovq.ovq_attention(*inputs, return_state=True, rate=0.1, rope_base=123.4, **SIZES)
    _, raised = ovq.ovq_attention(*inputs, state=state, centroids=40, return_state=True)
    assert raised.options["centroids"] == 40 and raised.keys.shape[2] > 12
    assert state.options["centroids"] == 12
    ovq.ovq_attention(*inputs, state=state, chunk=8, rate=0.1, rope_base=123.4, growth="plateau")
    for conflict in (dict(chunk=16), dict(rate=0.2), dict(growth="all"), dict(rope=True), dict(seed=1)):
        with pytest.raises(ValueError, match=next(iter(conflict))):
            ovq.ovq_attention(*inputs, state=state, **conflict)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_detach_cuts_the_graph(dtype):
    inputs = make_inputs(time=20, dtype=dtype)
    _, state = ovq.ovq_attention(*inputs, return_state=True, **SIZES)
    detached = state.detach()
    assert state.keys.requires_grad and not detached.keys.requires_grad
    ovq.step(*inputs, detached)
    assert (state.position, detached.position) == (20, 40)
    assert state.keys.requires_grad


@pytest.mark.parametrize("name", ["default", "rope", "mixed"])
@pytest.mark.parametrize("how", ["clone", "deepcopy", "copy", "pickle", "save", "torch.save"])
def test_copies(name, how, tmp_path):
    inputs = [x.detach() for x in make_inputs(time=30)]
    _, state = ovq.ovq_attention(*inputs, return_state=True, **SIZES, **OPTIONS[name])
    if how == "save":
        state.save(tmp_path / "state.ovq")
        other = ovq.State.load(tmp_path / "state.ovq")
    elif how == "torch.save":
        torch.save({"state": state}, tmp_path / "state.pt")
        other = torch.load(tmp_path / "state.pt")["state"]
    else:
        ways = dict(
            clone=lambda s: s.clone(),
            deepcopy=copy.deepcopy,
            copy=copy.copy,
            pickle=lambda s: pickle.loads(pickle.dumps(s)),
        )
        other = ways[how](state)
    assert same_state(state, other) and state.options == other.options
    o = ovq.step(*inputs, other)
    assert (state.position, other.position) == (30, 60)
    assert torch.equal(o, ovq.ovq_attention(*inputs, state=state))


def test_states_of_the_formula(tmp_path):
    inputs = make_inputs(time=20, dtype=torch.float64)
    _, state = ovq.ovq_attention(*inputs, return_state=True, value_norms=True, **SIZES)
    for other in (copy.copy(state), copy.deepcopy(state), state.clone()):
        assert same_state(state, other) and not other.keys.requires_grad and other.options == state.options
        ovq.step(*inputs, other)
        assert (state.position, other.position) == (20, 40)
    given = "the state is of the formula, torch.float64 on cpu; only states of the kernel can be"
    with pytest.raises(TypeError, match=rf"\[State.to_bytes\] {given} stored"):
        pickle.dumps(state)
    with pytest.raises(ValueError, match=rf"\[State.save\] {given} stored"):
        state.save(tmp_path / "state")
    with pytest.raises(ValueError, match=rf"\[State.to\] {given} converted"):
        state.to(torch.float32)


def test_states_keep_to_their_path():
    inputs = make_inputs(time=20)
    states = {path: ovq.ovq_attention(*inputs, path=path, return_state=True, **SIZES)[1] for path in ("kernel", "formula")}
    for made_by, other in (("kernel", "formula"), ("formula", "kernel")):
        before = states[made_by].clone()
        with pytest.raises(ValueError, match=rf"states\[0\] was made by the {made_by}; these inputs take the {other} "):
            ovq.ovq_attention(*inputs, state=states[made_by], path=other)
        assert same_state(states[made_by], before)
        expected = ovq.ovq_attention(*inputs, state=states[made_by], path=made_by)
        assert torch.equal(ovq.step(*inputs, states[made_by]), expected)
    with formula_path(), pytest.raises(ValueError, match="was made by the kernel; these inputs take the formula"):
        ovq.step(*inputs, states["kernel"])
    with pytest.raises(ValueError, match="was made by the kernel; these inputs take the formula"):
        ovq.step(*(x.double() for x in inputs), states["kernel"])


def test_damaged_files(tmp_path):
    inputs = make_inputs(time=20)
    _, state = ovq.ovq_attention(*inputs, return_state=True, **SIZES)
    path = tmp_path / "state.ovq"
    state.save(path)
    data = bytearray(path.read_bytes())
    for more in (b"\0", b"OVQSTATE", bytes(data)):
        path.write_bytes(bytes(data) + more)
        with pytest.raises(ValueError, match=r"\[State.load\] bytes follow the end of the state; must be"):
            ovq.State.load(path)
    function, (stored,) = state.__reduce__()
    with pytest.raises(ValueError, match=r"\[State.from_bytes\] bytes follow"):
        function(torch.cat([stored, stored[:1]]))
    assert same_state(function(stored), state)
    data[len(data) // 2] ^= 1
    for damaged in (b"", data[:20], data[:-1], data):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="OvqState::read"):
            ovq.State.load(path)
    with pytest.raises(FileNotFoundError):
        ovq.State.load(tmp_path / "missing")
    with pytest.raises(OSError, match="cannot create"):
        state.save(tmp_path / "missing" / "state.ovq")
