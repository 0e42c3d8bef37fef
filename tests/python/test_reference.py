"""The formulas of ovq.reference equal the ops: values and gradients, and derivatives of the second order."""

import itertools
import math

import pytest
import torch
from common import OPTIONS, assert_all_near, assert_near, make_inputs

import ovq
from ovq import reference

SIZES = dict(chunk=8, centroids=12)
CHOICES = {
    **{
        name: {**options, **({"rate": 0.125} if "rate" in options else {})}  # the same number in float32
        for name, options in OPTIONS.items()
    },
    "square-root": dict(growth="square-root"),
    "value_norms, rope": dict(value_norms=True, rope=True),
    "small": dict(centroids=1),
    "large": dict(centroids=10000),
}
WEIGHABLE = {name: options for name, options in CHOICES.items() if "rate" not in options}


def gradients_of(o, inputs):
    outputs = [x for x in (o if isinstance(o, tuple) else (o,)) if x.requires_grad]
    seeds = [torch.randn(x.shape, generator=torch.Generator().manual_seed(7)).to(x.dtype) for x in outputs]
    return torch.autograd.grad(outputs, [x for x in inputs if x.requires_grad], seeds)


def check(op, formula, inputs, tolerance=3e-5):
    expected, actual = op(*inputs), formula(*inputs)
    if isinstance(expected, tuple):
        assert_all_near(actual, expected, tolerance)
    else:
        assert actual.dtype == expected.dtype
        assert_near(actual, expected, tolerance)
    if inputs[0].numel() > 0:
        assert_all_near(gradients_of(actual, inputs), gradients_of(expected, inputs), 10 * tolerance)


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("time", [0, 1, 8, 45])
def test_ovq_attention(name, time):
    options = {**SIZES, **CHOICES[name]}
    inputs = make_inputs(group=2, value_dim=6, time=time)
    check(
        lambda *x: ovq.ovq_attention(*x, **options), lambda *x: reference.ovq_attention(*x, **options), inputs, 1e-4
    )


@pytest.mark.parametrize("name", CHOICES)
def test_ovq_attention_in_double(name):
    options = {**SIZES, **CHOICES[name]}
    inputs = make_inputs(group=2, dtype=torch.float64, seed=3)
    check(
        lambda *x: ovq.ovq_attention(*x, **options), lambda *x: reference.ovq_attention(*x, **options), inputs, 1e-10
    )


@pytest.mark.parametrize("name", WEIGHABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights(name, dtype):
    options = {**SIZES, **WEIGHABLE[name]}
    inputs = make_inputs(group=2, dtype=dtype)
    weights = torch.rand(2, 45, 2, generator=torch.Generator().manual_seed(9)).add(0.05).to(dtype).requires_grad_()
    check(
        lambda *x: ovq.ovq_attention(*x[:-1], weights=x[-1], **options),
        lambda *x: reference.ovq_attention(*x[:-1], weights=x[-1], **options),
        (*inputs, weights),
        1e-4 if dtype == torch.float32 else 1e-10,
    )


def test_repeated_keys_and_nan():
    q, k, v, beta = (x.detach() for x in make_inputs(time=30, dtype=torch.float64))
    k = k[:, :1].expand_as(k)  # all similarities are ties
    expected = ovq.ovq_attention(q, k, v, beta, **SIZES)
    assert_near(reference.ovq_attention(q, k, v, beta, **SIZES), expected, 1e-10)
    k = k.clone()
    k[:, 3] = math.nan
    assert reference.ovq_attention(q, k, v, beta, **SIZES).shape == expected.shape  # no index is out of range


@pytest.mark.parametrize("window", [None, 1, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_attention(window, dtype):
    inputs = make_inputs(group=3, value_dim=5, dtype=dtype)
    check(
        lambda *x: ovq.attention(*x, window=window),
        lambda *x: reference.attention(*x, window=window),
        inputs,
        0.02 if dtype == torch.bfloat16 else 1e-5,
    )


def test_attention_with_an_offset():
    q, k, v, beta = make_inputs()
    check(
        lambda *x: ovq.attention(*x, query_offset=30),
        lambda *x: reference.attention(*x, query_offset=30),
        (q[:, 30:].detach().requires_grad_(), k, v, beta),
    )


def recurrence_inputs(time, dtype=torch.float32, key_dim=8, value_dim=6):
    """q, k, v, g, beta and a state."""
    generator = torch.Generator().manual_seed(time)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    q, k = (torch.nn.functional.normalize(normal(2, time, 3, key_dim), dim=-1) for _ in range(2))
    g, beta = -normal(2, time, 3).square() / 4, normal(2, time, 3).sigmoid()
    tensors = (q, k, normal(2, time, 3, value_dim), g, beta, normal(2, 3, key_dim, value_dim))
    return [x.to(dtype).requires_grad_() for x in tensors]


TIMES = pytest.mark.parametrize("time, chunk", [(1, 64), (7, 64), (64, 64), (130, 64), (23, 5)])
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])


@TIMES
@DTYPES
def test_gated_delta_rule(time, chunk, dtype):
    check(
        lambda q, k, v, g, beta, s: ovq.gated_delta_rule(q, k, v, g, beta, initial_state=s, return_state=True),
        lambda q, k, v, g, beta, s: reference.gated_delta_rule(q, k, v, g, beta, s, chunk),
        recurrence_inputs(time, dtype),
    )


@TIMES
@DTYPES
@pytest.mark.parametrize("decays", [False, True])
def test_linear_attention(time, chunk, dtype, decays):
    q, k, v, g, _, s = recurrence_inputs(time, dtype)
    inputs = (q, k, v, s, *([g] if decays else []))
    check(
        lambda q, k, v, s, g=None: ovq.linear_attention(q, k, v, g, initial_state=s, return_state=True),
        lambda q, k, v, s, g=None: reference.linear_attention(q, k, v, g, state=s, chunk=chunk),
        inputs,
    )


@TIMES
@DTYPES
def test_ssd(time, chunk, dtype):
    c, b, x, dt, _, s = recurrence_inputs(time, dtype)
    x = torch.cat([x, -x], 2).detach().requires_grad_()  # two heads a group
    dt = torch.cat([-dt, -dt / 2], 2).detach().requires_grad_()
    a, d = (torch.randn(6, generator=torch.Generator().manual_seed(i)).to(dtype) for i in (1, 2))
    a, d = (-a.exp()).requires_grad_(), d.requires_grad_()
    s = torch.cat([s, -s], 1).detach().requires_grad_()
    check(
        lambda *x: ovq.ssd(*x[:-1], initial_state=x[-1], return_state=True),
        lambda *x: reference.ssd(*x, chunk),
        (x, dt, a, b, c, d, s),
    )


@TIMES
@DTYPES
def test_mesa(time, chunk, dtype):
    q, k, v, g, beta, _ = recurrence_inputs(time, dtype)
    lambda_ = (1 + torch.rand(3, 8, generator=torch.Generator().manual_seed(1)).to(dtype)).requires_grad_()
    first = [x.detach() for x in recurrence_inputs(9, dtype)[:5]]
    _, state = ovq.mesa(*first, lambda_.detach(), return_state=True)
    check(
        lambda *x: ovq.mesa(*x, initial_state=state, return_state=True),
        lambda *x: reference.mesa(*x, state, chunk),
        (q, k, v, g, beta, lambda_),
        1e-4,
    )


@DTYPES
@pytest.mark.parametrize("bias, before", list(itertools.product([False, True], repeat=2)))
def test_short_convolution(dtype, bias, before):
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    inputs = (normal(2, 9, 6), normal(6, 4), normal(6) if bias else None, normal(2, 3, 6) if before else None)
    expected = ovq.short_convolution(*inputs[:3], initial_state=inputs[3])
    actual = reference.short_convolution(*inputs)
    given = [x for x in inputs if x is not None]
    assert_near(actual, expected)
    assert_all_near(gradients_of(actual, given), gradients_of(expected, given))


@DTYPES
def test_norms_and_rotary(dtype):
    x = torch.randn(2, 9, 3, 8, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    w = torch.rand(8, generator=torch.Generator().manual_seed(1)).to(dtype).requires_grad_()
    check(lambda x, w: ovq.rms_norm(x, w, groups=2), lambda x, w: reference.rms_norm(x, w, groups=2), (x, w))
    check(ovq.l2_norm, reference.l2_norm, (x,))
    check(
        lambda x: ovq.rotary(x, base=100.0, first_position=5), lambda x: reference.rotary(x, 100.0, 5), (x,)
    )


def small(*tensors):
    return [x.detach().double()[:1].requires_grad_() for x in tensors]


FORMULAS = {
    "attention": (lambda *x: reference.attention(*x), lambda: [*small(*make_inputs(time=6, key_dim=4)[:3]), 1.3]),
    "ovq_attention": (
        lambda *x: reference.ovq_attention(*x, chunk=3, centroids=2),
        lambda: [*small(*make_inputs(time=7, key_dim=4, heads=1)[:3]), 1.3],
    ),
    "ovq_attention, more": (
        lambda *x: reference.ovq_attention(*x, chunk=3, centroids=2, rope=True, normalize=True, value_norms=True),
        lambda: [*small(*make_inputs(time=7, key_dim=4, heads=1)[:3]), 1.3],
    ),
    "gated_delta_rule": (
        lambda *x: reference.gated_delta_rule(*x, chunk=3)[0],
        lambda: small(*recurrence_inputs(5, key_dim=3, value_dim=2)[:5]),
    ),
    "linear_attention": (
        lambda *x: reference.linear_attention(*x, chunk=3)[0],
        lambda: small(*recurrence_inputs(5, key_dim=3, value_dim=2)[:4]),
    ),
    "mesa": (
        lambda *x: reference.mesa(*x, torch.ones(3, 3, dtype=torch.float64), chunk=3)[0],
        lambda: small(*recurrence_inputs(5, key_dim=3, value_dim=2)[:5]),
    ),
    "short_convolution": (
        reference.short_convolution,
        lambda: [torch.randn(1, 5, 2).double().requires_grad_(), torch.randn(2, 3).double().requires_grad_()],
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_derivatives_of_first_and_second_order(name):
    torch.manual_seed(0)
    formula, make = FORMULAS[name]
    inputs = make()
    assert torch.autograd.gradcheck(formula, inputs)
    assert torch.autograd.gradgradcheck(formula, inputs)


@pytest.mark.skipif(not hasattr(torch, "compiler"), reason="needs torch 2")
@pytest.mark.parametrize("name", FORMULAS)
def test_compiled(name):
    torch.manual_seed(0)
    formula, make = FORMULAS[name]
    inputs = make()
    actual = torch.compile(formula, backend="aot_eager", fullgraph=True)(*inputs)
    expected = formula(*inputs)
    assert_near(actual, expected, 1e-12)
    assert_all_near(gradients_of(actual, [x for x in inputs if isinstance(x, torch.Tensor)]),
                    gradients_of(expected, [x for x in inputs if isinstance(x, torch.Tensor)]), 1e-10)


def test_no_value_decides_what_is_done():
    """On meta tensors, which have none, all of it runs."""
    for name in CHOICES:
        x = torch.empty(2, 45, 2, 8, device="meta")
        if CHOICES[name].get("new_centroids") != "random":
            o = reference.ovq_attention(x, x, x, 1.3, **{**SIZES, **CHOICES[name]})
            assert o.is_meta and o.shape == x.shape
    x, gate = torch.empty(2, 70, 3, 8, device="meta"), torch.empty(2, 70, 3, device="meta")
    if hasattr(torch, "compiler"):  # torch 1.13 solves nothing there
        assert reference.gated_delta_rule(x, x, x, gate, gate)[0].shape == x.shape
        assert reference.mesa(x, x, x, gate, gate, torch.empty(3, 8, device="meta"))[0].shape == x.shape
    assert reference.linear_attention(x, x, x, gate)[0].shape == x.shape
