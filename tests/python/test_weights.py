"""weights: how much each token weighs, on both paths, through states, files and layers."""

import math
import pickle

import pytest
import torch
from common import WEIGHABLE, assert_all_near, assert_near, formula_path, loss_of, make_inputs

import ovq

SIZES = dict(chunk=8, centroids=12)


def make_weights(batch=2, time=45, heads=2, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(100 + seed)
    return torch.rand(batch, time, heads, generator=generator).add(0.05).to(dtype).requires_grad_()


@pytest.mark.parametrize("name", WEIGHABLE)
def test_paths_are_equal(name):
    inputs, w = make_inputs(group=2, value_dim=5), make_weights()

    def run():
        o, state = ovq.ovq_attention(*inputs, weights=w, return_state=True, **SIZES, **WEIGHABLE[name])
        return o, state, torch.autograd.grad(loss_of(o, [state]), (*inputs, w))

    o, state, gradients = run()
    with formula_path():
        expected, other, other_gradients = run()
    assert (state.path, other.path) == ("kernel", "formula") and state.weighted and other.weighted
    assert_near(o, expected)
    assert_all_near(gradients, other_gradients, 1e-4)
    assert_all_near((state.counts, state.pending_weights), (other.counts, other.pending_weights))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ones_change_nothing(dtype):
    inputs, ones = make_inputs(dtype=dtype), torch.ones(2, 45, 2, dtype=dtype)
    o, state = ovq.ovq_attention(*inputs, return_state=True, **SIZES)
    weighted, other = ovq.ovq_attention(*inputs, weights=ones, return_state=True, **SIZES)
    assert torch.equal(weighted, o) and torch.equal(other.counts, state.counts.to(dtype))
    assert torch.equal(other.keys, state.keys) and not state.weighted and state.pending_weights is None


@pytest.mark.parametrize("name", WEIGHABLE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_equal_one_pass(name, dtype):
    """The kernel's bit for bit."""
    q, k, v, beta = (x.detach() for x in make_inputs(time=50, dtype=dtype))
    w = make_weights(time=50, dtype=dtype).detach()
    tolerance = 0 if dtype == torch.float32 else 1e-12
    expected, final = ovq.ovq_attention(q, k, v, beta, weights=w, return_state=True, **SIZES, **WEIGHABLE[name])
    first = [x[:, :11] for x in (q, k, v)]
    o, state = ovq.ovq_attention(*first, beta, weights=w[:, :11], return_state=True, **SIZES, **WEIGHABLE[name])
    outputs = [o]
    for t in range(11, 50):
        token = [x[:, t : t + 1] for x in (q, k, v)]
        outputs.append(ovq.step(*token, beta, state, weights=w[:, t : t + 1]))
    assert_near(torch.cat(outputs, 1), expected, tolerance)
    for name in ("keys", "values", "counts", "pending_keys", "pending_weights"):
        assert_near(getattr(state, name), getattr(final, name), tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_packed_sequences(dtype):
    inputs, w = make_inputs(batch=1, time=50, dtype=dtype), make_weights(1, 50, dtype=dtype)
    offsets = torch.tensor([0, 20, 50])
    o, states = ovq.ovq_attention(*inputs, weights=w, cu_seqlens=offsets, return_state=True, **SIZES)
    q, k, v, beta = inputs
    for i, (a, b) in enumerate([(0, 20), (20, 50)]):
        alone = ovq.ovq_attention(q[:, a:b], k[:, a:b], v[:, a:b], beta, weights=w[:, a:b], **SIZES)
        assert torch.equal(o[:, a:b], alone)
    token = [x[:, :2] for x in (q, k, v)]
    ovq.step(*token, beta, states, weights=w[:, :2].detach(), cu_seqlens=torch.tensor([0, 1, 2]))
    assert [state.position for state in states] == [21, 31]


def test_strides_and_dtypes():
    inputs = [x.detach() for x in make_inputs()]
    w = make_weights().detach()
    expected = ovq.ovq_attention(*inputs, weights=w, **SIZES)
    assert torch.equal(ovq.ovq_attention(*inputs, weights=w.transpose(1, 2).contiguous().transpose(1, 2), **SIZES), expected)
    assert torch.equal(ovq.ovq_attention(*inputs, weights=w.double(), **SIZES), expected)
    half = [x.bfloat16() for x in inputs]
    assert ovq.ovq_attention(*half, weights=w.bfloat16(), **SIZES).dtype == torch.bfloat16


def test_files(tmp_path):
    inputs = [x.detach() for x in make_inputs(time=30)]
    w = make_weights(time=30).detach()
    _, state = ovq.ovq_attention(*inputs, weights=w, return_state=True, **SIZES)
    state.save(tmp_path / "state")
    expected = ovq.ovq_attention(*inputs, weights=w, state=state)
    for copy in (ovq.State.load(tmp_path / "state"), pickle.loads(pickle.dumps(state)), state.clone()):
        assert copy.weighted and torch.equal(copy.counts, state.counts)
        assert torch.equal(ovq.ovq_attention(*inputs, weights=w, state=copy), expected)


def test_bad_weights_are_named():
    inputs = [x.detach() for x in make_inputs()]
    w = make_weights().detach()
    bad = {
        "positive and finite": (ValueError, [w * 0, -w, w * math.nan, w * math.inf]),
        r"weights (is|has shape) .*; must be \[2, 45, 2\]": (ValueError, [w[:, 1:], w[..., None], w[..., :1]]),
        "weights has dtype (Long|torch.int64)": (TypeError, [torch.ones(2, 45, 2, dtype=torch.long)]),
        "argument 'weights'|weights is a float; must be a tensor": (TypeError, [1.0]),
    }
    for path in ("kernel", "formula"):
        for message, (kind, cases) in bad.items():
            for case in cases:
                with pytest.raises(kind, match=message):
                    ovq.ovq_attention(*inputs, weights=case, path=path, **SIZES)
        with pytest.raises(ValueError, match=r"^\[ovq_attention\] weights do not go with a constant rate"):
            ovq.ovq_attention(*inputs, weights=w, rate=0.1, path=path, **SIZES)
    with pytest.raises(ValueError, match="weights do not go with a constant rate"):
        ovq.OVQAttention(16, 2, rate=0.1, weighted_writes=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_states_go_on_as_they_were_made(dtype):
    inputs = [x.detach() for x in make_inputs(dtype=dtype)]
    w = make_weights(dtype=dtype).detach()
    _, weighted = ovq.ovq_attention(*inputs, weights=w, return_state=True, **SIZES)
    _, plain = ovq.ovq_attention(*inputs, return_state=True, **SIZES)
    for run in (lambda **x: ovq.ovq_attention(*inputs, **x), lambda **x: ovq.step(*inputs, **x)):
        with pytest.raises(ValueError, match="made with weights; weights are missing"):
            run(state=weighted)
        with pytest.raises(ValueError, match="made without weights; weights are given"):
            run(state=plain, weights=w)
    assert weighted.position == plain.position == 45


def test_layer_learns_its_gate():
    torch.manual_seed(0)
    layer = ovq.OVQAttention(16, 2, chunk=4, centroids=4, weighted_writes=True)
    assert layer.options["weighted_writes"] is True
    parameters = dict(layer.named_parameters())
    assert (parameters["w_gate.weight"] == 0).all() and (parameters["w_gate.bias"] == 3).all()
    layer(torch.randn(2, 30, 16)).square().sum().backward()
    assert parameters["w_gate.weight"].grad.abs().max() > 0 and parameters["w_gate.bias"].grad.abs().max() > 0
