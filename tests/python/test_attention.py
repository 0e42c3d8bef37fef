"""attention on both paths against a few lines of torch."""

import pytest
import torch
from common import assert_all_near, assert_near, both_paths, loss_of, make_inputs

import ovq


def in_torch(q, k, v, beta, window=None):
    group = q.shape[2] // k.shape[2]
    k, v = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bihd,bjhd->bhij", q * beta[:, None], k)
    i, j = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])
    hidden = (j > i) if window is None else (j > i) | (j <= i - window)
    return torch.einsum("bhij,bjhd->bihd", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)


@pytest.mark.parametrize("window", [None, 1, 8, 100])
@both_paths
def test_against_torch(window, path):
    inputs = make_inputs(group=2, value_dim=5)
    expected = in_torch(*inputs, window=window)
    o = ovq.attention(*inputs, window=window, path=path)
    assert_near(o, expected)
    assert_all_near(
        torch.autograd.grad(loss_of(o), inputs), torch.autograd.grad(loss_of(expected), inputs), 1e-4
    )


@both_paths
def test_packed(path):
    q, k, v, beta = make_inputs(batch=1, time=50)
    bounds, options = [0, 20, 20, 50], dict(window=7, path=path)
    o = ovq.attention(q, k, v, beta, cu_seqlens=torch.tensor(bounds), **options)
    for a, b in zip(bounds, bounds[1:]):
        assert_near(o[:, a:b], ovq.attention(q[:, a:b], k[:, a:b], v[:, a:b], beta, **options))
    none = ovq.attention(q[:, :0], k[:, :0], v[:, :0], beta, cu_seqlens=torch.tensor([0]), path=path)
    assert none.shape == (1, 0, 2, 8)


@both_paths
def test_query_offset(path):
    q, k, v, beta = make_inputs()
    o = ovq.attention(q[:, 30:], k, v, beta, query_offset=30, path=path)
    assert_near(o, ovq.attention(q, k, v, beta, path=path)[:, 30:])


def test_gradcheck_in_double():
    inputs = make_inputs(batch=1, time=6, heads=1, group=2, key_dim=3, value_dim=2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda *x: ovq.attention(*x, window=4), inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision(dtype):
    inputs = make_inputs(dtype=dtype)
    o = ovq.attention(*inputs)
    assert o.dtype == dtype
    assert_near(o, ovq.attention(*(x.float() for x in inputs)), 1e-2)


def test_meta_tensors_give_shapes():
    q, k, v, beta = (x.to("meta") for x in make_inputs(group=2, value_dim=5))
    o = ovq.attention(q, k, v, beta)
    assert o.is_meta and o.shape == (2, 45, 4, 5)
