"""What the dispatched ops of the kernels return, for torch.compile and torch.export: shapes without data.

The kernels check their inputs when the compiled call runs.
"""

from typing import Any, Callable, Optional, Tuple

import torch
from torch import Tensor


def _fake(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return torch.library.register_fake(f"ovq::{name}")


def _like(*tensors: Tensor) -> Tuple[Tensor, ...]:
    """New contiguous tensors of these shapes."""
    return tuple(x.new_empty(x.shape) for x in tensors)


def _saved(x: Tensor, starts: Optional[Tensor], floats: int) -> Tensor:
    """What a recurrence saves at the borders of chunks, `floats` at each; x [B, T, ...]."""
    chunk = torch.ops.ovq.recurrence_chunk()
    batch, time = x.shape[:2]
    borders = batch * ((time + chunk - 1) // chunk + 1) if starts is None else time // chunk + 2 * starts.numel()
    return x.new_empty(borders * floats)


def _after(state: Tensor, starts: Optional[Tensor]) -> Tensor:
    """The state after the last token, which packed sequences have none of."""
    return state.new_empty(state.shape if starts is None else 0)


def _d_state(state: Tensor, wanted: bool) -> Tensor:
    return state.new_empty(state.shape if wanted else 0)


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

    @_fake("gated_delta_rule_forward")
    def gated_delta_rule_forward(q, k, v, g, beta, state, starts):
        floats = torch.ops.ovq.gated_delta_rule_saved(*map(int, (q.shape[2], q.shape[3], v.shape[3])))
        return *_like(v), _after(state, starts), _saved(v, starts, floats)

    @_fake("gated_delta_rule_backward")
    def gated_delta_rule_backward(d_o, d_after, q, k, v, g, beta, state, saved, starts, wants_d_state):
        return *_like(q, k, v, g, beta), _d_state(state, wants_d_state)

    @_fake("linear_attention_forward")
    def linear_attention_forward(q, k, v, g, state, starts, scale):
        floats = torch.ops.ovq.linear_attention_saved(*map(int, (q.shape[2], q.shape[3], v.shape[3])))
        return *_like(v), _after(state, starts), _saved(v, starts, floats)

    @_fake("linear_attention_backward")
    def linear_attention_backward(d_o, d_after, q, k, v, g, state, saved, starts, scale, wants_d_state):
        return *_like(q, k, v, g), _d_state(state, wants_d_state)

    @_fake("ssd_forward")
    def ssd_forward(x, dt, a, b, c, d, state, starts):
        floats = torch.ops.ovq.ssd_saved(*map(int, (b.shape[2], x.shape[2], b.shape[3], x.shape[3])))
        return *_like(x), _after(state, starts), _saved(x, starts, floats)

    @_fake("ssd_backward")
    def ssd_backward(d_o, d_after, x, dt, a, b, c, d, state, saved, starts, wants_d_state):
        return *_like(x, dt, a, b, c, d), _d_state(state, wants_d_state)

    @_fake("mesa_forward")
    def mesa_forward(q, k, v, g, beta, lambda_, state, starts, iterations):
        floats = torch.ops.ovq.mesa_saved(*map(int, (q.shape[2], q.shape[3], v.shape[3])))
        return *_like(v), _after(state, starts), *_like(q), _saved(v, starts, floats)

    @_fake("mesa_backward")
    def mesa_backward(
        d_o, d_after, q, k, v, g, beta, lambda_, state, solution, saved, starts, iterations, wants_d_state
    ):
        return *_like(q, k, v, g, beta, lambda_), _d_state(state, wants_d_state)

    @_fake("sequence_starts")
    def sequence_starts(cu_seqlens, like, op):
        return cu_seqlens.new_empty(cu_seqlens.numel() - 1, dtype=torch.long)

    @_fake("rms_norm_forward")
    def rms_norm_forward(x, weight, eps, groups):
        return *_like(x), x.new_empty((x.numel() // x.shape[-1], groups))

    @_fake("rms_norm_backward")
    def rms_norm_backward(d_y, x, weight, r):
        return _like(x, weight)

    @_fake("l2_norm_forward")
    def l2_norm_forward(x, eps):
        return *_like(x), x.new_empty((x.numel() // x.shape[-1], 1))

    @_fake("l2_norm_backward")
    def l2_norm_backward(d_y, y, r):
        return y.new_empty(y.shape)

    @_fake("rotary_angles")
    def rotary_angles(x, base, first_position, cu_seqlens):
        return x.new_empty((x.shape[1], x.shape[3]))

    @_fake("rotated")
    def rotated(x, table, direction):
        return x.new_empty(x.shape)

    @_fake("short_convolution_forward")
    def short_convolution_forward(x, weight, bias, before, cu_seqlens, silu):
        return x.new_empty(x.shape)

    @_fake("short_convolution_backward")
    def short_convolution_backward(d_y, x, weight, bias, before, cu_seqlens, silu):
        optional = [x.new_empty(0 if y is None else y.shape) for y in (bias, before)]
        return *_like(x, weight), *optional

    @_fake("nearest_codeword")
    def nearest_codeword(z, codewords, bonus):
        return z.new_empty(z.shape[:2], dtype=torch.long)

    @_fake("vector_quantize_noise")
    def vector_quantize_noise(z, codewords, seed, segments):
        if not segments:
            return z.new_empty(0), z.new_empty(z.shape), z.new_empty(0)
        return z.new_empty((codewords.shape[0], codewords.shape[1] - 1, 1)), *_like(z, z)
