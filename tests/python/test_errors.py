"""Bad input is an exception that names the op and the argument."""

import math

import pytest
import torch
from common import both_paths, make_inputs

import ovq

Q, K, V, BETA = (x.detach() for x in make_inputs(group=2))
PACKED = [x[:1] for x in (Q, K, V)] + [BETA]

BAD_INPUTS = {
    "integers": (TypeError, "q has dtype torch.int32", (Q.int(), K, V, BETA)),
    "other dtype": (TypeError, "k has dtype (Double|torch.float64)", (Q, K.double(), V, BETA)),
    "not a tensor": (TypeError, "q is a list; must be a tensor", ([1.0], K, V, BETA)),
    "other device": (ValueError, "k is on meta", (Q, K.to("meta"), V, BETA)),
    "beta on another device": (ValueError, "beta is on meta", (Q, K, V, BETA.to("meta"))),
    "rank": (ValueError, r"q has (3 dimensions|shape \[45, 4, 8\])", (Q[0], K, V, BETA)),
    "heads": (ValueError, "k has 2 heads; must divide q's 3", (Q[:, :, :3], K, V, BETA[:3])),
    "value heads": (ValueError, r"v has (1 heads|shape .*; must be \[2, 45, 2, 8\])", (Q, K, V[:, :, :1], BETA)),
    "batch": (ValueError, r"k has (batch 1|shape .*; must be \[2, 45, 2, 8\])", (Q, K[:1], V, BETA)),
    "key time": (ValueError, "k has time 3; must|query_offset is 0", (Q, K[:, :3], V[:, :3], BETA)),
    "value time": (ValueError, r"v has (time 3|shape .*; must be \[2, 45, 2, 8\])", (Q, K, V[:, :3], BETA)),
    "dim": (ValueError, r"k has (dim 4|shape .*; must be \[2, 45, 2, 8\])", (Q, K[..., :4], V, BETA)),
    "beta length": (ValueError, r"beta has (3|shape \[3\]; must be \[4\])", (Q, K, V, BETA[:3])),
    "beta rank": (ValueError, r"beta has (2 dimensions|shape \[1, 4\])", (Q, K, V, BETA[None])),
    "beta nan": (ValueError, r"beta\[0\] is -?nan; must be finite, and within -1e\+35 and 1e\+35", (Q, K, V, math.nan)),
    "beta inf": (ValueError, r"beta\[0\] is -?inf; must be finite", (Q, K, V, BETA * math.inf)),
    "beta text": (TypeError, "beta is a str", (Q, K, V, "1")),
}

BAD_OPTIONS = {
    "chunk": (ValueError, dict(chunk=0)),
    "centroids": (ValueError, dict(centroids=0)),
    "growth is 'quick'": (ValueError, dict(growth="quick")),
    "total_tokens": (ValueError, dict(growth="linear")),
    "new_centroids is 'best'": (ValueError, dict(new_centroids="best")),
    "rate": (ValueError, dict(rate=-1.0)),
    "rope_base": (ValueError, dict(rope=True, rope_base=0.0)),
    "seed is -1; must be an integer of at least 0": (ValueError, dict(seed=-1)),
    "value_norms do not go with a constant rate": (ValueError, dict(value_norms=True, rate=0.1)),
    "argument 'chunk'": (TypeError, dict(chunk="many")),
    "argument 'seed'": (TypeError, dict(seed=0.5)),
    "unexpected keyword": (TypeError, dict(window=3)),
}

BAD_OFFSETS = {
    "must not decrease": (ValueError, [0, 20, 10, 45]),
    "must start with 0": (ValueError, [1, 45]),
    "must end with": (ValueError, [0, 44]),
    "integer": (TypeError, [0.0, 45.0]),
    "at least one element": (ValueError, []),
}


@pytest.mark.parametrize("name", BAD_INPUTS)
@pytest.mark.parametrize("op", [ovq.ovq_attention, ovq.attention])
@pytest.mark.parametrize("path", [None, "formula"])
def test_inputs(name, op, path):
    kind, message, inputs = BAD_INPUTS[name]
    with pytest.raises(kind, match=message):
        op(*inputs, path=path)


@pytest.mark.parametrize("message", BAD_OPTIONS)
@both_paths
def test_options(message, path):
    kind, options = BAD_OPTIONS[message]
    with pytest.raises(kind, match=message) as caught:
        ovq.ovq_attention(Q, K, V, BETA, path=path, **options)
    assert str(caught.value).startswith("[ovq_attention] ") or message == "unexpected keyword"


@both_paths
def test_rope_needs_an_even_dim(path):
    with pytest.raises(ValueError, match="even"):
        ovq.ovq_attention(Q[..., :7], K[..., :7], V, BETA, rope=True, path=path)


@pytest.mark.parametrize("op", [ovq.ovq_attention, ovq.attention])
@pytest.mark.parametrize("message", BAD_OFFSETS)
@both_paths
def test_offsets(op, message, path):
    kind, offsets = BAD_OFFSETS[message]
    dtype = None if offsets else torch.long
    with pytest.raises(kind, match=message):
        op(*PACKED, cu_seqlens=torch.tensor(offsets, dtype=dtype), path=path)
    with pytest.raises(ValueError, match="batch 1"):
        op(Q, K, V, BETA, cu_seqlens=torch.tensor([0, 45]), path=path)
    with pytest.raises(TypeError, match="cu_seqlens"):
        op(*PACKED, cu_seqlens=[0, 45], path=path)


@pytest.mark.parametrize("window", [0, -3])
def test_window(window):
    with pytest.raises(ValueError, match="window"):
        ovq.attention(Q, K, V, BETA, window=window)


def continuing(*inputs, state, **options):
    return ovq.ovq_attention(*inputs, state=state, **options)


def stepping(*inputs, state, **options):
    return ovq.step(*inputs, state, **options)


@pytest.mark.parametrize("use", [continuing, stepping])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_states(use, dtype):
    q, k, v, beta = (x.to(dtype) for x in (Q, K, V, BETA))
    _, state = ovq.ovq_attention(q, k, v, beta, chunk=8, return_state=True)
    before = state.clone()
    offsets = torch.tensor([0, 20, 45])
    packed = [x[:1] for x in (q, k, v)]

    with pytest.raises(ValueError, match="state.* is for batch 2"):
        use(*packed, beta, state=state)
    with pytest.raises(ValueError, match="key dim 8"):
        use(q[..., :4], k[..., :4], v, beta, state=state)
    with pytest.raises(ValueError, match="2 kv heads"):
        use(q[:, :, :2], k[:, :, :1], v[:, :, :1], beta[:2], state=state)
    with pytest.raises(ValueError, match="k has time 2; must equal q's 1"):
        use(q[:, :1], k[:, :2], v[:, :2], beta, state=state)
    with pytest.raises(ValueError, match="was made by the|is torch.float64 on cpu; must be torch.float32 on cpu"):
        other = torch.float64 if dtype == torch.float32 else torch.float32
        use(q.to(other), k.to(other), v.to(other), beta.to(other), state=state)
    with pytest.raises(ValueError, match="must be 2, one per packed sequence"):
        use(*packed, beta, state=[state], cu_seqlens=offsets)
    with pytest.raises(TypeError, match="must be a list of States"):
        use(*packed, beta, state=state, cu_seqlens=offsets)
    with pytest.raises(TypeError, match="must be a State"):
        use(q, k, v, beta, state=[state])
    with pytest.raises(TypeError, match="state is a Tensor"):
        use(q, k, v, beta, state=q)
    assert state.position == 45 and torch.equal(state.keys, before.keys)
    assert use(q, k, v, beta, state=state).shape == q.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_errors_name_what_was_called(dtype):
    inputs = [x.to(dtype) for x in (Q, K, V, BETA)]
    _, state = ovq.ovq_attention(*inputs, chunk=8, return_state=True)
    for use, op in ((continuing, "ovq_attention"), (stepping, "step")):
        for bad in ([inputs[0][:1], *inputs[1:]], [x[:1] for x in inputs[:3]] + inputs[3:]):
            with pytest.raises(ValueError, match=rf"^\[{op}\]"):
                use(*bad, state=state)
        with pytest.raises(TypeError, match=rf"^\[{op}\]"):
            use(None, *inputs[1:], state=state)


@both_paths
def test_step_with_one_state_twice(path):
    _, states = ovq.ovq_attention(*PACKED, cu_seqlens=torch.tensor([0, 20, 45]), return_state=True, path=path)
    token = [x[:, :2] for x in PACKED[:3]] + [BETA]
    with pytest.raises(ValueError, match=r"\[step\] states\[1\] is .*; a step needs different ones"):
        ovq.step(*token, [states[0], states[0]], cu_seqlens=torch.tensor([0, 1, 2]))


def test_meta_tensors_are_checked():
    q, k, v, beta = (x.to("meta") for x in (Q, K, V, BETA))
    with pytest.raises(ValueError, match="must divide"):
        ovq.ovq_attention(q[:, :, :3], k, v, beta[:3])


def test_state_is_not_made_by_hand():
    with pytest.raises(TypeError, match="ovq_attention"):
        ovq.State(3)
