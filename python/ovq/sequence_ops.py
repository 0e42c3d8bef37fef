"""The ops of the other sequence mixers as functions, each by chunks and with a backward of its own.

Layout [batch, time, heads, dim]. float32 and float64 on the CPU take compiled loops where there are some; other devices
and dtypes the same composed of torch calls. Decays and states are float32 at least. Gradients can be taken once, on the
composed path any number of times: OVQ_FORCE_REFERENCE=1 in the environment selects it.

The recurrences and the convolution take `initial_state`, which stays as it is, and with `return_state` give (o, state):
one pass is the same as one piece after the other. With `cu_seqlens` [sequences + 1], integers from 0 to T, sequences are
packed along time with B = 1, and states have one row per sequence in place of one per row of the batch.
"""

from typing import Optional, Tuple, Union

from torch import Tensor

from ._library import call
from .pointwise import silu

OutputAndState = Union[Tensor, Tuple[Tensor, Tensor]]


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
) -> OutputAndState:
    """The gated delta rule (arXiv 2412.06464): a memory S of key-value pairs that is corrected, and that decays.

        S' = e^g S;  S = S' + k beta (v - S'^T k)^T;  o = dk^(-1/2) S^T q

    Args:
        q, k: [B, T, H, dk], rows of norm one (see l2_norm); v: [B, T, H, dv]. One floating dtype.
        g: [B, T, H], log of the decays, at most 0.
        beta: [B, T, H], how much of the difference is written, in [0, 1].
        initial_state: S before the first token, [B, H, dk, dv]; None: zeros.
        return_state: also return S after the last token.
        cu_seqlens: [sequences + 1]: packed sequences.

    Returns:
        o [B, T, H, dv] in q's dtype, or (o, state).
    """
    result = call("gated_delta_rule", q, k, v, g, beta, initial_state, return_state, cu_seqlens)
    return result if return_state else result[0]


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Optional[Tensor] = None,
    *,
    scale: Optional[float] = None,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
) -> OutputAndState:
    """Linear attention, with or without a decay per token.

        S = e^g S + k v^T;  o = scale S^T q

    Args:
        q, k: [B, T, H, dk]; v: [B, T, H, dv]. One floating dtype.
        g: [B, T, H], log of the decays, at most 0; None: no decay.
        scale: None: dk^(-1/2).
        initial_state: S before the first token, [B, H, dk, dv]; None: zeros.
        return_state: also return S after the last token.
        cu_seqlens: [sequences + 1]: packed sequences.

    Returns:
        o [B, T, H, dv] in q's dtype, or (o, state).
    """
    result = call("linear_attention", q, k, v, g, scale, initial_state, return_state, cu_seqlens)
    return result if return_state else result[0]


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
) -> OutputAndState:
    """The recurrence of Mamba-2 (arXiv 2405.21060), the state space dual.

        S = e^(dt a) S + dt b x^T;  o = S^T c + d x

    Args:
        x: [B, T, H, P]; b, c: [B, T, G, N], each group for H / G heads in order. One floating dtype.
        dt: [B, T, H], steps, positive.
        a: [H], negative; d: [H]; None: zeros.
        initial_state: S before the first token, [B, H, N, P]; None: zeros.
        return_state: also return S after the last token.
        cu_seqlens: [sequences + 1]: packed sequences.

    Returns:
        o [B, T, H, P] in x's dtype, or (o, state).
    """
    result = call("ssd", x, dt, a, b, c, d, initial_state, return_state, cu_seqlens)
    return result if return_state else result[0]


def mesa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lambda_: Tensor,
    *,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
    iterations: int = 30,
) -> OutputAndState:
    """The recurrence of MesaNet (arXiv 2506.05233): the best linear map of all keys to their values, at each token.

        H = e^g H + beta k k^T;  G = e^g G + beta k v^T;  o = G^T (H + diag(lambda_))^(-1) q

    Args:
        q, k: [B, T, H, dk], rows of norm one (see l2_norm); v: [B, T, H, dv]. One floating dtype.
        g: [B, T, H], log of the decays, at most 0.
        beta: [B, T, H], in [0, 1].
        lambda_: [H, dk], positive.
        initial_state: [H | G] before the first token, [B, H, dk, dk + dv]; None: zeros.
        return_state: also return [H | G] after the last token.
        cu_seqlens: [sequences + 1]: packed sequences.
        iterations: of conjugate gradients, at most. Second derivatives and forward mode (composed path) solve exactly.

    Returns:
        o [B, T, H, dv] in q's dtype, or (o, state).
    """
    result = call("mesa", q, k, v, g, beta, lambda_, initial_state, return_state, cu_seqlens, iterations=iterations)
    return result if return_state else result[0]


def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Optional[Tensor] = None,
    *,
    activation: Optional[str] = None,
    initial_state: Optional[Tensor] = None,
    return_state: bool = False,
    cu_seqlens: Optional[Tensor] = None,
) -> OutputAndState:
    """A causal convolution over time, each channel by itself.

        y_t = bias + sum_j weight[:, j] x_(t - width + 1 + j), zeros before the first token

    Args:
        x: [B, T, C]; weight: [C, width]; bias: [C]. One floating dtype.
        activation: "silu": y sigmoid(y); None: none.
        initial_state: the inputs before the first token, [B, width - 1, C]; None: zeros.
        return_state: also return the last width - 1 inputs.
        cu_seqlens: [sequences + 1]: packed sequences.

    Returns:
        y [B, T, C], or (y, state).
    """
    if activation not in (None, "silu"):
        raise ValueError(f"[short_convolution] activation is {activation!r}; must be 'silu' or None")
    y, state = call(
        "short_convolution_with_state",
        x,
        weight,
        bias,
        initial_state,
        return_state,
        cu_seqlens,
        op="short_convolution",
    )
    y = silu(y) if activation == "silu" else y
    return (y, state) if return_state else y


def rms_norm(x: Tensor, weight: Tensor, *, eps: float = 1e-6, groups: int = 1) -> Tensor:
    """x / rms(x) * weight over the last dimension, rms(x)^2 = mean(x^2) + eps.

    Args:
        x: [..., C]; weight: [C].
        groups: the mean is over each of so many equal parts of the channels.

    Returns:
        [..., C] in x's dtype.
    """
    return call("rms_norm", x, weight, eps, groups)


def l2_norm(x: Tensor, *, eps: float = 1e-6) -> Tensor:
    """x (sum(x^2) + eps)^(-1/2) over the last dimension: rows of norm one.

    Args:
        x: [..., C].

    Returns:
        [..., C] in x's dtype.
    """
    return call("l2_norm", x, eps)


def rotary(
    x: Tensor, *, base: float = 10000.0, first_position: int = 0, cu_seqlens: Optional[Tensor] = None
) -> Tensor:
    """Rotary positions: the pair (i, i + D/2) of a row at position p turns by the angle p base^(-2 i / D).

    Args:
        x: [B, T, H, D], D even.
        first_position: of x's first token.
        cu_seqlens: [sequences + 1]: packed sequences, whose positions each start with 0.

    Returns:
        [B, T, H, D] in x's dtype.
    """
    return call("rotary", x, base, first_position, cu_seqlens)


def vector_quantize(
    z: Tensor,
    codewords: Tensor,
    *,
    gradient: str = "straight_through",
    bonus: Optional[Tensor] = None,
    noise: float = 1e-3,
    seed: int = 0,
) -> Tuple[Tensor, Tensor]:
    """Replaces each vector by the codeword c of its head with the largest z . c + bonus: without bonus the nearest.

    `gradient` selects how gradients pass:
        "straight_through": z_q = c; z gets the gradient of z_q, the codewords none
        "diveq" (arXiv 2509.26469): z_q = z + |c - z| u, u = stop[(w + c - z) / |w + c - z|], w ~ N(0, noise^2 I)
        "sf_diveq": the same towards both ends of the nearest one of the points (1 - l_j) c_j + l_j c_(j+1), l_j ~ U(0, 1)

    Args:
        z: [B, T, H, D]; codewords: [H, K, D], of norm one (see l2_norm). One floating dtype.
        bonus: [H, K], e.g. for codewords that have long been unused.
        noise, seed: of "diveq" and "sf_diveq"; what is random is a function of the seed alone.

    Returns:
        z_q [B, T, H, D], and the index of the codeword (of the first one of two with "sf_diveq"), [B, T, H].
    """
    return call("vector_quantize", z, codewords, gradient, bonus, noise, seed)
