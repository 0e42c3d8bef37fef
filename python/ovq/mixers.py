"""Sequence mixers as layers: x [B, T, dim] -> y [B, T, dim], causal. The maths is C++ (ovq/nn)."""

import json
from typing import Any, Dict, Optional, Tuple, Union

import torch
from torch import Tensor

from ._library import invoke
from .compiled import CompiledModule, States
from .layer_states import MixerState

MixerStates = States[MixerState]


class Mixer(CompiledModule):
    """Any sequence mixer by its name in configurations: "attention", "ovq", "vq", "gdn", "mamba2", "mesa", "linear".

    Args:
        type: that name.
        dim: of the input and output.
        options: as config.json spells them; the classes below list them.
    """

    _state_type = MixerState
    _op = "mixer"

    def __init__(
        self, type: str, dim: int, *, device: Any = None, dtype: Optional[torch.dtype] = None, **options: Any
    ) -> None:
        super().__init__()
        self.dim = dim
        self._bind(self._make_handle({"type": type, **options}))
        if device is not None or dtype is not None:
            self.to(device=device, dtype=dtype)

    @property
    def options(self) -> Dict[str, Any]:
        """What it was made with, defaults filled in."""
        return {name: value for name, value in self.config.items() if name != "type"}

    def forward(
        self,
        x: Tensor,
        *,
        state: Optional[MixerStates] = None,
        return_state: bool = False,
        cu_seqlens: Optional[Tensor] = None,
    ) -> Union[Tensor, Tuple[Tensor, MixerStates]]:
        """Mixes x [B, T, dim] into y [B, T, dim].

        Args:
            x: [B, T, dim].
            state: continue from it; it is left unchanged. With cu_seqlens a list, one per sequence.
            return_state: also return the state afterwards; implied by `state`.
            cu_seqlens: [sequences + 1] integers from 0 to T: sequences packed along time, with B = 1.

        Returns:
            y, or (y, state). Differentiable through both.
        """
        return self._run(x, state, return_state, cu_seqlens)

    def step(self, x: Tensor, state: MixerStates, *, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        """Decodes x [B, T, dim], mostly T = 1 -> y [B, T, dim]; `state` moves on in place, no autograd."""
        return self._step(x, state, cu_seqlens)

    def extra_repr(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        own = super().extra_repr()
        return f"dim={self.dim}, {options}" + (f", {own}" if own else "")

    def _make_handle(self, config: Dict[str, Any]) -> Any:
        return invoke(self._op, torch.classes.ovq.Mixer, json.dumps(config), self.dim)


class Attention(Mixer):
    """Causal softmax attention with unit-norm queries and keys and a learned factor of the logits per head.

    Its state is the cache of keys and values: all of them, or those the window reaches.

    Args:
        dim: of the input and output.
        heads: of the queries; kv_heads (heads): of keys and values, a divisor of heads; head_dim: dim // heads.
        window: a query sees this many keys, its own included; None: all before it.
        rope: rotary positions; head_dim must be even. rope_base: their base.
        value_shift: insert the key of the token before, with a learned mean of both tokens' values.
        convolution: a short convolution on queries and keys before their norm.
        beta_init: where b starts in beta = b sqrt(head_dim).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: Optional[int] = None,
        head_dim: Optional[int] = None,
        *,
        window: Optional[int] = None,
        rope: bool = False,
        rope_base: float = 10000.0,
        value_shift: bool = False,
        convolution: bool = False,
        beta_init: float = 1.0,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(
            "attention",
            dim,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            window=window,
            rope=rope,
            rope_base=rope_base,
            value_shift=value_shift,
            convolution=convolution,
            beta_init=beta_init,
            device=device,
            dtype=dtype,
        )


class OVQAttention(Mixer):
    """OVQ-attention: projections without bias, unit-norm queries and keys, learned beta per head.

    A drop-in for causal self-attention whose memory does not grow with the context. Its states have the dictionary's
    `keys`, `values` and `counts`, and all of it as `dictionary`.

    Args:
        dim: of the input and output.
        heads: of the queries; kv_heads (heads): of keys and values, a divisor of heads; head_dim: dim // heads.
        centroids, chunk ... seed: see `ovq_attention`.
        value_shift: insert the key of the token before, with a learned mean of both tokens' values.
        convolution: a short convolution on queries and keys before their norm.
        weighted_writes: learn how much each token counts in the dictionary, sigmoid(w_gate(x)) per kv head.
        beta_init: where b starts in beta = b sqrt(head_dim).
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
        value_shift: bool = False,
        convolution: bool = False,
        weighted_writes: bool = False,
        beta_init: float = 1.0,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(
            "ovq",
            dim,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            centroids=centroids,
            chunk=chunk,
            growth=growth,
            total_tokens=total_tokens,
            new_centroids=new_centroids,
            rate=rate,
            normalize=normalize,
            rope=rope,
            rope_base=rope_base,
            seed=seed,
            value_shift=value_shift,
            convolution=convolution,
            weighted_writes=weighted_writes,
            beta_init=beta_init,
            device=device,
            dtype=dtype,
        )

    @property
    def options(self) -> Dict[str, Any]:
        """What it was made with, defaults filled in."""
        options = super().options
        return {**options, "rate": options["rate"] or None}  # 0 in files


class VQAttention(Mixer):
    """VQ-attention: causal attention with every key replaced by its nearest codeword of a learned codebook.

    Call `begin_step` before each training step, which may have any number of forwards, and add `auxiliary_loss` to the
    loss. Without `begin_step` every training forward is a step. Training takes no state: a key's choice of its codeword
    has no gradient in the form that states are for.

    Args:
        dim: of the input and output.
        heads: of the queries; kv_heads (heads): of keys and values, a divisor of heads; head_dim: dim // heads.
        codewords: per kv head. chunk: tokens that join the dictionary of the linear form at a time.
        form: "quadratic" or "linear", the same function: how to compute it outside of training and without a state.
        training: of the codebook: "sf-diveq", "diveq" or "ema". noise: of both DiVeQs; ema_decay, commitment: of "ema".
        no_use: bonus per step for codewords that nothing used.
        warmup: training steps with keys as they are, at least one; the keys of the last one start the codebook. Until then
            the layer is attention outside of training too.
        value_shift: insert the key of the token before, with a learned mean of both tokens' values.
        convolution: a short convolution on queries and keys before their norm.
        beta_init: where b starts in beta = b sqrt(head_dim).
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: Optional[int] = None,
        head_dim: Optional[int] = None,
        *,
        codewords: int = 512,
        chunk: int = 128,
        form: str = "quadratic",
        training: str = "sf-diveq",
        no_use: float = 0.0025,
        noise: float = 1e-3,
        ema_decay: float = 0.99,
        commitment: float = 1e-4,
        warmup: int = 0,
        value_shift: bool = False,
        convolution: bool = False,
        beta_init: float = 1.0,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(
            "vq",
            dim,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            codewords=codewords,
            chunk=chunk,
            form=form,
            training=training,
            no_use=no_use,
            noise=noise,
            ema_decay=ema_decay,
            commitment=commitment,
            warmup=warmup,
            value_shift=value_shift,
            convolution=convolution,
            beta_init=beta_init,
            device=device,
            dtype=dtype,
        )


class GatedDeltaNet(Mixer):
    """Gated DeltaNet (arXiv 2412.06464).

    Args:
        dim: of the input and output.
        heads: each with a state [key_dim, value_dim].
        conv_width: taps of the short convolutions on queries, keys and values.
        chunk: tokens computed at a time; a matter of speed only.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        key_dim: int = 128,
        value_dim: int = 256,
        conv_width: int = 4,
        chunk: int = 64,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(
            "gdn",
            dim,
            heads=heads,
            key_dim=key_dim,
            value_dim=value_dim,
            conv_width=conv_width,
            chunk=chunk,
            device=device,
            dtype=dtype,
        )


class Mamba2(Mixer):
    """Mamba-2 (arXiv 2405.21060).

    Args:
        dim: of the input and output.
        heads: None: expand * dim / head_dim.
        head_dim: channels per head. expand: of all heads together, in multiples of dim.
        state: numbers per channel. groups: of heads that share B, C and the norm.
        conv_width: taps of the short convolution.
        chunk: tokens computed at a time; a matter of speed only.
    """

    def __init__(
        self,
        dim: int,
        heads: Optional[int] = None,
        *,
        head_dim: int = 64,
        expand: int = 1,
        state: int = 64,
        groups: int = 1,
        conv_width: int = 4,
        chunk: int = 64,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(
            "mamba2",
            dim,
            heads=heads,
            head_dim=head_dim,
            expand=expand,
            state=state,
            groups=groups,
            conv_width=conv_width,
            chunk=chunk,
            device=device,
            dtype=dtype,
        )


class MesaNet(Mixer):
    """MesaNet (arXiv 2506.05233).

    Args:
        dim: of the input and output.
        heads: each with states [key_dim, key_dim] and [key_dim, value_dim].
        conv_width: taps of the short convolutions on queries and keys.
        iterations: of conjugate gradients.
        chunk: tokens computed at a time; a matter of speed only.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        key_dim: int = 128,
        value_dim: int = 128,
        conv_width: int = 4,
        iterations: int = 30,
        chunk: int = 64,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(
            "mesa",
            dim,
            heads=heads,
            key_dim=key_dim,
            value_dim=value_dim,
            conv_width=conv_width,
            iterations=iterations,
            chunk=chunk,
            device=device,
            dtype=dtype,
        )


class LinearAttention(Mixer):
    """Plain linear attention, the simplest layer with a state of fixed size.

    Args:
        dim: of the input and output.
        heads: each with a state [key_dim, value_dim].
        conv_width: taps of the short convolutions on queries, keys and values.
        chunk: tokens computed at a time; a matter of speed only.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        *,
        key_dim: int = 128,
        value_dim: int = 128,
        conv_width: int = 4,
        chunk: int = 64,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(
            "linear",
            dim,
            heads=heads,
            key_dim=key_dim,
            value_dim=value_dim,
            conv_width=conv_width,
            chunk=chunk,
            device=device,
            dtype=dtype,
        )
