"""The dictionary of OVQ-attention: how it is read, how a chunk of tokens joins it, which of them become centroids."""

import math
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor

from .rotary import rotated

TENSORS = ("keys", "values", "counts", "pending_keys", "pending_values", "pending_weights", "shrinkage")


class Dictionary:
    """What a state of the formula is made of: centroids, and the tokens since; by head, [B, Hkv, ...]."""

    def __init__(self, options: Dict[str, Any], position: int, *tensors: Optional[Tensor]) -> None:
        self.options, self.position = options, position
        self.keys, self.values, self.counts, self.pending_keys, self.pending_values = tensors[:5]
        self.pending_weights, self.shrinkage = tensors[5:]

    @staticmethod
    def empty(batch: int, k: Tensor, v: Tensor, w: Optional[Tensor], options: Dict[str, Any]) -> "Dictionary":
        def none(x: Tensor, *dims: int, **dtype: Any) -> Tensor:
            return x.new_zeros(batch, x.shape[2], 0, *dims, **dtype)

        keys, values = none(k, k.shape[3]), none(v, v.shape[3])
        counts = none(k, dtype=torch.long) if w is None else none(w)
        shrinkage = none(v) if options["value_norms"] else None
        return Dictionary(options, 0, keys, values, counts, keys, values, None if w is None else counts, shrinkage)

    def map(self, change: Any) -> "Dictionary":
        tensors = (getattr(self, name) for name in TENSORS)
        return Dictionary(self.options, self.position, *(x if x is None else change(x) for x in tensors))

    def clone(self) -> "Dictionary":
        return self.map(lambda x: x.detach().clone())

    def detach(self) -> "Dictionary":
        return self.map(lambda x: x.detach())

    @property
    def weighted(self) -> bool:
        return self.pending_weights is not None

    @property
    def nbytes(self) -> int:
        tensors = [getattr(self, name) for name in TENSORS]
        return sum(x.numel() * x.element_size() for x in tensors if x is not None)

    def append(self, k: Tensor, v: Tensor, w: Optional[Tensor]) -> None:
        self.pending_keys = torch.cat([self.pending_keys, k], 2)
        self.pending_values = torch.cat([self.pending_values, v], 2)
        self.pending_weights = None if w is None else torch.cat([self.pending_weights, w], 2)
        self.position += k.shape[2]

    def read(self, queries: Tensor) -> Tensor:
        """o [B, Hq, t, dv] of the queries [B, Hq, t, dk] (times beta) of the last t tokens that wait."""
        window_keys, chunk, base = self.pending_keys, self.options["chunk"], self.options["rope_base"]
        count, window, heads = queries.shape[2], window_keys.shape[2], window_keys.shape[1]
        if self.options["rope"]:  # centroids stand at 0, the chunk before at 1 ... L, this one at L + 1 ... 2 L
            end = chunk + 1 + (self.position - 1) % chunk + 1
            queries, window_keys = rotated(queries, end - count, base), rotated(window_keys, end - window, base)
        group = queries.shape[1] // heads
        rows = queries.unflatten(1, (heads, group)).flatten(2, 3)  # [B, Hkv, G t, dk]
        recent = rows @ window_keys.transpose(2, 3)
        if self.weighted:
            recent = recent + self.pending_weights.log().unsqueeze(2)
        future = torch.ones(count, window, dtype=torch.bool, device=rows.device).triu(window - count + 1)
        recent = recent.masked_fill(future.repeat(group, 1), -math.inf)
        distant = rows @ self.keys.transpose(2, 3) + self.counts.to(rows.dtype).log().unsqueeze(2)
        p, size = torch.cat([distant, recent], -1).softmax(-1), self.keys.shape[2]
        o = p[..., :size] @ self.values + p[..., size:] @ self.pending_values
        return o.unflatten(2, (group, count)).flatten(1, 2)

    def write(self, written: int, assignments: Optional[Tensor]) -> None:
        """The oldest chunk of the tokens that wait joins; the dictionary has `written` tokens then."""
        chunk, size = self.options["chunk"], self.keys.shape[2]
        k, v = self.pending_keys[:, :, :chunk], self.pending_values[:, :, :chunk]
        w = self.pending_weights[:, :, :chunk] if self.weighted else torch.ones_like(k[..., 0], dtype=torch.long)
        new = min(max(target_size(self.options, written) - size, 0), chunk)
        with torch.no_grad():
            if assignments is None:
                index, founds = self.choose(k, w, written // chunk - 1, new)
            else:
                index, founds = torch.where(assignments < 0, ~assignments, assignments), assignments < 0
            founders = positions_of(founds, new)
        counts = torch.cat([self.counts, w.new_zeros(*w.shape[:2], new)], 2).scatter_add(2, index, w)
        rate = self.options["rate"]
        rates = torch.full_like(k[..., 0], rate) if rate else w.to(k.dtype) / counts.gather(2, index).to(k.dtype)
        touched = torch.zeros_like(counts, dtype=torch.bool).scatter(2, index, True).unsqueeze(-1)
        self.keys, self.counts = joined(self.keys, k, index, founders, rates), counts
        if self.options["normalize"]:
            self.keys = torch.where(touched, unit(self.keys), self.keys)
        if self.options["value_norms"]:
            self.join_values(v, index, founders, rates, touched)
        else:
            self.values = joined(self.values, v, index, founders, rates)
        self.pending_keys, self.pending_values = self.pending_keys[:, :, chunk:], self.pending_values[:, :, chunk:]
        self.pending_weights = self.pending_weights[:, :, chunk:] if self.weighted else None

    def join_values(self, v: Tensor, index: Tensor, founders: Tensor, rates: Tensor, touched: Tensor) -> None:
        """With value_norms: the mean of the tokens' values, `shrinkage` times a row, as long as they are on average."""
        means = joined(self.values * self.shrinkage.unsqueeze(-1), v, index, founders, rates)
        norms, own = joined(length(self.values), length(v), index, founders, rates), length(means)
        none = (own == 0) | (norms == 0)
        factor = norms.masked_fill(none, 1.0) / own.masked_fill(none, 1.0)
        new = founders.shape
        values = torch.cat([self.values, v.new_zeros(*new, v.shape[3])], 2)
        shrinkage = torch.cat([self.shrinkage, v.new_zeros(new)], 2).unsqueeze(-1)
        self.values = torch.where(touched, means * factor, values)
        self.shrinkage = torch.where(touched, 1 / factor, shrinkage).squeeze(-1)

    def choose(self, k: Tensor, w: Tensor, chunk_index: int, new: int) -> Tuple[Tensor, Tensor]:
        """The centroid of each token [B, H, L], and which tokens found one."""
        size, founding = self.keys.shape[2], self.keys.shape[2] == 0
        similarity = known(k @ self.keys.transpose(2, 3))
        if self.options["new_centroids"] == "random":
            ranks = torch.tensor(random_ranks(self.options["seed"], k.shape[1], chunk_index, k.shape[2]))
            founds = first_of(ranks.to(k.device).expand(k.shape[0], -1, -1), new)
        elif founding:
            founds = farthest_first(k, w if self.weighted else None, new)
        else:
            best = similarity.amax(-1)
            founds = largest_score(w, best, new) if self.weighted else first_of(best, new)
        if founding:
            chosen = k.gather(2, positions_of(founds, new).unsqueeze(-1).expand(-1, -1, -1, k.shape[3]))
            similarity = known(k @ chosen.transpose(2, 3))
        number = founds.long().cumsum(-1) - 1 + size
        return torch.where(founds, number, similarity.argmax(-1)), founds


def target_size(options: Dict[str, Any], tokens: int) -> int:
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


def positions_of(founds: Tensor, count: int) -> Tensor:
    """Where the `count` founders are, in order."""
    return torch.sort(founds.long(), stable=True, dim=-1, descending=True)[1][..., :count]


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
