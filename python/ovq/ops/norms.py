"""Norms over the last dimension."""

from typing import Optional

from torch import Tensor

from .. import reference
from .._library import call
from ..paths import path_of


def rms_norm(
    x: Tensor, weight: Tensor, *, eps: float = 1e-6, groups: int = 1, path: Optional[str] = None
) -> Tensor:
    """x / rms(x) * weight over the last dimension, rms(x)^2 = mean(x^2) + eps.

    Args:
        x: [..., C]; weight: [C].
        groups: the mean is over each of so many equal parts of the channels.
        path: "kernel" or "formula"; None: the kernel where there is one.

    Returns:
        [..., C] in x's dtype.
    """
    if path_of("rms_norm", path, x=x, weight=weight) == "formula":
        return reference.rms_norm(x, weight, eps=eps, groups=groups)
    return call("rms_norm", x, weight, eps, groups)


def l2_norm(x: Tensor, *, eps: float = 1e-6, path: Optional[str] = None) -> Tensor:
    """x (sum(x^2) + eps)^(-1/2) over the last dimension: rows of norm one.

    Args:
        x: [..., C].
        path: "kernel" or "formula"; None: the kernel where there is one.

    Returns:
        [..., C] in x's dtype.
    """
    if path_of("l2_norm", path, x=x) == "formula":
        return reference.l2_norm(x, eps=eps)
    return call("l2_norm", x, eps)
