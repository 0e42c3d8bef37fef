"""The memory of a mixer between calls."""

import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .._library import call
from ..memory import Path, allow_loading, existing
from ..state import State, dtype_name

PREFIX = "layers.0."  # in files, which hold the states of one layer or of many


@dataclass(repr=False, eq=False)
class MixerState:
    """The memory of one mixer for a batch of sequences, or for one packed sequence. A new one: an empty context.

    Args:
        dtype: how caches of keys and values, and the centroids of OVQ-attention, are stored: torch.float32, or
            torch.bfloat16 for half the memory, for inference (no gradients). All else is float32.
        position: tokens seen.
        tensors: by name, [B, ...]; the state's own, which a step may write into.
        dictionary: that of OVQ-attention; None for other mixers.
        layout: what the mixer that made it was made with; others are refused.
    """

    dtype: torch.dtype = torch.float32
    position: int = 0
    tensors: Dict[str, Tensor] = field(default_factory=dict)
    dictionary: Optional[State] = None
    layout: str = ""
    # Room behind caches, by name: memory that belongs to this state alone, and how many rows of it are in use.
    room: Dict[str, Tuple[Tensor, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dtype_name("MixerState", "dtype", self.dtype)

    @property
    def keys(self) -> Tensor:
        """The dictionary's centroids of the keys, [B, Hkv, n, dk]. Gradients flow through it."""
        return self._dictionary_with("keys").keys

    @property
    def values(self) -> Tensor:
        """The dictionary's centroids of the values, [B, Hkv, n, dv]. Gradients flow through it."""
        return self._dictionary_with("values").values

    @property
    def counts(self) -> Tensor:
        """Tokens behind each centroid, [B, Hkv, n] int64; with weighted writes the sums of their weights."""
        return self._dictionary_with("counts").counts

    def _dictionary_with(self, name: str) -> State:
        if self.dictionary is None:
            raise AttributeError(f"this MixerState has no dictionary, and so no {name}; see its tensors")
        return self.dictionary

    @property
    def nbytes(self) -> int:
        """Memory held, room to grow included."""
        held = 0 if self.dictionary is None else self.dictionary.nbytes
        for name, tensor in self.tensors.items():
            memory = self.room[name][0] if name in self.room else tensor
            held += memory.numel() * memory.element_size()
        return held

    def shared(self) -> "MixerState":
        """Another state with the same tensors, which are then replaced in one of the two, not written to."""
        return MixerState(self.dtype, self.position, dict(self.tensors), self.dictionary, self.layout)

    def become(self, other: "MixerState") -> None:
        """Takes over all that the other state has."""
        self.__dict__.update(other.__dict__)

    def clone(self) -> "MixerState":
        """An independent copy, outside of the autograd graph."""
        copy = self.shared()
        copy.tensors = {name: tensor.detach().clone() for name, tensor in self.tensors.items()}
        copy.dictionary = None if self.dictionary is None else self.dictionary.clone()
        return copy

    def detach(self) -> "MixerState":
        """The same contents outside of the autograd graph: a copy, since a step writes into them."""
        return self.clone()

    def to(self, dtype: torch.dtype) -> "MixerState":
        """A copy that is stored as `dtype` from the next token on, rounded to nearest or widened exactly."""
        dtype_name("MixerState.to", "dtype", dtype)
        copy = self.clone()
        copy.dtype = dtype
        return copy

    def save(self, path: Path) -> None:
        """Writes a checksummed safetensors file. The dictionaries of OVQ-attention must be float32 on the CPU."""
        try:
            call("unpack_states", *self._packed()).save(os.fspath(path), "mixer")
        except RuntimeError as error:
            raise OSError(str(error)) from None

    @classmethod
    def load(cls, path: Path) -> "MixerState":
        """Reads what `save` wrote; ValueError if it is something else or damaged."""
        try:
            tensors, metadata = call("load_states", existing(path), "mixer").pack()
        except RuntimeError as error:
            raise ValueError(str(error)) from None
        return _unpack(tensors, metadata)

    def _packed(self) -> Tuple[Dict[str, Tensor], Dict[str, str]]:
        """Copies, since a tensor is pickled with all of its storage."""
        tensors = {PREFIX + name: tensor.detach().clone() for name, tensor in self.tensors.items()}
        if self.dictionary is not None:
            tensors[PREFIX + "ovq"] = self.dictionary.to_bytes()
        metadata = {"ovq.state_layers": "1", PREFIX + "position": str(self.position)}
        if self.layout:
            metadata[PREFIX + "layout"] = self.layout
        if self.dtype != torch.float32:
            metadata["ovq.state_dtype"] = dtype_name("MixerState", "dtype", self.dtype)
        return tensors, metadata

    def __copy__(self) -> "MixerState":
        return self.clone()

    def __deepcopy__(self, memo: Dict[int, Any]) -> "MixerState":
        return self.clone()

    def __reduce__(self) -> Tuple[Any, ...]:
        try:
            return _unpack, self._packed()
        except TypeError as error:
            raise TypeError(f"cannot pickle this MixerState: {error}") from None

    def __repr__(self) -> str:
        dtype = "" if self.dtype == torch.float32 else f", dtype={self.dtype}"
        return f"MixerState(position={self.position}, nbytes={self.nbytes}{dtype})"


def _unpack(tensors: Dict[str, Tensor], metadata: Dict[str, str]) -> MixerState:
    state = MixerState(getattr(torch, metadata.get("ovq.state_dtype", "float32")))
    if metadata.get("ovq.state_layers") == "0":  # an empty context
        return state
    state.position = int(metadata[PREFIX + "position"])
    state.layout = metadata.get(PREFIX + "layout", "")
    state.tensors = {name[len(PREFIX) :]: tensor for name, tensor in tensors.items()}
    packed = state.tensors.pop("ovq", None)
    if packed is not None:
        state.dictionary = State.from_bytes(packed)
    return state


allow_loading(_unpack, MixerState)


def states_of(op: str, state: Any, cu_seqlens: Optional[Tensor]) -> List[MixerState]:
    """One state for the batch, or with cu_seqlens a list, one per sequence; TypeError if it is something else."""
    states = [state] if cu_seqlens is None else state
    if not isinstance(states, (list, tuple)) or not all(isinstance(s, MixerState) for s in states):
        expected = "a MixerState" if cu_seqlens is None else "a list of MixerStates, one per packed sequence"
        raise TypeError(f"[{op}] state is a {type(state).__name__}; must be {expected}")
    return list(states)
