"""Values of NumPy: numbers from outside that change between calls, arrays made in the trace, arrays that tensors stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytejit.guards.sources import Source

from .open_values import OpenVar
from .values import SymVar, TensorVar, Var


class NumpyVar(OpenVar):
    """A NumPy number from outside. `plain`: the SymVar of its `.item()`, made where it is first asked for
    (sizes/numpy_numbers.py)."""

    __slots__ = ("plain",)

    def __init__(self, real: Any, source: Any, fix: Callable[[], None]) -> None:
        super().__init__(real, source, fix)
        self.plain: SymVar | None = None


class ArrayVar(Var):
    """A numpy array made in the trace (see tracer/builtins/arrays.py). `shared`: its value is not known."""

    __slots__ = ("array", "step", "shared")

    def __init__(self, array: Any, step: int = 0) -> None:
        super().__init__(None)
        self.array, self.step, self.shared = array, step, False

    def __repr__(self) -> str:
        return f"ArrayVar({self.array.dtype}{list(self.array.shape)})"


class TensorArrayVar(ArrayVar):
    """A NumPy array or number of class `cls`, computed by the graph as `tensor`. One from outside (`real`) may have none yet.
    `read_only`: NumPy refuses writes into it."""

    __slots__ = ("tensor", "cls", "real", "read_only")

    def __init__(self, tensor: TensorVar | None, cls: type, source: Source | None, step: int, real: Any = None) -> None:
        super().__init__(None, step)
        self.tensor, self.cls, self.source, self.real, self.shared = tensor, cls, source, real, True
        self.read_only = False
