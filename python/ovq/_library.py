"""Loads the compiled ops and calls them with Python's kinds of errors."""

from pathlib import Path
from typing import Any

import torch

LIBRARY = Path(__file__).absolute().parent / "libovq_ops.so"


def load() -> None:
    """Registers torch.ops.ovq from the library beside this file."""
    if not LIBRARY.is_file():
        raise ImportError(
            f"ovq: {LIBRARY} is missing; `pip install --no-build-isolation .` builds it, "
            "and a build tree has it in <build>/python"
        )
    try:
        torch.ops.load_library(str(LIBRARY))
    except OSError as error:
        raise ImportError(f"ovq: cannot load {LIBRARY} with torch {torch.__version__}: {error}") from error


def call(name: str, *arguments: Any) -> Any:
    """torch.ops.ovq.<name>(*arguments). An argument of the wrong type is a TypeError, as anywhere in Python."""
    try:
        return getattr(torch.ops.ovq, name)(*arguments)
    except RuntimeError as error:
        message = str(error)
        if "Expected a value of type" not in message:
            raise
        raise TypeError(f"[{name}] " + message.split("() ", 1)[-1].split("\n", 1)[0]) from None
