"""Inputs with any strides give the result of contiguous ones, and rows that are contiguous are not copied."""

import pytest
import torch
from common import loss_of, make_inputs

import ovq


def transposed(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def sliced(x):
    wide = torch.full((x.shape[0] + 1, x.shape[1] + 2, x.shape[2] + 3, x.shape[3] + 5), torch.nan)
    part = wide[1:, 1:-1, 2:-1, 3:-2]
    part.copy_(x)
    return part


def strided_rows(x):
    wide = torch.full((*x.shape[:3], 2 * x.shape[3]), torch.nan)
    wide[..., ::2] = x
    return wide[..., ::2]


LAYOUTS = dict(transposed=transposed, sliced=sliced, strided_rows=strided_rows)
OPS = dict(
    attention=ovq.attention,
    ovq_attention=lambda *inputs: ovq.ovq_attention(*inputs, chunk=8, centroids=12),
)


def gradients_of(op, tensors, inputs):
    o = op(*tensors)
    return o, torch.autograd.grad(loss_of(o), inputs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", OPS)
def test_layouts(op, layout):
    inputs = make_inputs(group=2)
    o, gradients = gradients_of(OPS[op], inputs, inputs)
    odd = [LAYOUTS[layout](x.detach()).requires_grad_() for x in inputs[:3]] + [inputs[3]]
    assert not any(x.is_contiguous() for x in odd[:3])
    odd_o, odd_gradients = gradients_of(OPS[op], odd, odd)
    assert torch.equal(odd_o, o)
    assert all(torch.equal(a, b) for a, b in zip(odd_gradients, gradients))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("expanded_dim", [0, 1, 2])
def test_expanded(op, expanded_dim):
    narrow = [x.detach().narrow(expanded_dim, 0, 1).requires_grad_() for x in make_inputs()[:3]]
    shape = [2, 45, 2, 8]
    beta = torch.ones(2, requires_grad=True)
    o, gradients = gradients_of(OPS[op], [x.expand(shape).contiguous() for x in narrow] + [beta], narrow)
    odd_o, odd_gradients = gradients_of(OPS[op], [x.expand(shape) for x in narrow] + [beta], narrow)
    assert torch.equal(odd_o, o)
    assert all(torch.equal(a, b) for a, b in zip(odd_gradients, gradients))


@pytest.mark.parametrize("op", OPS)
def test_expanded_gradient_of_output(op):
    inputs = make_inputs()
    summed = torch.autograd.grad(OPS[op](*inputs).sum(), inputs)
    o = OPS[op](*inputs)
    ones = torch.autograd.grad((o * torch.ones_like(o)).sum(), inputs)
    assert all(torch.equal(a, b) for a, b in zip(summed, ones))


def copies(op, inputs):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        op(*inputs)
    return sum(event.name == "aten::copy_" for event in profile.events())


@pytest.mark.parametrize("op", OPS)
def test_copies_only_where_rows_are_not_contiguous(op):
    inputs = [x.detach() for x in make_inputs()]
    for layout in (transposed, sliced):
        assert copies(OPS[op], [layout(x) for x in inputs[:3]] + inputs[3:]) == 0
    assert copies(OPS[op], [strided_rows(inputs[0])] + inputs[1:]) == 1
    assert copies(OPS[op], [strided_rows(x) for x in inputs[:3]] + inputs[3:]) == 3
