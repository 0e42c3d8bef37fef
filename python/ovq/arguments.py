"""Arguments as the compiled library takes them; what it would not name in an error is checked here."""

import json
import math
import operator
from typing import Any, Dict, Iterable, List

import torch
from torch import Tensor


def offsets_of(op: str, cu_seqlens: Any, batch: int, time: int) -> List[int]:
    """Where packed sequences begin, and the last one ends."""
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(f"[{op}] cu_seqlens is a {type(cu_seqlens).__name__}; must be a tensor")
    if cu_seqlens.is_floating_point() or cu_seqlens.is_complex() or cu_seqlens.dtype == torch.bool:
        raise TypeError(f"[{op}] cu_seqlens has dtype {cu_seqlens.dtype}; must be an integer one")
    if cu_seqlens.dim() != 1 or cu_seqlens.numel() == 0:
        dims = cu_seqlens.dim()
        raise ValueError(f"[{op}] cu_seqlens has {dims} dimensions; must have 1, with at least one element")
    if batch != 1:
        raise ValueError(f"[{op}] cu_seqlens is given with batch {batch}; packed sequences need batch 1")
    offsets = cu_seqlens.tolist()
    if offsets[0] != 0:
        raise ValueError(f"[{op}] cu_seqlens starts with {offsets[0]}; must start with 0")
    for before, after in zip(offsets, offsets[1:]):
        if after < before:
            raise ValueError(f"[{op}] cu_seqlens has {after} after {before}; must not decrease")
    if offsets[-1] != time:
        raise ValueError(f"[{op}] cu_seqlens ends with {offsets[-1]}; must end with the time {time}")
    return offsets


def numbers_of(op: str, name: str, tokens: Any) -> List[int]:
    """Token numbers out of a sequence or a tensor, [T] or [1, T]."""
    if isinstance(tokens, Tensor):
        if tokens.dtype == torch.bool or tokens.is_floating_point() or tokens.is_complex():
            raise TypeError(f"[{op}] {name} has dtype {tokens.dtype}; must be an integer one")
        row = tokens[0] if tokens.dim() == 2 and tokens.shape[0] == 1 else tokens
        if row.dim() != 1:
            raise ValueError(f"[{op}] {name} has shape {list(tokens.shape)}; must be [time], or [1, time]")
        return row.tolist()
    if isinstance(tokens, str) or not isinstance(tokens, Iterable):
        raise TypeError(f"[{op}] {name} is a {type(tokens).__name__}; must be a sequence or a tensor of token numbers")
    return [_number(op, name, token) for token in tokens]


def _number(op: str, name: str, token: Any) -> int:
    try:
        number = operator.index(token)
    except TypeError:
        number = None
    if number is None or isinstance(token, bool):
        raise TypeError(f"[{op}] {name} has {token!r}; must be integers")
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"[{op}] {name} has token {number}; must be one of the vocabulary")
    return number


def text_of(op: str, name: str, text: Any) -> str:
    """A text that UTF-8 can encode."""
    if not isinstance(text, str):
        raise TypeError(f"[{op}] {name} is a {type(text).__name__}; must be a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"[{op}] {name} has a lone surrogate at {error.start}; must be valid Unicode") from None
    return text


def texts_of(op: str, name: str, texts: Any) -> List[str]:
    """One text, or a sequence of them."""
    if isinstance(texts, str):
        texts = [texts]
    if not isinstance(texts, Iterable):
        raise TypeError(f"[{op}] {name} is a {type(texts).__name__}; must be a text or a sequence of texts")
    return [text_of(op, name, text) for text in texts]


def json_of(op: str, values: Dict[str, Any]) -> str:
    """JSON, which has no numbers but finite ones."""
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"[{op}] {name} is {value}; must be finite")
        try:
            json.dumps(value, allow_nan=False)
        except TypeError:
            raise TypeError(f"[{op}] {name} is a {type(value).__name__}; must be what JSON holds") from None
        except ValueError:
            raise ValueError(f"[{op}] {name} is {value!r}; must have finite numbers") from None
    return json.dumps(values)
