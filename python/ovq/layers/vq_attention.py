"""VQ-attention: causal attention with every key replaced by its nearest codeword of a learned codebook.

    quadratic  attention to the quantized keys
    linear     chunk c reads the codewords, with counts and mean values of chunks <= c - 2, and the tokens of chunks
               c - 1 and c one by one; equal keys have equal logits, so both are the same function

Training uses the quadratic form, whose keys carry the gradients of the codebook; with a state the linear form runs.
"""

from typing import Any, Dict, Optional, Set

import torch
import torch.distributed as dist
from torch import Tensor

from ..ops import attention
from ..paths import compiling
from ..reference.vector_quantize import gather_rows
from .cache import extend_cache
from .heads import AttentionHeads
from .state import MixerState
from .vector_quantizer import VectorQuantizer
from .vq_linear import vq_linear_attention

CODEBOOK_OPTIONS = ("training", "no_use", "noise", "ema_decay", "commitment")


class VQAttention(AttentionHeads):
    """VQ-attention: causal attention with every key replaced by its nearest codeword of a learned codebook.

    Call `begin_step` before each training step, which may have any number of forwards, and add `auxiliary_loss` to the
    loss. Without `begin_step` every training forward is a step. Training takes no state: a key's choice of its codeword
    has no gradient in the form that states are for. During the warm-up the layer is attention, in training and outside.

    Args:
        dim: of the input and output.
        heads: heads of the queries.
        kv_heads: heads of keys and values, a divisor of heads; None: as many.
        head_dim: numbers per head; None: dim / heads.
        beta_init (1.0): where b starts in beta = b sqrt(head_dim), the learned factor of the logits.
        value_shift (False): insert the key of the token before, with a learned mean of both tokens' values.
        convolution (False): a short convolution on queries and keys before their norm.
        codewords (512): codewords per kv head.
        chunk (128): tokens that join the dictionary of the linear form at a time.
        form ('quadratic'): how to compute it outside of training and without a state; the same function: "quadratic",
            "linear".
        training ('sf-diveq'): of the codebook: "sf-diveq", "diveq", "ema".
        no_use (0.0025): bonus per step for codewords that nothing used.
        noise (0.001): of both DiVeQs.
        ema_decay (0.99): of the moving averages.
        commitment (0.0001): weight of the commitment loss of ema.
        warmup (0): training steps with keys as they are, at least one; the last one's start the codebook.
    """

    kind = "vq"

    process_group: Any = None
    """The torch.distributed group of the ranks that train this layer together; None: all."""

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
        codewords: int = 512,
        chunk: int = 128,
        form: str = "quadratic",
        training: str = "sf-diveq",
        no_use: float = 0.0025,
        noise: float = 0.001,
        ema_decay: float = 0.99,
        commitment: float = 0.0001,
        warmup: int = 0,
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
            codewords=codewords,
            chunk=chunk,
            form=form,
            training=training,
            no_use=no_use,
            noise=noise,
            ema_decay=ema_decay,
            commitment=commitment,
            warmup=warmup,
        )
        self.chunk, self.form, self.warmup = chunk, form, warmup
        codebook = {name: self.options[name] for name in CODEBOOK_OPTIONS}
        self.quantizer = VectorQuantizer(self.kv_heads, codewords, self.head_dim, **codebook)
        self.register_buffer("started", torch.zeros((), dtype=torch.long))  # whether the codebook has its first values
        self._step, self._seed = -1, 0
        self._told = False  # by begin_step which step it is
        self._forwards: Set[int] = set()  # fingerprints of the keys of this step's forwards
        self._auxiliary: Optional[Tensor] = None
        self.to(device=device, dtype=dtype)

    def mix(
        self, x: Tensor, state: Optional[MixerState], cu_seqlens: Optional[Tensor], in_place: bool = False
    ) -> Tensor:
        if state is not None and self.training and torch.is_grad_enabled():
            raise ValueError(
                "[vq] training with a state: its keys would have no gradients; train without a state, or call eval()"
            )
        q, k, v = self.attention_inputs(x, state, cu_seqlens)
        if state is not None:
            read = self._read_codewords if self._has_started() else self._read_keys
            return read(q, k, v, state)
        if self.training:
            k = self._training_keys(k)
        elif compiling():  # no branch on what a tensor holds
            k = torch.where(self.started > 0, self._quantized(k), k)
        elif self._has_started():
            if self.form == "linear":
                return self._linear(q, k, v, cu_seqlens)
            k = self._quantized(k)
        return attention(q, k, v, self.beta(), cu_seqlens=cu_seqlens)

    def begin_step(self, step: int, seed: int) -> None:
        """Before each training step, which may have any number of forwards.

        What the codebook learns other than by gradients moves on here, by all forwards of the step before, and all noise
        of the step is a function of both numbers and the inputs. Where torch.distributed is initialized, all ranks must
        call it: they add up what their forwards noted. Without begin_step every training forward is a step.
        """
        self.end_step()
        self._step, self._seed, self._told = step, seed, True

    def end_step(self) -> None:
        """Ends the step at once, e.g. before saving or evaluating; the next begin_step would. On all ranks."""
        self._add_up_ranks()
        if self.quantizer.end_step():
            self.started.fill_(1)
        self._forwards.clear()

    def auxiliary_loss(self) -> Optional[Tensor]:
        loss = self._auxiliary
        if loss is not None and not loss.requires_grad and torch.is_grad_enabled():
            raise ValueError(
                "[vq] the last training forward ran without gradients, and so did its auxiliary loss, as under reentrant "
                "checkpointing; must run with them: use_reentrant=False"
            )
        return loss

    def layout(self) -> str:
        return self.head_layout(codewords=self.options["codewords"], chunk=self.chunk)

    def _state_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        if tokens == 0:
            return 0
        chunk, dim = self.chunk, self.head_dim
        window = tokens if tokens <= 2 * chunk else chunk + (tokens - 1) % chunk + 1
        dictionary = 4 * self.options["codewords"] * (dim + 1)
        return self.kv_heads * (dictionary + window * (4 * dim + 8)) + self.input_state_bytes(tokens)

    def _has_started(self) -> bool:
        return self.started.is_meta or bool(self.started)

    def _training_keys(self, k: Tensor) -> Tensor:
        """The keys [B, T, Hkv, D] as training sees them; notes them for the step's end."""
        if compiling():
            raise RuntimeError("[vq] training notes its keys, which compiled code cannot; leave this layer uncompiled")
        # A forward inside of backward is one that has been: activation checkpointing computes it again.
        again = torch.ops.ovq.inside_backward()
        keys = 0 if k.is_meta else torch.ops.ovq.fingerprint(k.detach().float().cpu())
        if again and keys not in self._forwards:
            raise ValueError(
                "[vq] backward computes a forward again that is not of this step; call begin_step before each training "
                "step, and nothing that changes weights before its last backward"
            )
        if not again:
            if not self._told:
                self.end_step()
                self._step += 1
                self._seed = self._step
            self._forwards.add(keys)
            self._auxiliary = None
        if not self._has_started():
            if not again and self._step + 1 >= self.warmup:
                self.quantizer.collect(k)
            return k + 0 * self.quantizer.codebook.sum()  # in the graph: DistributedDataParallel waits for every gradient
        quantized = self.quantizer(k, self._seed ^ keys, noted=not again)
        if not again:
            self._auxiliary = self.quantizer.commitment_loss
        return quantized

    def _quantized(self, k: Tensor) -> Tensor:
        """The nearest codeword of each key, [B, T, Hkv, D]; the gradient goes to the codewords."""
        index, words = self.quantizer(k)
        rows = gather_rows(words, index.permute(2, 0, 1).flatten(1))
        return rows.unflatten(1, k.shape[:2]).permute(1, 2, 0, 3).to(k.dtype)

    def _linear(self, q: Tensor, k: Tensor, v: Tensor, cu_seqlens: Optional[Tensor]) -> Tensor:
        (index, words), beta = self.quantizer(k), self.beta()
        offsets = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
        parts = []
        for begin, end in zip(offsets, offsets[1:]):
            one = (q[:, begin:end], index[:, begin:end], words, v[:, begin:end])
            parts.append(vq_linear_attention(*one, beta, self.chunk, {}, 0)[0])
        return torch.cat(parts, 1) if parts else q

    def _read_keys(self, q: Tensor, k: Tensor, v: Tensor, state: MixerState) -> Tensor:
        """Before the codebook has started: a cache of keys and values."""
        if "counts" in state.tensors:
            raise ValueError("[vq] state is of a layer whose codebook has started; this layer's has not")
        keys, values = extend_cache(state, "keys", k, None), extend_cache(state, "values", v, None)
        state.position += q.shape[1]
        return attention(q, keys, values, self.beta(), query_offset=keys.shape[1] - q.shape[1])

    def _read_codewords(self, q: Tensor, k: Tensor, v: Tensor, state: MixerState) -> Tensor:
        if "keys" in state.tensors:
            raise ValueError("[vq] state is of a layer whose codebook has not started; this layer's has")
        index, words = self.quantizer(k)
        before = {name: state.tensors[name] for name in ("counts", "means", "index", "values") if name in state.tensors}
        o, after = vq_linear_attention(q, index, words, v, self.beta(), self.chunk, before, state.position)
        state.tensors.update(after)
        state.position += q.shape[1]
        return o

    def _add_up_ranks(self) -> None:
        group = self.process_group
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1):
            return
        if self._has_started():
            statistics = self.quantizer.statistics()
        else:
            statistics = [self.quantizer.start_statistics(dist.get_rank(group), dist.get_world_size(group))]
        for statistic in statistics:
            dist.all_reduce(statistic, group=group)

    def __getstate__(self) -> Dict[str, Any]:
        """Copies have no loss: it belongs to a graph, which torch does not copy."""
        return {**self.__dict__, "_auxiliary": None}
