"""Functions of torch that not every version of it computes with halves on the CPU: those go through float32."""

from typing import Callable

import torch
from torch import Tensor
from torch.nn import functional


def through_float(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    if x.dtype == torch.half and x.device.type == "cpu":
        return function(x.float()).half()
    return function(x)


def silu(x: Tensor) -> Tensor:
    return through_float(functional.silu, x)


def sigmoid(x: Tensor) -> Tensor:
    return through_float(torch.sigmoid, x)


def log_sigmoid(x: Tensor) -> Tensor:
    return through_float(functional.logsigmoid, x)


def softplus(x: Tensor) -> Tensor:
    return through_float(functional.softplus, x)


def exp(x: Tensor) -> Tensor:
    return through_float(torch.exp, x)
