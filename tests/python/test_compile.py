"""torch.compile and torch.export: every op traces without a graph break, and computes what eager mode does."""

import pytest
import torch
from test_second_derivatives import OPS as DIFFERENTIABLE

import ovq

if tuple(int(x) for x in torch.__version__.split(".")[:2]) < (2, 6):
    pytest.skip("torch before 2.6 does not trace custom ops in C++", allow_module_level=True)


def rand(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype) / 2


def attention_inputs(time=64, batch=2, heads=4, kv_heads=2, dim=16, dtype=torch.float32):
    q = rand(batch, time, heads, dim, seed=1, dtype=dtype)
    k, v = (rand(batch, time, kv_heads, dim, seed=seed, dtype=dtype) for seed in (2, 3))
    return q, k, v, rand(heads, seed=4).exp().to(dtype)


def weighted_inputs(time):
    q, k, v, beta = attention_inputs(time)
    return q, k, v, beta, k.mean(-1).exp().detach()


def half(time):
    return attention_inputs(time, dtype=torch.bfloat16)


# By name: the op as a function of tensors, and its inputs for a length.
OPS = {
    "attention": (lambda q, k, v, beta: ovq.attention(q, k, v, beta), attention_inputs),
    "attention, a window": (lambda q, k, v, beta: ovq.attention(q, k, v, beta, window=7), attention_inputs),
    "attention, a number": (lambda q, k, v, beta: ovq.attention(q, k, v, 1.5) * beta.sum(), attention_inputs),
    "attention, bfloat16": (lambda q, k, v, beta: ovq.attention(q, k, v, beta), half),
    "ovq_attention": (lambda q, k, v, beta: ovq.ovq_attention(q, k, v, beta, chunk=8, centroids=12), attention_inputs),
    "ovq_attention, weights": (
        lambda q, k, v, beta, w: ovq.ovq_attention(q, k, v, beta, weights=w, chunk=8, centroids=12),
        weighted_inputs,
    ),
    "ovq_attention, options": (
        lambda q, k, v, beta: ovq.ovq_attention(
            q, k, v, beta, chunk=8, centroids=12, rope=True, normalize=True, rate=0.5, growth="all"
        ),
        attention_inputs,
    ),
    "ovq_attention, bfloat16": (lambda q, k, v, beta: ovq.ovq_attention(q, k, v, beta, chunk=8, centroids=12), half),
}


def run(function, inputs):
    """Outputs, and gradients by all inputs."""
    inputs = [x.detach().clone().requires_grad_(x.is_floating_point()) for x in inputs]
    outputs = function(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    differentiable = [o for o in outputs if o.requires_grad]
    seeds = [rand(*o.shape, seed=9 + i, dtype=o.dtype) for i, o in enumerate(differentiable)]
    wanted = [x for x in inputs if x.requires_grad]
    gradients = torch.autograd.grad(differentiable, wanted, seeds, allow_unused=True)
    return outputs, gradients


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        assert (a is None) == (e is None)
        if a is not None:
            assert a.dtype == e.dtype and a.shape == e.shape
            assert torch.equal(a, e), f"differ by {(a.double() - e.double()).abs().max().item():.3g}"


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


@pytest.mark.parametrize("name", OPS)
def test_compiled_is_eager(name):
    op, make = OPS[name]
    compiled = torch.compile(op, backend="aot_eager", fullgraph=True)
    for time in (64, 96, 33):  # the second length makes it a symbol
        for actual, expected in zip(run(compiled, make(time)), run(op, make(time))):
            assert_same(actual, expected)
        with torch.no_grad():
            assert_same([compiled(*make(time))][:1], [op(*make(time))][:1])


@pytest.mark.parametrize("name", OPS)
def test_no_graph_break(name):
    op, make = OPS[name]
    explained = torch._dynamo.explain(op)(*make(48))
    assert explained.graph_break_count == 0 and explained.graph_count == 1
