"""Sequence mixers as layers: x [B, T, dim] -> y [B, T, dim], causal. The maths is C++ (ovq/nn)."""

from inspect import signature
from typing import Any, Dict, Iterable, Optional, Tuple, Union

import torch
from torch import Tensor

from ._library import invoke
from .arguments import json_of
from .cpp_module import CompiledModule, States
from .layer_states import MixerState
from .options import constructor, documented, fields_of

MixerStates = States[MixerState]
HEADS = ("heads", "kv_heads", "head_dim")


class Mixer(CompiledModule):
    """Any sequence mixer by its name in configurations: "attention", "ovq", "vq", "gdn", "mamba2", "mesa", "linear".

    Args:
        type: that name.
        dim: of the input and output.
        options: as config.json spells them; the classes below list them.
    """

    _state_type = MixerState
    _op = "mixer"

    def __init_subclass__(cls, type: Optional[str] = None, positional: Iterable[str] = (), **rest: Any) -> None:
        """With a type: the constructor takes that mixer's options, as C++ lists them, and the docstring has them too."""
        super().__init_subclass__(**rest)
        if type is not None:
            fields = fields_of(torch.ops.ovq.mixer_options(type))
            cls.__init__ = constructor(type, fields, positional, Mixer.__init__)
            cls.__doc__ = documented(cls.__doc__, fields, signature(cls.__init__))

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
        config = self.config
        fields = fields_of(torch.ops.ovq.mixer_options(config["type"]))
        return {field.name: field.from_json(config[field.name]) for field in fields}

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
        return invoke(self._op, torch.classes.ovq.Mixer, json_of("config", config), self.dim)


class Attention(Mixer, type="attention", positional=HEADS):
    """Causal softmax attention with unit-norm queries and keys and a learned factor of the logits per head.

    Its state is the cache of keys and values: all of them, or those the window reaches.

    Args:
        dim: of the input and output.
        {options}
    """


class OVQAttention(Mixer, type="ovq", positional=HEADS):
    """OVQ-attention: projections without bias, unit-norm queries and keys, learned beta per head.

    A drop-in for causal self-attention whose memory does not grow with the context. Its states have the dictionary's
    `keys`, `values` and `counts`, and all of it as `dictionary`.

    Args:
        dim: of the input and output.
        {options}
    """


class VQAttention(Mixer, type="vq", positional=HEADS):
    """VQ-attention: causal attention with every key replaced by its nearest codeword of a learned codebook.

    Call `begin_step` before each training step, which may have any number of forwards, and add `auxiliary_loss` to the
    loss. Without `begin_step` every training forward is a step. Training takes no state: a key's choice of its codeword
    has no gradient in the form that states are for. During the warm-up the layer is attention, in training and outside.

    Args:
        dim: of the input and output.
        {options}
    """


class GatedDeltaNet(Mixer, type="gdn", positional=("heads",)):
    """Gated DeltaNet (arXiv 2412.06464); each head has a state [key_dim, value_dim].

    Args:
        dim: of the input and output.
        {options}
    """


class Mamba2(Mixer, type="mamba2", positional=("heads",)):
    """Mamba-2 (arXiv 2405.21060).

    Args:
        dim: of the input and output.
        {options}
    """


class MesaNet(Mixer, type="mesa", positional=("heads",)):
    """MesaNet (arXiv 2506.05233); each head has states [key_dim, key_dim] and [key_dim, value_dim].

    Args:
        dim: of the input and output.
        {options}
    """


class LinearAttention(Mixer, type="linear", positional=("heads",)):
    """Plain linear attention, the simplest layer with a state of fixed size, [key_dim, value_dim] for each head.

    Args:
        dim: of the input and output.
        {options}
    """
