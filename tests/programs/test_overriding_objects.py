"""Operators of a tensor and an object of another class that has `__torch_function__`, operators of its own, or both: in Python's
order. The method of a tensor on the left asks the object's `__torch_function__`, before the object's reflected method."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch

from .harness import F, program


class Reflecting:
    """Says which of its methods was asked."""

    def __init__(self, t: torch.Tensor) -> None:
        self.t = t

    def __radd__(self, other: object) -> str:
        return "radd"

    def __rmul__(self, other: object) -> str:
        return "rmul"

    def __rpow__(self, other: object) -> str:
        return "rpow"

    def __rmatmul__(self, other: object) -> str:
        return "rmatmul"

    def __rtruediv__(self, other: object) -> str:
        return "rtruediv"

    def __eq__(self, other: object) -> str:  # type: ignore[override]
        return "eq"

    def __gt__(self, other: object) -> str:
        return "gt"


class Overriding(Reflecting):
    @classmethod
    def __torch_function__(cls, func: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None) -> object:
        plain = [a.t if isinstance(a, Overriding) else a for a in args]
        return func.__name__, func(*plain, **(kwargs or {}))


class Declining(Reflecting):
    @classmethod
    def __torch_function__(cls, func: Callable, types: tuple, args: tuple = (), kwargs: dict | None = None) -> object:
        return NotImplemented


BOTH_WAYS = (
    *(operator.add, operator.sub, operator.mul, operator.truediv, operator.pow, operator.matmul, operator.mod),
    *(operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge, operator.iadd),
)


def every_operator(x: torch.Tensor, other: object) -> list:
    seen = [2 * other]
    for op in BOTH_WAYS:
        for a, b in ((x, other), (other, x)):
            try:
                seen.append(op(a, b))
            except TypeError as e:
                seen.append(str(e))
    return seen


def of_class(cls: type) -> tuple[Callable, Callable]:
    """Objects made in the region, or before it."""
    kept = cls(torch.ones(3))
    return program(F(3))(lambda: lambda x: every_operator(x, cls(x * 2))), program(F(3))(
        lambda: lambda x: every_operator(x, kept)
    )


test_object_that_overrides, test_object_from_outside_that_overrides = of_class(Overriding)
test_object_that_declines, test_object_from_outside_that_declines = of_class(Declining)
test_object_that_reflects, test_object_from_outside_that_reflects = of_class(Reflecting)


@program(F(3))
def test_overrides_turned_off():
    kept = Overriding(torch.ones(3))

    def f(x):
        with torch._C.DisableTorchFunction():
            return x + kept, x == kept, x * Overriding(x)

    return f
