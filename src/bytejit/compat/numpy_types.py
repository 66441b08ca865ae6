"""What the tracer asks of NumPy. A program need not have it: then no value is an array and every collection is empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]


class NoArray:
    """Stands for `numpy.ndarray` where there is no NumPy: nothing is an instance of it."""

    def __new__(cls) -> NoArray:
        raise TypeError("there is no NumPy")


ARRAY: type = NoArray if numpy is None else numpy.ndarray
SCALAR: type = NoArray if numpy is None else numpy.generic
#: immutable scalars
SCALARS: frozenset[type] = frozenset(
    () if numpy is None else (c for c in numpy.sctypeDict.values() if c not in (numpy.object_, numpy.void))
)
#: real scalars whose `.item()` is a Python int or float of the same value
NUMBERS: frozenset[type] = frozenset(
    ()
    if numpy is None
    else (
        c
        for c in SCALARS
        if issubclass(c, (numpy.integer, numpy.floating)) and not issubclass(c, (numpy.timedelta64, numpy.longdouble))
    )
)
#: scalars that a tensor is compared with item by item
COMPARED: frozenset[type] = frozenset(
    ()
    if numpy is None
    else (c for c in SCALARS if issubclass(c, (numpy.number, numpy.bool_)) and not issubclass(c, numpy.timedelta64))
)
#: the classes of their dtypes
DTYPES: frozenset[type] = frozenset(() if numpy is None else (type(numpy.dtype(c)) for c in SCALARS))
#: dtypes that both have: torch's -> NumPy's, and back
OF_TORCH: dict[torch.dtype, Any] = (
    {}
    if numpy is None
    else {
        getattr(torch, n): numpy.dtype(n if n != "bool" else numpy.bool_)
        for n in "bool uint8 int8 int16 int32 int64 float16 float32 float64 complex64 complex128".split()
    }
)
OF_NUMPY: dict[Any, torch.dtype] = {v: k for k, v in OF_TORCH.items()}
#: types of functions that are known by identity
FUNCTION_TYPES: tuple[type, ...] = (
    () if numpy is None else (numpy.ufunc, type(numpy.sum), type(getattr(numpy.random.uniform, "__func__")))
)


def named_namespaces() -> Iterator[tuple[str, dict[str, Any]]]:
    """The paths of modules whose functions compute arrays, within NumPy, and their names."""
    if numpy is not None:
        yield from (("", vars(numpy)), ("linalg", vars(numpy.linalg)), ("fft", vars(numpy.fft)))


def namespaces() -> Iterator[dict[str, Any]]:
    """The names of modules whose functions compute arrays."""
    if numpy is not None:
        yield from (space for _, space in named_namespaces())


DRAWS = (
    *(("beta", 2), ("chisquare", 1), ("exponential", 1), ("f", 2), ("gamma", 2), ("gumbel", 2), ("laplace", 2), ("logistic", 2)),
    *(("lognormal", 2), ("normal", 2), ("pareto", 1), ("power", 1), ("rand", 0), ("randn", 0), ("random", 0)),
    *(("random_sample", 0), ("rayleigh", 1), ("standard_cauchy", 0), ("standard_exponential", 0), ("standard_gamma", 1)),
    *(("standard_normal", 0), ("standard_t", 1), ("triangular", 3), ("uniform", 2), ("vonmises", 2), ("wald", 2), ("weibull", 1)),
)


def draws() -> Iterator[tuple[Callable, int]]:
    """The methods of a random generator that return floats, each with the greatest number of its arguments that are numbers."""
    if numpy is not None:
        for name, most in DRAWS:
            yield getattr(numpy.random, name).__func__, most


def generator() -> Any:
    """A new generator, of the class of the one that numpy.random's functions share."""
    return numpy.random.RandomState(0)


def seeds() -> tuple[Callable, ...]:
    """The function that sets the seed of the generator of numpy.random's functions."""
    return () if numpy is None else (numpy.random.seed,)


def is_shared_generator(obj: Any) -> bool:
    """Whether it is the generator of numpy.random's functions."""
    return numpy is not None and obj is getattr(numpy.random.random, "__self__", None)


def same_scalar(a: Any, b: Any) -> bool:
    """Whether two scalars of one type are the same to the bit: zeros of both signs differ, a nan is itself."""
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def without_warnings(function: Callable, *args: Any) -> Any:
    """function(*args) between scalars. Raises: FloatingPointError where NumPy would warn."""
    with numpy.errstate(all="raise"):
        return function(*args)


def is_bool(value: Any) -> bool:
    """Whether a value is one of NumPy's bools."""
    return numpy is not None and type(value) is numpy.bool_


def truth_value(value: bool) -> Any:
    """A bool as NumPy's comparisons return it."""
    return numpy.bool_(value)


def as_tensor(array: Any) -> torch.Tensor | None:
    """The tensor that shares an array's memory; None where there is none (other types, strides, memory that is read only)."""
    if type(array) is not ARRAY or array.dtype not in OF_NUMPY:  # type: ignore[attr-defined]
        return None
    of: Any = array
    if not of.flags.writeable or any(s < 0 or s % of.itemsize for s in of.strides):
        return None
    return torch.from_numpy(of)


def is_writeable(array: Any) -> bool:
    """Whether NumPy takes writes into an array."""
    return array.flags.writeable


def shares_memory(a: Any, b: Any) -> bool:
    """Whether an array or number has memory of another."""
    return isinstance(a, ARRAY) and isinstance(b, ARRAY) and may_share_memory(a, b)


def may_share_memory(a: Any, b: Any) -> bool:
    """Whether the bounds of two arrays' memory overlap."""
    return numpy.may_share_memory(a, b)
