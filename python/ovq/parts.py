"""The modules inside mixers and models. Their tensors are the C++ module's own, and those that compute y = f(x) can be
called, wrapped and replaced; C++ calls what stands in their place.
"""

import itertools
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

# Hooks that compute a weight, whatever the input.
_WEIGHT_HOOKS = (WeightNorm, SpectralNorm, BasePruningMethod)


class Part(nn.Module):
    """Parameters and buffers that C++ holds too, under the names they have there."""

    _own: Dict[str, Tensor]  # C++'s tensors; what it computes with if they are replaced is for CompiledModule to find

    def extra_repr(self) -> str:
        tensors = {**self._parameters, **self._buffers}
        return ", ".join(f"{name}: {list(x.shape)}" for name, x in tensors.items() if x is not None)

    def _hold(self, name: str, tensor: Tensor) -> None:
        self._own[name] = tensor
        if isinstance(tensor, nn.Parameter):
            self.register_parameter(name, tensor)
        else:
            self.register_buffer(name, tensor)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> "Part":
        before = [(held, name, held[name]) for held in (self._parameters, self._buffers) for name in held]
        super()._apply(fn, *args, **kwargs)
        for held, name, tensor in before:
            own = self._own.get(name)
            if own is None or held[name] is tensor:
                continue
            # torch made a new tensor, as it does of buffers. C++ keeps its own, with the new contents.
            if torch._has_compatible_shallow_copy_type(own, held[name]):
                own.grad = None
                own.data = held[name].data
                own.requires_grad_(held[name].requires_grad)
                own.grad = held[name].grad
                held[name] = own
            else:  # on meta; C++ gets it with each call
                own.grad = None
                own.data = own.data.new_empty(0)
        return self

    def _weight_hooks(self) -> List[Any]:
        return [hook for hook in self._forward_pre_hooks.values() if isinstance(hook, _WEIGHT_HOOKS)]

    def _hooked(self) -> bool:
        """Whether a call must go through Python: hooks that see inputs or outputs, or a forward put in its place."""
        hooks = len(self._forward_pre_hooks) - len(self._weight_hooks())
        return hooks > 0 or any(others_of(self)) or "forward" in self.__dict__


def others_of(part: nn.Module) -> Tuple[Dict[int, Any], ...]:
    """Hooks of a call, those before forward aside."""
    return part._forward_hooks, part._backward_hooks, getattr(part, "_backward_pre_hooks", {})


class Linear(Part, nn.Linear):
    """y = W x + b."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.register_parameter("bias", None)

    extra_repr = nn.Linear.extra_repr

    def _hold(self, name: str, tensor: Tensor) -> None:
        super()._hold(name, tensor)
        if name == "weight":
            self.out_features, self.in_features = tensor.shape


class Embedding(Part, nn.Embedding):
    """Rows of the weight by token."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.padding_idx, self.max_norm, self.norm_type = None, None, 2.0
        self.scale_grad_by_freq, self.sparse = False, False

    extra_repr = nn.Embedding.extra_repr

    def _hold(self, name: str, tensor: Tensor) -> None:
        super()._hold(name, tensor)
        self.num_embeddings, self.embedding_dim = tensor.shape


class RMSNorm(Part):
    """y = x / rms(x) * weight over the last dimension, or over each of `groups` equal parts of it."""

    def __init__(self, eps: float, groups: int) -> None:
        super().__init__()
        self.eps = eps
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.ovq.rms_norm(x, self.weight, self.eps, self.groups)


class ShortConvolution(Part):
    """A causal depthwise convolution over time, x [B, T, C] -> [B, T, C]."""

    def __init__(self, silu: bool) -> None:
        super().__init__()
        self.silu = silu
        self.register_parameter("bias", None)

    def forward(self, x: Tensor, before: Optional[Tensor] = None, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        """before: the inputs before x, [B, width - 1, C]; cu_seqlens: sequences packed along time."""
        y = torch.ops.ovq.short_convolution(x, self.weight, self.bias, before, cu_seqlens)
        return nn.functional.silu(y) if self.silu else y


class GatedMLP(Part):
    """y = W_down (silu(W_gate x) * W_up x)."""

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


CALLED = {
    "linear": Linear,
    "embedding": Embedding,
    "rms_norm": RMSNorm,
    "short_convolution": ShortConvolution,
    "gated_mlp": GatedMLP,
}
OTHERS = {"list": nn.ModuleList, "": Part}


def make_part(kind: str, **options: Any) -> nn.Module:
    part = {**CALLED, **OTHERS}[kind](**options)
    if isinstance(part, Part):
        part._own = {}
    return part


_calls: Dict[int, Callable[..., Tensor]] = {}
_keys = itertools.count()


@contextmanager
def callable_from_cpp(calls: Dict[str, Callable[..., Tensor]]) -> Iterator[Dict[str, int]]:
    """Keys that the operator below knows `calls` by, for as long as the context lasts."""
    keys = {name: next(_keys) for name in calls}
    _calls.update((keys[name], call) for name, call in calls.items())
    try:
        yield keys
    finally:
        for key in keys.values():
            del _calls[key]


def _call_part(key: int, x: Tensor, before: Optional[Tensor], cu_seqlens: Optional[Tensor]) -> Tensor:
    return _calls[key](x, before, cu_seqlens)


def calling(op: str, name: str, part: nn.Module, stand_in: nn.Module) -> Callable[..., Tensor]:
    """What C++ calls where it has `part`: checks what comes back, since C++ counts on its shape."""

    def call(x: Tensor, before: Optional[Tensor], cu_seqlens: Optional[Tensor]) -> Tensor:
        carried = {"before": before, "cu_seqlens": cu_seqlens}
        y = stand_in(x, **{name: value for name, value in carried.items() if value is not None})
        what = f"[{op}] {name}, a {type(stand_in).__name__}, returned"
        if not isinstance(y, Tensor):
            raise TypeError(f"{what} a {type(y).__name__}; must be a tensor")
        if isinstance(part, nn.Embedding):
            expected = [*x.shape, part.embedding_dim]
        else:
            expected = [*x.shape[:-1], getattr(part, "out_features", x.shape[-1])]
        if list(y.shape) != expected:
            raise ValueError(f"{what} shape {list(y.shape)}; must be {expected}")
        return y

    return call


_library = torch.library.Library("ovq_python", "DEF")
_library.define("call_part(int key, Tensor x, Tensor? before, Tensor? cu_seqlens) -> Tensor")
_library.impl("call_part", _call_part, "CompositeImplicitAutograd")
