"""What formulas have in common: checks of their arguments, and dtypes."""

from typing import Any, Callable, Dict, Tuple, Union

import torch
from torch import Tensor

from ..paths import compiling

LARGEST_BETA, LARGEST_WEIGHT = 1e35, 1e30
Beta = Union[float, Tensor]
Shaped = Dict[str, Tuple[Any, str]]  # by name a tensor and its shape, "B T H K"; "?B T H": may be None


def check(op: str, inputs: Shaped, others: Shaped = {}, known: Dict[str, int] = {}) -> Dict[str, int]:
    """The sizes that names stand for: `known` ones, others as the first tensor has them. An error names what differs.

    A dimension is a name or a sum, "K+V", "W-1"; a shape of "..." is any. `inputs` are all doubles or none of them is.
    """
    sizes = dict(known)
    first_name, (first, _) = list(inputs.items())[0]
    for name, (x, shape) in {**inputs, **others}.items():
        if x is None and shape.startswith("?"):
            continue
        if not isinstance(x, Tensor):
            raise TypeError(f"[{op}] {name} is a {type(x).__name__}; must be a tensor")
        if not x.is_floating_point():
            raise TypeError(f"[{op}] {name} has dtype {x.dtype}; must be a floating one")
        # Autocast leaves a mix of float32 and 16 bits behind.
        if name in inputs and x.dtype != first.dtype and torch.float64 in (x.dtype, first.dtype):
            raise TypeError(f"[{op}] {name} has dtype {x.dtype}; must equal {first_name}'s {first.dtype}")
        if x.device != first.device:
            raise ValueError(f"[{op}] {name} is on {x.device}; must be on {first_name}'s {first.device}")
        if shape == "...":
            continue
        dims = shape.strip("?").split()
        for dim, size in zip(dims, x.shape) if len(dims) == x.dim() else ():
            if dim.isalpha() and dim not in sizes:
                sizes[dim] = size
        expected = [size_of(dim, sizes) for dim in dims]
        if x.dim() != len(dims) or any(size != e for size, e in zip(x.shape, expected)):
            raise ValueError(f"[{op}] {name} has shape {list(x.shape)}; must be [{', '.join(map(str, expected))}]")
    return sizes


def size_of(dim: str, sizes: Dict[str, int]) -> Any:
    parts = dim.replace("-", "+-").split("+")
    known = all(part in sizes or not part.isalpha() for part in parts)
    return sum(sizes[part] if part in sizes else int(part) for part in parts) if known else dim


def check_values(op: str, name: str, x: Tensor, good: Callable[[Tensor], Tensor], expected: str) -> None:
    """ValueError names the first element that is not good. Only on the CPU: elsewhere a look at values would wait."""
    if x.device.type != "cpu" or compiling() or torch._C._are_functorch_transforms_active():
        return
    with torch.no_grad():
        bad = torch.nonzero(~good(x))
        if bad.shape[0] > 0:
            where = bad[0].tolist()
            raise ValueError(f"[{op}] {name}{where} is {x[tuple(where)].item():g}; must be {expected}")


def check_attention(op: str, q: Any, k: Any, v: Any) -> Dict[str, int]:
    """B, T, Hq, K, and of the keys Tk, Hkv, of the values V."""
    sizes = check(op, {"q": (q, "B T Hq K"), "k": (k, "B Tk Hkv K"), "v": (v, "B Tk Hkv V")})
    if sizes["Hkv"] == 0 or sizes["Hq"] % sizes["Hkv"] != 0:
        raise ValueError(f"[{op}] k has {sizes['Hkv']} heads; must divide q's {sizes['Hq']}")
    return sizes


def factors(op: str, beta: Beta, q: Tensor) -> Tensor:
    """beta [Hq] in q's dtype, of a number or a tensor with one element or one for each head of q [B, T, Hq, K]."""
    expected = "finite, and within -1e+35 and 1e+35"
    if isinstance(beta, (int, float)):
        if not abs(beta) <= LARGEST_BETA:
            raise ValueError(f"[{op}] beta[0] is {beta:g}; must be {expected}")
        return q.new_full((q.shape[2],), beta)
    if isinstance(beta, Tensor) and beta.numel() == 1 and beta.dim() <= 1:
        beta = beta.to(q.device).reshape(1).expand(q.shape[2])
    check(op, {"q": (q, "B T Hq K")}, {"beta": (beta, "Hq")})
    check_values(op, "beta", beta, lambda x: x.abs() <= LARGEST_BETA, expected)
    return beta.to(q.dtype)


def wide(first: Tensor, *others: Any) -> Tuple[Any, ...]:
    """All in the dtype of the first, float32 at least."""
    dtype = torch.promote_types(first.dtype, torch.float32)
    return tuple(x if x is None else x.to(dtype) for x in (first, *others))


def by_head(x: Tensor) -> Tensor:
    """[B, T, H, ...] -> [B, H, T, ...]"""
    return x.transpose(1, 2)
