"""The formulas of ovq.reference equal the kernels: values, states and gradients, with every option. And what formulas
have alone: derivatives of the second order, torch.compile, meta tensors.
"""

import math

import pytest
import torch
from common import OPTIONS, WEIGHABLE, assert_all_near, assert_calibrated, assert_near, make_inputs, tensors_of_state

import ovq
from ovq import reference

SIZES = dict(chunk=8, centroids=12)
CHOICES = {
    **OPTIONS,
    "square-root": dict(growth="square-root"),
    "value_norms, rope": dict(value_norms=True, rope=True),
    "small": dict(centroids=1),
    "large": dict(centroids=10000),
}


def gradients_of(outputs, inputs):
    seeded = [(x, normal(*x.shape, seed=i).to(x.dtype)) for i, x in enumerate(outputs) if x.requires_grad]
    loss = sum((x * seed).sum() for x, seed in seeded)
    return torch.autograd.grad(loss, [x for x in inputs if x.requires_grad])


def compare(kernel, formula, inputs, floor=1e-6):
    """Outputs and gradients of two functions of tensors in double, which the kernel gets as float32."""
    results = []
    for function, dtype in ((kernel, torch.float32), (formula, torch.float32), (formula, torch.float64)):
        x = [y.detach().to(dtype).requires_grad_() if y.is_floating_point() else y for y in inputs]
        outputs = function(*x)
        outputs = outputs if isinstance(outputs, (tuple, list)) else (outputs,)
        results.append((outputs, gradients_of(outputs, x) if outputs[0].numel() > 0 else ()))
    for parts in zip(*results):
        assert_calibrated(*parts, floor=floor)


def on_both(op, *inputs, floor=1e-6):
    compare(lambda *x: op(*x, path="kernel"), lambda *x: op(*x, path="formula"), inputs, floor)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("broken", [math.nan, math.inf, 1.1])
def test_the_comparison_finds_what_is_wrong(broken):
    x = normal(5)
    assert_calibrated([x + 1e-7], [x + 1e-7], [x])
    with pytest.raises(AssertionError, match="tensor 0: error"):
        assert_calibrated([x * torch.tensor([1, 1, broken, 1, 1])], [x + 1e-7], [x])


def chosen(q, k, v, beta, weights, options):
    """The kernel's assignments [B, T, Hkv]. Choices are discrete: rounding may flip those between equals."""
    values = {**ovq.state.OPTIONS, **options}
    inputs = [x.detach().float() for x in (q, k, v, beta)]
    weights = None if weights is None else weights.detach().float()
    assigned = torch.ops.ovq.ovq_attention_forward(*inputs, None, weights, True, **values)[2]
    return assigned.view(k.shape[:3])


BOTH = [(name, weighted) for name in CHOICES for weighted in (False, True) if not (weighted and "rate" in CHOICES[name])]


@pytest.mark.parametrize("name, weighted", BOTH)
@pytest.mark.parametrize("time", [0, 1, 8, 45])
def test_ovq_attention(name, time, weighted):
    options = {**SIZES, **CHOICES[name]}
    inputs = [x.detach() for x in make_inputs(group=2, value_dim=6, time=time, dtype=torch.float64)]
    if weighted:
        inputs.append(normal(2, time, 2).abs() + 0.05)
    assignments = chosen(*inputs[:4], inputs[4] if weighted else None, options)

    def kernel(q, k, v, beta, w=None):
        o, state = ovq.ovq_attention(q, k, v, beta, weights=w, return_state=True, path="kernel", **options)
        return (o, *tensors_of_state(state))

    def formula(q, k, v, beta, w=None):
        given = dict(weights=w, assignments=assignments, **options)
        o, state = reference.ovq_attention(q, k, v, beta, return_state=True, **given)
        return (o, *tensors_of_state(state))

    compare(kernel, formula, inputs, 2e-6)
    by_itself = reference.ovq_attention(*inputs[:4], weights=inputs[4] if weighted else None, **options)
    assert_near(by_itself, formula(*inputs)[0], 1e-12)  # it chooses as the kernel does


@pytest.mark.parametrize("name", CHOICES)
def test_pieces_of_ovq_attention(name):
    """A state of each path, continued in pieces, with other centroids, and one token at a time."""
    options, inputs = {**SIZES, **CHOICES[name]}, [x.detach() for x in make_inputs(time=50, dtype=torch.float64)]
    q, k, v, beta = inputs

    def pieces(path, dtype):
        def cut(a, b):
            return [x[:, a:b].to(dtype) for x in (q, k, v)] + [beta.to(dtype)]

        first, state = ovq.ovq_attention(*cut(0, 11), return_state=True, path=path, **options)
        second, state = ovq.ovq_attention(*cut(11, 30), state=state, centroids=20, return_state=True, path=path)
        assert state.options == {**ovq.state.OPTIONS, **state.options, "centroids": 20}
        steps = [ovq.step(*cut(t, t + 1), state) for t in range(30, 50)]
        assert state.path == path and state.position == 50
        return torch.cat([first, second, *steps], 1), state

    (o, state), (expected, other) = pieces("kernel", torch.float32), pieces("formula", torch.float64)
    assert state.options == other.options and torch.equal(state.counts, other.counts)
    assert_near(o, expected, 1e-5)
    assert_all_near(tensors_of_state(state), tensors_of_state(other), 1e-5)


def test_one_pass_is_pieces_is_tokens():
    """Gradients, too."""
    inputs = make_inputs(time=30, dtype=torch.float64)
    w = (normal(2, 30, 2).abs() + 0.05).requires_grad_()
    for name, options in WEIGHABLE.items():
        results = []
        for borders in ([0, 30], [0, 7, 8, 24, 30], range(31)):
            state, outputs = None, []
            for a, b in zip(borders, borders[1:]):
                part = [x[:, a:b] for x in inputs[:3]]
                made_with = {**SIZES, **options} if state is None else {}
                o, state = ovq.ovq_attention(
                    *part, inputs[3], weights=w[:, a:b], state=state, return_state=True, **made_with
                )
                outputs.append(o)
            found = (torch.cat(outputs, 1), *tensors_of_state(state))
            results.append((*found, *gradients_of(found, (*inputs, w))))
        for result in results[1:]:
            assert_all_near(result, results[0], 1e-11)


def test_repeated_keys_and_nan():
    q, k, v, beta = (x.detach() for x in make_inputs(time=30))
    k = k[:, :1].expand_as(k)  # all similarities are ties
    assigned = [chosen(q, k, v, beta, None, dict(SIZES, chunk=chunk)) for chunk in (8, 32)]
    assert (assigned[1] == torch.iinfo(torch.int32).min).all() and (assigned[0][:, :8] < 0).any()
    o = reference.ovq_attention(q, k, v, beta, **SIZES)
    assert_near(o, ovq.ovq_attention(q, k, v, beta, path="kernel", **SIZES), 1e-5)
    k = k.clone()
    k[:, 3] = math.nan
    assert reference.ovq_attention(q, k, v, beta, **SIZES).shape == o.shape  # no index is out of range


def test_floats_of_options():
    """As the kernels keep them."""
    for value in (0.1, 1 / 3, 1.0, 10000.0, 123.456e7, 1e-30):
        assert ovq.state.as_stored(value) == torch.tensor(value, dtype=torch.float32).item()
    assert ovq.state.as_stored(3) == 3 and ovq.state.as_stored(None) is None


OFFSETS = torch.tensor([0, 13, 13, 40, 45])


@pytest.mark.parametrize("name", CHOICES)
def test_packed_ovq_attention(name):
    options, inputs = {**SIZES, **CHOICES[name]}, make_inputs(batch=1, group=2, dtype=torch.float64)

    def run(*x, path):
        given = dict(cu_seqlens=OFFSETS, path=path)
        o, states = ovq.ovq_attention(*x, return_state=True, **given, **options)
        more, states = ovq.ovq_attention(*x, state=states, return_state=True, **given)
        return o, more, *(y for state in states for y in tensors_of_state(state))

    kernel, formula = ([y.detach() for y in run(*(x.to(t) for x in inputs), path=path)]
                       for path, t in (("kernel", torch.float32), ("formula", torch.float64)))
    assert_all_near(kernel, formula, 1e-5)


@pytest.mark.parametrize("window", [None, 1, 7])
@pytest.mark.parametrize("packed", [False, True])
def test_attention(window, packed):
    options = dict(window=window, cu_seqlens=OFFSETS if packed else None)
    inputs = make_inputs(batch=1 if packed else 2, group=3, value_dim=5, dtype=torch.float64)
    on_both(lambda *x, path: ovq.attention(*x, path=path, **options), *inputs)


def test_attention_with_an_offset():
    q, k, v, beta = make_inputs(dtype=torch.float64)
    on_both(lambda *x, path: ovq.attention(*x, query_offset=30, path=path), q[:, 30:], k, v, beta)
    on_both(lambda *x, path: ovq.attention(*x, query_offset=20, window=4, path=path), q[:, 30:], k, v, beta)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.half])
def test_16_bits(dtype):
    inputs = make_inputs(dtype=dtype)
    for op in (ovq.attention, lambda *x, path: ovq.ovq_attention(*x, path=path, **SIZES)):
        kernel, formula = op(*inputs, path="kernel"), op(*inputs, path="formula")
        assert kernel.dtype == formula.dtype == dtype
        assert_near(formula, kernel, 1e-2)
        assert_all_near(gradients_of([formula], inputs), gradients_of([kernel], inputs), 2e-2)


def recurrence_inputs(time, batch=2, rows=2, heads=3, key_dim=8, value_dim=6):
    """q, k, v, g, beta and a state."""
    q, k = (torch.nn.functional.normalize(normal(batch, time, heads, key_dim, seed=i), dim=-1) for i in (1, 2))
    g, beta = -normal(batch, time, heads, seed=3).square() / 4, normal(batch, time, heads, seed=4).sigmoid()
    return q, k, normal(batch, time, heads, value_dim, seed=5), g, beta, normal(rows, heads, key_dim, value_dim, seed=6)


def linear_inputs(time, **sizes):
    q, k, v, g, _, s = recurrence_inputs(time, **sizes)
    return q, k, v, g, s


def linear_without_decay(time, **sizes):
    q, k, v, _, _, s = recurrence_inputs(time, **sizes)
    return q, k, v, s


def ssd_inputs(time, **sizes):
    c, b, x, dt, _, s = recurrence_inputs(time, **sizes)
    a, d = -normal(2 * s.shape[1], seed=7).exp(), normal(2 * s.shape[1], seed=8)
    # two heads a group
    return torch.cat([x, -x], 2), torch.cat([-dt, -dt / 2], 2), a, b, c, d, torch.cat([s, -s], 1)


def mesa_inputs(time, rows=2, **sizes):
    *inputs, _ = recurrence_inputs(time, **sizes)
    lambda_ = 1 + normal(*inputs[0].shape[2:], seed=9).sigmoid()
    first = recurrence_inputs(9, **{**sizes, "batch": rows})[:5]
    return (*inputs, lambda_, reference.mesa(*first, lambda_, return_state=True)[1])


def convolution_inputs(time, batch=2, rows=2):
    return normal(batch, time, 6), normal(6, 4, seed=1), normal(6, seed=2), normal(rows, 3, 6, seed=3)


RECURRENCES = {
    "gated_delta_rule": (ovq.gated_delta_rule, recurrence_inputs),
    "linear_attention": (ovq.linear_attention, linear_inputs),
    "linear_attention, no decay": (lambda *x, **y: ovq.linear_attention(*x, scale=0.3, **y), linear_without_decay),
    "ssd": (ovq.ssd, ssd_inputs),
    "mesa": (ovq.mesa, mesa_inputs),
    "short_convolution": (lambda *x, **y: ovq.short_convolution(*x, activation="silu", **y), convolution_inputs),
}

every_recurrence = pytest.mark.parametrize("name", RECURRENCES)


@every_recurrence
@pytest.mark.parametrize("time", [1, 7, 64, 130])
def test_recurrences(name, time):
    op, make = RECURRENCES[name]
    on_both(lambda *x, path: op(*x[:-1], initial_state=x[-1], return_state=True, path=path), *make(time), floor=4e-6)
    on_both(lambda *x, path: op(*x, path=path), *make(time)[:-1], floor=4e-6)


@every_recurrence
def test_packed_recurrences(name):
    op, make = RECURRENCES[name]
    inputs, offsets = make(45, batch=1, rows=4), OFFSETS

    def run(*x, path):
        return op(*x[:-1], initial_state=x[-1], return_state=True, cu_seqlens=offsets, path=path)

    on_both(run, *inputs, floor=4e-6)
    on_both(lambda *x, path: op(*x, cu_seqlens=offsets, path=path), *inputs[:-1], floor=4e-6)
    o, states = run(*inputs, path="formula")
    assert states.shape == inputs[-1].shape and torch.equal(states[1], inputs[-1][1])  # that of no tokens


@every_recurrence
def test_recurrences_in_pieces(name):
    op, make = RECURRENCES[name]
    inputs = make(20)
    expected, last = op(*inputs[:-1], initial_state=inputs[-1], return_state=True, path="formula")
    for path, dtype, tolerance in (("formula", torch.float64, 1e-11), ("kernel", torch.float32, 1e-5)):
        state, outputs = inputs[-1].to(dtype), []
        for t in range(20):
            token = [x[:, t : t + 1] if x.shape[:2] == (2, 20) else x for x in inputs[:-1]]
            o, state = op(*(x.to(dtype) for x in token), initial_state=state, return_state=True, path=path)
            outputs.append(o)
        assert_near(torch.cat(outputs, 1), expected, tolerance)
        assert_near(state, last, tolerance)


def test_chunks_change_nothing():
    for formula, make in (
        (reference.gated_delta_rule, recurrence_inputs),
        (reference.linear_attention, linear_inputs),
        (reference.ssd, ssd_inputs),
        (reference.mesa, mesa_inputs),
    ):
        *inputs, state = make(23)
        expected = formula(*inputs, initial_state=state, return_state=True)
        for chunk in (1, 5, 100):
            assert_all_near(formula(*inputs, initial_state=state, return_state=True, chunk=chunk), expected, 1e-11)
        with pytest.raises(ValueError, match="chunk is 0; must be at least 1"):
            formula(*inputs, chunk=0)


def test_norms_and_rotary():
    x, w = normal(2, 9, 3, 8), 1 + normal(8, seed=1)
    for groups in (1, 2):
        on_both(lambda x, w, path: ovq.rms_norm(x, w, groups=groups, eps=1e-3, path=path), x, w)
    on_both(ovq.l2_norm, x)
    on_both(lambda x, path: ovq.rotary(x, base=100.0, first_position=5, path=path), x)
    packed = dict(cu_seqlens=torch.tensor([0, 4, 4, 9]))
    on_both(lambda x, path: ovq.rotary(x, path=path, **packed), x[:1])


@pytest.mark.parametrize("gradient", ["straight_through", "diveq", "sf_diveq"])
def test_vector_quantize(gradient):
    z, words = normal(2, 50, 3, 8).float(), ovq.l2_norm(normal(3, 20, 8, seed=1)).float()
    for bonus in (None, normal(3, 20, seed=2).float()):
        results = []
        for path in ("kernel", "formula"):
            inputs = [x.clone().requires_grad_() for x in (z, words)]
            z_q, index = ovq.vector_quantize(*inputs, gradient=gradient, bonus=bonus, seed=5, path=path)
            wanted = inputs[: 1 if gradient == "straight_through" else 2]
            results.append((index, z_q, *gradients_of([z_q], wanted)))
        assert torch.equal(results[0][0], results[1][0])  # the same noise, and so the same choices
        assert_all_near(results[1][1:], results[0][1:], 1e-5)


SMALL = dict(chunk=3, centroids=2)


def without_state(make):
    return lambda: make(4, batch=1, heads=1, key_dim=2, value_dim=2)[:-1]


def attention_inputs(**sizes):
    return lambda: make_inputs(key_dim=2, batch=1, dtype=torch.float64, **{"time": 7, "heads": 1, **sizes})[:3]


FORMULAS = {
    "attention": (lambda q, k, v: reference.attention(q, k, v, 1.3), attention_inputs(time=6, heads=2)),
    "attention, more": (
        lambda q, k, v: reference.attention(q, k, v, 1.3, window=2, cu_seqlens=torch.tensor([0, 2, 6])),
        attention_inputs(time=6, group=2),
    ),
    "ovq_attention": (lambda q, k, v: reference.ovq_attention(q, k, v, 1.3, **SMALL), attention_inputs()),
    "ovq_attention, more": (
        lambda q, k, v: reference.ovq_attention(q, k, v, 1.3, rope=True, normalize=True, value_norms=True, **SMALL),
        attention_inputs(),
    ),
    "ovq_attention, rate": (lambda q, k, v: reference.ovq_attention(q, k, v, 1.3, rate=0.3, **SMALL), attention_inputs()),
    "ovq_attention, weights": (
        lambda q, k, v: reference.ovq_attention(q, k, v, 1.3, weights=v.mean(-1).exp(), **SMALL),
        attention_inputs(),
    ),
    "ovq_attention, states": (lambda *x: through_states(*x), attention_inputs()),
    "gated_delta_rule": (lambda *x: reference.gated_delta_rule(*x, chunk=3), without_state(recurrence_inputs)),
    "linear_attention": (lambda *x: reference.linear_attention(*x, chunk=3), without_state(linear_inputs)),
    "ssd": (lambda x, dt, a, b, c, d: reference.ssd(x, dt, a, b, c, d, chunk=3), without_state(ssd_inputs)),
    "mesa": (lambda *x: reference.mesa(*x, chunk=3), without_state(mesa_inputs)),
    "short_convolution": (
        lambda *x: reference.short_convolution(*x, activation="silu"),
        lambda: (normal(1, 3, 2), normal(2, 3, seed=1), normal(2, seed=2)),
    ),
    "rms_norm": (lambda x: reference.rms_norm(x, 1 + x[0, 0, 0], groups=2), lambda: [normal(1, 2, 2, 4)]),
    "l2_norm": (reference.l2_norm, lambda: [normal(1, 2, 2, 4)]),
    "rotary": (reference.rotary, lambda: [normal(1, 3, 2, 4)]),
}


def through_states(q, k, v):
    _, state = reference.ovq_attention(q[:, :4], k[:, :4], v[:, :4], 1.3, return_state=True, **SMALL)
    o, state = reference.ovq_attention(q[:, 4:], k[:, 4:], v[:, 4:], 1.3, state=state, return_state=True)
    return (o, *tensors_of_state(state))


def formula_and_inputs(name):
    formula, make = FORMULAS[name]
    return formula, [x.detach().requires_grad_() for x in make()]


@pytest.mark.parametrize("name", FORMULAS)
def test_derivatives_of_first_and_second_order(name):
    formula, inputs = formula_and_inputs(name)
    assert torch.autograd.gradcheck(formula, inputs)
    assert torch.autograd.gradgradcheck(formula, inputs)


@pytest.mark.skipif(not hasattr(torch, "compiler"), reason="needs torch 2")
@pytest.mark.parametrize("name", [name for name in FORMULAS if name not in ("attention, more", "ovq_attention, states")])
def test_compiled(name):
    formula, inputs = formula_and_inputs(name)
    actual = torch.compile(formula, backend="aot_eager", fullgraph=True)(*inputs)
    expected = formula(*inputs)
    assert_near(actual, expected, 1e-12)
    assert_all_near(gradients_of([actual], inputs), gradients_of([expected], inputs), 1e-10)


def test_no_value_decides_what_is_done():
    """On meta tensors, which have none, all of it runs."""
    for options in CHOICES.values():
        x = torch.empty(2, 45, 2, 8, device="meta")
        o, state = ovq.ovq_attention(x, x, x, 1.3, return_state=True, **{**SIZES, **options})
        assert o.is_meta and o.shape == x.shape and state.keys.is_meta and state.position == 45
    for op, make in RECURRENCES.values():
        inputs = [x.to("meta") for x in make(70)]
        o, state = op(*inputs[:-1], initial_state=inputs[-1], return_state=True)
        assert o.is_meta and state.shape == inputs[-1].shape
    z, words = torch.empty(2, 5, 3, 4, device="meta"), torch.empty(3, 7, 4, device="meta")
    for gradient in ("straight_through", "diveq", "sf_diveq"):
        z_q, index = ovq.vector_quantize(z, words, gradient=gradient)
        assert z_q.is_meta and z_q.shape == z.shape and index.shape == z.shape[:3]


def test_unknown_options():
    q, k, v, beta = make_inputs(time=4)
    with pytest.raises(TypeError, match=r"\[ovq_attention\] unknown option 'window'; must be one of \['chunk', "):
        reference.ovq_attention(q, k, v, beta, window=3)
