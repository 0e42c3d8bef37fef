"""The recurrence of Mamba-2."""

from typing import Optional, Tuple

from torch import Tensor

from .linear_attention import attend
from .recurrence import OutputAndState, recurrence


def ssd(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Optional[Tensor] = None,
    *,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
    chunk: int = 64,
) -> OutputAndState:
    """The recurrence of Mamba-2.

        S = e^(dt a) S + dt b x^T;  o = S^T c + d x

    This is linear attention with q = c, k = b, v = dt x and g = dt a.
    """

    def run(
        s: Tensor, x: Tensor, b: Tensor, c: Tensor, dt: Tensor, a: Tensor, d: Optional[Tensor] = None
    ) -> Tuple[Tensor, Tensor]:
        if x.shape[2] % b.shape[2] != 0:
            raise ValueError(f"[ssd] b has {b.shape[2]} groups; must divide x's heads, {x.shape[2]}")
        group = x.shape[2] // b.shape[2]
        b, c = (y.unsqueeze(3).expand(-1, -1, -1, group, -1).flatten(2, 3) for y in (b, c))
        o, s = attend(s, c, b, dt.unsqueeze(-1) * x, dt * a, chunk)
        return o if d is None else o + d.unsqueeze(-1) * x, s

    inputs = {"x": (x, "B T H P"), "b": (b, "B T G N"), "c": (c, "B T G N")}
    others = {"dt": (dt, "B T H"), "a": (a, "H"), "d": (d, "?H")}
    return recurrence("ssd", run, inputs, others, "H N P", initial_state, return_state, cu_seqlens)
