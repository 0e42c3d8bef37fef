"""The formula of each op in a few lines of torch: what the fused kernels compute, and how.

Any dtype and device, differentiable any number of times. Loops run over chunks whose number and sizes follow from
shapes alone and nothing waits for a device, so torch.compile takes them as they are. Layout [batch, time, heads, dim];
the options are those of the ops of the same names.
"""

import math
from typing import Any, List, Optional, Tuple

import torch
from torch import Tensor

from .functional import Beta
from .state import OPTIONS

Choice = Tuple[Tensor, Tensor]  # the centroid of each token [B, H, L], and the positions of the founders [B, H, new]


def attention(
    q: Tensor, k: Tensor, v: Tensor, beta: Beta, *, window: Optional[int] = None, query_offset: int = 0
) -> Tensor:
    """o_t = softmax(beta q_t K^T) V over the keys up to t, or the last `window` of them."""
    dtype, (q, k, v) = q.dtype, wide(q, k, v)
    rows, keys, values = by_head(scaled(q, beta)), repeated(k, q), repeated(v, q)
    last = torch.arange(q.shape[1], device=q.device).unsqueeze(1) + query_offset
    at = torch.arange(k.shape[1], device=q.device)
    hidden = (at > last) if window is None else (at > last) | (at <= last - window)
    logits = (rows @ keys.transpose(2, 3)).masked_fill(hidden, -math.inf)
    return (logits.softmax(-1) @ values).transpose(1, 2).to(dtype)


def ovq_attention(
    q: Tensor, k: Tensor, v: Tensor, beta: Beta, *, weights: Optional[Tensor] = None, **options: Any
) -> Tensor:
    """o_t = softmax(beta q_t [D_k; K]^T + [log counts; 0]) [D_v; V], K and V the tokens of the chunk up to t; a
    complete chunk then joins the dictionary."""
    options = {**OPTIONS, **options}
    dtype, (q, k, v) = q.dtype, wide(q, k, v)
    group, chunk, rope = q.shape[2] // k.shape[2], options["chunk"], options["rope"]
    queries, keys, values = by_head(scaled(q, beta)), by_head(k), by_head(v)
    masses = None if weights is None else by_head(wide(weights)[0].unsqueeze(-1)).squeeze(-1)
    dictionary, outputs = Dictionary(keys, values, masses, options), []
    for first in range(0, q.shape[1], chunk):
        end = min(q.shape[1], first + chunk)
        begin = max(0, first - chunk) if rope else first  # the window: with rope the chunk before it, too
        rows, window_keys = queries[:, :, first:end], keys[:, :, begin:end]
        if rope:  # centroids stand at 0, the chunk before at 1 ... L, this one at L + 1 ... 2 L
            rows = rotated(rows, chunk + 1, options["rope_base"])
            window_keys = rotated(window_keys, chunk + 1 - (first - begin), options["rope_base"])
        rows = rows.unflatten(1, (-1, group)).flatten(2, 3)  # [B, Hkv, G t, dk]
        recent = rows @ window_keys.transpose(2, 3)
        if masses is not None:
            recent = recent + masses[:, :, None, begin:end].log()
        future = torch.ones(end - first, end - begin, dtype=torch.bool, device=q.device).triu(first - begin + 1)
        recent = recent.masked_fill(future.repeat(group, 1), -math.inf)
        distant = rows @ dictionary.keys.transpose(2, 3) + dictionary.counts.log().unsqueeze(2)
        p = torch.cat([distant, recent], -1).softmax(-1)
        size = dictionary.keys.shape[2]
        o = p[..., :size] @ dictionary.read_values() + p[..., size:] @ values[:, :, begin:end]
        outputs.append(o.unflatten(2, (group, -1)).flatten(1, 2))
        if end == first + chunk and (begin < first or not rope):
            dictionary.write(begin, begin + chunk)
    o = torch.cat(outputs, 2) if outputs else queries.new_zeros(*queries.shape[:3], v.shape[3])
    return o.transpose(1, 2).to(dtype)


class Dictionary:
    """Centroids and counts of the tokens k [B, H, T, dk] and v [B, H, T, dv] that were written so far."""

    def __init__(self, k: Tensor, v: Tensor, weights: Optional[Tensor], options: Any) -> None:
        self.k, self.v, self.weights, self.options = k, v, weights, options
        self.keys, self.values, self.counts = k[:, :, :0], v[:, :, :0], k.new_zeros(*k.shape[:2], 0)
        self.norms = v.new_zeros(*v.shape[:2], 0, 1)  # mean lengths of values, with value_norms

    def write(self, begin: int, end: int) -> None:
        """The chunk of the tokens from `begin` to `end` joins."""
        k, v = self.k[:, :, begin:end], self.v[:, :, begin:end]
        w = torch.ones_like(k[..., 0]) if self.weights is None else self.weights[:, :, begin:end]
        size = self.keys.shape[2]
        new = min(max(target_size(self.options, end) - size, 0), end - begin)
        with torch.no_grad():
            index, founders = self.choose(k, w, begin // (end - begin), new)
        new_counts = torch.cat([self.counts, w.new_zeros(*w.shape[:2], new)], 2).scatter_add(2, index, w)
        rate = self.options["rate"]
        rates = w / new_counts.gather(2, index) if rate is None else torch.full_like(w, rate)
        self.keys = joined(self.keys, k, index, founders, rates)
        self.values = joined(self.values, v, index, founders, rates)
        self.counts = new_counts
        touched = torch.zeros_like(new_counts).scatter(2, index, 1.0).unsqueeze(-1) > 0
        if self.options["normalize"]:
            self.keys = torch.where(touched, unit(self.keys), self.keys)
        if self.options["value_norms"]:
            self.norms = joined(self.norms, length(v), index, founders, rates)

    def read_values(self) -> Tensor:
        """With value_norms as long as the values of their tokens are on average."""
        return unit(self.values) * self.norms if self.options["value_norms"] else self.values

    def choose(self, k: Tensor, w: Tensor, chunk_index: int, new: int) -> Choice:
        """The `new` tokens that the dictionary knows least become centroids; the others join their nearest."""
        size, founding = self.keys.shape[2], self.keys.shape[2] == 0
        similarity = known(k @ self.keys.transpose(2, 3))
        if self.options["new_centroids"] == "random":
            ranks = random_ranks(self.options["seed"], k.shape[1], chunk_index, k.shape[2])
            founds = first_of(torch.tensor(ranks, device=k.device).expand(k.shape[0], -1, -1), new)
        elif founding:
            founds = farthest_first(k, None if self.weights is None else w, new)
        else:
            best = similarity.amax(-1)
            founds = first_of(best, new) if self.weights is None else largest_score(w, best, new)
        founders = torch.sort(founds.long(), stable=True, dim=-1, descending=True)[1][..., :new]  # by position
        if founding:
            chosen = k.gather(2, founders.unsqueeze(-1).expand(-1, -1, -1, k.shape[3]))
            similarity = known(k @ chosen.transpose(2, 3))
        number = founds.long().cumsum(-1) - 1 + size
        return torch.where(founds, number, similarity.argmax(-1)), founders


def target_size(options: Any, tokens: int) -> int:
    """Centroids after so many tokens."""
    limit, growth = options["centroids"], options["growth"]
    if growth == "plateau":
        return (2 * tokens * limit + tokens + limit) // (2 * (tokens + limit))
    if growth == "linear":
        return min(limit, tokens, max(1, tokens * limit // options["total_tokens"]))
    if growth == "all":
        return min(tokens, limit)
    root = math.sqrt(1 + 2 * tokens / limit)  # limit (1 - 1 / root) without the difference
    return min(tokens, max(1, math.floor(2 * tokens / (root * (root + 1)) + 0.5)))


def joined(rows: Tensor, x: Tensor, index: Tensor, founders: Tensor, rates: Tensor) -> Tensor:
    """D + sum of (x - D) rate over the members of each row D; founders are rows of their own."""

    def wide_index(i: Tensor) -> Tensor:
        return i.unsqueeze(-1).expand(-1, -1, -1, x.shape[3])

    grown = torch.cat([rows, x.gather(2, wide_index(founders))], 2)
    steps = (x - grown.gather(2, wide_index(index))) * rates.unsqueeze(-1)
    return grown.scatter_add(2, wide_index(index), steps)


def farthest_first(k: Tensor, w: Optional[Tensor], count: int) -> Tensor:
    """True for the founders of a dictionary: key 0 (with weights the heaviest), then again and again the one that is
    least similar to those chosen, by weight times distance with weights."""
    similarity = known(k @ k.transpose(2, 3))
    chosen = torch.zeros_like(k[..., 0], dtype=torch.bool)
    closest = torch.full_like(k[..., 0], -math.inf)
    start = torch.zeros_like(closest) if w is None else w
    next_one = start.argmax(-1, keepdim=True)
    for _ in range(count):
        chosen = chosen.scatter(-1, next_one, True)
        column = similarity.gather(-1, next_one.unsqueeze(-2).expand_as(similarity[..., :1])).squeeze(-1)
        closest = torch.maximum(closest, column)
        behind = chosen
        if w is not None:
            score = (w * (1 - closest).clamp_min(0)).masked_fill(chosen, -1)
            behind = score != score.amax(-1, True)
        next_one = closest.masked_fill(behind, math.inf).argmin(-1, keepdim=True)
        # A chosen key is never chosen again, even where the others are infinitely similar.
        next_one = torch.where(chosen.gather(-1, next_one), chosen.long().argmin(-1, keepdim=True), next_one)
    return chosen


def first_of(rank: Tensor, count: int) -> Tensor:
    """True for the `count` smallest, earlier ones on a tie."""
    order = torch.sort(rank, stable=True, dim=-1)[1][..., :count]
    return torch.zeros_like(rank, dtype=torch.bool).scatter(-1, order, True)


def largest_score(w: Tensor, similarity: Tensor, count: int) -> Tensor:
    """True for the `count` largest w (1 - similarity), on a tie the less similar, then the earlier one."""
    by_similarity = torch.sort(similarity, stable=True, dim=-1)[1]
    score = (w * (1 - similarity).clamp_min(0)).gather(-1, by_similarity)
    by_score = torch.sort(score, stable=True, dim=-1, descending=True)[1][..., :count]
    return torch.zeros_like(w, dtype=torch.bool).scatter(-1, by_similarity.gather(-1, by_score), True)


def random_ranks(seed: int, heads: int, chunk_index: int, count: int) -> List[List[int]]:
    """[heads][count]: of each token of a chunk, a function of where it is."""
    word = 2**64

    def rank(*numbers: int) -> int:
        x = seed
        for number in numbers:
            x = (x + 0x9E3779B97F4A7C15 + number) % word
            x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % word
            x = (x ^ (x >> 27)) * 0x94D049BB133111EB % word
            x ^= x >> 31
        return x - word // 2  # as a signed number, in the same order

    return [[rank(head, chunk_index, position) for position in range(count)] for head in range(heads)]


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Optional[Tensor] = None, chunk: int = 64
) -> Tuple[Tensor, Tensor]:
    """The gated delta rule: o and the last S.

        S' = e^g S;  S = S' + k beta (v - S'^T k)^T;  o = dk^(-1/2) S^T q

    By chunks, with G the sums of g in the chunk, L_ij = e^(G_i - G_j) for i >= j, and A = beta (K K^T . L) below the
    diagonal:

        V' = (I + A)^(-1) (beta V - beta e^G K S)
        O = dk^(-1/2) (e^G Q S + (Q K^T . L) V')
        S <- e^(G_C) S + K^T (e^(G_C - G) V')
    """
    dtype, (q, k, v, g, beta) = q.dtype, wide(q, k, v, g, beta)
    s = zeros_state(q, v.shape[3]) if state is None else state
    outputs = []
    for q, k, v, g, beta in chunks(q * q.shape[3] ** -0.5, k, v, g, beta, size=chunk):
        decay, pairs = decays(g)
        from_start = decay.exp().unsqueeze(-1)
        a = (beta.unsqueeze(-1) * (k @ k.transpose(2, 3)) * pairs).tril(-1)
        right = beta.unsqueeze(-1) * (v - from_start * (k @ s))
        u = torch.linalg.solve_triangular(a, right, upper=False, unitriangular=True)
        outputs.append(from_start * (q @ s) + ((q @ k.transpose(2, 3)) * pairs) @ u)
        s = s_after(s, k, u, decay)
    return together(outputs, v, dtype), s


def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Optional[Tensor] = None,
    *,
    scale: Optional[float] = None,
    state: Optional[Tensor] = None,
    chunk: int = 64,
) -> Tuple[Tensor, Tensor]:
    """Linear attention: o and the last S.

        S = e^g S + k v^T;  o = scale S^T q

    By chunks, with G and L as in gated_delta_rule:

        O = scale (e^G Q S + (Q K^T . L) V);  S <- e^(G_C) S + K^T (e^(G_C - G) V)
    """
    dtype, (q, k, v) = q.dtype, wide(q, k, v)
    g = torch.zeros_like(q[..., 0]) if g is None else wide(g)[0]
    s = zeros_state(q, v.shape[3]) if state is None else state
    outputs = []
    for q, k, v, g in chunks(q * (q.shape[3] ** -0.5 if scale is None else scale), k, v, g, size=chunk):
        decay, pairs = decays(g)
        outputs.append(decay.exp().unsqueeze(-1) * (q @ s) + ((q @ k.transpose(2, 3)) * pairs) @ v)
        s = s_after(s, k, v, decay)
    return together(outputs, v, dtype), s


def ssd(
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Optional[Tensor] = None,
    state: Optional[Tensor] = None,
    chunk: int = 64,
) -> Tuple[Tensor, Tensor]:
    """The recurrence of Mamba-2: o and the last S.

        S = e^(dt a) S + dt b x^T;  o = S^T c + d x

    This is linear attention with q = c, k = b, v = dt x and g = dt a.
    """
    group = x.shape[2] // b.shape[2]
    b, c = (y.repeat_interleave(group, 2) for y in (b, c))
    o, s = linear_attention(c, b, wide(dt)[0].unsqueeze(-1) * wide(x)[0], dt * a, scale=1.0, state=state, chunk=chunk)
    o = o if d is None else o + d.unsqueeze(-1) * x
    return o.to(x.dtype), s


def mesa(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    lambda_: Tensor,
    state: Optional[Tensor] = None,
    chunk: int = 64,
) -> Tuple[Tensor, Tensor]:
    """The recurrence of MesaNet: o and the last [H | G].

        H = e^g H + beta k k^T;  G = e^g G + beta k v^T;  o = G^T (H + diag(lambda_))^(-1) q

    By chunks, with exact solves: H of each token is that before the chunk, decayed, and the keys since.
    """
    dtype, (q, k, v, g, beta, lambda_) = q.dtype, wide(q, k, v, g, beta, lambda_)
    dim = q.shape[3]
    s = zeros_state(q, dim + v.shape[3]) if state is None else state
    outputs = []
    for q, k, v, g, beta in chunks(q, k, v, g, beta, size=chunk):
        decay, pairs = decays(g)
        from_start, written = decay.exp()[..., None, None], pairs * beta.unsqueeze(-2)
        h = from_start * s[:, :, None, :, :dim] + torch.einsum("bhij,bhjd,bhje->bhide", written, k, k)
        solved = torch.linalg.solve(h + torch.diag_embed(lambda_)[:, None], q.unsqueeze(-1)).squeeze(-1)
        read = from_start[..., 0] * (solved @ s[..., dim:])
        outputs.append(read + ((solved @ k.transpose(2, 3)) * written) @ v)
        s = s_after(s, beta.unsqueeze(-1) * k, torch.cat([k, v], -1), decay)
    return together(outputs, v, dtype), s


def short_convolution(
    x: Tensor, weight: Tensor, bias: Optional[Tensor] = None, before: Optional[Tensor] = None
) -> Tensor:
    """y_t = bias + sum_j weight[:, j] x_(t - width + 1 + j), with `before` or zeros before the first token."""
    width, time = weight.shape[1], x.shape[1]
    before = x.new_zeros(x.shape[0], width - 1, x.shape[2]) if before is None else before
    everything = torch.cat([before, x], 1)
    y = sum(weight[:, j] * everything[:, j : j + time] for j in range(width))
    return y if bias is None else y + bias


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6, groups: int = 1) -> Tensor:
    """x / rms(x) * weight over the last dimension, rms(x)^2 = mean(x^2) + eps, for each of `groups` parts by itself."""
    parts = x.unflatten(-1, (groups, -1))
    return (parts * (parts.square().mean(-1, True) + eps).rsqrt()).flatten(-2) * weight


def l2_norm(x: Tensor, eps: float = 1e-6) -> Tensor:
    """x (sum(x^2) + eps)^(-1/2) over the last dimension."""
    return x * (x.square().sum(-1, True) + eps).rsqrt()


def rotary(x: Tensor, base: float = 10000.0, first_position: int = 0) -> Tensor:
    """The pair (i, i + D/2) of a row at position p turns by the angle p base^(-2 i / D); x [B, T, H, D]."""
    return rotated(x.transpose(1, 2), first_position, base).transpose(1, 2)


def rotated(x: Tensor, first_position: int, base: float) -> Tensor:
    """The same of x [..., T, D]."""
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    positions = first_position + torch.arange(x.shape[-2], dtype=torch.float64, device=x.device)
    angles = positions.unsqueeze(-1) * frequencies
    cos, sin, (a, b) = angles.cos().to(x.dtype), angles.sin().to(x.dtype), x.split(half, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def wide(*tensors: Tensor) -> Tuple[Tensor, ...]:
    """In float32 at least."""
    return tuple(x.float() if x.dtype in (torch.half, torch.bfloat16) else x for x in tensors)


def by_head(x: Tensor) -> Tensor:
    """[B, T, H, D] -> [B, H, T, D]"""
    return x.transpose(1, 2)


def repeated(x: Tensor, q: Tensor) -> Tensor:
    """By head, with each kv head as often as there are queries of it."""
    return by_head(x).repeat_interleave(q.shape[2] // x.shape[2], 1)


def scaled(q: Tensor, beta: Beta) -> Tensor:
    return q * (beta.to(q.dtype).unsqueeze(-1) if isinstance(beta, Tensor) else beta)


def chunks(*tensors: Tensor, size: int) -> Any:
    """Of each tensor [B, T, H, ...] by head, one chunk after the other."""
    return zip(*(by_head(x).split(size, 2) for x in tensors)) if tensors[0].shape[1] > 0 else []


def decays(g: Tensor) -> Tuple[Tensor, Tensor]:
    """The sums G [B, H, C], and L_ij = e^(G_i - G_j) for i >= j, zero above the diagonal."""
    sums = g.cumsum(-1)
    future = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device).triu(1)
    return sums, (sums.unsqueeze(-1) - sums.unsqueeze(-2)).masked_fill(future, -math.inf).exp()


def s_after(s: Tensor, k: Tensor, v: Tensor, decay: Tensor) -> Tensor:
    """e^(G_C) S + K^T (e^(G_C - G) V)"""
    last = decay[..., -1:]
    return last.exp().unsqueeze(-1) * s + k.transpose(2, 3) @ ((last - decay).exp().unsqueeze(-1) * v)


def zeros_state(q: Tensor, columns: int) -> Tensor:
    return q.new_zeros(q.shape[0], q.shape[2], q.shape[3], columns)


def together(outputs: List[Tensor], v: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, T, H, D] of the outputs of chunks."""
    return (torch.cat(outputs, 2).transpose(1, 2) if outputs else torch.zeros_like(v)).to(dtype)


def known(similarity: Tensor) -> Tensor:
    """NaN compares as -infinity."""
    return similarity.nan_to_num(-math.inf, math.inf, -math.inf)


def length(x: Tensor) -> Tensor:
    """Of rows; a row of zeros has no gradient."""
    none = (x == 0).all(-1, True)
    return torch.where(none, torch.ones_like(x), x).norm(2, -1, True).masked_fill(none, 0.0)


def unit(x: Tensor) -> Tensor:
    """Rows of norm one; a row of zeros stays."""
    norms = length(x)
    return x / torch.where(norms > 0, norms, torch.ones_like(norms))
