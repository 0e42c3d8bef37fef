"""The memory of mixers and models between calls."""

import os
from typing import Any, Dict, List, Optional, Tuple, Type, TypeVar

import torch
from torch import Tensor

from .memory import Memory, Path, allow_loading, existing
from .state import State, dtype_name

Self = TypeVar("Self", bound="LayerStates")


class LayerStates(Memory):
    """What MixerState and ModelState have in common. A new one represents an empty context.

    Args:
        dtype: how caches of keys and values, and the centroids of OVQ-attention, are stored: torch.float32, or
            torch.bfloat16 for half the memory, for inference (no gradients). All else is float32.
    """

    __slots__ = ()
    _of: str  # whose it is

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self._handle = torch.classes.ovq.LayerStates(dtype_name(type(self).__name__, "dtype", dtype))

    @property
    def dtype(self) -> torch.dtype:
        """How caches and centroids are stored."""
        return getattr(torch, self._handle.dtype())

    def to(self: Self, dtype: torch.dtype) -> Self:
        """A copy that is stored as `dtype` from the next token on, rounded to nearest or widened exactly."""
        name, other = dtype_name(f"{type(self).__name__}.to", "dtype", dtype), self.clone()
        other._handle.set_dtype(name)
        return other

    def detach(self: Self) -> Self:
        """The same contents outside of the autograd graph: a copy, since a step writes into them."""
        return self.clone()

    def save(self, path: Path) -> None:
        """Writes a checksummed safetensors file. The dictionaries of OVQ-attention must be float32 on the CPU."""
        try:
            self._handle.save(os.fspath(path), self._of)
        except RuntimeError as error:
            raise OSError(str(error)) from None

    @classmethod
    def load(cls: Type[Self], path: Path) -> Self:
        """Reads what `save` wrote; ValueError if it is something else or damaged."""
        return cls._from("load_states", existing(path), cls._of)

    def __reduce__(self) -> Tuple[Any, ...]:
        try:
            tensors, metadata = self._handle.pack()
        except ValueError as error:
            raise TypeError(f"cannot pickle this {type(self).__name__}: {error}") from None
        # Copies, since a tensor is pickled with all of its storage.
        return _unpack, (type(self), {name: tensor.detach().clone() for name, tensor in tensors.items()}, metadata)

    def __repr__(self) -> str:
        dtype = "" if self.dtype == torch.float32 else f", dtype={self.dtype}"
        return f"{type(self).__name__}(position={self.position}, nbytes={self.nbytes}{dtype})"


class MixerState(LayerStates):
    """The memory of one mixer for a batch of sequences, or for one packed sequence."""

    __slots__ = ()
    _of = "mixer"

    @property
    def tensors(self) -> Dict[str, Tensor]:
        """By name, [B, ...]; the state's own, which a step may write into."""
        return self._handle.tensors(0) if self._handle.layers() else {}

    @property
    def dictionary(self) -> Optional[State]:
        """The dictionary of OVQ-attention; None for other mixers."""
        handle = self._handle.dictionary(0) if self._handle.layers() else None
        return None if handle is None else State(handle)

    @property
    def keys(self) -> Tensor:
        """The dictionary's centroids of the keys, [B, Hkv, n, dk]. Gradients flow through it."""
        return self._of_dictionary("keys")

    @property
    def values(self) -> Tensor:
        """The dictionary's centroids of the values, [B, Hkv, n, dv]. Gradients flow through it."""
        return self._of_dictionary("values")

    @property
    def counts(self) -> Tensor:
        """Tokens behind each centroid, [B, Hkv, n] int64; with weighted writes the sums of their weights."""
        return self._of_dictionary("counts")

    def _of_dictionary(self, name: str) -> Tensor:
        dictionary = self.dictionary
        if dictionary is None:
            raise AttributeError(f"this MixerState has no dictionary, and so no {name}; see its tensors")
        return getattr(dictionary, name)


class ModelState(LayerStates):
    """The memory of all layers of a language model."""

    __slots__ = ()
    _of = "model"

    @property
    def layers(self) -> List[Dict[str, Tensor]]:
        """The tensors of each layer by name, the dictionaries of OVQ-attention aside; see MixerState.tensors."""
        return [self._handle.tensors(i) for i in range(self._handle.layers())]

    @property
    def dictionaries(self) -> List[Optional[State]]:
        """The dictionary of each layer that is OVQ-attention; None for the others."""
        handles = (self._handle.dictionary(i) for i in range(self._handle.layers()))
        return [None if handle is None else State(handle) for handle in handles]


def handles_of(op: str, state: Any, cu_seqlens: Optional[Tensor], kind: Type[LayerStates]) -> List[Any]:
    """The compiled states of one for the batch, or with cu_seqlens of a list, one per sequence."""
    states = [state] if cu_seqlens is None else state
    if not isinstance(states, (list, tuple)) or not all(isinstance(s, kind) for s in states):
        name = kind.__name__
        expected = f"a {name}" if cu_seqlens is None else f"a list of {name}s, one per packed sequence"
        raise TypeError(f"[{op}] state is a {type(state).__name__}; must be {expected}")
    return [s._handle for s in states]


def _unpack(kind: Type[LayerStates], tensors: Dict[str, Tensor], metadata: Dict[str, str]) -> LayerStates:
    return kind._from("unpack_states", tensors, metadata)


allow_loading(_unpack, MixerState, ModelState)
