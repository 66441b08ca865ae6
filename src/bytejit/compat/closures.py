"""Variables that functions made by torch and by the standard library hold in their closures, and that are read by name.

A row of `CLOSURES` is what makes such functions, with the names. Before a name is first read, a function is made here in the
same way and looked at: where it holds something else under the names, none of them is read (probe "own" of `table.py`).
"""

from __future__ import annotations

import dataclasses
import functools
import reprlib
import weakref
from collections.abc import Callable
from types import CellType, FunctionType
from typing import Any

import torch

from bytejit.common.light_dataclass import light_dataclass

_EMPTY = CellType()


def _first(x: object) -> str:
    return "first"


def _second(x: object) -> str:
    return "second"


def _all_variables(fn: FunctionType) -> dict[str, Any]:
    names = zip(fn.__code__.co_freevars, fn.__closure__ or ())
    return {name: cell.cell_contents for name, cell in names if cell != _EMPTY}


def _dispatch_holds() -> bool:
    made: Any = functools.singledispatch(_first)
    made.register(int, _second)
    found, held = made.dispatch(bool), _all_variables(made.dispatch)
    cache = held["dispatch_cache"]
    return (
        held["registry"] == {object: _first, int: _second}
        and type(cache) is weakref.WeakKeyDictionary
        and cache.get(bool) is found is _second
    )


def _repr_holds() -> bool:
    plain: Any = reprlib.recursive_repr()(_first)
    made = _all_variables(plain)
    dataclass_repr: Any = dataclasses.make_dataclass("Sample", ()).__repr__
    held = _all_variables(dataclass_repr)
    functions = made["user_function"] is _first and isinstance(held["user_function"], FunctionType)
    return functions and made["repr_running"] == held["repr_running"] == set()


def _spared_holds() -> bool:
    made: Any = torch._compile._disable_dynamo(_first)
    return _all_variables(made)["fn"] is _first


@light_dataclass(frozen=True)
class ClosureNames:
    """What makes functions, the names in their closures that are read, and whether a sample holds there what is expected."""

    maker: str
    names: tuple[str, ...]
    holds: Callable[[], bool]


SINGLE_DISPATCH = ClosureNames("functools.singledispatch", ("registry", "dispatch_cache"), _dispatch_holds)
RECURSIVE_REPR = ClosureNames("reprlib.recursive_repr", ("repr_running", "user_function"), _repr_holds)
SPARED = ClosureNames("torch._compile._disable_dynamo", ("fn",), _spared_holds)
CLOSURES = (SINGLE_DISPATCH, RECURSIVE_REPR, SPARED)


@functools.cache
def known(row: ClosureNames) -> bool:
    """Whether a sample of such functions holds what is expected under the names. Costs up to 1 ms, once."""
    try:
        return row.holds()
    except Exception:  # it holds something else: whatever asking it raises
        return False


def variables(fn: FunctionType, row: ClosureNames) -> dict[str, Any]:
    """The variables of a function that hold something, of the row's names; none where the sample's are others."""
    held = _all_variables(fn) if known(row) else {}
    return {name: held[name] for name in row.names if name in held}
