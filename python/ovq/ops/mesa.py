"""The recurrence of MesaNet."""

from typing import Optional

from torch import Tensor

from .. import reference
from .._library import call
from ..paths import path_of
from ..reference.recurrence import OutputAndState


def mesa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lambda_: Tensor,
    *,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
    iterations: int = 30,
    path: Optional[str] = None,
) -> OutputAndState:
    """The recurrence of MesaNet (arXiv 2506.05233): the best linear map of all keys to their values, at each token.

        H = e^g H + beta k k^T;  G = e^g G + beta k v^T;  o = G^T (H + diag(lambda_))^(-1) q

    Args:
        q, k: [B, T, H, dk], rows of norm one (see l2_norm); v: [B, T, H, dv]. One floating dtype.
        g: [B, T, H], log of the decays, at most 0.
        beta: [B, T, H], in [0, 1].
        lambda_: [H, dk], positive.
        initial_state: [H | G] before the first token, [B, H, dk, dk + dv]; None: zeros.
        return_state: also return [H | G] after the last token.
        cu_seqlens: [sequences + 1]: packed sequences.
        iterations: of the kernel's conjugate gradients, at most. The formula solves exactly.
        path: "kernel" or "formula"; None: the kernel where there is one.

    Returns:
        o [B, T, H, dv] in q's dtype, or (o, state).
    """
    inputs = dict(q=q, k=k, v=v, g=g, beta=beta, lambda_=lambda_)
    options = dict(initial_state=initial_state, return_state=return_state, cu_seqlens=cu_seqlens)
    if path_of("mesa", path, **inputs, initial_state=initial_state) == "formula":
        return reference.mesa(**inputs, **options)
    result = call("mesa", **inputs, **options, iterations=iterations)
    return result if return_state else result[0]
