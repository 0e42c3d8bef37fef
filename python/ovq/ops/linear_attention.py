"""Linear attention."""

from typing import Optional

from torch import Tensor

from .. import reference
from .._library import call
from ..paths import path_of
from ..reference.recurrence import OutputAndState


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Optional[Tensor] = None,
    *,
    scale: Optional[float] = None,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
    path: Optional[str] = None,
) -> OutputAndState:
    """Linear attention, with or without a decay per token.

        S = e^g S + k v^T;  o = scale S^T q

    Args:
        q, k: [B, T, H, dk]; v: [B, T, H, dv]. One floating dtype.
        g: [B, T, H], log of the decays, at most 0; None: no decay.
        scale: None: dk^(-1/2).
        initial_state: S before the first token, [B, H, dk, dv]; None: zeros.
        return_state: also return S after the last token.
        cu_seqlens: [sequences + 1]: packed sequences.
        path: "kernel" or "formula"; None: the kernel where there is one.

    Returns:
        o [B, T, H, dv] in q's dtype, or (o, state).
    """
    inputs = dict(q=q, k=k, v=v, g=g)
    options = dict(scale=scale, initial_state=initial_state, return_state=return_state, cu_seqlens=cu_seqlens)
    if path_of("linear_attention", path, **inputs, initial_state=initial_state) == "formula":
        return reference.linear_attention(**inputs, **options)
    result = call("linear_attention", **inputs, **options)
    return result if return_state else result[0]
