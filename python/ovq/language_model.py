"""Language models: mixers in a pattern, weights as directories, generation. The maths is C++ (ovq/models)."""

import json
import os
import tempfile
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from ._library import call, invoke
from .arguments import json_of, numbers_of, text_of, texts_of
from .cpp_module import CompiledModule, States
from .layer_states import ModelState, Path, handles_of
from .options import check_names, fields_of, with_options

FIELDS = fields_of(call("generate_options"))
ModelStates = States[ModelState]


class LanguageModel(CompiledModule):
    """Embedding, blocks x + mixer(norm(x)), x + mlp(norm(x)), norm, output embedding.

    Args:
        config: as config.json holds it; `LanguageModel.preset(name)` has ready ones. Parameters start at random.
    """

    _state_type = ModelState
    _op = "model"
    _tokenizer: Optional[bytes] = None  # its file, for copies of the model; empty: tokens are bytes; None: it has none

    def __init__(self, config: Dict[str, Any]) -> None:
        super().__init__()
        self._bind(self._make_handle(config))

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
        CompiledModule.__init__(model)
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
        self._check_plain("save")
        try:
            self._handle.save(os.fspath(directory))
        except RuntimeError as error:
            raise OSError(str(error)) from None

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
        return self._run(tokens, state, return_state, cu_seqlens)

    def hidden(self, tokens: Tensor, *, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        """What the output embedding reads: tokens [B, T] -> [B, T, hidden_size]."""
        self._before_forward()
        return self._call("hidden", tokens, cu_seqlens)

    def step(self, tokens: Tensor, state: ModelStates, *, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        """Decodes tokens [B, T], mostly T = 1 -> logits [B, T, vocab]; `state` moves on in place, no autograd."""
        return self._step(tokens, state, cu_seqlens)

    @with_options(FIELDS)
    def generate(
        self,
        prompt: Union[str, Sequence[int], Tensor],
        *,
        state: Optional[ModelState] = None,
        stream: bool = False,
        stop: Union[str, Sequence[str]] = (),
        **options: Any,
    ) -> Union[str, List[int], Iterator[str], Iterator[int]]:
        """What follows a prompt, one token at a time; memory is that of the state.

        Args:
            prompt: token numbers, a sequence or a tensor, [T] or [1, T], at least one; or text, if the model has a
                tokenizer. "" goes on from where a generation of text has left the state.
            {options}
            state: continue from it, in place; a new ModelState() represents an empty context. The last token returned
                has not been read into it yet; of text everything has.
            stream: yield what comes as it comes.
            stop: texts that end the writing, and are no part of it; for prompts that are text.

        Returns:
            The new tokens, a list of numbers. Of a prompt that is text: the text, up to the token that ends a document.
        """
        check_names(LanguageModel.generate, options)
        options = {name: value for name, value in options.items() if value is not None}
        if state is None:
            state = ModelState()
        (handle,) = handles_of("generate", state, None, ModelState)
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
        half of what a decoded token reads. All is computed in float32, unlike `model.bfloat16()`. For inference: under
        torch.no_grad(), which `generate` and `step` imply; a forward that needs gradients is a ValueError."""
        self._check_plain("bfloat16_weights", put_back=True)
        self._handle.bfloat16_weights()
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

    def _link(self, handle: Any) -> None:
        super()._link(handle)
        if self._tokenizer is None or handle.has_tokenizer():
            return
        if not self._tokenizer:
            handle.set_tokenizer("bytes")
            return
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "tokenizer.model")
            with open(path, "wb") as file:
                file.write(self._tokenizer)
            handle.set_tokenizer(path)

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

    def _make_handle(self, config: Dict[str, Any]) -> Any:
        return invoke(self._op, torch.classes.ovq.LanguageModel, json_of("config", config))


def tokenizer_content(path: str) -> bytes:
    """Of a SentencePiece model; empty if there is no such file."""
    if not os.path.isfile(path):
        return b""
    with open(path, "rb") as file:
        return file.read()
