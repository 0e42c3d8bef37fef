"""RMSNorm."""

import torch
from torch import Tensor, nn

from ..ops import rms_norm


class RMSNorm(nn.Module):
    """y = x / rms(x) * weight over the last dimension, or over each of `groups` equal parts of it."""

    def __init__(self, size: int, eps: float = 1e-6, groups: int = 1) -> None:
        super().__init__()
        self.eps = eps
        self.groups = groups
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, eps=self.eps, groups=self.groups)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[0]}, eps={self.eps}" + (f", groups={self.groups}" if self.groups > 1 else "")
