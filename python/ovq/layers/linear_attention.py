"""Linear attention.

    q, k, v = silu(conv(W x)), q and k of norm one per head;  y = W_o RMSNorm(linear_attention(q, k, v))
"""

from typing import Any, Optional

import torch
from torch import Tensor

from ..ops import linear_attention
from .recurrent import Mixed, RecurrentMixer, recur
from .state import MixerState


class LinearAttention(RecurrentMixer):
    """Linear attention, the simplest layer with a state of fixed size, [key_dim, value_dim] for each head.

    Args:
        dim: of the input and output.
        heads: heads, each with a state of its own.
        key_dim (128): numbers per head of queries and keys.
        value_dim (128): numbers per head of values.
        conv_width (4): taps of the short convolutions.
    """

    kind = "linear"

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        key_dim: int = 128,
        value_dim: int = 128,
        conv_width: int = 4,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(dim, heads=heads, key_dim=key_dim, value_dim=value_dim, conv_width=conv_width)
        self.add_query_key_convolutions()
        self.add_value_convolution()
        self.add_output()
        self.to(device=device, dtype=dtype)

    def mix(
        self, x: Tensor, state: Optional[MixerState], cu_seqlens: Optional[Tensor], in_place: bool = False
    ) -> Mixed:
        q, k, v = self.query_key_value(x, state, cu_seqlens)
        return recur(linear_attention, q, k, v, state=state, cu_seqlens=cu_seqlens), None
