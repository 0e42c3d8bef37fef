"""Rotary positions."""

from typing import Optional

from torch import Tensor

from .. import reference
from .._library import call
from ..paths import path_of


def rotary(
    x: Tensor,
    *,
    base: float = 10000.0,
    first_position: int = 0,
    cu_seqlens: Optional[Tensor] = None,
    path: Optional[str] = None,
) -> Tensor:
    """Rotary positions: the pair (i, i + D/2) of a row at position p turns by the angle p base^(-2 i / D).

    Args:
        x: [B, T, H, D], D even.
        first_position: of x's first token.
        cu_seqlens: [sequences + 1]: packed sequences, whose positions each start with 0.
        path: "kernel" or "formula"; None: the kernel where there is one.

    Returns:
        [B, T, H, D] in x's dtype.
    """
    options = dict(base=base, first_position=first_position, cu_seqlens=cu_seqlens)
    if path_of("rotary", path, x=x) == "formula":
        return reference.rotary(x, **options)
    return call("rotary", x, **options)
