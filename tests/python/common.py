"""Random inputs, both paths, and comparison."""

import os
from contextlib import contextmanager

import pytest
import torch

OPTIONS = {
    "default": {},
    "linear": dict(growth="linear", total_tokens=64),
    "all": dict(growth="all"),
    "random": dict(new_centroids="random", seed=7),
    "rate": dict(rate=0.1),
    "normalize": dict(normalize=True),
    "value_norms": dict(value_norms=True),
    "rope": dict(rope=True),
    "rope_base": dict(rope=True, rope_base=100.0, normalize=True),
    "mixed": dict(growth="linear", total_tokens=64, new_centroids="random", rate=0.25, normalize=True),
}
WEIGHABLE = {name: options for name, options in OPTIONS.items() if "rate" not in options}

both_paths = pytest.mark.parametrize("path", ["kernel", "formula"])


@contextmanager
def formula_path():
    """What OVQ_PATH=formula in the environment does, for a while."""
    os.environ["OVQ_PATH"] = "formula"
    try:
        yield
    finally:
        del os.environ["OVQ_PATH"]


def make_inputs(batch=2, time=45, heads=2, group=1, key_dim=8, value_dim=None, seed=0, dtype=torch.float32):
    """q, k, v, beta that require gradients."""
    generator = torch.Generator().manual_seed(seed)
    value_dim = key_dim if value_dim is None else value_dim

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    return (
        normal(batch, time, heads * group, key_dim),
        normal(batch, time, heads, key_dim),
        normal(batch, time, heads, value_dim),
        normal(heads * group),
    )


def weights(x, seed=1):
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)).to(x.dtype)


def tensors_of_state(state):
    """Those that may have gradients."""
    tensors = [state.keys, state.values, state.pending_keys, state.pending_values]
    tensors += [state.counts, state.pending_weights] if state.weighted else []
    return tensors if state.shrinkage is None else [*tensors, state.shrinkage]


def loss_of(o, states=()):
    """A number that depends on every output and on every tensor of the states that has gradients."""
    tensors = [o] + [x for s in states for x in tensors_of_state(s)]
    return sum((x * weights(x, i)).sum() for i, x in enumerate(tensors))


def assert_near(actual, expected, tolerance=3e-5):
    """Relative to the largest element; NaN fails."""
    assert actual.shape == expected.shape
    if expected.numel() == 0:
        return
    error = (actual.double() - expected.double()).abs().max().item()
    limit = tolerance * max(1.0, expected.double().abs().max().item())
    assert error <= limit, f"error {error:.3g} > {limit:.3g}"


def assert_all_near(actual, expected, tolerance=3e-5):
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        assert_near(a, e, tolerance)


def assert_calibrated(kernels, formulas, truths, floor=1e-6):
    """Each of the kernel's tensors is at most twice as far from the truth, in float64, as the formula's in float32,
    plus a floor, relative to the largest element or one; NaN fails."""
    assert len(kernels) == len(formulas) == len(truths)
    for i, (kernel, formula, truth) in enumerate(zip(kernels, formulas, truths)):
        assert kernel.shape == formula.shape == truth.shape and truth.dtype == torch.float64
        if truth.numel() == 0:
            continue
        error, plain = ((x.double() - truth).abs().max().item() for x in (kernel, formula))
        limit = 2 * plain + floor * max(1.0, truth.abs().max().item())
        assert error <= limit, f"tensor {i}: error {error:.3g} > {limit:.3g}, that of the formula {plain:.3g}"
