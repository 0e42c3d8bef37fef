"""Sequence mixers and a language model of them as ordinary torch.nn.Modules, a file each."""

from .attention import Attention
from .causal_lm import Block, CausalLM
from .gated_delta_net import GatedDeltaNet
from .gated_mlp import GatedMLP
from .linear_attention import LinearAttention
from .mamba2 import Mamba2
from .mesa_net import MesaNet
from .mixer import Mixer
from .mixers import MIXERS, make_mixer
from .ovq_attention import OVQAttention
from .projection import Projection, TokenEmbedding
from .rms_norm import RMSNorm
from .short_convolution import ShortConvolution
from .state import MixerState
from .vector_quantizer import VectorQuantizer
from .vq_attention import VQAttention

__all__ = [
    "Attention",
    "Block",
    "CausalLM",
    "GatedDeltaNet",
    "GatedMLP",
    "LinearAttention",
    "MIXERS",
    "Mamba2",
    "MesaNet",
    "Mixer",
    "MixerState",
    "OVQAttention",
    "Projection",
    "RMSNorm",
    "ShortConvolution",
    "TokenEmbedding",
    "VQAttention",
    "VectorQuantizer",
    "make_mixer",
]
