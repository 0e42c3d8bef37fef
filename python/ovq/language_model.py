"""Language models: mixers in a pattern, weights as directories, generation. The maths is C++ (ovq/models)."""

import json
import os
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import torch
from torch import Tensor

from ._library import call, invoke
from .cpp_module import CompiledModule, States
from .layer_states import ModelState, Path, handles_of

ModelStates = States[ModelState]


class LanguageModel(CompiledModule):
    """Embedding, blocks x + mixer(norm(x)), x + mlp(norm(x)), norm, output embedding.

    Args:
        config: as config.json holds it; `LanguageModel.preset(name)` has ready ones. Parameters start at random.
    """

    _state_type = ModelState
    _op = "model"

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

    def generate(
        self,
        prompt: Union[Sequence[int], Tensor],
        *,
        tokens: int = 64,
        temperature: float = 0.0,
        top_k: int = 0,
        seed: int = 0,
        state: Optional[ModelState] = None,
        piece: int = 512,
    ) -> List[int]:
        """New tokens after a prompt, one at a time; memory is that of the state.

        Args:
            prompt: token numbers, a sequence or a tensor [T]; at least one.
            tokens: how many new ones.
            temperature: 0: always the most likely token. top_k: of the most likely ones only; 0: of all.
            seed: of the choice; the same numbers give the same tokens.
            state: continue from it, in place; a new ModelState() represents an empty context. The last token returned
                has not been read into it yet.
            piece: tokens of the prompt read at a time.

        Returns:
            The new tokens.
        """
        numbers = prompt.tolist() if isinstance(prompt, Tensor) else list(prompt)
        (handle,) = handles_of("generate", ModelState() if state is None else state, None, ModelState)
        options = (int(tokens), float(temperature), int(top_k), int(seed), int(piece))
        return self._call("generate", numbers, handle, *options, op="generate")

    def extra_repr(self) -> str:
        config = self.config
        return ", ".join(f"{name}={config[name]!r}" for name in ("pattern", "num_hidden_layers", "hidden_size"))

    def _make_handle(self, config: Dict[str, Any]) -> Any:
        return invoke(self._op, torch.classes.ovq.LanguageModel, json.dumps(config))
