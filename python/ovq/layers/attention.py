"""Causal self-attention: o_t = softmax(beta q_t K^T) V, optionally with rotary positions and a window."""

from typing import Any, Optional

import torch
from torch import Tensor

from ..ops import attention, rotary
from .cache import cache_capacity, extend_cache
from .heads import AttentionHeads
from .state import MixerState


class Attention(AttentionHeads):
    """Causal softmax attention with unit-norm queries and keys and a learned factor of the logits per head.

    Its state is the cache of keys and values: all of them, or those the window reaches.

    Args:
        dim: of the input and output.
        heads: heads of the queries.
        kv_heads: heads of keys and values, a divisor of heads; None: as many.
        head_dim: numbers per head; None: dim / heads.
        beta_init (1.0): where b starts in beta = b sqrt(head_dim), the learned factor of the logits.
        value_shift (False): insert the key of the token before, with a learned mean of both tokens' values.
        convolution (False): a short convolution on queries and keys before their norm.
        window: keys a query sees, its own included; None: all before it.
        rope (False): rotary positions; the head dim must be even.
        rope_base (10000.0): base of the rotary positions.
    """

    kind = "attention"

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: Optional[int] = None,
        head_dim: Optional[int] = None,
        *,
        beta_init: float = 1.0,
        value_shift: bool = False,
        convolution: bool = False,
        window: Optional[int] = None,
        rope: bool = False,
        rope_base: float = 10000.0,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(
            dim,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            beta_init=beta_init,
            value_shift=value_shift,
            convolution=convolution,
            window=window,
            rope=rope,
            rope_base=rope_base,
        )
        self.window = self.options["window"]
        self.to(device=device, dtype=dtype)

    def mix(
        self, x: Tensor, state: Optional[MixerState], cu_seqlens: Optional[Tensor], in_place: bool = False
    ) -> Tensor:
        q, k, v = self.attention_inputs(x, state, cu_seqlens)
        if self.options["rope"]:
            position = dict(
                base=self.options["rope_base"],
                first_position=0 if state is None else state.position,
                cu_seqlens=cu_seqlens,
            )
            q, k = rotary(q, **position), rotary(k, **position)
        window = self.window or None
        if state is None:
            return attention(q, k, v, self.beta(), window=window, cu_seqlens=cu_seqlens)
        keys = extend_cache(state, "keys", k, window)
        values = extend_cache(state, "values", v, window)
        state.position += x.shape[1]
        return attention(q, keys, values, self.beta(), window=window, query_offset=keys.shape[1] - q.shape[1])

    def layout(self) -> str:
        rope = self.options["rope"]
        more = {"rope_base": self.options["rope_base"]} if rope else {}
        return self.head_layout(window=self.window, rope=rope, **more)

    def _state_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        if tokens == 0:
            return 0
        size = 2 if dtype == torch.bfloat16 else 4
        rows = cache_capacity(tokens, self.window)
        return 2 * rows * self.kv_heads * self.head_dim * size + self.input_state_bytes(tokens)
