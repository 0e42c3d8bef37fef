"""OVQ-attention for PyTorch: fused CPU kernels with autograd, and formulas in torch for other devices and dtypes.

    o = ovq.ovq_attention(q, k, v, beta, chunk=128, centroids=2048)
    layer = ovq.OVQAttention(dim=768, heads=6, centroids=2048)
    model = ovq.CausalLM.preset("tiny/sw-ovq")               # trains, of torch.nn.Modules
    engine = ovq.LanguageModel.load("runs/recall/model")     # reads and writes text, in C++
"""

from ._library import load as _load

_load()

from . import layers, reference
from .language_model import LanguageModel
from .layers import (
    Attention,
    CausalLM,
    GatedDeltaNet,
    LinearAttention,
    Mamba2,
    MesaNet,
    MixerState,
    OVQAttention,
    VQAttention,
    make_mixer,
)
from .model_state import ModelState
from .ops import (
    attention,
    gated_delta_rule,
    l2_norm,
    linear_attention,
    mesa,
    ovq_attention,
    rms_norm,
    rotary,
    short_convolution,
    ssd,
    step,
    vector_quantize,
)
from .state import State

__version__ = "0.1.0"
__all__ = [
    "Attention",
    "CausalLM",
    "GatedDeltaNet",
    "LanguageModel",
    "LinearAttention",
    "Mamba2",
    "MesaNet",
    "MixerState",
    "ModelState",
    "OVQAttention",
    "State",
    "VQAttention",
    "attention",
    "gated_delta_rule",
    "l2_norm",
    "layers",
    "linear_attention",
    "make_mixer",
    "mesa",
    "ovq_attention",
    "reference",
    "rms_norm",
    "rotary",
    "short_convolution",
    "ssd",
    "step",
    "vector_quantize",
]
