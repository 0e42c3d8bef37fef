"""Norms over the last dimension."""

from torch import Tensor

from .inputs import check, wide


def rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-6, groups: int = 1) -> Tensor:
    """x / rms(x) * weight, rms(x)^2 = mean(x^2) + eps, each of `groups` equal parts of the channels by itself."""
    check("rms_norm", {"x": (x, "...")}, {"weight": (weight, "...")})
    if x.dim() == 0 or weight.shape != x.shape[-1:]:
        raise ValueError(
            f"[rms_norm] weight has shape {list(weight.shape)}; must have one element per last dimension of x, "
            f"{list(x.shape)}"
        )
    if groups < 1 or x.shape[-1] % groups != 0:
        raise ValueError(f"[rms_norm] groups is {groups}; must divide the last dimension of x, {x.shape[-1]}")
    y, w = wide(x, weight)
    parts = y.unflatten(-1, (groups, -1))
    return ((parts * (parts.square().mean(-1, True) + eps).rsqrt()).flatten(-2) * w).to(x.dtype)


def l2_norm(x: Tensor, *, eps: float = 1e-6) -> Tensor:
    """x (sum(x^2) + eps)^(-1/2)"""
    check("l2_norm", {"x": (x, "...")})
    if x.dim() == 0:
        raise ValueError("[l2_norm] x has 0 dimensions; must have at least 1")
    (y,) = wide(x)
    return (y * (y.square().sum(-1, True) + eps).rsqrt()).to(x.dtype)
