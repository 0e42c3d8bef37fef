"""The MLP of a block."""

from torch import Tensor, nn

from ..pointwise import silu
from .projection import Projection


class GatedMLP(nn.Module):
    """y = W_down (silu(W_gate x) * W_up x)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = Projection(width, inner)
        self.up_proj = Projection(width, inner)
        self.down_proj = Projection(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))
