"""Attention to keys that are codewords, linear in the length: chunk c reads the codewords, with counts and mean values of
chunks <= c - 2, and the tokens of chunks c - 1 and c one by one. Equal keys have equal logits, so this is

    o_t = softmax(beta q_t K^T) V,  K_s = codewords[index_s]
"""

from typing import Dict, Tuple

import torch
from torch import Tensor

from ..paths import without_autocast


def vq_linear_attention(
    q: Tensor,
    index: Tensor,
    codewords: Tensor,
    v: Tensor,
    beta: Tensor,
    chunk: int,
    state: Dict[str, Tensor],
    position: int,
) -> Tuple[Tensor, Dict[str, Tensor]]:
    """o [B, T, H, D] and the state after it.

    Args:
        q: [B, T, H, D]; index: [B, T, Hkv], of codewords [Hkv, K, D]; v: [B, T, Hkv, D]; beta: [H].
        state: counts [B, Hkv, K] and means [B, Hkv, K, D] of the codewords, index [B, t, Hkv] and values [B, t, Hkv, D]
            of the tokens since, at most two chunks; or empty. It stays as it is.
        position: tokens seen before.
    """
    with without_autocast(q):  # in the codebook's precision: counts outgrow eight bits
        dtype, time = q.dtype, q.shape[1]
        q, v = q.to(codewords.dtype), v.to(codewords.dtype)
        wide = torch.promote_types(q.dtype, torch.float32)  # of counts and means: in bfloat16 256 + 1 is 256
        if state:
            counts, means = state["counts"].to(wide), state["means"].to(wide)
            window, values = state["index"], state["values"].to(q.dtype)
        else:
            counts = q.new_zeros(q.shape[0], *codewords.shape[:2], dtype=wide)
            means = counts.new_zeros(*counts.shape, v.shape[3])
            window, values = index[:, :0], v[:, :0]
        outputs, first = [], 0
        while first < time:
            row = position % chunk
            end = min(time, first + chunk - row)
            if row == 0 and window.shape[1] == 2 * chunk:  # the oldest chunk of the window goes into the dictionary
                counts, means = add_tokens(counts, means, window[:, :chunk], values[:, :chunk])
                window, values = window[:, chunk:], values[:, chunk:]
            window = torch.cat([window, index[:, first:end]], 1)
            values = torch.cat([values, v[:, first:end]], 1)
            outputs.append(read(q[:, first:end], codewords, beta, counts, means, window, values))
            position, first = position + end - first, end
        o = torch.cat(outputs, 1) if outputs else torch.zeros_like(q)
    return o.to(dtype), {"counts": counts, "means": means, "index": window, "values": values}


def add_tokens(counts: Tensor, means: Tensor, index: Tensor, v: Tensor) -> Tuple[Tensor, Tensor]:
    """Counts [B, Hkv, K] and means [B, Hkv, K, D] with the tokens (index [B, t, Hkv], v [B, t, Hkv, D]) added."""
    where, v = index.transpose(1, 2), v.transpose(1, 2).to(means.dtype)
    after = counts.scatter_add(2, where, torch.ones_like(where, dtype=counts.dtype))
    sums = torch.zeros_like(means).scatter_add(2, where.unsqueeze(-1).expand(-1, -1, -1, v.shape[3]), v)
    return after, (means * counts.unsqueeze(-1) + sums) / after.clamp_min(1).unsqueeze(-1)


def read(
    q: Tensor, codewords: Tensor, beta: Tensor, counts: Tensor, means: Tensor, index: Tensor, v: Tensor
) -> Tensor:
    """Attention of q [B, t, H, D], whose first query sees all but the last t - 1 tokens of the window."""
    index, v = index.transpose(1, 2), v.transpose(1, 2)
    time, window, count = q.shape[1], index.shape[2], codewords.shape[1]
    rows = (q * beta.view(1, 1, -1, 1)).unflatten(2, (codewords.shape[0], -1)).permute(0, 2, 3, 1, 4)  # [B, Hkv, G, t, D]
    logits = rows @ codewords.transpose(1, 2).unsqueeze(1)  # [B, Hkv, G, t, K]
    of_window = logits.gather(4, index[:, :, None, None, :].expand(*logits.shape[:4], window))
    last = torch.arange(window - time, window, device=q.device)
    hidden = torch.arange(window, device=q.device) > last.unsqueeze(1)
    distant = logits + counts.log().to(q.dtype)[:, :, None, None, :]
    p = torch.cat([distant, of_window.masked_fill(hidden, -torch.inf)], 4).softmax(4)
    o = p[..., :count] @ means.unsqueeze(2).to(q.dtype) + p[..., count:] @ v.unsqueeze(2)
    return o.permute(0, 3, 1, 2, 4).flatten(2, 3)
