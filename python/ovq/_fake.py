"""What the dispatched ops of the fused path return, for torch.compile and torch.export: shapes without data.

The kernels check their inputs when the compiled call runs.
"""

from typing import Any, Callable, Tuple

import torch
from torch import Tensor


def _fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return torch.library.register_fake(f"ovq::{name}")


def _like(*tensors: Tensor) -> Tuple[Tensor, ...]:
    """New contiguous tensors of these shapes."""
    return tuple(x.new_empty(x.shape) for x in tensors)


def _attended(q: Tensor, v: Tensor) -> Tensor:
    return q.new_empty((*q.shape[:3], v.shape[3]))


def register() -> None:
    """Before torch 2.4 nothing is traced so."""
    if not hasattr(torch.library, "register_fake"):
        return

    @_fake("attention_forward")
    def attention_forward(q, k, v, beta, *options):
        return _attended(q, v), q.new_empty((*q.shape[:3], 1))

    @_fake("attention_backward")
    def attention_backward(d_o, q, k, v, beta, *saved):
        return _like(q, k, v, beta)

    @_fake("ovq_attention_forward")
    def ovq_attention_forward(q, k, v, beta, cu_seqlens, weights, keep, *options):
        if not keep:
            return _attended(q, v), q.new_empty(0), q.new_empty(0, dtype=torch.int32)
        batch, time, heads, _ = k.shape
        return (
            _attended(q, v),
            q.new_empty((*q.shape[:3], 1)),
            q.new_empty(batch * time * heads, dtype=torch.int32),
        )

    @_fake("ovq_attention_backward")
    def ovq_attention_backward(d_o, q, k, v, beta, o, lse, assignments, cu_seqlens, weights, *options):
        return (*_like(q, k, v, beta), q.new_empty(0 if weights is None else weights.shape))
