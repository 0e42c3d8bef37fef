"""The ops as functions. Layout [batch, time, heads, dim], any strides; no copy while the last dimension is contiguous.

Every op runs on one of two paths: a kernel, or a formula of ovq.reference. `path` selects one by its name, "kernel" or
"formula"; None: OVQ_PATH in the environment, or the kernel where there is one (float32, bfloat16 and half on the CPU).
Kernels are differentiable once, formulas any number of times; forward mode and torch.func take formulas by themselves.

The recurrences and the convolution take `initial_state`, which stays as it is, and with `return_state` give (o, state):
one pass is the same as one piece after the other. With `cu_seqlens` [sequences + 1], integers from 0 to T, sequences
are packed along time with B = 1, and states have one row per sequence in place of one per row of the batch. Decays and
states are float32 at least.
"""

from .attention import attention
from .gated_delta_rule import gated_delta_rule
from .linear_attention import linear_attention
from .mesa import mesa
from .norms import l2_norm, rms_norm
from .ovq_attention import ovq_attention, step
from .rotary import rotary
from .short_convolution import short_convolution
from .ssd import ssd
from .vector_quantize import vector_quantize

__all__ = [
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
