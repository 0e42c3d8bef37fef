"""Matrices of layers: a linear layer and a token embedding, with errors that name them."""

import re

import torch
from torch import Tensor, nn
from torch.nn import functional

ABOUT_DTYPES = re.compile("dtype|scalar type|not implemented for")  # in errors of torch


class Projection(nn.Linear):
    """x [..., in] -> [..., out]. Weights start N(0, 0.02^2), a bias at zeros; there is none unless it is asked for."""

    def __init__(self, in_features: int, out_features: int, bias: bool = False) -> None:
        super().__init__(in_features, out_features, bias)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, 0.0, 0.02)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self.weight, self.bias
        check_device("projection", "x", x, weight)
        if x.dtype == weight.dtype == torch.half and x.device.type == "cpu":  # not every version of torch multiplies them
            return functional.linear(x.float(), weight.float(), None if bias is None else bias.float()).half()
        try:
            return functional.linear(x, weight, bias)
        except RuntimeError as error:
            # Under autocast dtypes may differ, and the error be about something else.
            if x.dtype == weight.dtype or not ABOUT_DTYPES.search(str(error)):
                raise
            raise TypeError(f"[projection] x has dtype {x.dtype}; must be the weight's {weight.dtype}") from None


class TokenEmbedding(nn.Embedding):
    """A torch.nn.Embedding: tokens [...], int64 or int32 -> [..., width]."""

    def forward(self, tokens: Tensor) -> Tensor:
        check_device("model", "tokens", tokens, self.weight)
        try:
            return functional.embedding(tokens, self.weight)
        except IndexError:
            outside = tokens[(tokens < 0) | (tokens >= self.num_embeddings)]
            raise ValueError(
                f"[model] tokens has {outside[0].item()}; the vocabulary has {self.num_embeddings}"
            ) from None


def check_device(op: str, name: str, x: Tensor, weight: Tensor) -> None:
    if x.device != weight.device:
        raise TypeError(f"[{op}] {name} is on {x.device}; must be on the weight's {weight.device}")
