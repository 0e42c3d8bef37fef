"""Second derivatives are right on the path of the formula and an error on that of the kernel, whichever way they are
asked for. Forward mode and torch.func take the formula by themselves.
"""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from common import assert_all_near, assert_near, formula_path
from torch.autograd import functional, grad

try:
    import torch.func as func
except ImportError:
    func = pytest.importorskip("functorch")  # before torch 2

import ovq


def rand(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype) / 2


def recurrence(op, *more):
    def run(x, y):
        gate = x.mean(-1)
        return op(x, y.sigmoid(), x * y, -gate.square(), gate.sigmoid(), *more)

    return run


def lambdas(x):
    return torch.ones(2, 4, dtype=x.dtype)


# Functions of two tensors [1, 5, 2, 4] that go through one op.
OPS = {
    "ovq_attention": lambda x, y: ovq.ovq_attention(x, y, y, 1.5, chunk=2, centroids=3),
    "attention": lambda x, y: ovq.attention(x, y, x, 1.5),
    "gated_delta_rule": recurrence(ovq.gated_delta_rule),
    "linear_attention": lambda x, y: ovq.linear_attention(x, y, x, -x.mean(-1).square()),
    "ssd": lambda x, y: ovq.ssd(x, y.mean(-1).exp(), -torch.ones(2, dtype=x.dtype), x, y),
    "mesa": lambda x, y: recurrence(ovq.mesa, lambdas(x))(x, y),
    "short_convolution": lambda x, y: ovq.short_convolution(x.flatten(2), y[0, :3].flatten(1).T, activation="silu"),
    "rms_norm": lambda x, y: ovq.rms_norm(x, y[0, 0, 0]),
    "l2_norm": lambda x, y: ovq.l2_norm(x) * y,
    "rotary": lambda x, y: ovq.rotary(x) * y,
}


def layer(make, dtype=torch.float32, **options):
    torch.manual_seed(0)
    module = make(8, 2, **options)
    for parameter in module.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.5)
    module.to(dtype)

    def run(x, y):
        return module((x * y).flatten(2))

    return run


LAYERS = {
    "Attention": (ovq.Attention, {}),
    "Attention with a window": (ovq.Attention, {"window": 2, "rope": True}),
    "OVQAttention": (ovq.OVQAttention, {"centroids": 3, "chunk": 2}),
    "GatedDeltaNet": (ovq.GatedDeltaNet, {"key_dim": 4, "value_dim": 4}),
    "Mamba2": (ovq.Mamba2, {"head_dim": 8, "state": 4, "expand": 2}),
    "MesaNet": (ovq.MesaNet, {"key_dim": 4, "value_dim": 4}),
    "LinearAttention": (ovq.LinearAttention, {"key_dim": 4, "value_dim": 4}),
}
NOT_SMOOTH = {"VQAttention": (ovq.VQAttention, {"codewords": 3, "chunk": 2})}
SHAPE = (1, 5, 2, 4)


def ways(function):
    """By name: what asks for a second derivative."""
    x, y, v = (rand(*SHAPE, seed=seed) for seed in (1, 2, 3))

    def loss(x):
        return function(x, y).square().sum()

    def create_graph():
        a = x.clone().requires_grad_()
        (first,) = grad(loss(a), a, create_graph=True)
        return grad(first.square().sum(), a)

    def of_another_input():
        a, b = x.clone().requires_grad_(), y.clone().requires_grad_()
        (first,) = grad(function(a, b).square().sum(), a, create_graph=True)
        return grad(first.square().sum(), b)

    def gradient_penalty():
        a = x.clone().requires_grad_()
        (first,) = grad(loss(a), a, create_graph=True)
        first.square().sum().backward()

    found = {
        "create_graph": create_graph,
        "of another input": of_another_input,
        "backward twice": gradient_penalty,
        "jvp": lambda: functional.jvp(lambda a: function(a, y), x, v),
    }
    for strict in (False, True):
        found[f"strict jvp {strict}"] = lambda strict=strict: functional.jvp(
            lambda a: function(a, y), x, v, strict=strict
        )
        found[f"hvp {strict}"] = lambda strict=strict: functional.hvp(loss, x, v, strict=strict)
        found[f"vhp {strict}"] = lambda strict=strict: functional.vhp(loss, x, v, strict=strict)
        found[f"hessian {strict}"] = lambda strict=strict: functional.hessian(loss, x, strict=strict)
    return found


@pytest.mark.parametrize("name", OPS)
def test_errors_of_ops(name):
    for way, ask in ways(OPS[name]).items():
        with pytest.raises(RuntimeError, match=rf"\[{name}\] .* cannot be differentiated again"):
            pytest.fail(f"{way} gave {ask()}")


@pytest.mark.parametrize("name", [*LAYERS, *NOT_SMOOTH])
def test_errors_of_layers(name):
    make, options = {**LAYERS, **NOT_SMOOTH}[name]
    for way, ask in ways(layer(make, **options)).items():
        with pytest.raises(RuntimeError, match=r"\[\w+\] .* cannot be differentiated again"):
            pytest.fail(f"{way} gave {ask()}")


def test_errors_of_models():
    torch.manual_seed(0)
    model = ovq.LanguageModel.preset("tiny/sw-ovq", vocab_size=20, num_hidden_layers=2)
    loss = model(torch.arange(12)[None]).square().mean()
    weights = [model.embed.weight, model.layers[1].mlp.up_proj.weight]
    first = grad(loss, weights, create_graph=True)
    with pytest.raises(RuntimeError, match=r"\[\w+\] .* cannot be differentiated again"):
        grad(sum(x.square().sum() for x in first), weights)


@pytest.mark.parametrize("name", OPS)
def test_first_derivatives_with_create_graph(name):
    x, y = rand(*SHAPE, seed=1).requires_grad_(), rand(*SHAPE, seed=2).requires_grad_()
    plain = grad(OPS[name](x, y).square().sum(), (x, y))
    graph = grad(OPS[name](x, y).square().sum(), (x, y), create_graph=True)
    assert_all_near(plain, graph, 1e-6)


def numeric(gradient, x, v):
    eps = 1e-5
    return (gradient(x + eps * v) - gradient(x - eps * v)) / (2 * eps)


def tangent_of(function, x, v):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(function(forward_ad.make_dual(x, v))).tangent.detach()


@pytest.mark.parametrize("name", [*OPS, *LAYERS])
def test_the_formula_has_them(name):
    with formula_path():
        if name in OPS:
            function = OPS[name]
        else:
            make, options = LAYERS[name]
            function = layer(make, **options, dtype=torch.float64)
        x, y, v = (rand(*SHAPE, seed=seed, dtype=torch.float64) for seed in (1, 2, 3))

        def loss(x):
            return function(x, y).square().sum()

        def gradient(x):
            x = x.detach().requires_grad_()
            return grad(loss(x), x)[0]

        expected = numeric(gradient, x, v)
        assert expected.abs().max() > 1e-3
        assert_near(functional.hvp(loss, x, v)[1], expected, 1e-5)
        assert_near(functional.vhp(loss, x, v)[1], expected, 1e-5)  # symmetric
        hessian = functional.hessian(loss, x).reshape(v.numel(), v.numel())
        assert_near((hessian @ v.flatten()).view_as(v), expected, 1e-5)


@pytest.mark.parametrize("name", [*OPS, *LAYERS])
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.float64, 1e-12)])
def test_forward_mode_takes_the_formula(name, dtype, tolerance):
    def function_in(dtype):
        if name in OPS:
            return OPS[name]
        make, options = LAYERS[name]
        return layer(make, **options, dtype=dtype)

    x, y, v = (rand(*SHAPE, seed=seed, dtype=torch.float64) for seed in (1, 2, 3))
    double, single = function_in(torch.float64), function_in(dtype)
    expected = functional.jvp(lambda x: double(x, y), x, v)[1]
    assert_near(expected, numeric(lambda x: double(x, y).detach(), x, v), 1e-5)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            tangent = tangent_of(lambda x: single(x, y.to(dtype)), x.to(dtype), v.to(dtype))
        assert_near(tangent, expected, tolerance)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-4), (torch.float64, 1e-11)])
def test_torch_func_takes_the_formula(name, dtype, tolerance):
    x, y, v = (rand(*SHAPE, seed=seed, dtype=torch.float64) for seed in (1, 2, 3))

    def loss(x, y):
        return OPS[name](x, y).square().sum()

    a = x.clone().requires_grad_()
    (expected,) = grad(loss(a, y), a)
    x, y, v = (z.to(dtype) for z in (x, y, v))
    assert_near(func.grad(loss)(x, y), expected, tolerance)
    assert_near(func.jvp(lambda x: loss(x, y), (x,), (v,))[1], (expected * v).sum(), 10 * tolerance)
    _, pullback = func.vjp(loss, x, y)
    assert_near(pullback(torch.ones((), dtype=dtype))[0], expected, tolerance)
    second = func.grad(lambda x: (func.grad(loss)(x, y) * v).sum())(x)
    with formula_path():
        assert_near(second, functional.hvp(lambda x: loss(x, y.double()), x.double(), v.double())[1], 100 * tolerance)


def test_a_wish_for_the_kernel_in_forward_mode():
    x, v = rand(*SHAPE, seed=1), rand(*SHAPE, seed=2)
    with pytest.raises(NotImplementedError, match=r"\[attention\] .* cannot be differentiated in forward mode"):
        tangent_of(lambda x: ovq.attention(x, x, x, 1.5, path="kernel"), x, v)
    with pytest.raises(NotImplementedError, match=r"\[attention\] .* cannot be differentiated in forward mode"):
        func.grad(lambda x: ovq.attention(x, x, x, 1.5, path="kernel").sum())(x)


@pytest.mark.parametrize("only", ["q", "k", "v", "g"])
def test_a_graph_for_each_input_alone(only):
    """A state that does not depend on the input is in nobody's way."""
    inputs = {name: rand(1, 7, 2, 4, seed=seed, dtype=torch.float64) for seed, name in enumerate("qkv")}
    inputs["g"] = -rand(1, 7, 2, seed=9, dtype=torch.float64).abs()
    inputs[only].requires_grad_()
    plain = grad(ovq.linear_attention(**inputs).square().sum(), inputs[only])[0]
    recorded = grad(ovq.linear_attention(**inputs).square().sum(), inputs[only], create_graph=True)[0]
    assert_near(recorded.detach(), plain, 1e-9)
