"""The memory of a LanguageModel between calls."""

import os
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .memory import Memory, Path, allow_loading, existing
from .state import State, dtype_name


class ModelState(Memory):
    """The memory of all layers of a language model. A new one represents an empty context.

    Args:
        dtype: how caches of keys and values, and the centroids of OVQ-attention, are stored: torch.float32, or
            torch.bfloat16 for half the memory, for inference (no gradients). All else is float32.
    """

    __slots__ = ()

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self._handle = torch.classes.ovq.LayerStates(dtype_name("ModelState", "dtype", dtype))

    @property
    def dtype(self) -> torch.dtype:
        """How caches and centroids are stored."""
        return getattr(torch, self._handle.dtype())

    @property
    def layers(self) -> List[Dict[str, Tensor]]:
        """The tensors of each layer by name, the dictionaries of OVQ-attention aside; the state's own."""
        return [self._handle.tensors(i) for i in range(self._handle.layers())]

    @property
    def dictionaries(self) -> List[Optional[State]]:
        """The dictionary of each layer that is OVQ-attention; None for the others."""
        handles = (self._handle.dictionary(i) for i in range(self._handle.layers()))
        return [None if handle is None else State(handle) for handle in handles]

    def to(self, dtype: torch.dtype) -> "ModelState":
        """A copy that is stored as `dtype` from the next token on, rounded to nearest or widened exactly."""
        name, other = dtype_name("ModelState.to", "dtype", dtype), self.clone()
        other._handle.set_dtype(name)
        return other

    def detach(self) -> "ModelState":
        """The same contents outside of the autograd graph: a copy, since a step writes into them."""
        return self.clone()

    def save(self, path: Path) -> None:
        """Writes a checksummed safetensors file. The dictionaries of OVQ-attention must be float32 on the CPU."""
        try:
            self._handle.save(os.fspath(path), "model")
        except RuntimeError as error:
            raise OSError(str(error)) from None

    @classmethod
    def load(cls, path: Path) -> "ModelState":
        """Reads what `save` wrote; ValueError if it is something else or damaged."""
        return cls._from("load_states", existing(path), "model")

    def __reduce__(self) -> Tuple[Any, ...]:
        try:
            tensors, metadata = self._handle.pack()
        except ValueError as error:
            raise TypeError(f"cannot pickle this ModelState: {error}") from None
        # Copies, since a tensor is pickled with all of its storage.
        return _unpack, ({name: tensor.detach().clone() for name, tensor in tensors.items()}, metadata)

    def __repr__(self) -> str:
        dtype = "" if self.dtype == torch.float32 else f", dtype={self.dtype}"
        return f"ModelState(position={self.position}, nbytes={self.nbytes}{dtype})"


def _unpack(tensors: Dict[str, Tensor], metadata: Dict[str, str]) -> ModelState:
    return ModelState._from("unpack_states", tensors, metadata)


allow_loading(_unpack, ModelState)


def handles_of(op: str, state: Any, cu_seqlens: Optional[Tensor]) -> List[Any]:
    """The compiled states of one for the batch, or with cu_seqlens of a list, one per sequence."""
    states = [state] if cu_seqlens is None else state
    if not isinstance(states, (list, tuple)) or not all(isinstance(s, ModelState) for s in states):
        expected = "a ModelState" if cu_seqlens is None else "a list of ModelStates, one per packed sequence"
        raise TypeError(f"[{op}] state is a {type(state).__name__}; must be {expected}")
    return [s._handle for s in states]
