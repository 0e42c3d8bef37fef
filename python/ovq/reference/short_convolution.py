"""A causal convolution over time, each channel by itself."""

from typing import Optional, Tuple

import torch
from torch import Tensor
from torch.nn.functional import silu

from .recurrence import OutputAndState, recurrence


def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    *,
    activation: Optional[str] = None,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
) -> OutputAndState:
    """y_t = bias + sum_j weight[:, j] x_(t - width + 1 + j), behind the inputs `initial_state` or zeros; then silu."""

    def run(before: Tensor, x: Tensor, weight: Tensor, bias: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        width, time = weight.shape[1], x.shape[1]
        everything = torch.cat([before, x], 1)
        y = sum(weight[:, j] * everything[:, j : j + time] for j in range(width))
        y = y if bias is None else y + bias
        return silu(y) if activation == "silu" else y, everything[:, time:]

    inputs = {"x": (x, "B T C"), "weight": (weight, "C W"), "bias": (bias, "?C")}
    result = recurrence("short_convolution", run, inputs, {}, "W-1 C", initial_state, return_state, cu_seqlens)
    return (result[0], result[1].to(x.dtype)) if return_state else result
