"""The recurrence of Mamba-2."""

from typing import Optional

from torch import Tensor

from .. import reference
from .._library import call
from ..paths import path_of
from ..reference.recurrence import OutputAndState


def ssd(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Optional[Tensor] = None,
    *,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
    path: Optional[str] = None,
) -> OutputAndState:
    """The recurrence of Mamba-2 (arXiv 2405.21060), the state space dual.

        S = e^(dt a) S + dt b x^T;  o = S^T c + d x

    Args:
        x: [B, T, H, P]; b, c: [B, T, G, N], each group for H / G heads in order. One floating dtype.
        dt: [B, T, H], steps, positive.
        a: [H], negative; d: [H]; None: zeros.
        initial_state: S before the first token, [B, H, N, P]; None: zeros.
        return_state: also return S after the last token.
        cu_seqlens: [sequences + 1]: packed sequences.
        path: "kernel" or "formula"; None: the kernel where there is one.

    Returns:
        o [B, T, H, P] in x's dtype, or (o, state).
    """
    inputs = dict(x=x, dt=dt, a=a, b=b, c=c, d=d)
    options = dict(initial_state=initial_state, return_state=return_state, cu_seqlens=cu_seqlens)
    if path_of("ssd", path, **inputs, initial_state=initial_state) == "formula":
        return reference.ssd(**inputs, **options)
    result = call("ssd", **inputs, **options)
    return result if return_state else result[0]
