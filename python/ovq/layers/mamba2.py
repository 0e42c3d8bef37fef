"""Mamba-2 (arXiv 2405.21060).

    [z | xBC | dt] = W_in u;  [x | B | C] = silu(conv(xBC) + bias)
    y = ssd(x, softplus(dt + dt_bias), -exp(A_log), B, C, D);  output W_out RMSNorm(y * silu(z))

with the norm over each group's channels, as in the official layer.
"""

from typing import Any, Optional, Tuple

import torch
from torch import Tensor, nn

from ..ops import ssd
from ..pointwise import exp, silu, softplus
from .mixer import Mixer, layout_of
from .projection import Projection
from .recurrent import initial_a_log, initial_dt_bias, recur
from .rms_norm import RMSNorm
from .short_convolution import ShortConvolution, convolved
from .state import MixerState


class Mamba2(Mixer):
    """Mamba-2 (arXiv 2405.21060).

    Args:
        dim: of the input and output.
        heads: heads; None: expand * dim / head_dim.
        head_dim (64): channels per head.
        expand (1): channels of all heads together, in multiples of dim.
        state (64): numbers per channel.
        groups (1): groups of heads that share B, C and the norm.
        conv_width (4): taps of the short convolution.
    """

    kind = "mamba2"

    def __init__(
        self,
        dim: int,
        heads: Optional[int] = None,
        *,
        head_dim: int = 64,
        expand: int = 1,
        state: int = 64,
        groups: int = 1,
        conv_width: int = 4,
        device: Any = None,
        dtype: Optional[torch.dtype] = None,
    ) -> None:
        super().__init__(
            dim,
            heads=heads,
            head_dim=head_dim,
            expand=expand,
            state=state,
            groups=groups,
            conv_width=conv_width,
        )
        self._complete_heads()
        self.heads, self.head_dim = self.options["heads"], head_dim
        self.inner = self.heads * head_dim
        self.shared = groups * state  # channels of B, and of C
        self.in_proj = Projection(dim, 2 * self.inner + 2 * self.shared + self.heads)
        self.conv = ShortConvolution(self.inner + 2 * self.shared, conv_width, bias=True, activation="silu")
        self.A_log = initial_a_log(self.heads, 1, 16)
        self.dt_bias = initial_dt_bias(self.heads)
        self.D = nn.Parameter(torch.ones(self.heads))
        self.out_proj = Projection(self.inner, dim)
        self.norm = RMSNorm(self.inner, eps=1e-5, groups=groups)  # the official layer's eps
        self.to(device=device, dtype=dtype)

    def _complete_heads(self) -> None:
        options = self.options
        inner, head_dim = options["expand"] * self.dim, options["head_dim"]
        if inner % head_dim != 0:
            raise ValueError(f"[mamba2] head_dim is {head_dim}; must divide expand * width, {inner}")
        heads = options["heads"] = options["heads"] or inner // head_dim
        if heads * head_dim != inner:
            raise ValueError(f"[mamba2] heads is {heads}; must be expand * width / head_dim, {inner // head_dim}")
        if heads % options["groups"] != 0:
            raise ValueError(f"[mamba2] groups is {options['groups']}; must divide the heads, {heads}")

    def mix(
        self, x: Tensor, state: Optional[MixerState], cu_seqlens: Optional[Tensor], in_place: bool = False
    ) -> Tuple[Tensor, Tensor]:
        parts = [self.inner, self.inner + 2 * self.shared, self.heads]
        z, rows, dt = self.in_proj(x).split(parts, -1)
        rows = convolved(self.conv, "conv", self.options["conv_width"], rows, state, cu_seqlens)
        y, b, c = rows.split([self.inner, self.shared, self.shared], -1)
        o = recur(
            ssd,
            y.unflatten(-1, (self.heads, self.head_dim)),
            softplus(dt + self.dt_bias),
            -exp(self.A_log),
            b.unflatten(-1, (self.options["groups"], -1)),
            c.unflatten(-1, (self.options["groups"], -1)),
            self.D,
            state=state,
            cu_seqlens=cu_seqlens,
        )
        return o, z

    def output(self, mixed: Tuple[Tensor, Tensor]) -> Tensor:
        o, z = mixed
        return self.out_proj(self.norm(o.flatten(2) * silu(z)))

    def layout(self) -> str:
        names = ("heads", "head_dim", "state", "groups", "conv_width")
        return layout_of(self.kind, **{name: self.options[name] for name in names})

    def _state_bytes(self, tokens: int, dtype: torch.dtype) -> int:
        channels = self.inner + 2 * self.shared
        return 4 * (self.inner * self.options["state"] + (self.options["conv_width"] - 1) * channels)
