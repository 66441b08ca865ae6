"""Numbers that a tensor's dtype cannot hold. Some operations of torch raise an error for them when they run; our kernels would
not."""

from __future__ import annotations

import torch

from bytejit.common.dtypes import holds
from bytejit.shapes import symbols

from .mutation import CannotNormalise

# operation -> the arguments that it converts to the dtype of its result
CONVERTED = {
    "fill": ("value",),
    "masked_fill": ("value",),
    "index_fill": ("value",),
    "scatter": ("value",),
    "constant_pad_nd": ("value",),
    "full": ("fill_value",),
    "full_like": ("fill_value",),
    "new_full": ("fill_value",),
    "scalar_tensor": ("s",),
    "clamp": ("min", "max"),
    "clamp_min": ("min",),
    "clamp_max": ("max",),
    "addcmul": ("value",),
    "addcdiv": ("value",),
}
INTEGERS = {"add": ("alpha",), "sub": ("alpha",), "pow": ("exponent",)}  # the same, for integers only
NUMBERS = (int, float, complex, torch.SymInt, torch.SymFloat)
BOOLEANS = ("add", "sub", "rsub")  # whose alpha is checked to fit the result


def check_scalars(name: str, given: dict) -> None:
    """Raises: CannotNormalise where an operation (its name and arguments) gets a number that the dtype of its result cannot
    hold. The graph then runs through torch, which raises the error."""
    if type(given.get("alpha")) is bool and name in BOOLEANS:
        raise CannotNormalise("a bool as alpha: torch takes it where the result is one of bools only")
    wanted = CONVERTED.get(name, INTEGERS.get(name, ()))
    tensor, dtype = given.get("self"), given.get("dtype")
    dtype = dtype or (tensor.dtype if isinstance(tensor, torch.Tensor) else None)
    for value in (given.get(n) for n in wanted):
        if value is None or type(value) not in NUMBERS:
            continue
        floats = type(value) in (float, torch.SymFloat)
        kind = dtype or (torch.get_default_dtype() if floats else torch.int64)
        whole = not kind.is_floating_point and not kind.is_complex
        if name in INTEGERS and not whole or floats and whole and name.startswith("clamp"):
            continue  # computed in a wider dtype
        if not (holds_symbol(kind, value) if symbols.is_symbolic(value) else holds(kind, value)):
            raise CannotNormalise(f"a number that {kind} cannot hold")


def holds_symbol(dtype: torch.dtype, value: torch.SymInt | torch.SymFloat) -> bool:
    """Whether a dtype holds a number of the program that changes: where it does now, that becomes a condition. One that is
    computed within the graph, and one of a wide dtype, is not checked."""
    wide = dtype.itemsize > 4 if isinstance(value, torch.SymInt) else False
    if dtype is torch.bool or dtype.is_complex or wide or dtype.is_floating_point and dtype is not torch.float16:
        return True
    if not symbols.env_of(value).inside.isdisjoint(getattr(symbols.expr(value), "free_symbols", ())):
        return True
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if limits.min <= value and value <= limits.max:
        return True
    return holds(dtype, int(value) if isinstance(value, torch.SymInt) else float(value))
