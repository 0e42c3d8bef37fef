"""OVQ-attention for PyTorch: fused CPU kernels with autograd, composed of torch calls on other devices and dtypes.

    o = ovq.ovq_attention(q, k, v, beta, chunk=128, centroids=2048)
    layer = ovq.OVQAttention(dim=768, heads=6, centroids=2048)
    model = ovq.LanguageModel.load("runs/recall/model")
"""

from ._library import load as _load

_load()

from .functional import attention, ovq_attention, step
from .language_model import LanguageModel
from .layer_states import MixerState, ModelState
from .mixers import Attention, GatedDeltaNet, LinearAttention, Mamba2, MesaNet, Mixer, OVQAttention, VQAttention
from .sequence_ops import (
    gated_delta_rule,
    l2_norm,
    linear_attention,
    mesa,
    rms_norm,
    rotary,
    short_convolution,
    ssd,
    vector_quantize,
)
from .state import State

__version__ = "0.1.0"
__all__ = [
    "Attention",
    "GatedDeltaNet",
    "LanguageModel",
    "LinearAttention",
    "Mamba2",
    "MesaNet",
    "Mixer",
    "MixerState",
    "ModelState",
    "OVQAttention",
    "State",
    "VQAttention",
    "attention",
    "gated_delta_rule",
    "l2_norm",
    "linear_attention",
    "mesa",
    "ovq_attention",
    "rms_norm",
    "rotary",
    "short_convolution",
    "ssd",
    "step",
    "vector_quantize",
]
