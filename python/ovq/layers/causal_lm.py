"""A language model of the layers: embedding, blocks x + mixer(norm(x)), x + mlp(norm(x)), norm, output embedding.

Its parameters have the names and shapes of the C++ LanguageModel's, so weights go both ways.
"""

import json
import math
from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from .._library import call
from ..arguments import json_of, offsets_of
from ..language_model import LanguageModel
from ..memory import Path
from .gated_mlp import GatedMLP
from .mixer import Mixer
from .mixers import make_mixer
from .projection import Projection, TokenEmbedding
from .rms_norm import RMSNorm
from .state import MixerState

LayerStates = List[MixerState]  # one for each layer
WORD = 2**64
GOLDEN_RATIO = 0x9E3779B97F4A7C15


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, width: int, inner: int, mixer: nn.Module, eps: float) -> None:
        super().__init__()
        self.mixer_norm = RMSNorm(width, eps)
        self.mixer = mixer
        self.mlp_norm = RMSNorm(width, eps)
        self.mlp = GatedMLP(width, inner)

    def forward(self, x: Tensor, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        return self.feed(x + self.mixer(self.mixer_norm(x), cu_seqlens=cu_seqlens))

    def forward_with_state(self, x: Tensor, state: MixerState) -> Tuple[Tensor, MixerState]:
        mixed, state = self.mixer(self.mixer_norm(x), state=state)
        return self.feed(x + mixed), state

    def step(self, x: Tensor, state: MixerState) -> Tensor:
        return self.feed(x + self.mixer.step(self.mixer_norm(x), state))

    def feed(self, x: Tensor) -> Tensor:
        return x + self.mlp(self.mlp_norm(x))


class CausalLM(nn.Module):
    """A language model to train, adapt, compile and shard like any other module.

    Args:
        config: as config.json holds it; `CausalLM.preset(name)` has ready ones. Parameters start at random.
    """

    _tokenizer: Optional[bytes] = None  # as the engine's: it stays with the weights in copies and files

    def __init__(self, config: Dict[str, Any], *, device: Any = None, dtype: Optional[torch.dtype] = None) -> None:
        super().__init__()
        self.config = json.loads(call("model_config", json_of("config", config)))
        config = self.config
        width, layers, eps = config["hidden_size"], config["num_hidden_layers"], config["rms_norm_eps"]
        pattern = config["pattern"].split(",")
        mixers = [make_mixer(dim=width, **config["mixers"][pattern[i % len(pattern)]]) for i in range(layers)]
        self.embed = TokenEmbedding(config["vocab_size"], width)
        self.layers = nn.ModuleList(Block(width, config["intermediate_size"], mixer, eps) for mixer in mixers)
        self.norm = RMSNorm(width, eps)
        self.head = Projection(width, config["vocab_size"])
        self.reset_parameters()
        self.to(device=device, dtype=dtype)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> "CausalLM":
        """A new model of a named size and pattern, e.g. "tiny/sw-ovq"; `changes` replace fields of its config."""
        return cls({**json.loads(call("preset_config", name)), **changes})

    @classmethod
    def load(cls, directory: Path) -> "CausalLM":
        """Reads what `save`, LanguageModel.save or the program `ovq` wrote."""
        engine = LanguageModel.load(directory)
        with torch.random.fork_rng(devices=[]):
            model = cls(engine.config)
        model.load_state_dict(engine.state_dict())
        model._tokenizer = engine._tokenizer
        return model

    def save(self, directory: Path) -> None:
        """Writes config.json and model.safetensors, as float32, and the tokenizer if the model was loaded with one.
        Fold adapters into the weights before."""
        self.engine().save(directory)

    def engine(self) -> LanguageModel:
        """A C++ model with copies of these weights, which generates text, with the tokenizer `load` found."""
        with torch.random.fork_rng(devices=[]):
            engine = LanguageModel(self.config)
        weights, names = self.state_dict(), engine.state_dict().keys()
        for name in sorted(weights.keys() ^ names):
            found = "is missing" if name in names else "is no weight of its configuration"
            raise TypeError(
                f"[model] {name} {found}; fold adapters into the weights, and make what is computed a parameter "
                "(remove_parametrizations, remove_weight_norm, remove_spectral_norm, prune.remove)"
            )
        engine.load_state_dict(weights)
        engine._restore_tokenizer(self._tokenizer)
        return engine.train(self.training)

    def forward(
        self,
        tokens: Tensor,
        *,
        state: Optional[Union[LayerStates, List[LayerStates]]] = None,
        return_state: bool = False,
        cu_seqlens: Optional[Tensor] = None,
    ) -> Union[Tensor, Tuple[Tensor, Any]]:
        """Logits of the next token after each.

        Args:
            tokens: [B, T] int64.
            state: a list of the layers' states; continue from it; it is left unchanged. With cu_seqlens a list of such
                lists, one per sequence.
            return_state: also return the state afterwards; implied by `state`.
            cu_seqlens: [sequences + 1] integers from 0 to T: sequences packed along time, with B = 1.

        Returns:
            logits [B, T, vocab], or (logits, state). Differentiable through both.
        """
        if state is None and not return_state:
            return self.head(self.hidden(tokens, cu_seqlens=cu_seqlens))
        if cu_seqlens is None:
            return self._continue(tokens, self.new_state() if state is None else state)
        self._check_tokens(tokens)
        offsets = offsets_of("model", cu_seqlens, *tokens.shape)
        states = [self.new_state() for _ in offsets[1:]] if state is None else state
        if not isinstance(states, (list, tuple)):
            raise TypeError(f"[model] state is a {type(states).__name__}; must be a list, one per packed sequence")
        if len(states) != len(offsets) - 1:
            raise ValueError(f"[model] states has {len(states)}; must be {len(offsets) - 1}, one per packed sequence")
        if not states:
            return self.head(self.hidden(tokens, cu_seqlens=cu_seqlens)), []
        parts = [
            self._continue(tokens[:, begin:end], one) for one, begin, end in zip(states, offsets, offsets[1:])
        ]
        return torch.cat([logits for logits, _ in parts], 1), [after for _, after in parts]

    def hidden(self, tokens: Tensor, *, cu_seqlens: Optional[Tensor] = None) -> Tensor:
        """What the output embedding reads: tokens [B, T] -> [B, T, hidden_size]."""
        x = self._embedded(tokens)
        for block in self.layers:
            x = block(x, cu_seqlens)
        return self.norm(x)

    @torch.no_grad()
    def step(self, tokens: Tensor, state: LayerStates) -> Tensor:
        """Decodes tokens [B, T], mostly T = 1 -> logits [B, T, vocab]; `state` moves on in place, no autograd."""
        self._check_states(state)
        x = self._embedded(tokens)
        self._check_layers(state, tokens.shape[0])
        for block, own in zip(self.layers, state):
            x = block.step(x, own)
        return self.head(self.norm(x))

    def new_state(self, dtype: torch.dtype = torch.float32) -> LayerStates:
        """The states of an empty context, one for each layer."""
        return [MixerState(dtype) for _ in self.layers]

    def begin_step(self, step: int, seed: int) -> None:
        """Before each training step of a model with VQ-attention; see VQAttention.begin_step."""
        for layer, block in enumerate(self.layers):
            block.mixer.begin_step(step, _signed(_mixed(_mixed(seed, step), layer)))

    def end_step(self) -> None:
        """Ends the step at once, e.g. before saving or evaluating; the next begin_step would. On all ranks."""
        for block in self.layers:
            block.mixer.end_step()

    def auxiliary_loss(self) -> Optional[Tensor]:
        """What the last training forward adds to the loss; None: nothing."""
        losses = [block.mixer.auxiliary_loss() for block in self.layers]
        losses = [loss for loss in losses if loss is not None]
        return sum(losses[1:], losses[0]) if losses else None

    def set_centroids(self, centroids: int) -> None:
        """The most centroids per kv head of OVQ-attention, from the next write on; no parameter depends on it."""
        for block in self.layers:
            if block.mixer.kind == "ovq":
                block.mixer.set_centroids(centroids)
        for mixer in self.config["mixers"].values():
            if mixer["type"] == "ovq":
                mixer["centroids"] = centroids

    def state_bytes(self, tokens: int, dtype: torch.dtype = torch.float32) -> int:
        """Memory of the states of one sequence after `tokens` tokens."""
        return sum(block.mixer.state_bytes(tokens, dtype) for block in self.layers)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Starts projections and embeddings as the config's initializer says. All else keeps the values it was made with.

            normal   every weight N(0, initializer_range^2)
            fan_in   weights N(0, 1 / fan_in), embeddings N(0, 1), residual outputs divided by sqrt(2 layers)
            copying  as fan_in, but what writes starts as the transpose of what reads: a layer then copies what it
                     attends to
        """
        fan_in = self.config["initializer"] != "normal"
        spread = self.config["initializer_range"]
        residual = math.sqrt(2 * len(self.layers))
        self.embed.weight.normal_(0, 1.0 if fan_in else spread)
        for name, weight in self.named_parameters():
            if weight.dim() == 2 and (name.endswith("_proj.weight") or name == "head.weight"):
                std = weight.shape[1] ** -0.5 if fan_in else spread
                if fan_in and name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                    std /= residual
                weight.normal_(0, std)
        if self.config["initializer"] == "copying":
            self._start_by_copying(residual)

    def _start_by_copying(self, residual: float) -> None:
        width = self.config["hidden_size"]
        self.head.weight.copy_(self.embed.weight / math.sqrt(width))
        for block in self.layers:
            values, output = getattr(block.mixer, "v_proj", None), getattr(block.mixer, "o_proj", None)
            if values is not None and output is not None and values.weight.shape == output.weight.T.shape:
                output.weight.copy_(values.weight.T * (math.sqrt(width / output.weight.shape[1]) / residual))

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={self.config[name]!r}" for name in ("pattern", "num_hidden_layers", "hidden_size"))

    def _embedded(self, tokens: Tensor) -> Tensor:
        self._check_tokens(tokens)
        return self.embed(tokens)

    def _check_tokens(self, tokens: Tensor) -> None:
        if tokens.dim() != 2:
            raise ValueError(f"[model] tokens has {tokens.dim()} dimensions; must have 2: [batch, time]")
        if tokens.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"[model] tokens has dtype {tokens.dtype}; must be int64 or int32")

    def _continue(self, tokens: Tensor, state: LayerStates) -> Tuple[Tensor, LayerStates]:
        self._check_states(state)
        x, after = self._embedded(tokens), []
        for block, own in zip(self.layers, state):
            x, own = block.forward_with_state(x, own)
            after.append(own)
        return self.head(self.norm(x)), after

    def _check_states(self, state: LayerStates) -> None:
        if not isinstance(state, (list, tuple)) or not all(isinstance(one, MixerState) for one in state):
            raise TypeError(f"[model] state is a {type(state).__name__}; must be a list of MixerStates, one per layer")
        if len(state) != len(self.layers):
            raise ValueError(f"[model] state has {len(state)} layers; must have {len(self.layers)}")
        positions = sorted({one.position for one in state})
        if len(positions) > 1:
            raise ValueError(f"[model] state's layers have read {positions} tokens; must have read the same number")

    def _check_layers(self, state: LayerStates, batch: int) -> None:
        """What each layer would refuse, before the first of them moves its state."""
        for block, own in zip(self.layers, state):
            if isinstance(block.mixer, Mixer):
                block.mixer._check_state(own, batch)
            if own.dictionary is not None and not own.tensors and (found := own.dictionary.counts.shape[0]) != batch:
                raise ValueError(f"[model] state is for batch {found}; tokens has batch {batch}")


def _mixed(a: int, b: int) -> int:
    """Two numbers as one that looks random."""
    x = (a + GOLDEN_RATIO * (b + 1)) % WORD
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % WORD
    return x ^ (x >> 31)


def _signed(x: int) -> int:
    return x - WORD if x >= WORD // 2 else x
