"""A second derivative is right on the composed path and an error on the fused one, whichever way it is asked for."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from common import assert_all_near, assert_near, plain_path
from torch.autograd import functional, grad

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


def layer(make, **options):
    torch.manual_seed(0)
    module = make(8, 2, **options)
    for parameter in module.parameters():
        if parameter.dim() == 2:
            torch.nn.init.normal_(parameter, std=0.5)

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
    """By name: what asks for a second derivative, or one in forward mode."""
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

    def dual(gradients):
        with torch.set_grad_enabled(gradients), forward_ad.dual_level():
            return forward_ad.unpack_dual(function(forward_ad.make_dual(x, v), y)).tangent

    found = {
        "create_graph": create_graph,
        "of another input": of_another_input,
        "backward twice": gradient_penalty,
        "jvp": lambda: functional.jvp(lambda a: function(a, y), x, v),
        "forward mode": lambda: dual(True),
        "forward mode without gradients": lambda: dual(False),
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
        with pytest.raises(RuntimeError, match=rf"\[{name}\] the fused .* OVQ_FORCE_REFERENCE=1"):
            pytest.fail(f"{way} gave {ask()}")


@pytest.mark.parametrize("name", [*LAYERS, *NOT_SMOOTH])
def test_errors_of_layers(name):
    make, options = {**LAYERS, **NOT_SMOOTH}[name]
    for way, ask in ways(layer(make, **options)).items():
        with pytest.raises(RuntimeError, match=r"\[\w+\] the fused .* OVQ_FORCE_REFERENCE=1"):
            pytest.fail(f"{way} gave {ask()}")


def test_errors_of_models():
    torch.manual_seed(0)
    model = ovq.LanguageModel.preset("tiny/sw-ovq", vocab_size=20, num_hidden_layers=2)
    loss = model(torch.arange(12)[None]).square().mean()
    weights = [model.embed.weight, model.layers[1].mlp.up_proj.weight]
    first = grad(loss, weights, create_graph=True)
    with pytest.raises(RuntimeError, match=r"\[\w+\] the fused backward cannot be differentiated again"):
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


@pytest.mark.parametrize("name", [*OPS, *LAYERS])
def test_the_composed_path_has_them(name):
    with plain_path():
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
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients), forward_ad.dual_level():
                tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, v), y)).tangent.detach()
            assert_near(tangent, numeric(lambda x: function(x, y).detach(), x, v), 1e-5)


@pytest.mark.parametrize("only", ["q", "k", "v", "g"])
def test_a_graph_for_each_input_alone(only):
    """A state that does not depend on the input is in nobody's way."""
    inputs = {name: rand(1, 7, 2, 4, seed=seed, dtype=torch.float64) for seed, name in enumerate("qkv")}
    inputs["g"] = -rand(1, 7, 2, seed=9, dtype=torch.float64).abs()
    inputs[only].requires_grad_()
    plain = grad(ovq.linear_attention(**inputs).square().sum(), inputs[only])[0]
    recorded = grad(ovq.linear_attention(**inputs).square().sum(), inputs[only], create_graph=True)[0]
    assert_near(recorded.detach(), plain, 1e-9)
