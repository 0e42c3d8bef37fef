"""States whose centroids are stored as bfloat16."""

import pickle

import pytest
import torch
from common import OPTIONS, assert_near, make_inputs

import ovq

SIZES = dict(chunk=8, centroids=12)
NARROW = dict(return_state=True, state_dtype=torch.bfloat16)


def inputs(**sizes):
    return tuple(x.detach() for x in make_inputs(**{**dict(time=50, group=2, value_dim=5), **sizes}))


def part(tensors, a, b):
    q, k, v, beta = tensors
    return q[:, a:b], k[:, a:b], v[:, a:b], beta


def same_state(a, b):
    names = ("dtype", "position")
    tensors = ("keys", "values", "counts", "pending_keys", "pending_values")
    return all(getattr(a, n) == getattr(b, n) for n in names) and all(
        torch.equal(getattr(a, n), getattr(b, n)) for n in tensors
    )


@pytest.mark.parametrize("name", OPTIONS)
def test_pieces_and_steps_equal_one_pass_bit_for_bit(name):
    x = inputs()
    o, final = ovq.ovq_attention(*x, **NARROW, **SIZES, **OPTIONS[name])
    assert final.dtype == torch.bfloat16 == final.keys.dtype == final.values.dtype
    assert final.pending_keys.dtype == final.pending_values.dtype == torch.float32
    first, state = ovq.ovq_attention(*part(x, 0, 11), **NARROW, **SIZES, **OPTIONS[name])
    second, state = ovq.ovq_attention(*part(x, 11, 30), state=state, return_state=True)
    steps = [ovq.step(*part(x, t, t + 1), state) for t in range(30, 50)]
    assert torch.equal(torch.cat([first, second, *steps], 1), o)
    assert same_state(state, final)


def test_it_is_close_to_float32_and_half_the_size():
    x = inputs(time=600, key_dim=64, value_dim=64)
    x = (*(torch.nn.functional.normalize(y, dim=-1) for y in x[:2]), x[2], 8.0)
    sizes = dict(chunk=16, centroids=400, growth="all")
    o, wide = ovq.ovq_attention(*x, return_state=True, **sizes)
    narrow_o, narrow = ovq.ovq_attention(*x, **NARROW, **sizes)
    assert 0 < (narrow_o - o).pow(2).mean().sqrt() < 0.02 * o.pow(2).mean().sqrt()
    assert 0.5 < narrow.nbytes / wide.nbytes < 0.55


def test_conversion():
    x = inputs()
    _, state = ovq.ovq_attention(*x, return_state=True, **SIZES)
    narrow = state.to(torch.bfloat16)
    assert state.dtype == torch.float32 and narrow.dtype == torch.bfloat16
    assert torch.equal(narrow.keys, state.keys.bfloat16()) and torch.equal(narrow.values, state.values.bfloat16())
    assert torch.equal(narrow.counts, state.counts) and torch.equal(narrow.pending_keys, state.pending_keys)
    wide = narrow.to(torch.float32)
    assert torch.equal(wide.keys, narrow.keys.float()) and same_state(wide.to(torch.bfloat16), narrow)
    token = part(x, 0, 1)
    assert_near(ovq.step(*token, narrow), ovq.step(*token, state), 0.05)


def test_copies_and_files(tmp_path):
    _, state = ovq.ovq_attention(*inputs(), **NARROW, **SIZES)
    state.save(tmp_path / "state")
    for copy in (state.clone(), state.detach(), ovq.State.load(tmp_path / "state"), pickle.loads(pickle.dumps(state))):
        assert same_state(copy, state)
    assert "bfloat16" in repr(state)


def test_packed_sequences_and_weights():
    q, k, v, beta = inputs(batch=1, time=60)
    weights = torch.rand(1, 60, 2) + 0.1
    offsets = torch.tensor([0, 25, 60])
    o, states = ovq.ovq_attention(q, k, v, beta, weights=weights, cu_seqlens=offsets, **NARROW, **SIZES)
    for (a, b), state in zip([(0, 25), (25, 60)], states):
        alone, expected = ovq.ovq_attention(*part((q, k, v, beta), a, b), weights=weights[:, a:b], **NARROW, **SIZES)
        assert torch.equal(o[:, a:b], alone) and same_state(state, expected)
        assert state.counts.dtype == torch.float32


def test_no_gradients():
    x = make_inputs()
    with pytest.raises(ValueError, match="bfloat16, which is for inference"):
        ovq.ovq_attention(*x, **NARROW, **SIZES)
    with torch.no_grad():
        _, state = ovq.ovq_attention(*x, **NARROW, **SIZES)
    with pytest.raises(ValueError, match=r"states\[0\] is stored as bfloat16"):
        ovq.ovq_attention(*x, state=state)
    assert not state.keys.requires_grad
    assert ovq.step(*part(x, 0, 1), state).shape == (2, 1, 2, 8)


def test_errors():
    x = inputs()
    with pytest.raises(ValueError, match="state_dtype is torch.float64; must be torch.float32 or torch.bfloat16"):
        ovq.ovq_attention(*x, return_state=True, state_dtype=torch.float64)
    with pytest.raises(TypeError, match="state_dtype is a str"):
        ovq.ovq_attention(*x, return_state=True, state_dtype="bfloat16")
    with pytest.raises(ValueError, match="no state without return_state"):
        ovq.ovq_attention(*x, state_dtype=torch.bfloat16)
    _, state = ovq.ovq_attention(*x, return_state=True, **SIZES)
    with pytest.raises(ValueError, match="the state is stored as torch.float32"):
        ovq.ovq_attention(*x, state=state, state_dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="dtype is torch.float16"):
        state.to(torch.float16)
    with pytest.raises(ValueError, match="state_dtype is torch.bfloat16; these inputs take the formula, which has none such"):
        ovq.ovq_attention(*x, path="formula", **NARROW, **SIZES)
    _, state = ovq.ovq_attention(*x, path="formula", return_state=True, **SIZES)
    with pytest.raises(ValueError, match="only states of the kernel can be converted"):
        state.to(torch.bfloat16)
