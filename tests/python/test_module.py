"""OVQAttention as a layer."""

import copy

import pytest
import torch

import ovq


def make_layer(**options):
    torch.manual_seed(0)
    return ovq.OVQAttention(32, 4, **{**dict(kv_heads=2, chunk=8, centroids=12), **options})


def test_forward_state_and_step():
    layer, x = make_layer(), torch.randn(2, 40, 32)
    with torch.no_grad():
        y = layer(x)
        first, state = layer(x[:, :15], return_state=True)
        second, state = layer(x[:, 15:30], state=state)
        rest = [layer.step(x[:, t : t + 1], state) for t in range(30, 40)]
    assert y.shape == x.shape and state.position == 40
    torch.testing.assert_close(torch.cat([first, second, *rest], 1), y, rtol=1e-4, atol=1e-5)


def test_defaults_are_those_of_the_op():
    options = ovq.OVQAttention(32, 4).options
    assert all(options[name] == default for name, default in ovq.state.OPTIONS.items())


def test_parameters_and_gradients():
    layer, x = make_layer(head_dim=16), torch.randn(2, 40, 32, requires_grad=True)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {
        "b": (4,),
        "q_proj.weight": (64, 32),
        "k_proj.weight": (32, 32),
        "v_proj.weight": (32, 32),
        "o_proj.weight": (32, 64),
    }
    layer(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in (*layer.parameters(), x))


def test_is_the_op_between_projections():
    layer, x = make_layer(), torch.randn(2, 40, 32)

    def heads(projection):
        return (x @ projection.weight.T).unflatten(-1, (-1, 8))

    q, k = (torch.nn.functional.normalize(heads(p), dim=-1) for p in (layer.q_proj, layer.k_proj))
    o = ovq.ovq_attention(q, k, heads(layer.v_proj), layer.b * 8.0**0.5, chunk=8, centroids=12)
    torch.testing.assert_close(layer(x), o.flatten(2) @ layer.o_proj.weight.T, rtol=1e-4, atol=1e-5)
    assert torch.equal(layer.b, torch.ones(4))


def test_packed():
    layer, x = make_layer(), torch.randn(1, 40, 32)
    y, states = layer(x, cu_seqlens=torch.tensor([0, 15, 40]), return_state=True)
    assert [s.position for s in states] == [15, 25]
    torch.testing.assert_close(y[:, 15:], layer(x[:, 15:]), rtol=1e-4, atol=1e-5)


def test_autocast():
    layer, x = make_layer(), torch.randn(2, 40, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in layer.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    layer = make_layer().to(dtype)
    y, state = layer(torch.randn(2, 40, 32, dtype=dtype), return_state=True)
    assert y.dtype == dtype and state.position == 40


def test_deepcopy_and_state_dict():
    layer, x = make_layer(), torch.randn(2, 20, 32)
    other = make_layer()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(x), other(x)) and torch.equal(layer(x), copy.deepcopy(layer)(x))


def test_errors():
    with pytest.raises(ValueError, match="must divide width"):
        ovq.OVQAttention(30, 4)
    with pytest.raises(ValueError, match="must divide heads"):
        ovq.OVQAttention(32, 4, kv_heads=3)
    with pytest.raises(ValueError, match="must have 3"):
        make_layer()(torch.randn(20, 32))
    with pytest.raises(ValueError, match='growth is "quick"; must be one of "plateau"'):
        make_layer(growth="quick")(torch.randn(1, 20, 32))
