"""What the tracer asks of NumPy. A program need not have it: then no value is an array and every collection is empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]


class NoArray:
    """Stands for `numpy.ndarray` where there is no NumPy: nothing is an instance of it."""

    def __new__(cls) -> NoArray:
        raise TypeError("there is no NumPy")


ARRAY: type = NoArray if numpy is None else numpy.ndarray
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
#: types of functions that are known by identity
FUNCTION_TYPES: tuple[type, ...] = (
    () if numpy is None else (numpy.ufunc, type(numpy.sum), type(getattr(numpy.random.uniform, "__func__")))
)


def namespaces() -> Iterator[dict[str, Any]]:
    """The names of modules whose functions compute arrays."""
    if numpy is not None:
        yield from (vars(space) for space in (numpy, numpy.linalg, numpy.fft))


def draws() -> Iterator[tuple[Callable, int]]:
    """Methods of a random generator that give a float, and how many numbers are their arguments at most."""
    if numpy is not None:
        for name, most in (("uniform", 2), ("normal", 2), ("random", 0), ("rand", 0), ("randn", 0), ("random_sample", 0)):
            yield getattr(numpy.random, name).__func__, most


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


def may_share_memory(a: Any, b: Any) -> bool:
    """Whether the bounds of two arrays' memory overlap."""
    return numpy.may_share_memory(a, b)
