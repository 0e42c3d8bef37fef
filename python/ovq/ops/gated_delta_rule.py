"""The gated delta rule."""

from typing import Optional

from torch import Tensor

from .. import reference
from .._library import call
from ..paths import path_of
from ..reference.recurrence import OutputAndState


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
    path: Optional[str] = None,
) -> OutputAndState:
    """The gated delta rule (arXiv 2412.06464): a memory S of key-value pairs that is corrected, and that decays.

        S' = e^g S;  S = S' + k beta (v - S'^T k)^T;  o = dk^(-1/2) S^T q

    Args:
        q, k: [B, T, H, dk], rows of norm one (see l2_norm); v: [B, T, H, dv]. One floating dtype.
        g: [B, T, H], log of the decays, at most 0.
        beta: [B, T, H], how much of the difference is written, in [0, 1].
        initial_state: S before the first token, [B, H, dk, dv]; None: zeros.
        return_state: also return S after the last token.
        cu_seqlens: [sequences + 1]: packed sequences.
        path: "kernel" or "formula"; None: the kernel where there is one.

    Returns:
        o [B, T, H, dv] in q's dtype, or (o, state).
    """
    inputs = dict(q=q, k=k, v=v, g=g, beta=beta)
    options = dict(initial_state=initial_state, return_state=return_state, cu_seqlens=cu_seqlens)
    if path_of("gated_delta_rule", path, **inputs, initial_state=initial_state) == "formula":
        return reference.gated_delta_rule(**inputs, **options)
    result = call("gated_delta_rule", **inputs, **options)
    return result if return_state else result[0]
