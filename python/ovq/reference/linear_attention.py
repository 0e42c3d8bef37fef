"""Linear attention."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from .recurrence import OutputAndState, chunks, decays, recurrence, s_after, together


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
    chunk: int = 64,
) -> OutputAndState:
    """Linear attention.

        S = e^g S + k v^T;  o = scale S^T q

    By chunks, with G the sums of g in the chunk and L_ij = e^(G_i - G_j) for i >= j:

        O = scale (e^G Q S + (Q K^T . L) V);  S <- e^(G_C) S + K^T (e^(G_C - G) V)
    """

    def run(s: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Optional[Tensor] = None) -> Tuple[Tensor, Tensor]:
        q = q * (q.shape[3] ** -0.5 if scale is None else scale)
        return attend(s, q, k, v, torch.zeros_like(q[..., 0]) if g is None else g, chunk)

    inputs = {"q": (q, "B T H K"), "k": (k, "B T H K"), "v": (v, "B T H V")}
    gate = {"g": (g, "?B T H")}
    return recurrence("linear_attention", run, inputs, gate, "H K V", initial_state, return_state, cu_seqlens)


def attend(s: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, chunk: int) -> Tuple[Tensor, Tensor]:
    """o and S after it, scale 1."""
    outputs, values = [], v
    for q, k, v, g in chunks(q, k, v, g, size=chunk):
        decay, pairs = decays(g)
        outputs.append(decay.exp().unsqueeze(-1) * (q @ s) + ((q @ k.transpose(2, 3)) * pairs) @ v)
        s = s_after(s, k, v, decay)
    return together(outputs, values), s
