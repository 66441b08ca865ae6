"""Calls that torch refuses when its kernels run, and that neither its meta kernels nor ours would: they run through torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .mutation import CannotNormalise
from .refused_scalars import CONVERTED, INTEGERS, check_scalars


def _is_bool(x: Any) -> bool:
    return type(x) is bool or isinstance(x, torch.Tensor) and x.dtype is torch.bool


def _below_zero(name: str) -> Callable[[dict], bool]:
    """A number below 0, or none that a float32 holds. Of a symbolic one that it is neither is a condition."""
    return lambda given: not 0 <= given.get(name, 0) <= torch.finfo(torch.float32).max


def _subtracts_bool(given: dict) -> bool:
    return _is_bool(given.get("self")) or _is_bool(given.get("other"))


def _dim_outside(given: dict) -> bool:
    dims = max(given["self"].dim(), 1)
    return not -dims <= given["dim"] < dims


def _dims_repeated(given: dict) -> bool:
    dims, span = given.get("dim"), max(given["self"].dim(), 1)
    return isinstance(dims, (list, tuple)) and len({d % span for d in dims}) < len(dims)


def _too_many_indices(given: dict) -> bool:
    """A mask counts as many dims as it has; None, and whole numbers, one each."""
    masks = (torch.bool, torch.uint8)
    used = (i.dim() if isinstance(i, torch.Tensor) and i.dtype in masks else 1 for i in given["indices"])
    return sum(used) > given["self"].dim()


def _norm_mixed(given: dict) -> bool:
    """A norm's weight and bias are of its input's dtype, or float32 for an input of few digits."""
    x = given["input"]
    found = {p.dtype for p in (given.get("weight"), given.get("bias")) if isinstance(p, torch.Tensor)}
    few = x.dtype in (torch.float16, torch.bfloat16)
    return x.device.type == "cpu" and bool(found) and found != {x.dtype} and not (few and found == {torch.float32})


# operation -> whether torch refuses a call, by its arguments
REFUSES: dict[str, Callable[[dict], bool]] = {
    "clamp": lambda given: given.get("min") is None and given.get("max") is None,
    "bucketize": lambda given: isinstance(given["boundaries"], torch.Tensor) and given["boundaries"].dim() != 1,
    "searchsorted": lambda given: given.get("side") not in (None, "left", "right"),
    "div": lambda given: given.get("rounding_mode") not in (None, "trunc", "floor"),
    "sub": _subtracts_bool,
    "rsub": _subtracts_bool,
    "gather": _dim_outside,
    "cumsum": lambda given: given.get("dtype") is torch.bool,
    "cumprod": lambda given: given.get("dtype") is torch.bool,
    "smooth_l1_loss": _below_zero("beta"),
    "softshrink": _below_zero("lambd"),
    "heaviside": lambda given: given["self"].dtype is not given["values"].dtype,
    "native_layer_norm": _norm_mixed,
    "any": _dims_repeated,
    "all": _dims_repeated,
    "squeeze": _dims_repeated,
    "index_put": _too_many_indices,
    "_unsafe_index_put": _too_many_indices,
}
LOOKED_AT = REFUSES.keys() | CONVERTED.keys() | INTEGERS.keys()


def check_call(func: Any, args: tuple, kwargs: dict) -> None:
    """Raises: CannotNormalise for a call that torch refuses."""
    name = func._schema.name.removeprefix("aten::").removesuffix("_")
    if name not in LOOKED_AT:
        return
    given = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
    if name in REFUSES and REFUSES[name](given):
        raise CannotNormalise(f"{func}: arguments that torch refuses")
    check_scalars(name, given)
