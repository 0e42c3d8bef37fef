"""The formula of each op in a few lines of torch: what the kernels compute, and the path of an op where there are none.

Any floating dtype and device, differentiable any number of times. Loops run over chunks whose number and sizes follow
from shapes, and over packed sequences; nothing but cu_seqlens waits for a device. torch.compile takes them as they are.
They have never run on a GPU. Arguments and results are those of the ops of the same names.
"""

from .attention import attention
from .gated_delta_rule import gated_delta_rule
from .linear_attention import linear_attention
from .mesa import mesa
from .norms import l2_norm, rms_norm
from .ovq_attention import ovq_attention
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
    "vector_quantize",
]
