"""torch.nn.Modules whose tensors belong to a C++ module.

The parameters are not copies: C++ computes with the very tensors that Python's optimizers, state_dict and autograd see.
Before each call it is looked up whether they and the parts are still those of C++; what was replaced goes along with
the call, tensors as they are and modules as functions that C++ calls back.
"""

import copy
import json
from operator import is_
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple, Type, TypeVar, Union

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ._library import invoke
from .layer_states import LayerStates, handles_of
from .parts import CALLED, Part, callable_from_cpp, calling, make_part, others_of
from .state import dtype_name

S = TypeVar("S", bound=LayerStates)
States = Union[S, List[S]]


class Watched(NamedTuple):
    """What tells whether anything was replaced: held[i].get(names[i]) is expected[i], and so on."""

    held: List[Dict[str, Any]]
    names: List[str]
    expected: List[Any]
    parts: List[nn.Module]
    types: List[type]
    lists: List[Dict[str, nn.Module]]
    lengths: List[int]
    hooks: List[Dict[int, Any]]


class CompiledModule(Part):
    """Around a compiled mixer or model; see Mixer and LanguageModel."""

    _state_type: Type[LayerStates]
    _op: str

    process_group: Any = None
    """The torch.distributed group of the ranks that train this module together; None: all."""

    @property
    def config(self) -> Dict[str, Any]:
        """What it is made of, as config.json spells it."""
        return json.loads(self._handle.config())

    def state_bytes(self, tokens: int, dtype: torch.dtype = torch.float32) -> int:
        """Memory of the state of one sequence after `tokens` tokens, with caches and centroids stored as `dtype`."""
        return invoke(self._op, self._handle.state_bytes, tokens, dtype_name("state_bytes", "dtype", dtype))

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
            return self._call("forward", x, cu_seqlens)
        handles = [] if state is None else handles_of(self._op, state, cu_seqlens, self._state_type)
        y, handles = self._call("forward_with_states", x, handles, cu_seqlens)
        states = [self._state_type._wrap(handle) for handle in handles]
        return y, states[0] if cu_seqlens is None else states

    def _step(self, x: Tensor, state: Any, cu_seqlens: Optional[Tensor]) -> Tensor:
        handles = handles_of(self._op, state, cu_seqlens, self._state_type)
        return self._call("step", x, handles, cu_seqlens)

    def _bind(self, handle: Any) -> None:
        """Makes modules that follow the names of `handle`'s and puts its tensors into them."""
        self._own: Dict[str, Tensor] = {}
        self._parts: Dict[str, nn.Module] = {}  # by name, as made here; what stands in their places may be others
        for description in json.loads(handle.parts()):
            name = description.pop("name")
            owner, leaf = self._owner(name)
            self._parts[name] = make_part(**description)
            owner.add_module(leaf, self._parts[name])
        for name, tensor in tensors_of(handle).items():
            owner, leaf = self._owner(name)
            owner._hold(leaf, tensor)
        self._link(handle)

    def _link(self, handle: Any) -> None:
        """Computes with `handle`, whose tensors the parts hold, from now on."""
        self._handle = handle
        handle.train(self.training)
        parts: List[nn.Module] = [self, *self._parts.values()]
        called = [part for part in parts if is_called(part)]
        slots: List[Tuple[Dict[str, Any], str, Any]] = []
        for part in parts:
            for name, tensor in getattr(part, "_own", {}).items():
                held = part._parameters if isinstance(tensor, nn.Parameter) else part._buffers
                slots.append((held, name, tensor))
        for name, part in self._parts.items():
            owner, leaf = self._owner(name)
            slots.append((owner._modules, leaf, part))
        slots += [(part.__dict__, "forward", None) for part in called]
        lists = [part._modules for part in parts if isinstance(part, nn.ModuleList)]
        hooks = [hooks for part in called for hooks in (part._forward_pre_hooks, *others_of(part))]
        held, names, expected = (list(column) for column in zip(*slots))
        types, lengths = [type(part) for part in parts], [len(modules) for modules in lists]
        self._watched = Watched(held, names, expected, parts, types, lists, lengths, hooks)

    def _owner(self, name: str) -> Tuple[Any, str]:
        """The part that a tensor or part belongs to, and its name there."""
        path, _, leaf = name.rpartition(".")
        return self._parts[path] if path else self, leaf

    def _unchanged(self) -> bool:
        held, names, expected, parts, types, lists, lengths, hooks = self._watched
        return (
            all(map(is_, map(dict.get, held, names), expected))
            and list(map(type, parts)) == types
            and list(map(len, lists)) == lengths
            and not any(hooks)
        )

    def _call(self, method: str, *arguments: Any, op: Optional[str] = None) -> Any:
        """The compiled method, with whatever was replaced in Python."""
        function, op = getattr(self._handle, method), op or self._op
        if self._unchanged():
            return invoke(op, function, *arguments, None)
        # Calling the module has run its own hooks, and the other methods have no gradients.
        called = method in ("forward", "forward_with_states")
        with torch.set_grad_enabled(torch.is_grad_enabled() and (called or method == "hidden")):
            tensors, calls = self._replaced(root_hooks=not called)
        with callable_from_cpp(calls) as keys:
            return invoke(op, function, *arguments, torch.classes.ovq.ReplacedParts(tensors, keys))

    def _replaced(self, root_hooks: bool) -> Tuple[Dict[str, Tensor], Dict[str, Callable[..., Tensor]]]:
        """Tensors other than C++'s own, and the parts that C++ must call in Python. Weights that hooks compute are
        computed, those of the module itself only with `root_hooks`."""
        tensors: Dict[str, Tensor] = {}
        calls: Dict[str, Callable[..., Tensor]] = {}
        for name, part in (("", self), *self._parts.items()):
            if name.startswith(tuple(called + "." for called in calls)):
                continue  # inside of one that Python calls
            stand_in = self._at(name)
            if stand_in is not part or (is_called(part) and part._hooked()):
                self._check_stand_in(name, part, stand_in)
                calls[name] = calling(self._op, name, part, stand_in)
            elif isinstance(part, nn.ModuleList):
                entries = sum(other.rpartition(".")[0] == name for other in self._parts)
                if len(part) != entries:
                    raise TypeError(f"[{self._op}] {name} has {len(part)} entries; must have {entries}")
            elif isinstance(part, Part):
                for hook in part._weight_hooks() if part is not self or root_hooks else ():
                    hook(part, None)
                tensors.update(self._other_tensors(name, part))
        return tensors, calls

    def _at(self, name: str) -> Optional[nn.Module]:
        owner, leaf = self._owner(name)
        return owner._modules.get(leaf) if name else self

    def _check_stand_in(self, name: str, part: nn.Module, stand_in: Optional[nn.Module]) -> None:
        if is_called(part) and isinstance(stand_in, nn.Module):
            return
        found = "missing" if stand_in is None else f"a {type(stand_in).__name__}"
        advice = "put the part back" if is_called(part) else "replace parts inside it, or change the configuration"
        raise TypeError(f"[{self._op}] {name} is {found}; must be the part that C++ has: {advice}")

    def _other_tensors(self, path: str, part: Part) -> Iterator[Tuple[str, Tensor]]:
        for leaf, own in part._own.items():
            value, name = getattr(part, leaf, None), f"{path}.{leaf}" if path else leaf
            if value is own:
                continue
            if not isinstance(value, Tensor):
                raise TypeError(f"[{self._op}] {name} is a {type(value).__name__}; must be a tensor")
            if value.shape != own.shape and own.numel() > 0:
                shapes = f"{list(value.shape)}; must be {list(own.shape)}"
                raise ValueError(f"[{self._op}] {name} has shape {shapes}")
            yield name, value

    def _check_plain(self, op: str, put_back: bool = False) -> None:
        """TypeError unless C++'s own tensors are all there is to it; those that stand in for them share their contents,
        or with `put_back` give way to them."""
        for name, part in (("", self), *self._parts.items()):
            stand_in = self._at(name)
            if stand_in is not part:
                found = "missing" if stand_in is None else f"a {type(stand_in).__name__}"
                raise TypeError(f"[{op}] {name} is {found}; fold it into the weight and put the part back first")
            for leaf, own in getattr(part, "_own", {}).items():
                value = part._parameters.get(leaf, part._buffers.get(leaf))
                if value is None:
                    raise TypeError(
                        f"[{op}] {name}.{leaf} is computed from other parameters; make it one first "
                        "(remove_parametrizations, remove_weight_norm, remove_spectral_norm, prune.remove)"
                    )
                if value.is_meta:
                    raise TypeError(f"[{op}] {name}.{leaf} is on meta; must have values")
                own.data = value.data
                if put_back and value is not own:
                    own.requires_grad_(value.requires_grad)
                    (part._parameters if leaf in part._parameters else part._buffers)[leaf] = own

    def __getstate__(self) -> Dict[str, Any]:
        rest = {name: value for name, value in self.__dict__.items() if name not in ("_handle", "_watched")}
        return {"config": self.config, "rest": rest}

    def __setstate__(self, state: Dict[str, Any]) -> None:
        super().__setstate__(state["rest"])
        handle = self._new_handle(state["config"])
        own = {}  # what was stored -> C++'s
        for name, tensor in tensors_of(handle).items():
            owner, leaf = self._owner(name)
            own[id(owner._own[leaf])] = (owner._own[leaf], tensor)
            copy_tensor(tensor, owner._own[leaf].data, owner._own[leaf])
            owner._own[leaf] = tensor
        for module in {*self.modules(), *self._parts.values()}:
            for held in (module._parameters, module._buffers):
                held.update((name, own[id(x)][1]) for name, x in held.items() if id(x) in own)
        self._link(handle)

    def __copy__(self) -> "CompiledModule":
        other = type(self).__new__(type(self))  # shares everything, as copies of other modules do
        other.__dict__.update(self.__dict__)
        return other

    def __deepcopy__(self, memo: Dict[int, Any]) -> "CompiledModule":
        other = memo[id(self)] = type(self).__new__(type(self))
        handle = self._new_handle(self.config)
        for name, tensor in tensors_of(handle).items():
            owner, leaf = self._owner(name)
            own = owner._own[leaf]
            copy_tensor(tensor, own.data.clone(), own)
            tensor.grad = None if own.grad is None else own.grad.clone()
            memo[id(own)] = tensor
        for module in self.modules():  # weights that hooks compute, which torch does not copy
            for value in vars(module).values():
                if isinstance(value, Tensor) and not value.is_leaf:
                    memo[id(value)] = value.detach().clone()
        rest = {name: value for name, value in self.__dict__.items() if name not in ("_handle", "_watched")}
        other.__dict__.update(copy.deepcopy(rest, memo))
        other._link(handle)
        return other

    # A C++ module of this configuration, with random parameters.
    def _make_handle(self, config: Dict[str, Any]) -> Any:
        raise NotImplementedError

    def _new_handle(self, config: Dict[str, Any]) -> Any:
        """One whose parameters will be written over: torch's random numbers stay where they are."""
        with torch.random.fork_rng(devices=[]):
            return self._make_handle(config)


def tensors_of(handle: Any) -> Dict[str, Tensor]:
    """Parameters, as such, and buffers."""
    parameters = handle.parameters()
    for tensor in parameters.values():
        tensor.__class__ = nn.Parameter
    return {**parameters, **handle.buffers()}


def copy_tensor(to: Tensor, data: Tensor, like: Tensor) -> None:
    to.data = data
    to.requires_grad_(like.requires_grad)


def is_called(part: nn.Module) -> bool:
    """Whether it computes y = f(x), which others can do in its place."""
    return isinstance(part, tuple(CALLED.values()))
