"""Vectors replaced by codewords, with a gradient."""

from typing import Optional, Tuple

from torch import Tensor

from .. import reference
from .._library import call
from ..paths import path_of
from ..reference.vector_quantize import nearest_codeword as nearest_by_formula


def vector_quantize(
    z: Tensor,
    codewords: Tensor,
    *,
    gradient: str = "straight_through",
    bonus: Optional[Tensor] = None,
    noise: float = 1e-3,
    seed: int = 0,
    path: Optional[str] = None,
) -> Tuple[Tensor, Tensor]:
    """Replaces each vector by the codeword c of its head with the largest z . c + bonus: without bonus the nearest.

    `gradient` selects how gradients pass:
        "straight_through": z_q = c; z gets the gradient of z_q, the codewords none
        "diveq" (arXiv 2509.26469): z_q = z + |c - z| u, u = stop[(w + c - z) / |w + c - z|], w ~ N(0, noise^2 I)
        "sf_diveq": the same towards both ends of the nearest one of the points (1 - l_j) c_j + l_j c_(j+1), l_j ~ U(0, 1)

    Args:
        z: [B, T, H, D]; codewords: [H, K, D], of norm one (see l2_norm). One floating dtype.
        bonus: [H, K], e.g. for codewords that have long been unused.
        noise, seed: of "diveq" and "sf_diveq"; what is random is a function of the seed alone.
        path: "kernel" or "formula"; None: the kernel where there is one.

    Returns:
        z_q [B, T, H, D], and the index of the codeword (of the first one of two with "sf_diveq"), [B, T, H].
    """
    options = dict(gradient=gradient, bonus=bonus, noise=noise, seed=seed)
    if path_of("vector_quantize", path, z=z, codewords=codewords, bonus=bonus) == "formula":
        return reference.vector_quantize(z, codewords, **options)
    return call("vector_quantize", z, codewords, **options)


def nearest_codeword(z: Tensor, words: Tensor) -> Tensor:
    """argmax over j of z . words_j: z [H, M, D], words [H, K, D] -> [H, M]"""
    if path_of("vector_quantize", None, z=z, words=words) == "formula":
        return nearest_by_formula(z, words)
    return call("nearest_codeword", z, words, None)
