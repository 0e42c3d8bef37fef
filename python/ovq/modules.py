"""OVQ-attention as a layer."""

import math
from typing import Any, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize as unit_norm

from .functional import States, ovq_attention, step


class OVQAttention(nn.Module):
    """Sequence mixing with OVQ-attention: projections without bias, unit-norm queries and keys, learned beta per head.

    A drop-in for causal self-attention on x [B, T, dim], whose memory does not grow with the context.

    Args:
        dim: of the input and output.
        heads: of the queries; kv_heads (heads): of keys and values, a divisor of heads; head_dim: dim // heads.
        centroids, chunk and further options by keyword: see `ovq_attention`.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: Optional[int] = None,
        head_dim: Optional[int] = None,
        *,
        centroids: int = 2048,
        chunk: int = 128,
        growth: str = "plateau",
        total_tokens: int = 0,
        new_centroids: str = "spread",
        rate: Optional[float] = None,
        normalize: bool = False,
        rope: bool = False,
        rope_base: float = 10000.0,
        seed: int = 0,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__()
        if heads < 1 or (head_dim is None and dim % heads != 0):
            raise ValueError(f"[OVQAttention] heads is {heads}; must divide dim {dim}, or head_dim be given")
        self.heads = heads
        self.kv_heads = heads if kv_heads is None else kv_heads
        if self.kv_heads < 1 or heads % self.kv_heads != 0:
            raise ValueError(f"[OVQAttention] kv_heads is {kv_heads}; must divide heads {heads}")
        self.head_dim = dim // heads if head_dim is None else head_dim
        self.options = dict(
            chunk=chunk,
            centroids=centroids,
            growth=growth,
            total_tokens=total_tokens,
            new_centroids=new_centroids,
            rate=rate,
            normalize=normalize,
            rope=rope,
            rope_base=rope_base,
            seed=seed,
        )
        kind = dict(device=device, dtype=dtype)
        self.q_proj = nn.Linear(dim, self.heads * self.head_dim, bias=False, **kind)
        self.k_proj = nn.Linear(dim, self.kv_heads * self.head_dim, bias=False, **kind)
        self.v_proj = nn.Linear(dim, self.kv_heads * self.head_dim, bias=False, **kind)
        self.o_proj = nn.Linear(self.heads * self.head_dim, dim, bias=False, **kind)
        self.b = nn.Parameter(torch.ones(heads, **kind))

    def forward(
        self,
        x: Tensor,
        *,
        state: Optional[States] = None,
        return_state: bool = False,
        cu_seqlens: Optional[Tensor] = None,
    ) -> Union[Tensor, Tuple[Tensor, States]]:
        """x [B, T, dim] -> y [B, T, dim]; (y, state) if a state is given or asked for. The given one is unchanged."""
        return_state = return_state or state is not None
        result = ovq_attention(
            *self._inputs(x), **self.options, cu_seqlens=cu_seqlens, state=state, return_state=return_state
        )
        if not return_state:
            return self._output(result)
        o, state = result
        return self._output(o), state

    @torch.no_grad()
    def step(self, x: Tensor, state: States, *, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        """Decodes x [B, T, dim], mostly T = 1 -> y [B, T, dim]; `state` moves on in place."""
        return self._output(step(*self._inputs(x), state, cu_seqlens=cu_seqlens))

    def extra_repr(self) -> str:
        sizes = f"heads={self.heads}, kv_heads={self.kv_heads}, head_dim={self.head_dim}"
        return f"{sizes}, centroids={self.options['centroids']}, chunk={self.options['chunk']}"

    def _inputs(self, x: Tensor) -> List[Tensor]:
        if x.dim() != 3:
            raise ValueError(f"[OVQAttention] x has {x.dim()} dimensions; must have 3: [batch, time, dim]")
        q = self.q_proj(x).unflatten(-1, (self.heads, self.head_dim))
        k = self.k_proj(x).unflatten(-1, (self.kv_heads, self.head_dim))
        v = self.v_proj(x).unflatten(-1, (self.kv_heads, self.head_dim))
        return [unit_norm(q, dim=-1), unit_norm(k, dim=-1), v, self.b * math.sqrt(self.head_dim)]

    def _output(self, o: Tensor) -> Tensor:
        return self.o_proj(o.flatten(-2))
