"""The recurrence of MesaNet."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from .recurrence import OutputAndState, chunks, decays, recurrence, s_after, together


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
    chunk: int = 64,
) -> OutputAndState:
    """The recurrence of MesaNet, whose state is [H | G].

        H = e^g H + beta k k^T;  G = e^g G + beta k v^T;  o = G^T (H + diag(lambda_))^(-1) q

    By chunks, with exact solves: H of each token is that before the chunk, decayed, and the keys since.
    """

    def run(
        s: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, lambda_: Tensor
    ) -> Tuple[Tensor, Tensor]:
        dim, outputs, values = q.shape[3], [], v
        for q, k, v, g, beta in chunks(q, k, v, g, beta, size=chunk):
            decay, pairs = decays(g)
            from_start, written = decay.exp()[..., None, None], pairs * beta.unsqueeze(-2)
            h_before = s[..., :dim].transpose(2, 3)  # as if it were not symmetric
            h = from_start * h_before.unsqueeze(2) + torch.einsum("bhij,bhjd,bhje->bhide", written, k, k)
            solution = torch.linalg.solve(h + torch.diag_embed(lambda_)[:, None], q.unsqueeze(-1)).squeeze(-1)
            read = from_start[..., 0] * (solution @ s[..., dim:])
            outputs.append(read + ((solution @ k.transpose(2, 3)) * written) @ v)
            s = s_after(s, beta.unsqueeze(-1) * k, torch.cat([k, v], -1), decay)
        return together(outputs, values), s

    inputs = {"q": (q, "B T H K"), "k": (k, "B T H K"), "v": (v, "B T H V")}
    others = {"g": (g, "B T H"), "beta": (beta, "B T H"), "lambda_": (lambda_, "H K")}
    return recurrence("mesa", run, inputs, others, "H K K+V", initial_state, return_state, cu_seqlens)
