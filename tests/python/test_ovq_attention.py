"""ovq_attention on both paths: outputs and gradients. test_reference.py compares them as precisely as they are."""

import random

import pytest
import torch
from common import (
    OPTIONS,
    assert_all_near,
    assert_near,
    both_paths,
    formula_path,
    loss_of,
    make_inputs,
    tensors_of_state,
)

import ovq


def run(inputs, **options):
    o, states = ovq.ovq_attention(*inputs, return_state=True, **options)
    states = states if isinstance(states, list) else [states]
    return o, states, torch.autograd.grad(loss_of(o, states), inputs)


def compare_paths(inputs, **options):
    o, states, gradients = run(inputs, **options)
    with formula_path():
        expected, other_states, other_gradients = run(inputs, **options)
    assert {state.path for state in states} == {"kernel"} and {state.path for state in other_states} == {"formula"}
    assert_near(o, expected)
    assert_all_near(gradients, other_gradients, 1e-4)
    for state, other in zip(states, other_states):
        assert torch.equal(state.counts, other.counts)
        assert state.position == other.position and state.options == other.options
        assert_all_near(tensors_of_state(state), tensors_of_state(other))


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("group", [1, 3])
def test_paths_are_equal(name, group):
    compare_paths(make_inputs(group=group, value_dim=5, seed=group), chunk=8, centroids=12, **OPTIONS[name])


@pytest.mark.parametrize("seed", range(12))
def test_random_shapes(seed):
    pick = random.Random(seed)
    inputs = make_inputs(
        batch=pick.randint(1, 3),
        time=pick.choice([1, 7, 8, 9, 31, 64, 100]),
        heads=pick.randint(1, 3),
        group=pick.choice([1, 2, 4]),
        key_dim=pick.choice([2, 8, 16, 30, 64]),
        value_dim=pick.choice([1, 8, 15, 64]),
        seed=seed,
    )
    options = OPTIONS[pick.choice(sorted(OPTIONS))]
    compare_paths(inputs, chunk=pick.choice([1, 8, 16, 33]), centroids=pick.choice([1, 10, 200]), **options)


@pytest.mark.parametrize("name", OPTIONS)
def test_packed(name):
    inputs = make_inputs(batch=1, time=60, group=2, value_dim=6)
    options = dict(chunk=8, centroids=10, **OPTIONS[name])
    compare_paths(inputs, cu_seqlens=torch.tensor([0, 13, 13, 53, 60], dtype=torch.int32), **options)


def test_packed_equals_each_alone():
    q, k, v, beta = make_inputs(batch=1, time=50)
    bounds = [0, 20, 50]
    options = dict(chunk=8, centroids=10)
    packed, states = ovq.ovq_attention(q, k, v, beta, cu_seqlens=torch.tensor(bounds), return_state=True, **options)
    for i, (a, b) in enumerate(zip(bounds, bounds[1:])):
        alone, state = ovq.ovq_attention(q[:, a:b], k[:, a:b], v[:, a:b], beta, return_state=True, **options)
        assert torch.equal(packed[:, a:b], alone)
        assert torch.equal(states[i].keys, state.keys)


@both_paths
def test_no_tokens(path):
    o, state = ovq.ovq_attention(*make_inputs(time=0), return_state=True, path=path)
    assert o.shape == (2, 0, 2, 8) and state.position == 0 and state.keys.shape == (2, 2, 0, 8)


@both_paths
def test_enough_centroids_is_causal_attention(path):
    inputs = make_inputs(time=40, group=2)
    o = ovq.ovq_attention(*inputs, chunk=8, centroids=64, growth="all", path=path)
    assert_near(o, ovq.attention(*inputs, path=path))


@both_paths
def test_beta_as_number(path):
    q, k, v, _ = make_inputs()
    expected = ovq.ovq_attention(q, k, v, torch.full((2,), 0.7), chunk=8, path=path)
    for beta in (0.7, torch.tensor(0.7), torch.tensor([0.7])):
        assert torch.equal(ovq.ovq_attention(q, k, v, beta, chunk=8, path=path), expected)


@pytest.mark.parametrize("needed", range(4))
def test_gradient_of_one_input_alone(needed):
    inputs = make_inputs()
    expected = torch.autograd.grad(loss_of(ovq.ovq_attention(*inputs, chunk=8)), inputs[needed])[0]
    alone = [x if i == needed else x.detach() for i, x in enumerate(inputs)]
    actual = torch.autograd.grad(loss_of(ovq.ovq_attention(*alone, chunk=8)), inputs[needed])[0]
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("name", OPTIONS)
def test_gradcheck_in_double(name):
    inputs = make_inputs(batch=1, time=7, heads=1, group=2, key_dim=2, value_dim=3, dtype=torch.float64)

    def function(*x):
        o, state = ovq.ovq_attention(*x, chunk=2, centroids=3, return_state=True, **OPTIONS[name])
        return o, state.keys, state.values, state.pending_keys, state.pending_values

    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@both_paths
def test_low_precision(dtype, path):
    inputs = make_inputs(time=30, dtype=dtype)
    o, states, gradients = run(inputs, chunk=8, centroids=10, path=path)
    assert o.dtype == dtype and all(g.dtype == dtype for g in gradients)
    wide = [x.detach().float().requires_grad_() for x in inputs]
    wide_o, _, wide_gradients = run(wide, chunk=8, centroids=10)
    assert_near(o, wide_o, 1e-2)
    assert_all_near(gradients, wide_gradients, 2e-2)


@both_paths
def test_autocast(path):
    q, k, v, beta = make_inputs(time=30)
    expected = ovq.ovq_attention(q, k, v.bfloat16().float(), beta, chunk=8, path=path)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = ovq.ovq_attention(q, k, v.bfloat16(), beta, chunk=8, path=path)
    assert o.dtype == torch.float32
    assert_near(o, expected, 1e-6)  # it rounds nothing itself
    assert all(torch.isfinite(g).all() for g in torch.autograd.grad(loss_of(o), (q, k, v, beta)))


def test_meta_tensors_give_shapes():
    q, k, v, beta = (x.to("meta") for x in make_inputs(group=2, value_dim=5))
    o = ovq.ovq_attention(q, k, v, beta)
    assert o.is_meta and o.shape == (2, 45, 4, 5)


def test_same_bits_for_any_number_of_threads():
    inputs = make_inputs(time=100, key_dim=16)
    _, _, expected = run(inputs, chunk=16, centroids=40)
    torch.set_num_threads(1)
    _, _, gradients = run(inputs, chunk=16, centroids=40)
    torch.set_num_threads(2)
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected))
