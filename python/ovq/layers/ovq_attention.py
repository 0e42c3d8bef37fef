"""OVQ-attention: attention to a dictionary learned while the sequence streams by, and to the current chunk as it is."""

from typing import Any, Optional

import torch
from torch import Tensor, nn

from .._library import call
from ..ops import ovq_attention, step
from ..pointwise import through_float
from ..state import OPTIONS, dtype_name
from .heads import AttentionHeads, shifted
from .mixer import checked_options
from .projection import Projection
from .state import MixerState


class OVQAttention(AttentionHeads):
    """OVQ-attention: projections without bias, unit-norm queries and keys, learned beta per head.

    A drop-in for causal self-attention whose memory does not grow with the context. Its states have the dictionary's
    `keys`, `values` and `counts`, and all of it as `dictionary`.

    Args:
        dim: of the input and output.
        heads: heads of the queries.
        kv_heads: heads of keys and values, a divisor of heads; None: as many.
        head_dim: numbers per head; None: dim / heads.
        beta_init (1.0): where b starts in beta = b sqrt(head_dim), the learned factor of the logits.
        value_shift (False): insert the key of the token before, with a learned mean of both tokens' values.
        convolution (False): a short convolution on queries and keys before their norm.
        chunk (128): tokens between writes to the dictionary.
        centroids (2048): most centroids per kv head.
        growth ('plateau'): how their number follows the position: "plateau", "linear", "all", "square-root".
        total_tokens (0): length at which linear growth reaches `centroids`.
        new_centroids ('spread'): which keys found centroids: "spread", "random".
        rate: constant learning rate, in (0, 1]; without one centroids are running means.
        rope_base (10000.0): base of the rotary positions.
        normalize (False): rescale the key centroids to unit norm after each write.
        rope (False): rotary positions in a window of two chunks; the head dim must be even.
        seed (0): of random new centroids.
        value_norms (False): values of centroids are as long as those of their tokens are on average.
        weighted_writes (False): learn how much each token counts in the dictionary.
    """

    kind = "ovq"

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
        chunk: int = 128,
        centroids: int = 2048,
        growth: str = "plateau",
        total_tokens: int = 0,
        new_centroids: str = "spread",
        rate: Optional[float] = None,
        rope_base: float = 10000.0,
        normalize: bool = False,
        rope: bool = False,
        seed: int = 0,
        value_norms: bool = False,
        weighted_writes: bool = False,
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
            chunk=chunk,
            centroids=centroids,
            growth=growth,
            total_tokens=total_tokens,
            new_centroids=new_centroids,
            rate=rate or None,
            rope_base=rope_base,
            normalize=normalize,
            rope=rope,
            seed=seed,
            value_norms=value_norms,
            weighted_writes=weighted_writes,
        )
        self._dictionary_bytes(0, torch.float32)  # checks the options together
        self.w_gate: Optional[nn.Module] = None
        if weighted_writes:
            self.w_gate = Projection(dim, self.kv_heads, bias=True)
            nn.init.zeros_(self.w_gate.weight)
            nn.init.constant_(self.w_gate.bias, 3.0)  # every token counts about the same
        self.to(device=device, dtype=dtype)

    def mix(
        self, x: Tensor, state: Optional[MixerState], cu_seqlens: Optional[Tensor], in_place: bool = False
    ) -> Tensor:
        q, k, v = self.attention_inputs(x, state, cu_seqlens)
        weights = self.write_weights(x, state, cu_seqlens)
        inputs = (q, k, v, self.beta())
        options = {name: self.options[name] for name in OPTIONS}
        if state is None:
            return ovq_attention(*inputs, weights=weights, cu_seqlens=cu_seqlens, **options)
        before = state.dictionary
        if before is not None and before.path == "kernel" and before.dtype != state.dtype:
            before = before.to(state.dtype)
        state.position += x.shape[1]
        if before is None:
            o, state.dictionary = ovq_attention(
                *inputs, weights=weights, return_state=True, state_dtype=state.dtype, **options
            )
        elif in_place and before.options["centroids"] == options["centroids"]:
            o, state.dictionary = step(*inputs, before, weights=weights), before
        else:
            o, state.dictionary = ovq_attention(
                *inputs, weights=weights, state=before, return_state=True, centroids=options["centroids"]
            )
        return o

    def write_weights(
        self, x: Tensor, state: Optional[MixerState], cu_seqlens: Optional[Tensor]
    ) -> Optional[Tensor]:
        """How much each token counts, [B, T, Hkv]; with the value shift a weight goes where its key goes."""
        if self.w_gate is None:
            return None
        # A NaN shows in the outputs; as a weight it would be an error.
        weights = through_float(lambda gate: gate.sigmoid().nan_to_num(1.0).clamp_min(1e-6), self.w_gate(x))
        shift = self.alpha is not None and x.shape[1] > 0
        return shifted(weights, "shift_w", state, cu_seqlens) if shift else weights

    def set_centroids(self, centroids: int) -> None:
        changed = {**self.options, "centroids": centroids}
        self.options = checked_options(self.kind, self.dim, changed)

    def layout(self) -> str:
        options = self.options
        # `centroids` may change; what came later is named where it is used, so that older states still fit.
        parts = {name: options[name] for name in OPTIONS if name not in ("centroids", "value_norms")}
        for name in ("value_norms", "weighted_writes"):
            if options[name]:
                parts[name] = options[name]
        return self.head_layout(**parts)

    def _state_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        shifts_weights = self.options["weighted_writes"] and self.options["value_shift"] and tokens > 0
        return (
            self._dictionary_bytes(tokens, dtype)
            + self.input_state_bytes(tokens)
            + (4 * self.kv_heads if shifts_weights else 0)
        )

    def _dictionary_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        return call(
            "ovq_state_bytes",
            self.kv_heads,
            self.head_dim,
            self.head_dim,
            *(self.options[name] for name in OPTIONS),
            self.options["weighted_writes"],
            tokens,
            dtype_name("state_bytes", "dtype", dtype),
            op="ovq",
        )
