"""Calls that torch refuses when its kernels run, and that neither its meta kernels nor ours would: they run through torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .mutation import CannotNormalise
from .scalars import CONVERTED, INTEGERS, check_scalars


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
