"""Rotary positions."""

from typing import Optional

import torch
from torch import Tensor

from ..arguments import offsets_of
from .inputs import by_head, check, wide


def rotary(
    x: Tensor, *, base: float = 10000.0, first_position: int = 0, cu_seqlens: Optional[Tensor] = None
) -> Tensor:
    """The pair (i, i + D/2) of a row at position p turns by the angle p base^(-2 i / D); x [B, T, H, D]."""
    sizes = check("rotary", {"x": (x, "B T H D")})
    if sizes["D"] % 2 != 0:
        raise ValueError(f"[rotary] x has shape {list(x.shape)}; must be [batch, time, heads, dim] with an even dim")
    if not base > 0:
        raise ValueError(f"[rotary] base is {base:g}; must be positive")
    offsets = [0, sizes["T"]] if cu_seqlens is None else offsets_of("rotary", cu_seqlens, sizes["B"], sizes["T"])
    (y,) = wide(x)
    parts = [by_head(rotated(by_head(y[:, a:b]), first_position, base)) for a, b in zip(offsets, offsets[1:])]
    return torch.cat(parts or [y], 1).to(x.dtype)


def rotated(x: Tensor, first_position: int, base: float) -> Tensor:
    """The same of x [..., T, D]; angles in double."""
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    positions = first_position + torch.arange(x.shape[-2], dtype=torch.float64, device=x.device)
    angles = positions.unsqueeze(-1) * frequencies
    cos, sin, (a, b) = angles.cos().to(x.dtype), angles.sin().to(x.dtype), x.split(half, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)
