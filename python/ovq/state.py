"""The memory of OVQ-attention between calls."""

import json
import os
from typing import Any, Dict, Optional, Tuple

import torch
from torch import Tensor

from .memory import Memory, Path, allow_loading, existing

OPTIONS: Dict[str, Any] = {
    "chunk": 128,
    "centroids": 2048,
    "growth": "plateau",
    "total_tokens": 0,
    "new_centroids": "spread",
    "rate": None,
    "rope_base": 10000.0,
    "normalize": False,
    "rope": False,
    "seed": 0,
    "value_norms": False,
}
"""What a dictionary is made with, in the order of the op's arguments, and their defaults."""

STORED_AS = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def dtype_name(op: str, argument: str, dtype: torch.dtype) -> str:
    """What the library calls a dtype that centroids can be stored as."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"[{op}] {argument} is a {type(dtype).__name__}; must be torch.float32 or torch.bfloat16")
    if dtype not in STORED_AS:
        raise ValueError(f"[{op}] {argument} is {dtype}; must be torch.float32 or torch.bfloat16")
    return STORED_AS[dtype]


class State(Memory):
    """Dictionary, pending tokens and position of a batch of sequences, or of one packed sequence.

    Made by `ovq_attention(..., return_state=True)`. `ovq_attention` leaves a given state unchanged; `step` moves it on
    in place. Tensors read from it keep their contents either way. Memory follows the centroids in use, at most
    `centroids`, whatever the context length.
    """

    __slots__ = ()

    def __init__(self, handle: Any) -> None:
        if not isinstance(handle, torch.ScriptObject):
            raise TypeError("State is made by ovq_attention(..., return_state=True), State.load or copying")
        self._handle = handle

    @property
    def keys(self) -> Tensor:
        """Centroids of the keys, [B, Hkv, n, dk]. Gradients flow through it."""
        return self._handle.keys()

    @property
    def values(self) -> Tensor:
        """Centroids of the values, [B, Hkv, n, dv]. Gradients flow through it."""
        return self._handle.values()

    @property
    def counts(self) -> Tensor:
        """Tokens behind each centroid, [B, Hkv, n] int64; with weights the sums of theirs, which gradients flow through."""
        return self._handle.counts()

    @property
    def pending_keys(self) -> Tensor:
        """Keys that wait for their chunk to complete (with rope the chunk before it too), [B, Hkv, pending, dk]."""
        return self._handle.pending_keys()

    @property
    def pending_values(self) -> Tensor:
        """Values that wait for their chunk to complete, [B, Hkv, pending, dv]."""
        return self._handle.pending_values()

    @property
    def pending_weights(self) -> Optional[Tensor]:
        """Weights of the tokens that wait, [B, Hkv, pending]; None without weights."""
        return self._handle.pending_weights()

    @property
    def shrinkage(self) -> Optional[Tensor]:
        """What `values` are multiplied by to give the means of their tokens' values, [B, Hkv, n]; None without value_norms."""
        return self._handle.shrinkage()

    @property
    def weighted(self) -> bool:
        """Whether it was made with weights, and goes on with them."""
        return self._handle.weighted()

    @property
    def fused(self) -> bool:
        """Whether it belongs to the fused kernels (on the CPU) or to the plain path."""
        return self._handle.fused()

    @property
    def dtype(self) -> torch.dtype:
        """How the centroids are stored: that of `keys` and `values`. Pending tokens and counts are float32."""
        return self.keys.dtype

    @property
    def options(self) -> Dict[str, Any]:
        """What it was made with, by the names of `ovq_attention`'s keywords."""
        values = json.loads(self._handle.options())
        return {name: None if name == "rate" and not values[name] else values[name] for name in OPTIONS}

    def detach(self) -> "State":
        """The same contents outside of the autograd graph; memory is shared until a step changes one of them."""
        return State(self._handle.detach())

    def to(self, dtype: torch.dtype) -> "State":
        """A copy with the centroids stored as torch.bfloat16 (rounded to nearest) or torch.float32, outside of the graph."""
        name = dtype_name("State.to", "dtype", dtype)
        if not self.fused:
            raise ValueError(f"[State.to] the state lives on {self.keys.device} as {self.dtype}; must be a fused one")
        return State(self._handle.to(name))

    def save(self, path: Path) -> None:
        """Writes a versioned, checksummed file. Only fused states have a file format."""
        try:
            self._handle.save(os.fspath(path))
        except RuntimeError as error:
            raise (OSError if self.fused else ValueError)(str(error)) from None

    @staticmethod
    def load(path: Path) -> "State":
        """Reads what `save` wrote; ValueError if it is something else or damaged."""
        name = existing(path)
        return State._from("load_state", name, prefix=f"{name}: ")

    def to_bytes(self) -> Tensor:
        """What a file of it holds, [bytes] uint8; TypeError if it is not of the fused kernels."""
        if not self.fused:
            where = f"{self.keys.device} as {self.keys.dtype}"
            raise TypeError(f"cannot pickle a State that lives on {where}; only those of the fused kernels")
        return self._handle.to_bytes()

    @staticmethod
    def from_bytes(data: Tensor) -> "State":
        """From what `to_bytes` gave; ValueError if it is something else or damaged."""
        return State._from("state_from_bytes", data)

    def __reduce__(self) -> Tuple[Any, Tuple[Tensor]]:
        return _from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        batch, heads, size, dim = self.keys.shape
        return (
            f"State(batch={batch}, kv_heads={heads}, key_dim={dim}, position={self.position}, "
            f"centroids={size} of {self.options['centroids']}, dtype={self.dtype}, nbytes={self.nbytes})"
        )


def _from_bytes(data: Tensor) -> State:
    return State.from_bytes(data)


allow_loading(_from_bytes)
