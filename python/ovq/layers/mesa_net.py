"""MesaNet (arXiv 2506.05233).

    q, k = silu(conv(W x)) of norm one per head;  v = W_v x;  beta = sigmoid(W_b x + b)
    g = logsigmoid(W_a x + b);  y = W_o RMSNorm(mesa(q, k, v, g, beta, softplus(lambda) + 0.25))
"""

import math
from typing import Any, Optional

import torch
from torch import Tensor, nn

from ..ops import mesa
from ..pointwise import log_sigmoid, sigmoid, softplus
from .projection import Projection
from .recurrent import Mixed, RecurrentMixer, recur
from .state import MixerState

SMALLEST_LAMBDA = 0.25


class MesaNet(RecurrentMixer):
    """MesaNet (arXiv 2506.05233); each head has states [key_dim, key_dim] and [key_dim, value_dim].

    Args:
        dim: of the input and output.
        heads: heads, each with a state of its own.
        key_dim (128): numbers per head of queries and keys.
        value_dim (128): numbers per head of values.
        conv_width (4): taps of the short convolutions.
        iterations (30): of the kernel's conjugate gradients; the formula solves exactly.
    """

    kind = "mesa"

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        key_dim: int = 128,
        value_dim: int = 128,
        conv_width: int = 4,
        iterations: int = 30,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(
            dim,
            heads=heads,
            key_dim=key_dim,
            value_dim=value_dim,
            conv_width=conv_width,
            iterations=iterations,
        )
        self.a_proj = Projection(dim, heads, bias=True)
        self.b_proj = Projection(dim, heads, bias=True)
        self.add_query_key_convolutions()
        start = math.log(math.expm1(1 - SMALLEST_LAMBDA))  # softplus(lambda) + 0.25 = 1
        self.register_parameter("lambda", nn.Parameter(torch.full((heads, key_dim), start)))
        self.add_output()
        self.to(device=device, dtype=dtype)

    def mix(
        self, x: Tensor, state: Optional[MixerState], cu_seqlens: Optional[Tensor], in_place: bool = False
    ) -> Mixed:
        q, k, v = self.query_key_value(x, state, cu_seqlens)
        g, beta = log_sigmoid(self.a_proj(x)), sigmoid(self.b_proj(x))
        lambda_ = softplus(getattr(self, "lambda")) + SMALLEST_LAMBDA
        iterations = self.options["iterations"]
        return recur(mesa, q, k, v, g, beta, lambda_, state=state, cu_seqlens=cu_seqlens, iterations=iterations), None

    def _state_elements(self) -> int:
        return self.key_dim * (self.key_dim + self.value_dim)
