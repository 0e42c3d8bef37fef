"""A causal depthwise convolution over time."""

from typing import Optional

import torch
from torch import Tensor, nn

from ..ops import short_convolution
from .state import MixerState


class ShortConvolution(nn.Module):
    """x [B, T, C] -> [B, T, C], each channel by itself, with an activation behind it ("silu" or None)."""

    def __init__(self, channels: int, width: int = 4, bias: bool = False, activation: Optional[str] = None) -> None:
        super().__init__()
        self.activation = activation
        self.weight = nn.Parameter(torch.empty(channels, width).uniform_(-(width**-0.5), width**-0.5))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x: Tensor, before: Optional[Tensor] = None, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        """`before` has the inputs before x, [B, width - 1, C]; with `cu_seqlens` sequences are packed along time."""
        return short_convolution(
            x, self.weight, self.bias, activation=self.activation, initial_state=before, cu_seqlens=cu_seqlens
        )

    def extra_repr(self) -> str:
        channels, width = self.weight.shape
        return f"{channels}, width={width}, bias={self.bias is not None}, activation={self.activation!r}"


def inputs_after(x: Tensor, before: Optional[Tensor], width: int) -> Tensor:
    """The last width - 1 inputs of a convolution, x [B, T, C] and those before it (None: zeros); a copy."""
    kept = width - 1
    if before is None:
        before = x.new_zeros(x.shape[0], kept, x.shape[2])
    return torch.cat([before[:, min(x.shape[1], kept) :], x[:, max(0, x.shape[1] - kept) :]], 1)


def convolved(
    convolution: nn.Module,
    name: str,
    width: int,
    y: Tensor,
    state: Optional[MixerState],
    cu_seqlens: Optional[Tensor],
) -> Tensor:
    """y [B, T, C] convolved, behind what the state has under `name` of the tokens before it."""
    if state is None:
        return convolution(y) if cu_seqlens is None else convolution(y, cu_seqlens=cu_seqlens)
    before = state.tensors.get(name)
    if before is not None:
        before = before.to(y.dtype)  # autocast may have begun or ended since
    state.tensors[name] = inputs_after(y, before, width)
    return convolution(y) if before is None else convolution(y, before=before)
