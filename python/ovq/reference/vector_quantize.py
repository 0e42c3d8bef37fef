"""Vectors replaced by codewords, with a gradient."""

from typing import Optional, Tuple

import torch
from torch import Tensor

from ..paths import without_autocast
from .inputs import check, wide


def vector_quantize(
    z: Tensor,
    codewords: Tensor,
    *,
    gradient: str = "straight_through",
    bonus: Optional[Tensor] = None,
    noise: float = 1e-3,
    seed: int = 0,
) -> Tuple[Tensor, Tensor]:
    """z_q and the index of the codeword c with the largest z . c + bonus; or of the nearest segment's first end.

    straight_through: z_q = c, with the gradient of z. diveq: z_q = z + |c - z| u, u the direction to c, noisy and
    without a gradient. sf_diveq: the same towards both ends of a segment between codewords, cut at random.
    """
    op, fewest = "vector_quantize", 2 if gradient == "sf_diveq" else 1
    shapes = {"z": (z, "B T H D"), "codewords": (codewords, "H K D")}
    sizes = check(op, shapes, {"bonus": (bonus, "?H K")})
    if gradient not in ("straight_through", "diveq", "sf_diveq"):
        raise ValueError(f"[{op}] gradient is {gradient!r}; must be 'straight_through', 'diveq' or 'sf_diveq'")
    if sizes["K"] < fewest:
        raise ValueError(f"[{op}] codewords has {sizes['K']} codewords; must have at least {fewest}")
    if noise < 0:
        raise ValueError(f"[{op}] noise is {noise:g}; must be at least 0")
    dtype, (rows, words, bonus) = z.dtype, wide(by_head(z), codewords, bonus)
    with without_autocast(rows):
        if gradient == "sf_diveq":
            index, z_q = nearest_segment(rows, words, bonus, noise, seed)
        else:
            index = nearest_codeword(rows, words, bonus)
            c = gather_rows(words, index)
            if gradient == "diveq":
                z_q = rows + towards(rows, c, noise * drawn(seed, rows, rows.shape)[0])
            else:
                z_q = rows + (c - rows).detach()
    batch = z.shape[:2]
    return z_q.unflatten(1, batch).permute(1, 2, 0, 3).to(dtype), index.unflatten(1, batch).permute(1, 2, 0)


def nearest_segment(
    z: Tensor, words: Tensor, bonus: Optional[Tensor], noise: float, seed: int
) -> Tuple[Tensor, Tensor]:
    """The nearest of the points (1 - l_j) c_j + l_j c_(j+1), and z moved towards both ends of its segment."""
    segments = words.shape[1] - 1
    share, first_noise, second_noise = drawn(seed, z, (words.shape[0], segments, 1), z.shape, z.shape)
    with torch.no_grad():
        points = (1 - share) * words[:, :-1] + share * words[:, 1:]
        # |z - d|^2 is smallest where z . d - |d|^2 / 2 is largest; the bonus counts as similarity
        bias = -points.square().sum(-1) / 2
        if bonus is not None:
            bias = bias + torch.maximum(bonus[:, :-1], bonus[:, 1:])
        index = nearest_codeword(z, points, bias)
    a, b, cut = gather_rows(words, index), gather_rows(words, index + 1), gather_rows(share, index)
    return index, z + (1 - cut) * towards(z, a, noise * first_noise) + cut * towards(z, b, noise * second_noise)


def towards(z: Tensor, c: Tensor, noise: Tensor) -> Tensor:
    """|c - z| u: the gradient goes through the distance alone."""
    delta = c - z
    noisy = (delta + noise).detach()
    return delta.norm(2, -1, True) * (noisy / noisy.norm(2, -1, True).clamp_min(1e-30))


def drawn(seed: int, z: Tensor, *shapes: Tuple[int, ...]) -> Tuple[Tensor, ...]:
    """Random numbers like z: the same on every device. Of several the first ones are uniform, all others normal."""
    generator = torch.Generator().manual_seed(seed % 2**64)
    random = [torch.rand if i == 0 and len(shapes) > 1 else torch.randn for i in range(len(shapes))]
    return tuple(f(shape, generator=generator, dtype=z.dtype).to(z.device) for f, shape in zip(random, shapes))


@torch.no_grad()
def nearest_codeword(z: Tensor, words: Tensor, bonus: Optional[Tensor] = None) -> Tensor:
    """argmax over j of z . words_j + bonus_j: z [H, M, D], words [H, K, D], bonus [H, K] -> [H, M]"""
    scores = z @ words.transpose(1, 2)
    return (scores if bonus is None else scores + bonus.unsqueeze(1)).argmax(-1)


def by_head(x: Tensor) -> Tensor:
    """[B, T, H, D] -> [H, B T, D]"""
    return x.permute(2, 0, 1, 3).flatten(1, 2)


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows index [H, M] of x [H, K, D] -> [H, M, D]"""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[2]))
