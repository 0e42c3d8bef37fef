"""A causal convolution over time."""

from typing import Optional

from torch import Tensor

from .. import reference
from .._library import call
from ..paths import path_of
from ..reference.recurrence import OutputAndState


def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    *,
    activation: Optional[str] = None,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
    path: Optional[str] = None,
) -> OutputAndState:
    """A causal convolution over time, each channel by itself.

        y_t = bias + sum_j weight[:, j] x_(t - width + 1 + j), zeros before the first token

    Args:
        x: [B, T, C]; weight: [C, width]; bias: [C]. One floating dtype.
        activation: "silu": y sigmoid(y); None: none.
        initial_state: the inputs before the first token, [B, width - 1, C]; None: zeros.
        return_state: also return the last width - 1 inputs.
        cu_seqlens: [sequences + 1]: packed sequences.
        path: "kernel" or "formula"; None: the kernel where there is one.

    Returns:
        y [B, T, C], or (y, state).
    """
    op, inputs = "short_convolution", dict(x=x, weight=weight, bias=bias)
    if activation not in (None, "silu"):
        raise ValueError(f"[{op}] activation is {activation!r}; must be 'silu' or None")
    options = dict(initial_state=initial_state, return_state=return_state, cu_seqlens=cu_seqlens)
    if path_of(op, path, **inputs, initial_state=initial_state) == "formula":
        return reference.short_convolution(**inputs, activation=activation, **options)
    y, state = call(op, **inputs, **options, silu=activation == "silu")
    return (y, state) if return_state else y
