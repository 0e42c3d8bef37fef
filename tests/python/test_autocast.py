"""Every mixer under autocast: training, evaluation, and states that cross its border."""

import copy

import pytest
import torch
from common import assert_near
from test_mixers import MIXERS, make, make_input

import ovq

NAMES = list(MIXERS)
BFLOAT16 = 0.05  # three significant digits, a few operations


def autocast():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def cosine(a, b):
    return torch.cosine_similarity(a.flatten(), b.flatten(), 0).item()


def chooses(name):
    """Rounded keys choose other codewords and centroids here and there: which ones depends on the parameters and on how
    the CPU multiplies (0.82 with OpenBLAS's kernels for old CPUs, above 0.9 with those for AVX). Unrelated outputs are
    near 0. test_layers.py holds these layers, too, to the same numbers as C++."""
    return name.startswith(("vq", "ovq"))


def assert_rounded(name, actual, expected):
    if chooses(name):
        assert cosine(actual, expected) > 0.8
    else:
        assert_near(actual, expected, BFLOAT16)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_forward_and_backward(name, training):
    layer, x = make(name).train(training), make_input().requires_grad_()
    plain = copy.deepcopy(layer)
    with autocast():
        y = layer(x)
    assert y.dtype == torch.bfloat16
    y.float().square().sum().backward()
    expected = plain(x.detach())
    expected.square().sum().backward()
    assert cosine(y.float(), expected) > (0.7 if chooses(name) else 0.999)
    assert x.grad.dtype == torch.float32 and torch.isfinite(x.grad).all() and x.grad.abs().sum() > 0
    for (n, p), q in zip(layer.named_parameters(), plain.parameters()):
        assert (p.grad is None) == (q.grad is None), n
        if p.grad is not None:
            assert p.grad.dtype == torch.float32 and torch.isfinite(p.grad).all() and p.grad.abs().sum() > 0, n
            assert chooses(name) or cosine(p.grad, q.grad) > 0.99, n


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_training(name):
    layer, x = make(name).train(), make_input()
    optimizer = torch.optim.SGD(layer.parameters(), lr=3e-2)
    losses = []
    for i in range(12):
        layer.begin_step(i, 0)
        with autocast():
            loss = layer(x).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_states_cross_the_border(name, gradients):
    layer, x = make(name).eval(), make_input()
    with torch.set_grad_enabled(gradients):
        expected = layer(x)
        with autocast():
            inside, made_inside = layer(x[:, :9], return_state=True)
            pieces = torch.cat([layer(x[:, :9]), layer(x[:, 9:15], state=made_inside)[0]], 1)
            steps = [layer.step(x[:, t : t + 1], made_inside) for t in range(9, 12)]
        assert_rounded(name, pieces.float(), expected[:, :15])
        rest, after = layer(x[:, 12:18], state=made_inside)
        more = [layer.step(x[:, t : t + 1], after) for t in range(18, 20)]
        assert rest.dtype == more[0].dtype == torch.float32
        _, outside = layer(x[:, :9], return_state=True)
        with autocast():
            back, outside = layer(x[:, 9:15], state=outside)
            back = torch.cat([back, layer.step(x[:, 15:16], outside)], 1)
    assert_rounded(name, torch.cat([y.float() for y in (inside, *steps, rest, *more)], 1), expected[:, :20])
    assert_rounded(name, back.float(), expected[:, 9:16])


@pytest.mark.parametrize("bias", [False, True])
def test_errors_of_projections(bias):
    projection = ovq.layers.projection.Projection(4, 5, bias).bfloat16()
    for dtype in (torch.float32, torch.float64, torch.half, torch.int64, torch.bool):
        with pytest.raises(TypeError, match=rf"x has dtype {dtype}; must be the weight's torch.bfloat16"):
            projection(torch.ones(3, 4, dtype=dtype))
    with autocast():
        assert projection(torch.ones(3, 4)).dtype == torch.bfloat16
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            projection(torch.ones(3, 6))
        with pytest.raises(TypeError, match="x has dtype torch.float64; must be the weight's torch.bfloat16"):
            projection(torch.ones(3, 4, dtype=torch.float64))


@pytest.mark.parametrize("preset", ["tiny/sw-ovq", "tiny/gdn"])
def test_models(preset):
    torch.manual_seed(0)
    model = ovq.LanguageModel.preset(preset, vocab_size=50, num_hidden_layers=2).eval()
    tokens = torch.randint(50, (2, 30), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(tokens)
        with autocast():
            first, state = model(tokens[:, :20], return_state=True)
        second, state = model(tokens[:, 20:], state=state)
    assert second.dtype == torch.float32
    assert_near(torch.cat([first.float(), second], 1), expected, BFLOAT16)
