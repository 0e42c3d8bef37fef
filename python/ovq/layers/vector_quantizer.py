"""A learned codebook of unit-norm codewords per head, and the ways to train it.

    ema              a straight-through gradient; codewords follow moving averages of the keys they stand for, and a
                     commitment loss pulls the keys (Lingle 2023)
    diveq, sf-diveq  codewords learn by gradients; see vector_quantize

No-use bonus: a codeword unused for m training steps gets no_use * m added to its similarity in the search.

A training step may have several forwards (lengths, parts of a batch, ranks). Codewords and counters stand still in it:
its forwards are only noted, and `end_step` moves them on by all that was noted, on every rank alike if the statistics
were added up before.
"""

from typing import Any, Dict, List, Optional, Tuple, Union

import torch
from torch import Tensor, nn

from ..ops import l2_norm, vector_quantize
from ..ops.vector_quantize import nearest_codeword
from ..paths import without_autocast
from ..reference.vector_quantize import by_head, gather_rows

GRADIENTS = {"ema": "straight_through", "diveq": "diveq", "sf-diveq": "sf_diveq"}


class VectorQuantizer(nn.Module):
    """A learned codebook of unit-norm codewords per head."""

    def __init__(
        self,
        heads: int,
        codewords: int,
        dim: int,
        training: str = "sf-diveq",
        no_use: float = 0.0025,
        noise: float = 1e-3,
        ema_decay: float = 0.99,
        commitment: float = 1e-4,
    ) -> None:
        super().__init__()
        self.method = training
        self.no_use = no_use
        self.noise = noise
        self.ema_decay = ema_decay
        self.commitment = commitment
        codebook = l2_norm(torch.randn(heads, codewords, dim))
        self.codebook = nn.Parameter(codebook, requires_grad=training != "ema")  # [H, K, D]
        self.register_buffer("unused", torch.zeros(heads, codewords, dtype=torch.long))  # training steps since last used
        if training == "ema":
            self.register_buffer("ema_counts", torch.ones(heads, codewords))
            self.register_buffer("ema_sums", codebook.detach().clone())
        self.commitment_loss: Optional[Tensor] = None
        """Of the last training forward with ema: the sum over heads, averaged over tokens."""
        self.similarity = 0.0
        """Mean cosine of keys and codewords in the last training forward."""
        self.drop_step()

    def forward(
        self, z: Tensor, seed: Optional[int] = None, noted: bool = True
    ) -> Union[Tensor, Tuple[Tensor, Tensor]]:
        """Training, with a seed: z [B, T, H, D] -> z_q [B, T, H, D]. All noise comes from `seed`.

        Without one: the index [B, T, H] of the nearest codeword, and the codewords [H, K, D], of norm one.
        """
        return self._nearest(z) if seed is None else self._quantized(z, seed, noted)

    def codewords(self) -> Tensor:
        """[H, K, D], of norm one."""
        return l2_norm(self.codebook, eps=1e-12)

    def _nearest(self, z: Tensor) -> Tuple[Tensor, Tensor]:
        words = self.codewords()
        with without_autocast(z):
            index = nearest_codeword(by_head(z.detach().to(words.dtype)), words.detach())
        return index.unflatten(1, z.shape[:2]).permute(1, 2, 0), words

    def _quantized(self, z: Tensor, seed: int, noted: bool) -> Tensor:
        # In the codebook's precision, also under autocast: which codeword is nearest is no matter for eight bits.
        with without_autocast(z):
            keys, words = z.to(self.codebook.dtype), self.codewords()
            quantized, index = vector_quantize(
                keys,
                words,
                gradient=GRADIENTS[self.method],
                bonus=self.unused.to(keys.dtype) * self.no_use,
                noise=self.noise,
                seed=seed,
            )
            keys, index = by_head(keys), index.permute(2, 0, 1).flatten(1)
            if self.method == "ema":
                distance = keys - gather_rows(words, index).detach()
                tokens = max(1, keys.shape[1])  # without any the loss is 0
                self.commitment_loss = self.commitment * distance.square().sum(-1).sum(0).sum() / tokens
                if noted:
                    self._check_codebook()
            if noted and not z.is_meta:
                self._note(keys.detach(), words.detach(), index)
        return quantized.to(z.dtype)

    def collect(self, z: Tensor) -> None:
        """Keys z [B, T, H, D] for the codebook to start from."""
        self._check_codebook()
        rows = by_head(z.detach().to(self.codebook.dtype))
        if rows.shape[1] > 0:
            self._collected.append(block_means(rows, min(self.codebook.shape[1], rows.shape[1])))

    def statistics(self) -> List[Tensor]:
        """What was noted since the last step's end. Ranks add these up, each tensor in place, before end_step; they
        have the same shapes on all of them."""
        if self._used is None:
            self._used = torch.zeros_like(self.codebook[..., 0])
        if self.method != "ema":
            return [self._used]
        if self._sums is None:
            self._sums = torch.zeros_like(self.codebook)
        return [self._used, self._sums]

    @torch.no_grad()
    def start_statistics(self, rank: int, ranks: int) -> Tensor:
        """The same for the collected keys: the r-th of `ranks` parts of the codewords they become, zeros for the others.

        Codewords are shared out among the forwards, and those of a forward among the ranks: the order in which one rank
        would see the rows of all, if all have as many forwards and one part of the batch.
        """
        self._start = torch.zeros_like(self.codebook)
        count, forwards = self.codebook.shape[1], len(self._collected)
        for i, means in enumerate(self._collected):
            first = i * count // forwards
            share = (i + 1) * count // forwards - first
            begin, end = first + rank * share // ranks, first + (rank + 1) * share // ranks
            if end > begin:
                self._start[:, begin:end] = block_means(means, end - begin)
        return self._start

    @torch.no_grad()
    def end_step(self) -> bool:
        """Counters and, with ema, codewords move on. If keys were collected, the codewords become means of consecutive
        blocks of them, forward after forward, and the result is true."""
        if self.codebook.is_meta:
            self.drop_step()
        if self._start is None and self._collected:
            self.start_statistics(0, 1)
        # A codeword that no key fell to keeps its random start.
        found = None if self._start is None else self._start.norm(2, -1, True) > 0
        starts = found is not None and bool(found.any())
        if starts:
            self._begin(found)
        elif self._used is not None and bool((self._used > 0).any()):
            self._follow()
        self.drop_step()
        return starts

    def drop_step(self) -> None:
        """Forgets what was noted."""
        self._used: Optional[Tensor] = None  # [H, K]: how often
        self._sums: Optional[Tensor] = None  # [H, K, D] with ema
        self._collected: List[Tensor] = []  # a forward's block means each, [H, blocks, D]
        self._start: Optional[Tensor] = None  # [H, K, D]: what they become, on this rank or added up

    def _begin(self, found: Tensor) -> None:
        self.codebook.copy_(l2_norm(torch.where(found, self._start, self.codebook), eps=1e-12))
        self.unused.zero_()
        if self.method == "ema":
            self.ema_counts.fill_(1)
            self.ema_sums.copy_(self.codebook)

    def _follow(self) -> None:
        self.unused.copy_((self.unused + 1) * (self._used == 0))
        if self.method != "ema":
            return
        keep = self.ema_decay
        self.ema_counts.mul_(keep).add_(self._used, alpha=1 - keep)
        self.ema_sums.mul_(keep).add_(self._sums, alpha=1 - keep)
        # Averages of nothing say nothing: a codeword that has not been used for long stays where it was.
        means = self.ema_sums / self.ema_counts.clamp_min(1e-5).unsqueeze(-1)
        self.codebook.copy_(torch.where(self.ema_counts.unsqueeze(-1) > 1e-5, means, self.codebook))

    def _check_codebook(self) -> None:
        """An error now, not at the step's end."""
        if not self.codebook.is_leaf:
            raise TypeError(
                "[vq] quantizer.codebook is computed from other parameters, and training writes into it; "
                "remove its parametrization first"
            )

    @torch.no_grad()
    def _note(self, z: Tensor, words: Tensor, index: Tensor) -> None:
        """z [H, M, D] and what it became."""
        segments = self.method == "sf-diveq"
        used, *sums = self.statistics()
        both = torch.cat([index, index + 1], 1) if segments else index
        used.scatter_add_(1, both, torch.ones_like(both, dtype=used.dtype))
        nearest = nearest_codeword(z, words) if segments else index
        self.similarity = (z * gather_rows(words, nearest)).sum(-1).mean().item()
        if sums:
            sums[0].scatter_add_(1, index.unsqueeze(-1).expand_as(z), z)

    def __getstate__(self) -> Dict[str, Any]:
        """Copies have no loss: it belongs to a graph, which torch does not copy."""
        return {**self.__dict__, "commitment_loss": None}


def block_means(z: Tensor, count: int) -> Tensor:
    """Means of `count` consecutive blocks of z [H, M, D] -> [H, count, D]. With fewer rows than blocks, rows stand in
    several."""
    rows = z.shape[1]
    borders = [(i * rows // count, (i + 1) * rows // count) for i in range(count)]
    return torch.stack([z[:, begin : max(begin + 1, end)].mean(1) for begin, end in borders], 1)
