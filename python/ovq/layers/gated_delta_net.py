"""Gated DeltaNet (arXiv 2412.06464).

    q, k, v = silu(conv(W x)), q and k of norm one per head;  beta = sigmoid(W_b x)
    g = -exp(A_log) softplus(W_a x + dt_bias);  y = W_o (RMSNorm(gated_delta_rule(q, k, v, g, beta)) * silu(W_g x))
"""

from typing import Any, Optional

import torch
from torch import Tensor

from ..ops import gated_delta_rule
from ..pointwise import exp, sigmoid, softplus
from .projection import Projection
from .recurrent import Mixed, RecurrentMixer, initial_a_log, initial_dt_bias, recur
from .state import MixerState


class GatedDeltaNet(RecurrentMixer):
    """Gated DeltaNet (arXiv 2412.06464); each head has a state [key_dim, value_dim].

    Args:
        dim: of the input and output.
        heads: heads, each with a state of its own.
        key_dim (128): numbers per head of queries and keys.
        value_dim (256): numbers per head of values.
        conv_width (4): taps of the short convolutions.
    """

    kind = "gdn"

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        key_dim: int = 128,
        value_dim: int = 256,
        conv_width: int = 4,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(dim, heads=heads, key_dim=key_dim, value_dim=value_dim, conv_width=conv_width)
        self.g_proj = Projection(dim, heads * value_dim)
        self.a_proj = Projection(dim, heads)
        self.b_proj = Projection(dim, heads)
        self.add_query_key_convolutions()
        self.add_value_convolution()
        self.A_log = initial_a_log(heads, 0, 16)
        self.dt_bias = initial_dt_bias(heads)
        self.add_output()
        self.to(device=device, dtype=dtype)

    def mix(
        self, x: Tensor, state: Optional[MixerState], cu_seqlens: Optional[Tensor], in_place: bool = False
    ) -> Mixed:
        q, k, v = self.query_key_value(x, state, cu_seqlens)
        g = -exp(self.A_log) * softplus(self.a_proj(x) + self.dt_bias)
        beta = sigmoid(self.b_proj(x))
        o = recur(gated_delta_rule, q, k, v, g, beta, state=state, cu_seqlens=cu_seqlens)
        return o, self.g_proj(x)
