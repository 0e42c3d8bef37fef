"""The two paths of an op, and the one decision between them.

    kernel   compiled C++: float32, bfloat16 and half on the CPU; differentiable once
    formula  ovq.reference, a few lines of torch: any device and floating dtype, any derivative
"""

import os
from typing import Any, Optional

import torch
import torch.autograd.forward_ad as forward_ad
from torch import Tensor

COMPILES = hasattr(torch, "compiler")  # torch 2
KERNEL_DTYPES = (torch.float32, torch.bfloat16, torch.half)


def path_of(op: str, wish: Optional[str], **tensors: Any) -> str:
    """"kernel" or "formula" for a call of `op`, whose first tensor says where and in what dtype.

    `wish` is the caller's `path`. Without one OVQ_PATH in the environment counts, and without that the kernel runs
    where there is one with the derivatives that are asked for.
    """
    name, first = list(tensors.items())[0]
    if not isinstance(first, Tensor):
        raise TypeError(f"[{op}] {name} is a {type(first).__name__}; must be a tensor")
    if not first.is_floating_point():
        raise TypeError(f"[{op}] {name} has dtype {first.dtype}; must be a floating one")
    source = "path"
    if wish is None:
        wish, source = path_from_environment(), "OVQ_PATH"
    if wish not in (None, "kernel", "formula"):
        raise ValueError(f"[{op}] {source} is {wish!r}; must be 'kernel' or 'formula'")
    has_kernel = first.device.type == "cpu" and first.dtype in KERNEL_DTYPES
    if wish == "kernel" and not has_kernel:
        given = f"{name} is {first.dtype} on {first.device}"
        known = "there are kernels for float32, bfloat16 and half on the CPU"
        raise ValueError(f"[{op}] {source} is 'kernel'; {given}, and {known}")
    if wish is None:
        return "kernel" if has_kernel and not has_tangents(*tensors.values()) else "formula"
    return wish


def path_from_environment() -> Optional[str]:
    return os.environ.get("OVQ_PATH") or None


# As torch.compiler.assume_constant_result does, which would load the compiler: what is traced keeps its path.
path_from_environment._dynamo_marked_constant = True  # type: ignore[attr-defined]


def has_tangents(*tensors: Any) -> bool:
    """Whether one of them carries what kernels do not see: a tangent of forward mode, or a level of torch.func."""
    if compiling() or (forward_ad._current_level < 0 and not torch._C._are_functorch_transforms_active()):
        return False
    given = [x for x in tensors if isinstance(x, Tensor)]
    if torch._C._are_functorch_transforms_active():
        return any(torch._C._functorch.is_gradtrackingtensor(x) for x in given)
    return any(forward_ad.unpack_dual(x).tangent is not None for x in given)


def compiling() -> bool:
    return COMPILES and torch.compiler.is_compiling()


def without_autocast(x: Tensor) -> Any:
    """Inside of it torch computes with the dtypes that tensors like x have."""
    return torch.autocast("cpu" if x.device.type == "meta" else x.device.type, enabled=False)
