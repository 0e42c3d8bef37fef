"""The gated delta rule."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from .recurrence import OutputAndState, chunks, decays, recurrence, s_after, together


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
    chunk: int = 64,
) -> OutputAndState:
    """The gated delta rule.

        S' = e^g S;  S = S' + k beta (v - S'^T k)^T;  o = dk^(-1/2) S^T q

    By chunks, with G the sums of g in the chunk, L_ij = e^(G_i - G_j) for i >= j, and A = beta (K K^T . L) below the
    diagonal:

        V' = (I + A)^(-1) (beta V - beta e^G K S)
        O = dk^(-1/2) (e^G Q S + (Q K^T . L) V')
        S <- e^(G_C) S + K^T (e^(G_C - G) V')
    """

    def run(s: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tuple[Tensor, Tensor]:
        outputs, values = [], v
        for q, k, v, g, beta in chunks(q * q.shape[3] ** -0.5, k, v, g, beta, size=chunk):
            decay, pairs = decays(g)
            from_start = decay.exp().unsqueeze(-1)
            a = (beta.unsqueeze(-1) * (k @ k.transpose(2, 3)) * pairs).tril(-1)
            u = solved(a, beta.unsqueeze(-1) * (v - from_start * (k @ s)))
            outputs.append(from_start * (q @ s) + ((q @ k.transpose(2, 3)) * pairs) @ u)
            s = s_after(s, k, u, decay)
        return together(outputs, values), s

    inputs = {"q": (q, "B T H K"), "k": (k, "B T H K"), "v": (v, "B T H V")}
    gates = {"g": (g, "B T H"), "beta": (beta, "B T H")}
    return recurrence("gated_delta_rule", run, inputs, gates, "H K V", initial_state, return_state, cu_seqlens)


def solved(a: Tensor, right: Tensor) -> Tensor:
    """(I + A)^(-1) right, A below the diagonal."""
    if a.is_meta:  # torch 1.13 solves nothing there
        return torch.empty_like(right)
    return torch.linalg.solve_triangular(a, right, upper=False, unitriangular=True)
