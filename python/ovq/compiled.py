"""torch.nn.Modules whose tensors belong to a C++ module.

The parameters are not copies: C++ computes with the very tensors that Python's optimizers, state_dict and autograd see.
So a parameter may be written into, converted and frozen, but not replaced by another one.
"""

import copy
import json
from typing import Any, Callable, Dict, List, Optional, Tuple, Type, TypeVar, Union

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ._library import invoke
from .layer_states import LayerStates, handles_of

S = TypeVar("S", bound=LayerStates)
States = Union[S, List[S]]


class Tensors(nn.Module):
    """Parameters and buffers that C++ holds too, under the names they have there."""

    def extra_repr(self) -> str:
        tensors = {**self._parameters, **self._buffers}
        return ", ".join(f"{name}: {list(tensor.shape)}" for name, tensor in tensors.items())

    def register_parameter(self, name: str, param: Optional[nn.Parameter]) -> None:
        if param is not self._parameters.get(name, param):
            raise TypeError(f"[ovq] {name} belongs to a C++ module and cannot be replaced; write into it instead")
        super().register_parameter(name, param)

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> "Tensors":
        before = [(held, dict(held)) for held in (self._parameters, self._buffers)]
        super()._apply(fn, *args, **kwargs)
        for held, tensors in before:
            for name, tensor in tensors.items():
                if held[name] is not tensor:  # as nn.Module does with buffers: C++ would be left with the old one
                    tensor.data = held[name].data
                    held[name] = tensor
        return self


class CompiledModule(Tensors):
    """Around a compiled mixer or model; see Mixer and LanguageModel."""

    _state_type: Type[LayerStates]
    _op: str

    process_group: Any = None
    """The torch.distributed group of the ranks that train this module together; None: all."""

    @property
    def config(self) -> Dict[str, Any]:
        """What it is made of, as config.json spells it."""
        return json.loads(self._handle.config())

    def state_bytes(self, tokens: int) -> int:
        """Memory of the state of one sequence after `tokens` tokens, in float32."""
        return invoke(self._op, self._handle.state_bytes, tokens)

    def set_centroids(self, centroids: int) -> None:
        """The most centroids per kv head of OVQ-attention, from the next write on; no parameter depends on it."""
        invoke(self._op, self._handle.set_centroids, centroids)

    def begin_step(self, step: int, seed: int) -> None:
        """Before each training step, which may have any number of forwards (VQ-attention).

        What the codebooks learn other than by gradients moves on here, by all forwards of the step before, and all noise
        of the step is a function of both numbers and the inputs. Where torch.distributed is initialized, all ranks must
        call it: they add up what their forwards noted. Without begin_step every training forward is a step.
        """
        self._add_up_ranks()
        invoke(self._op, self._handle.begin_step, step, seed)

    def end_step(self) -> None:
        """Ends the step at once, e.g. before saving or evaluating; the next begin_step would. On all ranks."""
        self._add_up_ranks()
        invoke(self._op, self._handle.end_step)

    def auxiliary_loss(self) -> Optional[Tensor]:
        """What the last training forward adds to the loss; None: nothing."""
        return invoke(self._op, self._handle.auxiliary_loss)

    def _before_forward(self) -> None:
        if self.training and self._handle.begins_own_step():
            self._add_up_ranks()

    def _add_up_ranks(self) -> None:
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size(self.process_group) > 1):
            return
        group = self.process_group
        for statistic in self._handle.step_statistics(dist.get_rank(group), dist.get_world_size(group)):
            dist.all_reduce(statistic, group=group)

    def train(self, mode: bool = True) -> "CompiledModule":
        super().train(mode)
        self._handle.train(mode)
        return self

    def _run(
        self, x: Tensor, state: Any, return_state: bool, cu_seqlens: Optional[Tensor]
    ) -> Union[Tensor, Tuple[Tensor, Any]]:
        self._before_forward()
        if state is None and not return_state:
            return invoke(self._op, self._handle.forward, x, cu_seqlens)
        handles = [] if state is None else handles_of(self._op, state, cu_seqlens, self._state_type)
        y, handles = invoke(self._op, self._handle.forward_with_states, x, handles, cu_seqlens)
        states = [self._state_type._wrap(handle) for handle in handles]
        return y, states[0] if cu_seqlens is None else states

    def _step(self, x: Tensor, state: Any, cu_seqlens: Optional[Tensor]) -> Tensor:
        handles = handles_of(self._op, state, cu_seqlens, self._state_type)
        return invoke(self._op, self._handle.step, x, handles, cu_seqlens)

    # A C++ module of this configuration, with random parameters.
    def _make_handle(self, config: Dict[str, Any]) -> Any:
        raise NotImplementedError

    def _bind(self, handle: Any) -> None:
        """Puts the tensors of `handle` into modules that follow their names."""
        self._handle = handle
        parameters, buffers = handle.parameters(), handle.buffers()
        self._own = (*parameters, *buffers)
        for name, tensor in parameters.items():
            tensor.__class__ = nn.Parameter
            owner, leaf = self._owner(name)
            owner.register_parameter(leaf, tensor)
        for name, tensor in buffers.items():
            owner, leaf = self._owner(name)
            owner.register_buffer(leaf, tensor)

    def _owner(self, name: str) -> Tuple[nn.Module, str]:
        *path, leaf = name.split(".")
        module: nn.Module = self
        for part in path:
            if part not in module._modules:
                module.add_module(part, Tensors())
            module = module._modules[part]
        return module, leaf

    def _own_tensors(self) -> Dict[str, Tensor]:
        found = self.state_dict(keep_vars=True)
        return {name: found[name] for name in self._own}

    def __getstate__(self) -> Dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in ("_handle", "_own")}
        roots = {name.split(".")[0] for name in self._own}
        for held in ("_parameters", "_buffers", "_modules"):
            state[held] = type(state[held])((n, x) for n, x in state[held].items() if n not in roots)
        return {"config": self.config, "tensors": self._own_tensors(), "rest": state}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state["rest"])
        with torch.random.fork_rng(devices=[]):
            self._bind(self._make_handle(state["config"]))
        for name, tensor in self._own_tensors().items():
            tensor.data = state["tensors"][name].data
            tensor.requires_grad_(state["tensors"][name].requires_grad)
        self._handle.train(self.training)
        for name in {name.split(".")[0] for name in self._own if "." in name}:
            self._modules[name].train(self.training)

    def __deepcopy__(self, memo: Dict[int, Any]) -> "CompiledModule":
        state = self.__getstate__()
        other = memo[id(self)] = type(self).__new__(type(self))
        state["rest"] = copy.deepcopy(state["rest"], memo)
        originals = state["tensors"]
        state["tensors"] = {name: copy.deepcopy(tensor, {}) for name, tensor in originals.items()}
        other.__setstate__(state)
        for name, tensor in other._own_tensors().items():
            memo[id(originals[name])] = tensor
            tensor.grad = state["tensors"][name].grad
        return other
