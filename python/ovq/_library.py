"""Loads the compiled ops and calls them with Python's kinds of errors."""

from pathlib import Path
from typing import Any, Dict, Optional

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


def default_options() -> Dict[str, Any]:
    """The options of OVQ-attention and their defaults, in the order of the compiled op's schema."""
    arguments = torch.ops.ovq.ovq_attention.default._schema.arguments
    return {a.name: a.default_value for a in arguments if a.has_default_value() and a.name != "cu_seqlens"}


def call(name: str, *arguments: Any, op: Optional[str] = None) -> Any:
    """torch.ops.ovq.<name>(*arguments). An argument of the wrong type is a TypeError that names `op`, or `name`."""
    try:
        return getattr(torch.ops.ovq, name)(*arguments)
    except RuntimeError as error:
        message = str(error)
        if "Expected a value of type" not in message:
            raise
        raise TypeError(f"[{op or name}] " + message.split("() ", 1)[-1].split("\n", 1)[0]) from None
