"""Loads the compiled library and calls it with Python's kinds of errors."""

import re
import warnings
from pathlib import Path
from typing import Any, Callable, List, Optional

import torch

from ._fake import register

_WRONG_TYPE = re.compile(r"Expected a value of type '(.*)' for argument '(.*)' but instead found type '(.*)'\.")

LIBRARY = Path(__file__).absolute().parent / "libovq_models.so"  # brings those of the layers and the ops


def load() -> None:
    """Registers torch.ops.ovq and torch.classes.ovq from the library beside this file."""
    if not LIBRARY.is_file():
        raise ImportError(
            f"ovq: {LIBRARY} is missing; `pip install --no-build-isolation .` builds it, "
            "and a build tree has it in <build>/python"
        )
    built_with = LIBRARY.with_name("torch_version.txt").read_text().strip()
    if _minor(built_with) != _minor(torch.__version__):
        raise ImportError(
            f"ovq: built with torch {built_with}, but this Python has torch {torch.__version__}; "
            "build it again with `pip install --no-build-isolation .`"
        )
    try:
        torch.ops.load_library(str(LIBRARY))
    except OSError as error:
        raise ImportError(f"ovq: cannot load {LIBRARY} with torch {torch.__version__}: {error}") from error
    register()
    # OpenBLAS chose its kernels when torch was imported; only the user can have it choose others.
    advice = torch.ops.ovq.blas_advice()
    if advice:
        warnings.warn(f"ovq: {advice}", RuntimeWarning, stacklevel=3)


def _minor(version: str) -> List[str]:
    """Versions with the same first two numbers have the same C++ interface."""
    return version.split(".")[:2]


def call(name: str, *arguments: Any, op: Optional[str] = None, **named: Any) -> Any:
    """torch.ops.ovq.<name>(*arguments, **named). One of the wrong type is a TypeError that names `op`, or `name`."""
    return invoke(op or name, getattr(torch.ops.ovq, name), *arguments, **named)


def invoke(op: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """function(*arguments, **named), compiled. One of the wrong type is a TypeError that names `op`."""
    try:
        return function(*arguments, **named)
    except RuntimeError as error:
        found = _WRONG_TYPE.search(str(error))
        if found is None:
            raise
        expected, argument, given = found.groups()
        if given == "int" and expected in ("int", "Optional[int]"):
            raise ValueError(f"[{op}] {argument} is an integer of more than 64 bits; must be within them") from None
        if given == "str" and expected in ("str", "Optional[str]"):
            raise ValueError(f"[{op}] {argument} has a lone surrogate; must be valid Unicode") from None
        raise TypeError(f"[{op}] {found.group()}") from None
