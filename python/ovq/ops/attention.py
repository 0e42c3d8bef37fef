"""Causal softmax attention."""

from typing import Optional

import torch
from torch import Tensor

from .. import reference
from .._library import call
from ..paths import path_of
from ..reference.inputs import Beta


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Beta,
    *,
    window: Optional[int] = None,
    query_offset: int = 0,
    cu_seqlens: Optional[Tensor] = None,
    path: Optional[str] = None,
) -> Tensor:
    """Causal softmax attention, o_t = softmax(beta q_t K^T) V.

    Args:
        q: [B, Tq, Hq, dk]; k: [B, Tk, Hkv, dk]; v: [B, Tk, Hkv, dv]. Hq is a multiple of Hkv.
        beta: factor of the logits, a number or a tensor [Hq]; the range is that of `ovq_attention`.
        window: a query sees this many keys, its own included; None: all before it.
        query_offset: position of the first query among the keys.
        cu_seqlens: [sequences + 1] integers from 0 to T: sequences packed along time, with B = 1.
        path: "kernel" or "formula"; None: the kernel where there is one.

    Returns:
        o [B, Tq, Hq, dv] in q's dtype.
    """
    if isinstance(window, int) and window < 1:
        raise ValueError(f"[attention] window is {window}; must be at least 1, or None")
    inputs, options = dict(q=q, k=k, v=v), dict(query_offset=query_offset, cu_seqlens=cu_seqlens)
    if path_of("attention", path, **inputs, beta=beta) == "formula":
        return reference.attention(**inputs, beta=beta, window=window, **options)
    return call("attention", **inputs, beta=as_tensor("attention", beta), window=window or 0, **options)


def as_tensor(op: str, beta: Beta) -> Tensor:
    if isinstance(beta, Tensor):
        return beta
    if isinstance(beta, (int, float)):
        return torch.tensor(beta, dtype=torch.float32)
    raise TypeError(f"[{op}] beta is a {type(beta).__name__}; must be a number or a tensor")
