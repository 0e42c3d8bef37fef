"""Language models in C++ (ovq/models): files, generation, states of bounded size. CausalLM has the same in Python."""

import json
import os
import tempfile
from operator import is_
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ._library import call, invoke
from .arguments import json_of, numbers_of, text_of, texts_of
from .model_state import ModelState, Path, handles_of
from .state import dtype_name

ModelStates = Union[ModelState, List[ModelState]]


class LanguageModel(nn.Module):
    """Embedding, blocks x + mixer(norm(x)), x + mlp(norm(x)), norm, output embedding: the engine in C++.

    It computes with its own parameters, which optimizers, state_dict and autograd see as those of any module. They can
    be changed, not replaced, and hooks of its parts do not run; to adapt, wrap, compile or shard a model, use CausalLM.

    Args:
        config: as config.json holds it; `LanguageModel.preset(name)` has ready ones. Parameters start at random.
    """

    process_group: Any = None
    """The torch.distributed group of the ranks that train this model together; None: all."""

    def __init__(self, config: Dict[str, Any]) -> None:
        super().__init__()
        self._bind(invoke("model", torch.classes.ovq.LanguageModel, json_of("config", config)))

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "LanguageModel":
        """A new model of a named size and pattern, e.g. "tiny/sw-ovq"; `changes` replace fields of its config."""
        return cls({**json.loads(call("preset_config", name)), **changes})

    @staticmethod
    def presets() -> List[str]:
        """The names that `preset` knows."""
        return call("preset_names")

    @classmethod
    def load(cls, directory: Path) -> "LanguageModel":
        """Reads config.json and model.safetensors; ValueError if they do not fit or are damaged."""
        name = os.fspath(directory)
        for file in ("config.json", "model.safetensors"):
            with open(os.path.join(name, file), "rb"):
                pass
        model = cls.__new__(cls)
        nn.Module.__init__(model)
        try:
            with torch.random.fork_rng(devices=[]):
                model._bind(call("load_model", name))
        except RuntimeError as error:
            raise ValueError(str(error)) from None
        if model._handle.has_tokenizer():
            model._tokenizer = tokenizer_content(os.path.join(name, "tokenizer.model"))
        return model

    def save(self, directory: Path) -> None:
        """Writes config.json and model.safetensors, which `load` and the program `ovq` read."""
        self._check_own()
        try:
            self._handle.save(os.fspath(directory))
        except RuntimeError as error:
            raise OSError(str(error)) from None

    @property
    def config(self) -> Dict[str, Any]:
        """What it is made of, as config.json spells it."""
        return json.loads(self._handle.config())

    def forward(
        self,
        tokens: Tensor,
        *,
        state: Optional[ModelStates] = None,
        return_state: bool = False,
        cu_seqlens: Optional[Tensor] = None,
    ) -> Union[Tensor, Tuple[Tensor, ModelStates]]:
        """Logits of the next token after each.

        Args:
            tokens: [B, T] int64.
            state: continue from it; it is left unchanged. With cu_seqlens a list, one per sequence.
            return_state: also return the state afterwards; implied by `state`.
            cu_seqlens: [sequences + 1] integers from 0 to T: sequences packed along time, with B = 1.

        Returns:
            logits [B, T, vocab], or (logits, state). Differentiable through both.
        """
        self._before_forward()
        if state is None and not return_state:
            return self._call("forward", tokens, cu_seqlens)
        handles = [] if state is None else handles_of("model", state, cu_seqlens)
        logits, handles = self._call("forward_with_states", tokens, handles, cu_seqlens)
        states = [ModelState._wrap(handle) for handle in handles]
        return logits, states[0] if cu_seqlens is None else states

    def hidden(self, tokens: Tensor, *, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        """What the output embedding reads: tokens [B, T] -> [B, T, hidden_size]."""
        self._before_forward()
        return self._call("hidden", tokens, cu_seqlens)

    def step(self, tokens: Tensor, state: ModelStates, *, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        """Decodes tokens [B, T], mostly T = 1 -> logits [B, T, vocab]; `state` moves on in place, no autograd."""
        return self._call("step", tokens, handles_of("model", state, cu_seqlens), cu_seqlens)

    def state_bytes(self, tokens: int, dtype: torch.dtype = torch.float32) -> int:
        """Memory of the state of one sequence after `tokens` tokens, with caches and centroids stored as `dtype`."""
        return self._call("state_bytes", tokens, dtype_name("state_bytes", "dtype", dtype))

    def set_centroids(self, centroids: int) -> None:
        """The most centroids per kv head of OVQ-attention, from the next write on; no parameter depends on it."""
        self._call("set_centroids", centroids)

    def begin_step(self, step: int, seed: int) -> None:
        """Before each training step of a model with VQ-attention; see VQAttention.begin_step."""
        self._add_up_ranks()
        self._call("begin_step", step, seed)

    def end_step(self) -> None:
        """Ends the step at once, e.g. before saving or evaluating; the next begin_step would. On all ranks."""
        self._add_up_ranks()
        self._call("end_step")

    def auxiliary_loss(self) -> Optional[Tensor]:
        """What the last training forward adds to the loss; None: nothing."""
        return self._call("auxiliary_loss")

    def train(self, mode: bool = True) -> "LanguageModel":
        super().train(mode)
        self._handle.train(mode)
        return self

    def generate(
        self,
        prompt: Union[str, Sequence[int], Tensor],
        *,
        tokens: int = 64,
        temperature: float = 0.0,
        top_k: Optional[int] = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        repetition_window: int = 64,
        seed: int = 0,
        piece: int = 1024,
        state: Optional[ModelState] = None,
        stream: bool = False,
        stop: Union[str, Sequence[str]] = (),
    ) -> Union[str, List[int], Iterator[str], Iterator[int]]:
        """What follows a prompt, one token at a time; memory is that of the state.

        Args:
            prompt: token numbers, a sequence or a tensor, [T] or [1, T], at least one; or text, if the model has a
                tokenizer. "" goes on from where a generation of text has left the state.
            tokens (64): new tokens, at most.
            temperature (0.0): how freely to choose; 0: always the most likely token.
            top_k: choose among so many of the most likely tokens; None: all.
            top_p (1.0): choose among the most likely tokens that together have this probability.
            min_p (0.0): choose among tokens at least this share as likely as the most likely one.
            repetition_penalty (1.0): what the scores of recent tokens are divided by.
            repetition_window (64): how many tokens are recent.
            seed (0): of the choice.
            piece (1024): tokens of the prompt read at a time.
            state: continue from it, in place; a new ModelState() represents an empty context. The last token returned
                has not been read into it yet; of text everything has.
            stream: yield what comes as it comes.
            stop: texts that end the writing, and are no part of it; for prompts that are text.

        Returns:
            The new tokens, a list of numbers. Of a prompt that is text: the text, up to the token that ends a document.
        """
        options = dict(
            tokens=tokens,
            temperature=temperature,
            top_k=top_k or 0,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition_penalty,
            repetition_window=repetition_window,
            seed=seed,
            piece=piece,
        )
        if state is None:
            state = ModelState()
        (handle,) = handles_of("generate", state, None)
        choices, stops = json_of("generate", options), texts_of("generate", "stop", stop)
        if isinstance(prompt, str):
            pieces = self._write(text_of("generate", "prompt", prompt), handle, stops, choices)
            return pieces if stream else "".join(pieces)
        if stop:
            raise TypeError("[generate] stop is for prompts that are text")
        numbers = numbers_of("generate", "prompt", prompt)
        if not stream:
            return self._call("generate", numbers, handle, choices, op="generate")
        return self._tokens(self._call("generation", numbers, handle, choices, op="generate"))

    def bfloat16_weights(self) -> "LanguageModel":
        """Rounds the matrices of projections and embeddings to bfloat16 and stores them so, in place: half the memory, and
        half of what a decoded token reads. All is computed in float32. For inference: under
        torch.no_grad(), which `generate` and `step` imply; a forward that needs gradients is a ValueError."""
        self._call("bfloat16_weights")
        return self

    @property
    def weight_bytes(self) -> int:
        """Memory of parameters and buffers."""
        return self._handle.weight_bytes()

    def encode(self, text: str) -> List[int]:
        """The tokens of a text, after the one that begins a document; ValueError without a tokenizer."""
        return self._handle.encode(text_of("encode", "text", text), 0)

    def decode(self, tokens: Union[Sequence[int], Tensor]) -> str:
        """The text of tokens; bytes that are no characters come as U+FFFD."""
        return self._handle.decode(numbers_of("decode", "tokens", tokens))

    def set_tokenizer(self, name: Path) -> None:
        """"bytes", or the path of a SentencePiece model; `save` stores it beside the weights, `load` finds it there."""
        path = os.fspath(name)
        try:
            invoke("set_tokenizer", self._handle.set_tokenizer, path)
        except RuntimeError as error:
            raise ValueError(str(error)) from None
        self._tokenizer = b"" if path == "bytes" else tokenizer_content(path)

    def _tokens(self, generation: Any) -> Iterator[int]:
        while (token := self._call("next_token", generation, op="generate")) >= 0:
            yield token

    def _write(self, prompt: str, state: Any, stops: List[str], options: str) -> Iterator[str]:
        stream, numbers = self._handle.text_stream(stops), self._handle.encode(prompt, state.position())
        return self._pieces(self._call("generation", numbers, state, options, op="generate"), stream)

    def _pieces(self, generation: Any, stream: Any) -> Iterator[str]:
        """Text as it comes. At its end the state has read all of it."""
        end = self._handle.end_token()
        try:
            for token in self._tokens(generation):
                if token == end:
                    break
                if text := stream.add(token):
                    yield text
                if stream.stopped():
                    break
            if text := stream.finish():
                yield text
        finally:
            self._call("settle", generation, op="generate")

    def extra_repr(self) -> str:
        config = self.config
        return ", ".join(f"{name}={config[name]!r}" for name in ("pattern", "num_hidden_layers", "hidden_size"))

    def _bind(self, handle: Any) -> None:
        """Computes with `handle`, and holds its tensors by their names in modules that have nothing else."""
        self._handle = handle
        self._tokenizer: Optional[bytes] = None  # its file, for copies; empty: tokens are bytes; None: it has none
        parameters = handle.parameters()
        for tensor in parameters.values():
            tensor.__class__ = nn.Parameter
        slots: List[Tuple[Dict[str, Any], str, Tensor, str]] = []
        for name, tensor in {**parameters, **handle.buffers()}.items():
            path, _, leaf = name.rpartition(".")
            owner = self._part(path)
            if isinstance(tensor, nn.Parameter):
                owner.register_parameter(leaf, tensor)
            else:
                owner.register_buffer(leaf, tensor)
            slots.append((owner._parameters if isinstance(tensor, nn.Parameter) else owner._buffers, leaf, tensor, name))
        parts: List[Tuple[Dict[str, Any], str, nn.Module, str]] = []
        for path, owner in self.named_modules():
            prefix = path and path + "."
            parts += [(owner._modules, leaf, part, prefix + leaf) for leaf, part in owner.named_children()]
        # Where each part and tensor is held, under which name there, the part or tensor itself, and its name in all.
        self._held, self._leaves, self._own, self._names = zip(*parts, *slots)
        self._first_tensor = len(parts)  # of these
        handle.train(self.training)

    def _part(self, path: str) -> nn.Module:
        part: nn.Module = self
        for name in filter(None, path.split(".")):
            if name not in part._modules:
                part.add_module(name, nn.ModuleList() if name == "layers" else nn.Module())
            part = part._modules[name]
        return part

    def _call(self, method: str, *arguments: Any, op: str = "model") -> Any:
        self._check_own()
        return invoke(op, getattr(self._handle, method), *arguments)

    def _check_own(self) -> None:
        found = list(map(dict.get, self._held, self._leaves))
        if all(map(is_, found, self._own)):
            return
        name = next(name for name, x, own in zip(self._names, found, self._own) if x is not own)
        raise TypeError(
            f"[model] {name} was replaced; the engine computes with its own: change its values, or use ovq.CausalLM"
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any) -> "LanguageModel":
        self._check_own()
        moved = fn(torch.empty(0))  # before any tensor has
        if moved.device.type != "cpu":
            raise TypeError(f"[model] the engine runs on the CPU, not on {moved.device}; ovq.CausalLM does")
        if moved.dtype == torch.float64:
            raise TypeError("[model] the engine has kernels alone, none of them for torch.float64; ovq.CausalLM has formulas")
        super()._apply(fn, *args, **kwargs)
        for held, leaf, own in list(zip(self._held, self._leaves, self._own))[self._first_tensor :]:
            if held[leaf] is own:
                continue
            # torch made a new tensor, as it does of buffers. C++ keeps its own, with the new contents.
            own.data = held[leaf].data
            held[leaf] = own
        return self

    def _before_forward(self) -> None:
        if self.training and self._handle.begins_own_step():
            self._add_up_ranks()

    def _add_up_ranks(self) -> None:
        group = self.process_group
        if not (dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1):
            return
        for statistic in self._handle.step_statistics(dist.get_rank(group), dist.get_world_size(group)):
            dist.all_reduce(statistic, group=group)

    def __getstate__(self) -> Dict[str, Any]:
        self._check_own()
        return {
            "config": self.config,
            "tensors": {name: tensor.detach() for name, tensor in self.state_dict().items()},
            "frozen": [name for name, parameter in self.named_parameters() if not parameter.requires_grad],
            "training": self.training,
            "tokenizer": self._tokenizer,
        }

    def __setstate__(self, state: Dict[str, Any]) -> None:
        with torch.random.fork_rng(devices=[]):
            LanguageModel.__init__(self, state["config"])
        for name, tensor in self.state_dict(keep_vars=True).items():
            tensor.data = state["tensors"][name].clone()
            if isinstance(tensor, nn.Parameter):
                tensor.requires_grad_(name not in state["frozen"])
        self.train(state["training"])
        self._restore_tokenizer(state["tokenizer"])

    def _restore_tokenizer(self, content: Optional[bytes]) -> None:
        """Sets the tokenizer that another model had as its `_tokenizer`."""
        if content == b"":
            self._handle.set_tokenizer("bytes")
        elif content:
            with tempfile.TemporaryDirectory() as directory:
                path = os.path.join(directory, "tokenizer.model")
                with open(path, "wb") as file:
                    file.write(content)
                self._handle.set_tokenizer(path)
        self._tokenizer = content


def tokenizer_content(path: str) -> bytes:
    """Of a SentencePiece model; empty if there is no such file."""
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read()
