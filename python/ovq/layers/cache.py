"""The cache of keys or values of attention layers, [B, time, Hkv, D]."""

from typing import Optional

import torch
from torch import Tensor

from .state import MixerState


def cache_capacity(tokens: int, window: Optional[int]) -> int:
    """Tokens a cache of `tokens` has room for when it is made: without a window a sixteenth more, so that a token at a
    time copies it rarely; with one, twice the window."""
    return 2 * window if window else tokens + max(64, tokens // 16)


def extend_cache(state: MixerState, name: str, x: Tensor, window: Optional[int]) -> Tensor:
    """The cached time steps and those of x behind them; the cache keeps what later queries may see: all, or what the
    window reaches. Without gradients x is written into the room behind the cache, where there is some."""
    narrow = state.dtype == torch.bfloat16
    if narrow and torch.is_grad_enabled() and x.requires_grad:
        raise ValueError(
            "[attention] the state is stored as bfloat16, which is for inference; gradients need float32 "
            "(or torch.no_grad())"
        )
    x = x.bfloat16() if narrow else x
    cache = state.tensors.get(name)
    if cache is not None:
        if cache.shape[0] != x.shape[0] or cache.shape[2:] != x.shape[2:]:
            expected = f"[{x.shape[0]}, time, {x.shape[2]}, {x.shape[3]}]"
            raise ValueError(f"[attention] state has shape {list(cache.shape)}; must be {expected}")
        cache = cache.to(x.dtype)  # autocast may have begun or ended since, or the dtype changed
    if torch.is_grad_enabled():
        everything = x if cache is None else torch.cat([cache, x], 1)
        state.room.pop(name, None)
        state.tensors[name] = _kept(everything, window)
        return everything
    return _append(state, name, cache, x, window)


def _append(state: MixerState, name: str, cache: Optional[Tensor], x: Tensor, window: Optional[int]) -> Tensor:
    time, length = x.shape[1], 0 if cache is None else cache.shape[1]
    memory, end = state.room.get(name, (None, 0))
    # Outside of inference mode torch refuses to write into memory that was made inside of it.
    frozen = memory is not None and memory.is_inference() and not torch.is_inference_mode_enabled()
    if memory is None or frozen or memory.dtype != x.dtype or end + time > memory.shape[1]:
        seen = x if cache is None else torch.cat([cache, x], 1)
        kept = _kept(seen, window)
        end = kept.shape[1]
        memory = x.new_empty(x.shape[0], cache_capacity(end, window), *x.shape[2:])
        memory[:, :end] = kept
        state.room[name], state.tensors[name] = (memory, end), memory[:, :end]
        return seen
    memory[:, end : end + time] = x
    seen = memory[:, end - length : end + time]
    state.room[name], state.tensors[name] = (memory, end + time), _kept(seen, window)
    return seen


def _kept(seen: Tensor, window: Optional[int]) -> Tensor:
    return seen if not window else seen[:, max(0, seen.shape[1] - (window - 1)) :]
