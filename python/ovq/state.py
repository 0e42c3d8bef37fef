"""The memory of OVQ-attention between calls."""

import json
import os
from typing import Any, Dict, List, Optional, Tuple, Union

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
        if not hasattr(handle, "pending_keys"):
            raise TypeError("State is made by ovq_attention(..., return_state=True), State.load or copying")
        self._handle = handle

    @property
    def keys(self) -> Tensor:
        """Centroids of the keys, [B, Hkv, n, dk]. Gradients flow through it."""
        return self._get("keys")

    @property
    def values(self) -> Tensor:
        """Centroids of the values, [B, Hkv, n, dv]. Gradients flow through it."""
        return self._get("values")

    @property
    def counts(self) -> Tensor:
        """Tokens behind each centroid, [B, Hkv, n] int64; with weights the sums of theirs, which gradients flow through."""
        return self._get("counts")

    @property
    def pending_keys(self) -> Tensor:
        """Keys that wait for their chunk to complete (with rope the chunk before it too), [B, Hkv, pending, dk]."""
        return self._get("pending_keys")

    @property
    def pending_values(self) -> Tensor:
        """Values that wait for their chunk to complete, [B, Hkv, pending, dv]."""
        return self._get("pending_values")

    @property
    def pending_weights(self) -> Optional[Tensor]:
        """Weights of the tokens that wait, [B, Hkv, pending]; None without weights."""
        return self._get("pending_weights")

    @property
    def shrinkage(self) -> Optional[Tensor]:
        """What `values` are multiplied by to give the means of their tokens' values, [B, Hkv, n]; None without value_norms."""
        return self._get("shrinkage")

    @property
    def weighted(self) -> bool:
        """Whether it was made with weights, and goes on with them."""
        return self._get("weighted")

    @property
    def path(self) -> str:
        """The path that made it and goes on with it, "kernel" or "formula"."""
        return "kernel" if isinstance(self._handle, torch.ScriptObject) else "formula"

    @property
    def dtype(self) -> torch.dtype:
        """How the centroids are stored: that of `keys` and `values`. Of kernels the pending tokens are float32."""
        return self.keys.dtype

    @property
    def options(self) -> Dict[str, Any]:
        """What it was made with, by the names of `ovq_attention`'s keywords."""
        values = self._get("options")
        values = json.loads(values) if self.path == "kernel" else values
        return {name: None if name == "rate" and not values[name] else values[name] for name in OPTIONS}

    def detach(self) -> "State":
        """The same contents outside of the autograd graph; memory is shared until a step changes one of them."""
        return State(self._handle.detach())

    def to(self, dtype: torch.dtype) -> "State":
        """A copy with the centroids stored as torch.bfloat16 (rounded to nearest) or torch.float32, outside of the graph."""
        name = dtype_name("State.to", "dtype", dtype)
        if self.path != "kernel":
            raise ValueError(f"[State.to] {self._of_formula()} be converted")
        return State(self._handle.to(name))

    def save(self, path: Path) -> None:
        """Writes a versioned, checksummed file. Only states of the kernel have a file format."""
        if self.path != "kernel":
            raise ValueError(f"[State.save] {self._of_formula()} be stored")
        try:
            self._handle.save(os.fspath(path))
        except RuntimeError as error:
            raise OSError(str(error)) from None

    @staticmethod
    def load(path: Path) -> "State":
        """Reads what `save` wrote; ValueError if it is something else or damaged."""
        name = existing(path)
        return State._from("load_state", name, prefix=f"{name}: ")

    def to_bytes(self) -> Tensor:
        """What a file of it holds, [bytes] uint8; TypeError if it is not of the kernel."""
        if self.path != "kernel":
            raise TypeError(f"[State.to_bytes] {self._of_formula()} be stored")
        return self._handle.to_bytes()

    def _of_formula(self) -> str:
        return f"the state is of the formula, {self.dtype} on {self.keys.device}; only states of the kernel can"

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


States = Union[State, List[State]]  # one for the batch, or with cu_seqlens one per packed sequence


def continued(
    op: str,
    state: Any,
    cu_seqlens: Optional[Tensor],
    path: str,
    options: Dict[str, Any] = {},
    dtype: Optional[torch.dtype] = None,
) -> List[Any]:
    """What is behind the state, or with cu_seqlens the list of states, that a call on this path goes on with; an error
    if the state does not fit the path, or what is given of its options and dtype."""
    states = [state] if cu_seqlens is None else state
    if not isinstance(states, (list, tuple)) or not all(isinstance(s, State) for s in states):
        expected = "a State" if cu_seqlens is None else "a list of States, one per packed sequence"
        raise TypeError(f"[{op}] state is a {type(state).__name__}; must be {expected}")
    for i, one in enumerate(states):
        if one.path != path:
            raise ValueError(
                f"[{op}] states[{i}] was made by the {one.path}; these inputs take the {path} "
                "(device, dtype, forward mode, path or OVQ_PATH)"
            )
        if dtype is not None and one.dtype != dtype:
            stored = f"the state is stored as {one.dtype}: convert it with State.to"
            raise ValueError(f"[{op}] state_dtype is {dtype}; {stored}")
        for name, value in options.items():
            made_with = one.options[name]
            if name != "centroids" and value != made_with and as_stored(value) != made_with:
                raise ValueError(
                    f"[{op}] {name} is {value!r}; the state was made with {made_with!r}, and only centroids may change"
                )
    return [one._handle for one in states]


def as_stored(value: Any) -> Any:
    """A float as the kernels keep it, of 24 bits; by arithmetic alone, which torch.compile follows."""
    if not isinstance(value, float):
        return value
    shifted = value * (2**29 + 1)
    return shifted - (shifted - value)


def _from_bytes(data: Tensor) -> State:
    return State.from_bytes(data)


allow_loading(_from_bytes)
