"""OVQ-attention."""

from typing import Optional, Tuple, Union

import torch
from torch import Tensor

from .._library import call
from ..paths import path_of
from ..reference.inputs import Beta
from ..reference.ovq_attention import run
from ..state import OPTIONS, State, States, continued, dtype_name
from .attention import as_tensor


def ovq_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Beta,
    *,
    chunk: Optional[int] = None,
    centroids: Optional[int] = None,
    growth: Optional[str] = None,
    total_tokens: Optional[int] = None,
    new_centroids: Optional[str] = None,
    rate: Optional[float] = None,
    rope_base: Optional[float] = None,
    normalize: Optional[bool] = None,
    rope: Optional[bool] = None,
    seed: Optional[int] = None,
    value_norms: Optional[bool] = None,
    weights: Optional[Tensor] = None,
    cu_seqlens: Optional[Tensor] = None,
    state: Optional[States] = None,
    return_state: bool = False,
    state_dtype: Optional[torch.dtype] = None,
    path: Optional[str] = None,
) -> Union[Tensor, Tuple[Tensor, States]]:
    """Attention to a dictionary learned while the sequence streams by, and to the current chunk as it is.

    An option that is None has the default in parentheses, or is that of the state it continues. Padding masks are not
    supported: pack sequences instead.

    Args:
        q: [B, T, Hq, dk]; k: [B, T, Hkv, dk]; v: [B, T, Hkv, dv]. Hq is a multiple of Hkv. One floating dtype.
        beta: factor of the logits, a number or a tensor [Hq], within -1e35 and 1e35. beta q . k must be finite in
            float32 (below 3e38), and so must sums of v; what overflows gives NaN.
        chunk (128): tokens between writes to the dictionary.
        centroids (2048): most centroids per kv head.
        growth ('plateau'): how their number follows the position: "plateau", "linear", "all", "square-root".
        total_tokens (0): length at which linear growth reaches `centroids`.
        new_centroids ('spread'): which keys found centroids: "spread", "random".
        rate: constant learning rate, in (0, 1]; without one centroids are running means.
        rope_base (10000.0): base of the rotary positions.
        normalize (False): rescale the key centroids to unit norm after each write.
        rope (False): rotary positions in a window of two chunks; the head dim must be even.
        seed (0): of random new centroids.
        value_norms (False): values of centroids are as long as those of their tokens are on average.
        weights: [B, T, Hkv], positive, at most 1e30: how much each token weighs as a data point (1: as without weights).
            Counts are then sums of weights and centroids weighted means; differentiable. Not with a constant rate. A
            state made with weights goes on with weights.
        cu_seqlens: [sequences + 1] integers from 0 to T: sequences packed along time, with B = 1.
        state: continue from it, on the path that made it; it is left unchanged. With cu_seqlens a list, one per
            sequence. Options come from it; only `centroids` may differ, from the next write on.
        return_state: also return the state afterwards.
        state_dtype: torch.bfloat16 stores the centroids of a kernel's new state in half the memory, for inference (no
            gradients). A state that is continued keeps its dtype.
        path: "kernel" or "formula"; None: the kernel where there is one.

    Returns:
        o [B, T, Hq, dv] in q's dtype, or (o, state) with return_state; with cu_seqlens, state is a list.
    """
    op = "ovq_attention"
    values = (
        chunk,
        centroids,
        growth,
        total_tokens,
        new_centroids,
        rate,
        rope_base,
        normalize,
        rope,
        seed,
        value_norms,
    )
    given = {name: value for name, value in zip(OPTIONS, values) if value is not None}
    stored_as = dtype_name(op, "state_dtype", state_dtype or torch.float32)
    if state_dtype is not None and state is None and not return_state:
        raise ValueError(f"[{op}] state_dtype is given; there is no state without return_state")
    taken = path_of(op, path, q=q, k=k, v=v, beta=beta, weights=weights)
    before = None if state is None else continued(op, state, cu_seqlens, taken, given, state_dtype)
    if taken == "formula":
        if state_dtype == torch.bfloat16:
            raise ValueError(f"[{op}] state_dtype is {state_dtype}; these inputs take the formula, which has none such")
        o, after = run(op, q, k, v, beta, weights, cu_seqlens, before, given)
    else:
        inputs, more, after = (q, k, v, as_tensor(op, beta)), dict(cu_seqlens=cu_seqlens, weights=weights), []
        if before is not None:
            o, after = call("ovq_attention_continue", *inputs, before, given.get("centroids"), **more, op=op)
        elif return_state:
            options = {**OPTIONS, **given}
            o, after = call("ovq_attention_start", *inputs, **options, **more, state_dtype=stored_as, op=op)
        else:
            o = call(op, *inputs, **{**OPTIONS, **given}, **more)
    if not return_state:
        return o
    return o, State(after[0]) if cu_seqlens is None else [State(handle) for handle in after]


def step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Beta,
    state: States,
    *,
    weights: Optional[Tensor] = None,
    cu_seqlens: Optional[Tensor] = None,
) -> Tensor:
    """Decodes the next token or tokens: `state` moves on in place; no autograd.

    Args:
        q: [B, T, Hq, dk]; k: [B, T, Hkv, dk]; v: [B, T, Hkv, dv], mostly with T = 1.
        beta: a number or a tensor [Hq].
        state: from `ovq_attention(..., return_state=True)`. With cu_seqlens a list, one per sequence.
        weights: [B, T, Hkv], if the state was made with weights.

    Returns:
        o [B, T, Hq, dv], with the kernel the same bits as one pass over everything.
    """
    op, states = "step", [state] if cu_seqlens is None else state
    of_formula = isinstance(states, (list, tuple)) and any(isinstance(s, State) and s.path == "formula" for s in states)
    path = path_of(op, "formula" if of_formula else None, q=q, k=k, v=v, beta=beta, weights=weights)
    before = continued(op, state, cu_seqlens, path)
    if path == "kernel":
        return call("ovq_step", q, k, v, as_tensor(op, beta), before, cu_seqlens, weights, op=op)
    for i, one in enumerate(states):
        if any(one is other for other in states[:i]):
            raise ValueError(f"[{op}] states[{i}] is there twice; a step needs different ones")
    with torch.no_grad():
        o, after = run(op, q, k, v, beta, weights, cu_seqlens, before, {})
    for one, dictionary in zip(states, after):
        one._handle = dictionary
    return o
