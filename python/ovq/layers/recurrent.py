"""What the recurrent layers share: y = W_o normalised(op(projections of x)), with an op whose state is a matrix per head
and short convolutions on what goes into it.
"""

import math
from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from ..ops import l2_norm
from ..pointwise import silu
from .mixer import Mixer, layout_of
from .projection import Projection
from .rms_norm import RMSNorm
from .short_convolution import ShortConvolution, convolved
from .state import MixerState

Mixed = Tuple[Tensor, Optional[Tensor]]  # o [B, T, H, value_dim] and the gate [B, T, H value_dim], None: none


class RecurrentMixer(Mixer):
    def __init__(self, dim: int, **options: Any) -> None:
        super().__init__(dim, **options)
        self.heads = self.options["heads"]
        self.key_dim, self.value_dim = self.options["key_dim"], self.options["value_dim"]
        self.conv_width = self.options["conv_width"]
        self.q_proj = Projection(dim, self.heads * self.key_dim)
        self.k_proj = Projection(dim, self.heads * self.key_dim)
        self.v_proj = Projection(dim, self.heads * self.value_dim)

    def convolution(self, channels: int, bias: bool = False) -> ShortConvolution:
        return ShortConvolution(channels, self.conv_width, bias, activation="silu")

    def add_query_key_convolutions(self) -> None:
        self.conv_q = self.convolution(self.heads * self.key_dim)
        self.conv_k = self.convolution(self.heads * self.key_dim)

    def add_value_convolution(self) -> None:
        self.conv_v = self.convolution(self.heads * self.value_dim)

    def add_output(self) -> None:
        self.o_proj = Projection(self.heads * self.value_dim, self.dim)
        self.norm = RMSNorm(self.value_dim)

    def query_key_value(
        self, x: Tensor, state: Optional[MixerState], cu_seqlens: Optional[Tensor]
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """q and k [B, T, H, key_dim] of norm one, and v [B, T, H, value_dim]."""

        def heads(name: str, dim: int) -> Tensor:
            y = getattr(self, f"{name}_proj")(x)
            convolution = getattr(self, f"conv_{name}", None)
            if convolution is not None:
                y = convolved(convolution, f"conv_{name}", self.conv_width, y, state, cu_seqlens)
            return y.unflatten(-1, (self.heads, dim))

        q, k, v = heads("q", self.key_dim), heads("k", self.key_dim), heads("v", self.value_dim)
        return l2_norm(q), l2_norm(k), v

    def output(self, mixed: Mixed) -> Tensor:
        """A norm over each head, then silu(gate)."""
        o, gate = mixed
        y = self.norm(o).flatten(2)
        return self.o_proj(y if gate is None else y * silu(gate))

    def layout(self) -> str:
        names = ("heads", "key_dim", "value_dim", "conv_width")
        return layout_of(self.kind, **{name: self.options[name] for name in names})

    def _state_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        convolutions = [part for part in (getattr(self, f"conv_{name}", None) for name in "qkv") if part is not None]
        channels = sum(convolution.weight.shape[0] for convolution in convolutions)
        return 4 * (self.heads * self._state_elements() + (self.conv_width - 1) * channels)

    def _state_elements(self) -> int:
        """Of each head."""
        return self.key_dim * self.value_dim


def recur(op: Any, *inputs: Tensor, state: Optional[MixerState], cu_seqlens: Optional[Tensor], **options: Any) -> Tensor:
    """The recurrence `op` of the inputs, behind the state's "state", which becomes that after them."""
    if state is None:
        return op(*inputs, cu_seqlens=cu_seqlens, **options)
    o, state.tensors["state"] = op(*inputs, initial_state=state.tensors.get("state"), return_state=True, **options)
    state.position += o.shape[1]
    return o


def initial_dt_bias(heads: int) -> nn.Parameter:
    """Steps log-uniform in [1e-3, 1e-1] as what softplus turns into them."""
    dt = torch.empty(heads).uniform_(math.log(1e-3), math.log(1e-1)).exp_().clamp_min_(1e-4)
    return nn.Parameter(dt + (-torch.expm1(-dt)).log())


def initial_a_log(heads: int, low: float, high: float) -> nn.Parameter:
    """log A, A uniform in [low, high]."""
    return nn.Parameter(torch.empty(heads).uniform_(low, high).clamp_min_(1e-4).log_())
