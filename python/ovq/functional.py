"""The ops as functions. Layout [batch, time, heads, dim], any strides; no copy while the last dimension is contiguous.

An option of `ovq_attention` that is None has the default in parentheses, or is that of the state it continues.
"""

import struct
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor

from ._library import call
from .state import OPTIONS, State, dtype_name

Beta = Union[float, Tensor]
States = Union[State, List[State]]


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
    backend: Optional[str] = None,
) -> Union[Tensor, Tuple[Tensor, States]]:
    """Attention to a dictionary learned while the sequence streams by, and to the current chunk as it is.

    Differentiable once on the fused path (float32, bfloat16, half on the CPU), any number of times on the composed one
    (other devices, float64, backend="composed"). Padding masks are not supported: pack sequences instead.

    Args:
        q: [B, T, Hq, dk]; k: [B, T, Hkv, dk]; v: [B, T, Hkv, dv]. Hq is a multiple of Hkv. One floating dtype.
        beta: factor of the logits, a number or a tensor [Hq], within -1e35 and 1e35. beta q . k must be finite in float32
            (below 3e38), and so must sums of v; what overflows gives NaN.
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
        state: continue from it; it is left unchanged. With cu_seqlens a list, one per sequence. Options come from it;
            only `centroids` may differ, from the next write on.
        return_state: also return the state afterwards.
        state_dtype: torch.bfloat16 stores the centroids of a new state in half the memory, for inference (no gradients).
            A state that is continued keeps its dtype.
        backend: "fused", "composed" (of torch calls) or "auto", fused where there are kernels. The environment variable
            OVQ_FORCE_REFERENCE=1 makes composed the default.

    Returns:
        o [B, T, Hq, dv] in q's dtype, or (o, state) with return_state; with cu_seqlens, state is a list.
    """
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
    inputs = (q, k, v, _beta_tensor("ovq_attention", beta))
    dtype = dtype_name("ovq_attention", "state_dtype", state_dtype or torch.float32)
    if state is not None:
        states = _state_list("ovq_attention", state, cu_seqlens)
        _check_options(states, given)
        _check_dtype(states, state_dtype)
        handles = [s._handle for s in states]
        o, handles = call(
            "ovq_attention_continue",
            *inputs,
            handles,
            given.get("centroids"),
            cu_seqlens,
            weights,
            backend,
            op="ovq_attention",
        )
    else:
        arguments = [given.get(name, default) for name, default in OPTIONS.items()]
        more = dict(cu_seqlens=cu_seqlens, weights=weights, backend=backend)
        if not return_state:
            if state_dtype is not None:
                raise ValueError("[ovq_attention] state_dtype is given; there is no state without return_state")
            return call("ovq_attention", *inputs, *arguments, **more)
        o, handles = call("ovq_attention_start", *inputs, *arguments, **more, state_dtype=dtype, op="ovq_attention")
    if not return_state:
        return o
    return o, State(handles[0]) if cu_seqlens is None else [State(handle) for handle in handles]


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
        o [B, T, Hq, dv], the same bits as one pass over everything.
    """
    states = _state_list("step", state, cu_seqlens)
    handles = [s._handle for s in states]
    return call("ovq_step", q, k, v, _beta_tensor("step", beta), handles, cu_seqlens, weights, op="step")


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Beta,
    *,
    window: Optional[int] = None,
    query_offset: int = 0,
    cu_seqlens: Optional[Tensor] = None,
    backend: Optional[str] = None,
) -> Tensor:
    """Causal softmax attention, o_t = softmax(beta q_t K^T) V.

    Args:
        q: [B, Tq, Hq, dk]; k: [B, Tk, Hkv, dk]; v: [B, Tk, Hkv, dv]. Hq is a multiple of Hkv.
        beta: factor of the logits, a number or a tensor [Hq]; the range is that of `ovq_attention`.
        window: a query sees this many keys, its own included; None: all before it.
        query_offset: position of the first query among the keys.
        cu_seqlens: [sequences + 1] integers from 0 to T: sequences packed along time, with B = 1.
        backend: see `ovq_attention`.

    Returns:
        o [B, Tq, Hq, dv] in q's dtype.
    """
    if isinstance(window, int) and window < 1:
        raise ValueError(f"[attention] window is {window}; must be at least 1, or None")
    inputs = (q, k, v, _beta_tensor("attention", beta))
    return call("attention", *inputs, 0 if window is None else window, query_offset, cu_seqlens, backend)


def _beta_tensor(op: str, beta: Beta) -> Tensor:
    if isinstance(beta, Tensor):
        return beta
    if isinstance(beta, (int, float)):
        return torch.tensor(beta, dtype=torch.float64)
    raise TypeError(f"[{op}] beta is a {type(beta).__name__}; must be a number or a tensor")


def _state_list(op: str, state: States, cu_seqlens: Optional[Tensor]) -> List[State]:
    states = [state] if cu_seqlens is None else state
    expected = "a State" if cu_seqlens is None else "a list of States, one per packed sequence"
    if not isinstance(states, (list, tuple)) or not all(isinstance(s, State) for s in states):
        raise TypeError(f"[{op}] state is a {type(state).__name__}; must be {expected}")
    return list(states)


def _check_options(states: List[State], given: Dict[str, Any]) -> None:
    named = {name: value for name, value in given.items() if name != "centroids"}
    for options in (state.options for state in states) if named else ():
        for name, value in named.items():
            if value != options[name] and _single(value) != options[name]:
                raise ValueError(
                    f"[ovq_attention] {name} is {value!r}; the state was made with {options[name]!r}, "
                    "and only centroids may change"
                )


def _check_dtype(states: List[State], dtype: Optional[torch.dtype]) -> None:
    for state in states:
        if dtype is not None and state.dtype != dtype:
            raise ValueError(
                f"[ovq_attention] state_dtype is {dtype}; the state is stored as {state.dtype}: convert it with State.to"
            )


def _single(value: Any) -> Any:
    """A float as the kernels keep it."""
    return struct.unpack("f", struct.pack("f", value))[0] if isinstance(value, float) else value
