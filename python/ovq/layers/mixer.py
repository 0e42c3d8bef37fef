"""What every sequence mixer has in common: one interface for training, prefill in pieces and decode."""

import json
from typing import Any, Dict, List, Optional, Set, Tuple, Union

import torch
from torch import Tensor, nn

from .._library import invoke
from ..arguments import json_of, offsets_of
from ..paths import compiling
from ..state import dtype_name
from .state import MixerState, states_of

MixerStates = Union[MixerState, List[MixerState]]


class Mixer(nn.Module):
    """x [B, T, dim] -> y [B, T, dim], causal. A subclass computes in `mix` all that a state knows of, then `output`."""

    kind: str
    """Its name in configurations."""

    def __init__(self, dim: int, **options: Any) -> None:
        super().__init__()
        self.dim = dim
        self.options = checked_options(self.kind, dim, options)
        """What it was made with, by the names of the constructor's keywords, defaults filled in."""

    @property
    def config(self) -> Dict[str, Any]:
        """What it is made of, as config.json spells it: a number that is absent is 0."""
        return {"type": self.kind, **{name: 0 if value is None else value for name, value in self.options.items()}}

    def forward(
        self,
        x: Tensor,
        *,
        state: Optional[MixerStates] = None,
        return_state: bool = False,
        cu_seqlens: Optional[Tensor] = None,
    ) -> Union[Tensor, Tuple[Tensor, MixerStates]]:
        """Mixes x [B, T, dim] into y [B, T, dim].

        Args:
            x: [B, T, dim].
            state: continue from it; it is left unchanged. With cu_seqlens a list, one per sequence.
            return_state: also return the state afterwards; implied by `state`.
            cu_seqlens: [sequences + 1] integers from 0 to T: sequences packed along time, with B = 1.

        Returns:
            y, or (y, state). Differentiable through both.
        """
        self._check_input(x, cu_seqlens)
        if state is None and not return_state:
            return self.output(self.mix(x, None, cu_seqlens))
        if state is not None:
            after = [s.shared() for s in states_of("mixer", state, cu_seqlens)]
        else:
            after = [MixerState() for _ in range(1 if cu_seqlens is None else cu_seqlens.numel() - 1)]
        y = self._advance_all(x, after, cu_seqlens, in_place=False)
        return y, after[0] if cu_seqlens is None else after

    @torch.no_grad()
    def step(self, x: Tensor, state: MixerStates, *, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        """Decodes x [B, T, dim], mostly T = 1 -> y [B, T, dim]; `state` moves on in place, no autograd."""
        self._check_input(x, cu_seqlens)
        return self._advance_all(x, states_of("mixer", state, cu_seqlens), cu_seqlens, in_place=True)

    def mix(self, x: Tensor, state: Optional[MixerState], cu_seqlens: Optional[Tensor], in_place: bool = False) -> Any:
        """What `output` makes y of; `state` (None: not asked for) becomes that after x, its tensors replaced.

        With `in_place` the dictionary of the state may be written to. Never both a state and cu_seqlens.
        """
        raise NotImplementedError

    def output(self, mixed: Any) -> Tensor:
        """y [B, T, dim] of what `mix` returned."""
        raise NotImplementedError

    def layout(self) -> str:
        """What states depend on, as text: those of other layouts are refused."""
        raise NotImplementedError

    def state_bytes(self, tokens: int, dtype: torch.dtype = torch.float32) -> int:
        """Memory of the state of one sequence after `tokens` tokens, with caches and centroids stored as `dtype`."""
        most = 2**48
        if not 0 <= tokens <= most:
            raise ValueError(f"[mixer] tokens is {tokens}; must be in [0, {most}]")
        dtype_name("state_bytes", "dtype", dtype)
        return self._state_bytes(tokens, dtype)

    def _state_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        raise NotImplementedError

    def begin_step(self, step: int, seed: int) -> None:
        """Before each training step, which may have any number of forwards; only VQ-attention needs it."""

    def end_step(self) -> None:
        """Ends the step at once, e.g. before saving or evaluating; the next begin_step would."""

    def auxiliary_loss(self) -> Optional[Tensor]:
        """What the last training forward adds to the loss; None: nothing."""
        return None

    def set_centroids(self, centroids: int) -> None:
        """The most centroids per kv head of OVQ-attention, from the next write on; no parameter depends on it."""
        raise ValueError("[mixer] set_centroids is for ovq mixers; this one has no centroids")

    def extra_repr(self) -> str:
        return ", ".join([f"dim={self.dim}", *(f"{name}={value!r}" for name, value in self.options.items())])

    def _check_input(self, x: Tensor, cu_seqlens: Optional[Tensor]) -> None:
        if not isinstance(x, Tensor):
            raise TypeError(f"[mixer] x is a {type(x).__name__}; must be a tensor")
        if x.dim() != 3:
            raise ValueError(f"[mixer] x has {x.dim()} dimensions; must have 3: [batch, time, width]")
        if not x.is_floating_point():
            raise TypeError(f"[mixer] x has dtype {x.dtype}; must be a floating one")
        if x.shape[2] != self.dim:
            raise ValueError(f"[{self.kind}] x has width {x.shape[2]}; must have {self.dim}")
        if cu_seqlens is not None and not compiling():
            offsets_of("mixer", cu_seqlens, *x.shape[:2])

    def _advance_all(
        self, x: Tensor, states: List[MixerState], cu_seqlens: Optional[Tensor], in_place: bool
    ) -> Tensor:
        """One state for the batch, or one per packed sequence; outputs side by side along time."""
        if cu_seqlens is None:
            return self._advance(x, states[0], in_place)
        offsets = cu_seqlens.tolist()
        if len(states) != len(offsets) - 1:
            raise ValueError(f"[mixer] states has {len(states)}; must be {len(offsets) - 1}, one per packed sequence")
        if len({id(state) for state in states}) != len(states):
            raise ValueError("[mixer] states has a state twice; must be one for each packed sequence")
        pieces = zip(states, offsets, offsets[1:])
        outputs = [self._advance(x[:, begin:end], state, in_place) for state, begin, end in pieces]
        return torch.cat(outputs, 1) if outputs else self.output(self.mix(x, None, cu_seqlens))

    def _advance(self, x: Tensor, state: MixerState, in_place: bool) -> Tensor:
        """An error leaves the state as it was; one of `output`, which comes last, as it is after x."""
        self._check_state(state, x.shape[0])
        after = state.shared()
        after.room = dict(state.room)
        mixed = self.mix(x, after, None, in_place)
        if state.position > 0 and _names(after) != _names(state):
            raise ValueError(f"[mixer] state is that of another mixer; it has {', '.join(sorted(_names(state)))}")
        after.layout = after.layout or self.layout()
        state.become(after)
        return self.output(mixed)

    def _check_state(self, state: MixerState, batch: int) -> None:
        if state.layout and sorted(state.layout.split()) != sorted(self.layout().split()):
            raise ValueError(f"[mixer] state is that of another mixer, {state.layout}; must be {self.layout()}")
        for tensor in state.tensors.values():
            if tensor.shape[0] != batch:
                raise ValueError(f"[mixer] state is for batch {tensor.shape[0]}; x has batch {batch}")


def checked_options(kind: str, dim: int, options: Dict[str, Any]) -> Dict[str, Any]:
    """The options of such a mixer in their order, with defaults; ValueError names the one that is wrong."""
    text = json_of("config", {"type": kind, **options})
    checked = json.loads(invoke("mixer", torch.ops.ovq.mixer_config, text, dim))
    if dim < 1:
        raise ValueError(f"[{kind}] width is {dim}; must be at least 1")
    return {name: None if value is None and checked[name] == 0 else checked[name] for name, value in options.items()}


def layout_of(kind: str, **parts: Any) -> str:
    """As text: gdn heads=2 key_dim=128 ..."""

    def text(value: Any) -> str:
        if value is None or isinstance(value, bool):
            return str(int(value or 0))
        return f"{value:g}" if isinstance(value, float) else str(value)

    return " ".join([kind, *(f"{name}={text(value)}" for name, value in parts.items())])


def _names(state: MixerState) -> Set[str]:
    return {*state.tensors, *([] if state.dictionary is None else ["the dictionary of ovq"])}
