"""What the formulas of the recurrences have in common: sequences, states, chunks."""

import math
from typing import Any, Callable, List, Optional, Tuple, Union

import torch
from torch import Tensor

from ..arguments import offsets_of
from ..paths import without_autocast
from .inputs import Shaped, by_head, check, size_of, wide

OutputAndState = Union[Tensor, Tuple[Tensor, Tensor]]


def recurrence(
    op: str,
    run: Callable[..., Tuple[Tensor, Tensor]],
    inputs: Shaped,
    others: Shaped,
    state_shape: str,
    initial_state: Optional[Tensor],
    return_state: bool,
    cu_seqlens: Optional[Tensor],
) -> OutputAndState:
    """o, or (o, state), of run(state, **tensors) -> (o, state) for the batch, or for each packed sequence by itself.

    The tensors are those of `inputs` and `others` in float32 at least; packed ones whose shape begins with "B T" are
    cut. o has the first one's dtype. A state has the shape [S, `state_shape`], S the batch or the number of sequences.
    """
    sizes = check(op, inputs, others)
    rows, offsets = sizes["B"], [0, sizes["T"]]
    if cu_seqlens is not None:
        offsets = offsets_of(op, cu_seqlens, sizes["B"], sizes["T"])
        rows = len(offsets) - 1
    check(op, inputs, {"initial_state": (initial_state, f"?S {state_shape}")}, {**sizes, "S": rows})
    given = {name: x for name, (x, _) in {**inputs, **others}.items() if x is not None}
    timed = {name for name, (_, shape) in {**inputs, **others}.items() if shape.strip("?").startswith("B T")}
    *values, state = wide(*given.values(), initial_state)
    tensors = {name: x for name, x in zip(given, values)}
    if state is None or rows == 0:
        state = values[0].new_zeros(max(rows, 1), *(size_of(dim, sizes) for dim in state_shape.split()))
    with without_autocast(values[0]):
        if cu_seqlens is None or rows == 0:
            o, state = run(state, **tensors)
        else:
            outputs, states = [], []
            for i, (begin, end) in enumerate(zip(offsets, offsets[1:])):
                part = {name: x[:, begin:end] if name in timed else x for name, x in tensors.items()}
                one, after = run(state[i : i + 1], **part)
                outputs.append(one)
                states.append(after)
            o, state = torch.cat(outputs, 1), torch.cat(states)
    o = o.to(list(given.values())[0].dtype)
    return (o, state[:rows]) if return_state else o


def chunks(*tensors: Tensor, size: int) -> Any:
    """Of each tensor [B, T, H, ...] by head, one chunk after the other."""
    if size < 1:
        raise ValueError(f"[reference] chunk is {size}; must be at least 1")
    return zip(*(by_head(x).split(size, 2) for x in tensors)) if tensors[0].shape[1] > 0 else []


def together(outputs: List[Tensor], v: Tensor) -> Tensor:
    """[B, T, H, D] of the outputs of chunks; without any like v."""
    return by_head(torch.cat(outputs, 2)) if outputs else torch.zeros_like(v)


def decays(g: Tensor) -> Tuple[Tensor, Tensor]:
    """The sums G [B, H, C] of the logs of decays, and L_ij = e^(G_i - G_j) for i >= j, zero above the diagonal."""
    sums = g.cumsum(-1)
    future = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device).triu(1)
    return sums, (sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(future, -math.inf).exp()


def s_after(s: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
    """e^(G_C) S + K^T (e^(G_C - G) V)"""
    last = decay[..., -1:]
    return last.exp().unsqueeze(-1) * s + k.transpose(2, 3) @ ((last - decay).exp().unsqueeze(-1) * v)
