"""The sequence ops' formulas against the same token by token, in double; test_reference.py compares the kernels with
them.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from common import assert_all_near, assert_near

import ovq

BATCH, TIME, HEADS, DK, DV, GROUPS, WIDTH = 2, 21, 4, 3, 2, 2, 4


def delta_in_torch(q, k, v, g, beta, state):
    outputs = []
    for t in range(q.shape[1]):
        state = g[:, t].exp()[..., None, None] * state
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * u[:, :, None]
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]) / math.sqrt(DK))
    return torch.stack(outputs, 1), state


def linear_in_torch(q, k, v, g, state, scale=1 / math.sqrt(DK)):
    outputs = []
    for t in range(q.shape[1]):
        state = g[:, t].exp()[..., None, None] * state + k[:, t, :, :, None] * v[:, t, :, None]
        outputs.append(scale * torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, 1), state


def ssd_in_torch(x, dt, b, c, a, d, state):
    b, c = (y.repeat_interleave(HEADS // GROUPS, 2) for y in (b, c))
    o, state = linear_in_torch(c, b, dt[..., None] * x, dt * a, state, 1)
    return o + d[:, None] * x, state


def mesa_in_torch(q, k, v, g, beta, lambda_, state):
    outputs = []
    for t in range(q.shape[1]):
        written = torch.cat([k[:, t], v[:, t]], -1)[:, :, None]
        state = g[:, t].exp()[..., None, None] * state + beta[:, t, :, None, None] * k[:, t, :, :, None] * written
        # H is symmetric; where the state given is not, its transpose counts
        h, m = state[..., :DK].transpose(-1, -2), state[..., DK:]
        solution = torch.linalg.solve(h + torch.diag_embed(lambda_), q[:, t])
        outputs.append(torch.einsum("bhkv,bhk->bhv", m, solution))
    return torch.stack(outputs, 1), state


def convolution_in_torch(x, weight, bias, state):
    y = F.conv1d(torch.cat([state, x], 1).transpose(1, 2), weight[:, None], bias, groups=x.shape[2]).transpose(1, 2)
    return y, torch.cat([state, x], 1)[:, x.shape[1] :]


def make(shapes, batch=BATCH, time=TIME, states=None, seed=0):
    """Inputs by name, the state last; in double, with gradients."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"B": batch, "T": time, "S": states or batch}
    made = []
    for name, shape in shapes.items():
        x = torch.randn([sizes.get(s, s) for s in shape], generator=generator, dtype=torch.float64)
        if name in ("q", "k"):
            x = F.normalize(x, dim=-1)
        elif name in ("g", "a"):
            x = -x.exp()
        elif name in ("beta", "dt"):
            x = x.sigmoid()
        elif name == "lambda_":
            x = 0.25 + x.square()
        elif name == "state" and shape[-1] == DK + DV:
            x[..., :DK] = x[..., :DK] @ x[..., :DK].transpose(-1, -2)
        made.append(x.requires_grad_())
    return made


# name: (the op as a function of the tensors and `initial_state`, in torch, shapes; those along time first, the state last)
HEAD_SHAPES = {"q": ("B", "T", HEADS, DK), "k": ("B", "T", HEADS, DK), "v": ("B", "T", HEADS, DV), "g": ("B", "T", HEADS)}
STATE = ("S", HEADS, DK, DV)
OPS = {
    "gated_delta_rule": (
        lambda *x, **options: ovq.gated_delta_rule(*x, **options),
        delta_in_torch,
        {**HEAD_SHAPES, "beta": ("B", "T", HEADS), "state": STATE},
    ),
    "linear_attention": (
        lambda *x, **options: ovq.linear_attention(*x, **options),
        linear_in_torch,
        {**HEAD_SHAPES, "state": STATE},
    ),
    "ssd": (
        lambda x, dt, b, c, a, d, **options: ovq.ssd(x, dt, a, b, c, d, **options),
        ssd_in_torch,
        {
            "x": ("B", "T", HEADS, DV),
            "dt": ("B", "T", HEADS),
            "b": ("B", "T", GROUPS, DK),
            "c": ("B", "T", GROUPS, DK),
            "a": (HEADS,),
            "d": (HEADS,),
            "state": STATE,
        },
    ),
    "mesa": (
        lambda *x, **options: ovq.mesa(*x, **options),
        mesa_in_torch,
        {
            **HEAD_SHAPES,
            "beta": ("B", "T", HEADS),
            "lambda_": (HEADS, DK),
            "state": ("S", HEADS, DK, DK + DV),
        },
    ),
    "short_convolution": (
        lambda *x, **options: ovq.short_convolution(*x, **options),
        convolution_in_torch,
        {"x": ("B", "T", 5), "weight": (5, WIDTH), "bias": (5,), "state": ("S", WIDTH - 1, 5)},
    ),
}
every_op = pytest.mark.parametrize("name", OPS)


def along_time(shapes):
    return [shape[:2] == ("B", "T") for shape in shapes.values()][:-1]


def cut(shapes, inputs, begin, end):
    return [x[:, begin:end] if timed else x for x, timed in zip(inputs, along_time(shapes))]


def loss_of(*outputs):
    return sum((x * torch.arange(x.numel(), dtype=x.dtype).mul(0.7).cos().view_as(x)).sum() for x in outputs)


@every_op
@pytest.mark.parametrize("time", [1, 8, TIME])
def test_against_tokens(name, time):
    op, in_torch, shapes = OPS[name]
    inputs = make(shapes, time=time)
    o, state = op(*inputs[:-1], initial_state=inputs[-1], return_state=True)
    expected, expected_state = in_torch(*inputs)
    assert_near(o, expected, 1e-10)
    assert_near(state, expected_state, 1e-10)
    assert_all_near(
        torch.autograd.grad(loss_of(o, state), inputs),
        torch.autograd.grad(loss_of(expected, expected_state), inputs),
        1e-8,
    )
    without = op(*inputs[:-1])
    assert_near(without, in_torch(*inputs[:-1], torch.zeros_like(inputs[-1]))[0], 1e-10)


@every_op
def test_gradcheck(name):
    op, _, shapes = OPS[name]

    def both(*x):
        return op(*x[:-1], initial_state=x[-1], return_state=True)

    if name == "mesa":  # its state is symmetric; steps that are not would count twice
        shapes = {key: shape for key, shape in shapes.items() if key != "state"}
        assert torch.autograd.gradcheck(lambda *x: op(*x), make(shapes, batch=1, time=3))
    else:
        assert torch.autograd.gradcheck(both, make(shapes, batch=1, time=3))


@every_op
@pytest.mark.parametrize("gradients", [True, False])
def test_pieces_are_one_pass(name, gradients):
    op, _, shapes = OPS[name]
    inputs = make(shapes)
    with torch.set_grad_enabled(gradients):
        whole, last = op(*inputs[:-1], initial_state=inputs[-1], return_state=True)
        state, outputs = inputs[-1], []
        before = state.detach().clone()
        for begin, end in ((0, 1), (1, 2), (2, 13), (13, 13), (13, TIME)):
            kept = state.detach().clone()
            o, after = op(*cut(shapes, inputs, begin, end), initial_state=state, return_state=True)
            assert torch.equal(state, kept)  # what was given stays
            outputs.append(o)
            state = after
        assert_near(torch.cat(outputs, 1), whole, 1e-10)
        assert_near(state, last, 1e-10)
        assert torch.equal(inputs[-1], before)


@every_op
@pytest.mark.parametrize("gradients", [True, False])
def test_packed_sequences(name, gradients):
    op, _, shapes = OPS[name]
    bounds = [0, 1, 1, 9, TIME]
    offsets = torch.tensor(bounds)
    inputs = make(shapes, batch=1, states=4)
    with torch.set_grad_enabled(gradients):
        packed = op(*inputs[:-1], cu_seqlens=offsets)
        o, states = op(*inputs[:-1], initial_state=inputs[-1], return_state=True, cu_seqlens=offsets)
        _, from_zeros = op(*inputs[:-1], return_state=True, cu_seqlens=offsets)
        assert states.shape == inputs[-1].shape
        for i, (begin, end) in enumerate(zip(bounds, bounds[1:])):
            part = cut(shapes, inputs, begin, end)
            alone, state = op(*part, return_state=True)
            assert_near(packed[:, begin:end], alone, 1e-10)
            assert_near(from_zeros[i : i + 1], state, 1e-10)
            alone, state = op(*part, initial_state=inputs[-1][i : i + 1], return_state=True)
            assert_near(o[:, begin:end], alone, 1e-10)
            assert_near(states[i : i + 1], state, 1e-10)


@every_op
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(name, dtype):
    op, in_torch, shapes = OPS[name]
    with torch.no_grad():
        inputs = make(shapes)
        rounded = [x.to(dtype) for x in inputs]
        o, state = op(*rounded[:-1], initial_state=rounded[-1], return_state=True)
        assert o.dtype == dtype
        expected, expected_state = in_torch(*(x.double() for x in rounded))
        # Of mesa's solves the accuracy depends on how well the keys are conditioned.
        tolerance = {torch.float32: 1e-4, torch.bfloat16: 3e-2}[dtype]
        assert_near(o, expected, tolerance)
        assert_near(state, expected_state, tolerance)


@every_op
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bad_input_is_named(name, dtype):
    """By the kernel's checks in C++, and the formula's."""
    op, _, shapes = OPS[name]
    inputs = [x.detach().to(dtype) for x in make(shapes)]
    first, *others = shapes
    tag = rf"^\[{name}\] "
    with pytest.raises(TypeError, match=tag + f"{first} has dtype torch.int32; must be a floating one"):
        op(inputs[0].int(), *inputs[1:-1])
    with pytest.raises(TypeError, match=tag + f"{first} is a NoneType; must be a tensor"):
        op(None, *inputs[1:-1])
    with pytest.raises(ValueError, match=tag + f"{first} has "):
        op(inputs[0][0], *inputs[1:-1])
    for i, argument in enumerate(others[:-1], 1):
        named = tag + argument.strip("_") + "_? "
        wrong = list(inputs)
        wrong[i] = torch.zeros(3, 3, 3, 3, 3, dtype=dtype)
        with pytest.raises(ValueError, match=named + "(has|must)"):
            op(*wrong[:-1])
        wrong[i] = inputs[i].to("meta")
        with pytest.raises(ValueError, match=named + f"is on meta; must be on {first}'s cpu"):
            op(*wrong[:-1])
    with pytest.raises(ValueError, match=tag + r"initial_state has shape \[1, 1\]; must be \[2, "):
        op(*inputs[:-1], initial_state=inputs[0].new_zeros(1, 1))
    one_row = [x[:1] if timed else x for x, timed in zip(inputs, along_time(shapes))]
    with pytest.raises(TypeError, match=tag + "cu_seqlens has dtype (Float|torch.float32); must be an integer one"):
        op(*cut(shapes, one_row, 0, 4), cu_seqlens=torch.tensor([0.0, 4.0]))
    with pytest.raises(ValueError, match=tag + "cu_seqlens ends with 4; must end with"):
        op(*one_row, cu_seqlens=torch.tensor([0, 4]))
    with pytest.raises(ValueError, match=tag + "cu_seqlens is given with batch 2; packed sequences need batch 1"):
        op(*inputs[:-1], cu_seqlens=torch.tensor([0, TIME]))


def test_dtypes_must_agree():
    q, k, v, g, beta, state = (x.detach() for x in make(OPS["gated_delta_rule"][2]))
    with pytest.raises(TypeError, match=r"\[gated_delta_rule\] v has dtype torch.float32; must equal q's torch.float64"):
        ovq.gated_delta_rule(q, k, v.float(), g, beta)
    expected = ovq.gated_delta_rule(q, k, v, g.float().double(), beta)
    assert_near(ovq.gated_delta_rule(q, k, v, g.float(), beta), expected, 1e-12)  # gates may differ


def test_linear_attention_without_decay():
    q, k, v, g, state = (x.detach() for x in make(OPS["linear_attention"][2]))
    scores = torch.einsum("bihd,bjhd->bhij", q, k).tril() * 0.5
    assert_near(ovq.linear_attention(q, k, v, scale=0.5), torch.einsum("bhij,bjhd->bihd", scores, v), 1e-12)


def test_ssd_without_d():
    x, dt, b, c, a, d, state = (x.detach() for x in make(OPS["ssd"][2]))
    assert_near(ovq.ssd(x, dt, a, b, c), ovq.ssd(x, dt, a, b, c, torch.zeros_like(d)), 0)


def test_convolution_activation():
    x, weight, bias, _ = (x.detach() for x in make(OPS["short_convolution"][2]))
    y = ovq.short_convolution(x, weight, bias)
    assert_near(ovq.short_convolution(x, weight, bias, activation="silu"), F.silu(y), 0)
    with pytest.raises(ValueError, match=r"\[short_convolution\] activation is 'relu'; must be 'silu' or None"):
        ovq.short_convolution(x, weight, bias, activation="relu")


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("groups", [1, 3])
def test_norms(groups):
    x, weight = normal(2, 5, 6), normal(6, seed=1)
    parts = x.unflatten(-1, (groups, -1))
    expected = (parts / (parts.square().mean(-1, keepdim=True) + 1e-3).sqrt()).flatten(-2) * weight
    assert_near(ovq.rms_norm(x, weight, eps=1e-3, groups=groups), expected, 1e-12)
    assert torch.autograd.gradcheck(lambda x, w: ovq.rms_norm(x, w, groups=groups), (x, weight))
    assert_near(ovq.l2_norm(x), x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt(), 1e-12)
    assert torch.autograd.gradcheck(ovq.l2_norm, (x,))


def test_bad_norms():
    x = normal(2, 6).detach()
    with pytest.raises(ValueError, match=r"\[rms_norm\] groups is 4; must divide the last dimension of x, 6"):
        ovq.rms_norm(x, x[0], groups=4)
    with pytest.raises(ValueError, match=r"\[rms_norm\] weight has shape \[5\]; must have one element"):
        ovq.rms_norm(x, x[0, :5])
    with pytest.raises(TypeError, match=r"\[rms_norm\] x has dtype torch.int32"):
        ovq.rms_norm(x.int(), x[0])
    with pytest.raises(TypeError, match=r"\[l2_norm\] x has dtype torch.int32"):
        ovq.l2_norm(x.int())


def test_rotary():
    x, base = normal(1, 7, 2, 6), 100.0
    angles = torch.arange(3, 10)[:, None] * base ** (-torch.arange(3, dtype=torch.float64) / 3)
    turned = torch.view_as_complex(torch.stack(x.chunk(2, -1), -1)) * torch.polar(torch.ones_like(angles), angles)[:, None]
    expected = torch.cat([turned.real, turned.imag], -1)
    assert_near(ovq.rotary(x, base=base, first_position=3), expected, 1e-12)
    assert torch.autograd.gradcheck(lambda x: ovq.rotary(x, first_position=3), (x,))
    packed = ovq.rotary(x, cu_seqlens=torch.tensor([0, 2, 7]))
    assert_near(packed, torch.cat([ovq.rotary(x[:, :2]), ovq.rotary(x[:, 2:])], 1), 1e-12)
    with pytest.raises(ValueError, match=r"\[rotary\] x has shape \[1, 7, 2, 5\]; must be .* even"):
        ovq.rotary(x[..., :5])
    with pytest.raises(ValueError, match=r"\[rotary\] base is -1; must be positive"):
        ovq.rotary(x, base=-1.0)


def test_vector_quantize():
    z, words = normal(2, 5, 3, 4), F.normalize(normal(3, 7, 4, seed=1).detach(), dim=-1)
    nearest = (z[:, :, :, None] - words).norm(dim=-1).argmin(-1)
    chosen = words[torch.arange(3), nearest]
    words.requires_grad_()
    z_q, index = ovq.vector_quantize(z, words)
    assert torch.equal(index, nearest)
    assert_near(z_q, chosen, 1e-12)
    weights = torch.randn_like(z_q)
    d_z, d_words = torch.autograd.grad((z_q * weights).sum(), (z, words), allow_unused=True)
    assert torch.equal(d_z, weights) and d_words is None

    z_q, index = ovq.vector_quantize(z, words, gradient="diveq", noise=0.0)
    assert torch.equal(index, nearest)
    assert_near(z_q, chosen, 1e-12)
    delta = (words[torch.arange(3), nearest] - z).detach()
    unit = delta / delta.norm(dim=-1, keepdim=True)
    d_z, d_words = torch.autograd.grad((z_q * weights).sum(), (z, words))
    along = unit * (unit * weights).sum(-1, keepdim=True)
    assert_near(d_z, weights - along, 1e-10)
    expected = torch.zeros_like(words).index_put((torch.arange(3).expand_as(nearest), nearest), along, accumulate=True)
    assert_near(d_words, expected, 1e-10)

    first, _ = ovq.vector_quantize(z, words, gradient="sf_diveq", seed=5)
    assert torch.equal(first, ovq.vector_quantize(z, words, gradient="sf_diveq", seed=5)[0])
    assert not torch.equal(first, ovq.vector_quantize(z, words, gradient="sf_diveq", seed=6)[0])
    bonus = torch.zeros(3, 7)
    bonus[:, 4] = 10
    assert (ovq.vector_quantize(z, words, bonus=bonus)[1] == 4).all()


def test_autocast():
    z, words = (x.detach().float() for x in (normal(2, 50, 3, 16), F.normalize(normal(3, 70, 16, seed=1), dim=-1)))
    q, k, v, g, beta, _ = (x.detach().float() for x in make(OPS["gated_delta_rule"][2]))
    index, o = ovq.vector_quantize(z, words)[1], ovq.gated_delta_rule(q, k, v, g, beta)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(ovq.vector_quantize(z, words)[1], index)
        mixed = ovq.gated_delta_rule(q.bfloat16(), k, v, g, beta)
    assert mixed.dtype == torch.bfloat16
    assert_near(mixed, o, 3e-2)


def test_bad_vector_quantize():
    z, words = normal(2, 5, 3, 4).detach(), normal(3, 7, 4).detach()
    for kind, message, arguments, options in (
        (TypeError, "z has dtype torch.int32", (z.int(), words), {}),
        (TypeError, "codewords has dtype torch.float32; must equal z's torch.float64", (z, words.float()), {}),
        (ValueError, r"z has shape \[5, 3, 4\]; must be \[B, T, H, D\]", (z[0], words), {}),
        (ValueError, r"codewords has shape \[2, 7, 4\]; must be \[3, 7, 4\]", (z, words[:2]), {}),
        (ValueError, r"bonus has shape \[3\]; must be \[3, 7\]", (z, words), dict(bonus=z[0, 0, :, 0])),
        (ValueError, "gradient is 'none'; must be 'straight_through', 'diveq' or", (z, words), dict(gradient="none")),
        (ValueError, "codewords has 1 codewords; must have at least 2", (z, words[:, :1]), dict(gradient="sf_diveq")),
        (ValueError, "noise is -1; must be at least 0", (z, words), dict(gradient="diveq", noise=-1.0)),
    ):
        with pytest.raises(kind, match=r"^\[vector_quantize\] " + message):
            ovq.vector_quantize(*arguments, **options)
