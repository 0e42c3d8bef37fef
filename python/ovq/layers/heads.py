"""What the attention layers share: projections without bias, unit-norm queries and keys, and beta = b sqrt(head_dim)
with b learned per head. Optional: a short convolution on queries and keys before their norm, and the value shift, by
which the pair that enters at t is (k_(t-1), s v_(t-1) + (1 - s) v_t), s = sigmoid(alpha); at the start of a sequence it
is (k_0, v_0).
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from ..ops import l2_norm
from ..pointwise import sigmoid
from .mixer import Mixer, layout_of
from .projection import Projection
from .short_convolution import ShortConvolution, convolved
from .state import MixerState

LARGEST_BETA = 1e35
CONVOLUTION_WIDTH = 4


class AttentionHeads(Mixer):
    def __init__(self, dim: int, **options: Any) -> None:
        super().__init__(dim, **options)
        self._complete_heads()
        options = self.options
        self.heads, self.kv_heads, self.head_dim = options["heads"], options["kv_heads"], options["head_dim"]
        query_width, key_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        self.q_proj = Projection(dim, query_width)
        self.k_proj = Projection(dim, key_width)
        self.v_proj = Projection(dim, key_width)
        self.o_proj = Projection(query_width, dim)
        self.b = nn.Parameter(torch.full((self.heads,), float(options["beta_init"])))
        self.conv_q = ShortConvolution(query_width, CONVOLUTION_WIDTH) if options["convolution"] else None
        self.conv_k = ShortConvolution(key_width, CONVOLUTION_WIDTH) if options["convolution"] else None
        self.alpha = nn.Parameter(torch.zeros(())) if options["value_shift"] else None

    def _complete_heads(self) -> None:
        op, options = self.kind, self.options
        heads = options["heads"]
        kv_heads = options["kv_heads"] = options["kv_heads"] or heads
        if heads % kv_heads != 0:
            raise ValueError(f"[{op}] kv_heads is {kv_heads}; must divide heads {heads}")
        if not options["head_dim"] and self.dim % heads != 0:
            raise ValueError(f"[{op}] heads is {heads}; must divide width {self.dim}, or head_dim be given")
        options["head_dim"] = options["head_dim"] or self.dim // heads
        if options.get("rope") and options["head_dim"] % 2 != 0:
            raise ValueError(f"[{op}] head_dim is {options['head_dim']}; must be even with rope")
        if abs(options["beta_init"]) > LARGEST_BETA:
            within = f"finite, and within {-LARGEST_BETA:g} and {LARGEST_BETA:g}"
            raise ValueError(f"[{op}] beta_init is {options['beta_init']}; must be {within}")

    def head_layout(self, **more: Any) -> str:
        names = ("heads", "kv_heads", "head_dim", "value_shift", "convolution")
        return layout_of(self.kind, **{name: self.options[name] for name in names}, **more)

    def beta(self) -> Tensor:
        """[H]"""
        return self.b * self.head_dim**0.5

    def attention_inputs(
        self, x: Tensor, state: Optional[MixerState], cu_seqlens: Optional[Tensor]
    ) -> Tuple[Tensor, Tensor, Tensor]:
        """q [B, T, H, D], k and v [B, T, Hkv, D]; `state` carries what convolution and shift need of the tokens before."""
        q = self._heads_of(self._convolved("conv_q", self.q_proj(x), state, cu_seqlens), self.heads)
        k = self._heads_of(self._convolved("conv_k", self.k_proj(x), state, cu_seqlens), self.kv_heads)
        v = self._heads_of(self.v_proj(x), self.kv_heads)
        q, k = l2_norm(q, eps=1e-12), l2_norm(k, eps=1e-12)
        if self.alpha is not None and x.shape[1] > 0:
            share = sigmoid(self.alpha)
            k = shifted(k, "shift_k", state, cu_seqlens)
            v = share * shifted(v, "shift_v", state, cu_seqlens) + (1 - share) * v
        return q, k, v

    def output(self, mixed: Tensor) -> Tensor:
        """o [B, T, H, D] -> [B, T, dim]"""
        return self.o_proj(mixed.flatten(2))

    def input_state_bytes(self, tokens: int) -> int:
        """Of convolution and shift in the state of one sequence."""
        if tokens == 0:
            return 0
        query_width, key_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        convolution = (CONVOLUTION_WIDTH - 1) * (query_width + key_width) if self.options["convolution"] else 0
        return 4 * (convolution + (2 * key_width if self.options["value_shift"] else 0))

    def _heads_of(self, y: Tensor, heads: int) -> Tensor:
        return y.unflatten(-1, (heads, self.head_dim))

    def _convolved(
        self, name: str, y: Tensor, state: Optional[MixerState], cu_seqlens: Optional[Tensor]
    ) -> Tensor:
        convolution = getattr(self, name)
        return y if convolution is None else convolved(convolution, name, CONVOLUTION_WIDTH, y, state, cu_seqlens)


def shifted(x: Tensor, name: str, state: Optional[MixerState], cu_seqlens: Optional[Tensor]) -> Tensor:
    """x [B, T, ...] one token later: what came before it is the state's `name`, or at the start of a sequence its own
    first."""
    time = x.shape[1]
    before = x[:, :1]
    if state is not None:
        before = state.tensors.get(name, before).to(x.dtype)
        state.tensors[name] = x[:, time - 1 :].clone()  # not a view, which would keep all of x
    everything = torch.cat([before, x], 1)
    if cu_seqlens is None:
        return everything[:, :time]
    starts = torch.zeros(time + 1, dtype=torch.long, device=x.device).index_fill(0, cu_seqlens[:-1].long(), 1)
    return everything.index_select(1, torch.arange(time, device=x.device) + starts[:time])
