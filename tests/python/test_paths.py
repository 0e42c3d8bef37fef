"""Which path runs: by dtype, device, the caller's wish and the environment; and that it is decided before C++."""

import pytest
import torch
from common import assert_near, formula_path, make_inputs
from test_mixers import MIXERS, make, make_input
from test_second_derivatives import OPS, SHAPE, rand

import ovq
from ovq import _library
from ovq.paths import KERNEL_DTYPES, path_of


def test_path_of(monkeypatch):
    x = torch.ones(2)
    for dtype in (torch.float32, torch.bfloat16, torch.half):
        assert path_of("op", None, x=x.to(dtype)) == path_of("op", "kernel", x=x.to(dtype)) == "kernel"
        assert path_of("op", "formula", x=x.to(dtype)) == "formula"
    for other in (x.double(), x.to("meta")):
        assert path_of("op", None, x=other, y=x) == path_of("op", "formula", x=other) == "formula"
        given = f"x is {other.dtype} on {other.device}, and there are kernels for float32, bfloat16 and half on the CPU"
        with pytest.raises(ValueError, match=rf"\[op\] path is 'kernel'; {given}"):
            path_of("op", "kernel", x=other)
        monkeypatch.setenv("OVQ_PATH", "kernel")
        with pytest.raises(ValueError, match=rf"\[op\] OVQ_PATH is 'kernel'; {given}"):
            path_of("op", None, x=other)
        monkeypatch.delenv("OVQ_PATH")
    assert path_of("op", None, x=x, y=x.double(), z=None) == "kernel"  # the first one decides
    with formula_path():
        assert path_of("op", None, x=x) == "formula" and path_of("op", "kernel", x=x) == "kernel"
    monkeypatch.setenv("OVQ_PATH", "")
    assert path_of("op", None, x=x) == "kernel"
    monkeypatch.setenv("OVQ_PATH", "fast")
    with pytest.raises(ValueError, match=r"\[op\] OVQ_PATH is 'fast'; must be 'kernel' or 'formula'"):
        path_of("op", None, x=x)
    with pytest.raises(ValueError, match=r"\[op\] path is 'fused'; must be 'kernel' or 'formula'"):
        path_of("op", "fused", x=x)


def test_wishes_of_calls():
    inputs = make_inputs(time=20)
    kernel = ovq.ovq_attention(*inputs, chunk=8, path="kernel")
    formula = ovq.ovq_attention(*inputs, chunk=8, path="formula")
    assert not torch.equal(kernel, formula)  # in the last bits
    assert_near(kernel, formula, 1e-5)
    assert torch.equal(ovq.ovq_attention(*inputs, chunk=8), kernel)
    with formula_path():
        assert torch.equal(ovq.ovq_attention(*inputs, chunk=8), formula)
        assert torch.equal(ovq.ovq_attention(*inputs, chunk=8, path="kernel"), kernel)


@pytest.fixture
def calls(monkeypatch):
    """The names of compiled functions that are called with tensors; all of them have what kernels take."""
    names = []

    def recorded(op, function, *arguments, **named):
        tensors = [x for x in (*arguments, *named.values()) if isinstance(x, torch.Tensor)]
        if tensors:
            names.append(op)
            assert tensors[0].device.type == "cpu" and tensors[0].dtype in KERNEL_DTYPES
        return function(*arguments, **named)

    monkeypatch.setattr(_library, "invoke", recorded)
    return names


@pytest.mark.parametrize("name", [*OPS, "vector_quantize"])
def test_ops_decide_before_they_call(name, calls):
    function = OPS.get(name, lambda x, y: ovq.vector_quantize(x, ovq.l2_norm(y[0].transpose(0, 1)))[0])
    x, y = (rand(*SHAPE, seed=seed) for seed in (1, 2))
    expected = function(x, y)
    assert name in calls
    calls.clear()
    assert_near(function(x.double(), y.double()), expected, 1e-5)
    if name not in ("ssd", "mesa"):  # the others have no tensors of their own on the CPU
        assert function(x.to("meta"), y.to("meta")).is_meta
    with formula_path():
        assert_near(function(x, y), expected, 1e-5)
    assert calls == []


@pytest.mark.parametrize("name", MIXERS)
def test_layers_let_their_ops_decide(name, calls):
    layer, double, other, x = make(name), make(name).double(), make(name), make_input()

    def use(layer, x):
        layer.begin_step(0, 1)
        y = layer.train()(x)
        y.square().sum().backward()
        layer.end_step()
        y, state = layer.eval()(x, return_state=True)
        layer(x, state=state)
        layer.step(x[:, :1], state)
        layer(x[:1], cu_seqlens=torch.tensor([0, 9, x.shape[1]]))

    use(layer, x)
    assert calls
    calls.clear()
    use(double, x.double())
    with formula_path():
        use(other, x)
    assert calls == []
