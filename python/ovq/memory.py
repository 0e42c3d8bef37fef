"""What State and ModelState have in common."""

import os
from typing import Any, Dict, Type, TypeVar, Union

import torch

from ._library import call

Path = Union[str, "os.PathLike[str]"]
Self = TypeVar("Self", bound="Memory")


class Memory:
    """A compiled object, or for a State of the formula one in Python, and how it is copied and read from a file."""

    __slots__ = ("_handle", "__weakref__")

    @property
    def position(self) -> int:
        """Tokens seen."""
        return self._get("position")

    @property
    def nbytes(self) -> int:
        """Memory held, room to grow included."""
        return self._get("nbytes")

    def _get(self, name: str) -> Any:
        """What compiled objects have as methods, those in Python as attributes."""
        found = getattr(self._handle, name)
        return found() if isinstance(self._handle, torch.ScriptObject) else found

    def clone(self: Self) -> Self:
        """An independent copy, outside of the autograd graph."""
        return self._wrap(self._handle.clone())

    def __copy__(self: Self) -> Self:
        return self.clone()

    def __deepcopy__(self: Self, memo: Dict[int, Any]) -> Self:
        return self.clone()

    @classmethod
    def _wrap(cls: Type[Self], handle: Any) -> Self:
        memory = cls.__new__(cls)
        memory._handle = handle
        return memory

    @classmethod
    def _from(cls: Type[Self], op: str, *arguments: Any, prefix: str = "") -> Self:
        """What the op makes of the arguments; ValueError if it was something else, or damaged."""
        try:
            return cls._wrap(call(op, *arguments))
        except RuntimeError as error:
            raise ValueError(f"{prefix}{error}") from None


def allow_loading(*what: Any) -> None:
    """torch.load reads these, classes and functions, also with weights_only=True (torch 2.5 and later)."""
    if hasattr(torch.serialization, "add_safe_globals"):
        torch.serialization.add_safe_globals(list(what))


def existing(path: Path) -> str:
    """The path as text; OSError in Python's words if the file cannot be opened."""
    name = os.fspath(path)
    with open(name, "rb"):
        return name
