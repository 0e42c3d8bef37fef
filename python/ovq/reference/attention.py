"""Causal softmax attention."""

import math
from typing import Optional

import torch
from torch import Tensor

from ..arguments import offsets_of
from ..paths import without_autocast
from .inputs import Beta, by_head, check_attention, factors, wide


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Beta,
    *,
    window: Optional[int] = None,
    query_offset: int = 0,
    cu_seqlens: Optional[Tensor] = None,
) -> Tensor:
    """o_t = softmax(beta q_t K^T) V over the keys up to t, or the last `window` of them."""
    sizes = check_attention("attention", q, k, v)
    earlier = sizes["Tk"] - sizes["T"]
    if not 0 <= query_offset <= earlier:
        raise ValueError(f"[attention] query_offset is {query_offset}; must be in [0, {earlier}]")
    if cu_seqlens is not None and earlier != 0:
        raise ValueError(f"[attention] k has time {sizes['Tk']}; packed sequences need q's time {sizes['T']}")
    dtype, (q, k, v) = q.dtype, wide(q, k, v)
    q = q * factors("attention", beta, q).unsqueeze(-1)
    with without_autocast(q):
        if cu_seqlens is None:
            return attend(q, k, v, window, query_offset).to(dtype)
        offsets = offsets_of("attention", cu_seqlens, sizes["B"], sizes["T"])
        outputs = [q.new_zeros(*q.shape[:3], v.shape[3])[:, :0]]
        for begin, end in zip(offsets, offsets[1:]):
            outputs.append(attend(q[:, begin:end], k[:, begin:end], v[:, begin:end], window, 0))
        return torch.cat(outputs, 1).to(dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, window: Optional[int], query_offset: int) -> Tensor:
    group = q.shape[2] // k.shape[2]
    rows = by_head(q).unflatten(1, (k.shape[2], group))  # [B, Hkv, G, Tq, K]
    keys, values = by_head(k).unsqueeze(2), by_head(v).unsqueeze(2)
    last = torch.arange(q.shape[1], device=q.device).unsqueeze(1) + query_offset
    at = torch.arange(k.shape[1], device=q.device)
    hidden = (at > last) if window is None else (at > last) | (at <= last - window)
    logits = (rows @ keys.transpose(3, 4)).masked_fill(hidden, -math.inf)
    return by_head((logits.softmax(-1) @ values).flatten(1, 2))
