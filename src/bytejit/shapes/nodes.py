"""The node behind a `torch.SymInt`, `SymFloat` or `SymBool`: the methods that torch asks of one, by their names in torch."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from . import arithmetic as am
from . import floats as sf
from .conditions import Condition
from .layout import channels_last, dense, in_order
from .number import Number

# layouts that torch's TensorImpl asks for: the number of dims, and these from the fastest to the slowest
CHANNELS_LAST_2D, CHANNELS_LAST_3D = (1, 3, 2, 0), (1, 4, 3, 2, 0)


def _always(value: Any) -> Callable:
    return lambda self: value


def _is(kind: type) -> Callable:
    return lambda self: self.kind is kind


def _itself(self: Node) -> Node:
    return self


def _constant_of(kind: type) -> Callable:
    """The value where it is a constant of this kind."""
    return lambda self: self.value if self.kind is kind and isinstance(self.value, kind) else None


def _at_line(decide: Callable) -> Callable:
    """A decision that torch asks for with the C++ file and line that asks."""
    return lambda self, file="", line=0: decide(self)


def _operator(name: str) -> Callable:
    return lambda self, other: am.binary(name, self, other)


def _division(name: str) -> Callable:
    return lambda self, other: am.divided(name, self, other)


def _extreme(name: str) -> Callable:
    return lambda self, other: am.extreme(name, self, other)


def _bits(function: Callable) -> Callable:
    return lambda self, other: am.bits(function, self, other)


def _whole(function: Callable) -> Callable:
    return lambda self: am.FUNCTIONS[function](self)


def _comparison(name: str) -> Callable:
    return lambda self, other: am.compare(name, self, other)


def _in_order(dims: tuple[int, ...]) -> Callable:
    return lambda self, sizes, strides: self.wrap_bool(len(sizes) == len(dims) and in_order(self, sizes, strides, dims))


def _strides_in_order(dims: tuple[int, ...]) -> Callable:
    return lambda self, sizes, strides: self.wrap_bool(len(sizes) == len(dims) and channels_last(sizes, strides, dims))


class Node(Number):
    """A number with the interface that torch expects of a node. Each line says what torch's name stands for."""

    __slots__ = ()

    # ---- what it is
    is_int, is_float, is_bool = _is(int), _is(float), _is(bool)
    is_symbolic = has_hint = _always(True)
    is_nested_int, nested_int = _always(False), _always(None)
    maybe_as_int = constant_int = _constant_of(int)
    maybe_as_float = _constant_of(float)
    maybe_as_bool = Number.known
    clone = pos = _itself
    _graph_repr = Number.str
    _hint = property(lambda self: self.known() if self.kind is bool else self.hint)  # of a relation: what it is for all values
    expr = property(lambda self: self.e)

    def require_hint(self, fallback: Any = None) -> Any:
        """The value when traced."""
        return self.hint

    def is_constant(self) -> bool:
        """Whether torch may take the value as a constant. Never for floats: torch asks this only of ints and bools."""
        return self.kind is not float and isinstance(self.value, (int, bool))

    def constant_bool(self) -> bool | None:
        """The truth where it is a constant."""
        return self.e if isinstance(self.e, bool) else None

    # ---- decisions: each may add a condition
    guard_int = _at_line(Number.int_)
    guard_bool = expect_true = _at_line(Number.bool_)
    statically_known_true = _at_line(lambda self: self.known() is True)
    expect_size = _at_line(lambda self: am.compare("ge", self, self.wrap_int(0)).truth())

    def guard_float(self, file: str = "", line: int = 0) -> float:
        """The value for Python when no file is given, else the value for an operator that takes a plain float."""
        return self.float_() if not file or self.env.taken is None else self.env.taken(self)

    def guard_or_false(self, file: str = "", line: int = 0) -> bool:
        """torch asks this where its branch for False is right for all values. No condition is added where the hint says False
        too."""
        return self._unless(False)

    def guard_or_true(self, file: str = "", line: int = 0) -> bool:
        """The same for True."""
        return self._unless(True)

    def _unless(self, general: bool) -> bool:
        known = self.known()
        if known is not None:
            return known
        if self.hint != general:
            return self.truth()
        if not isinstance(self.e, Condition):
            self.env.waive(*self.e)
        return general

    guard_size_oblivious = guard_or_false  # asked of sizes, whether one is 0 or 1

    # ---- arithmetic
    add, sub, mul = _operator("add"), _operator("sub"), _operator("mul")
    floordiv = int_floordiv = _division("floordiv")
    truediv = int_truediv = float_truediv = _division("truediv")
    mod = _division("mod")
    pow = pow_by_natural = float_pow = am.power
    neg, abs, round, is_integer = am.negative, am.absolute, am.rounded, am.is_integer
    sym_max, sym_min = _extreme("max"), _extreme("min")
    sym_sum, sym_float = am.total, am.to_float
    lshift, rshift = am.shifted_left, am.shifted_right
    bitwise_and, bitwise_or, bitwise_xor = _bits(operator.and_), _bits(operator.or_), _bits(operator.xor)
    floor, ceil, trunc = _whole(math.floor), _whole(math.ceil), _whole(math.trunc)

    # ---- comparison and logic
    eq, ne, lt, le, gt, ge = (_comparison(name) for name in am.COMPARISONS)
    and_, or_ = sym_and, sym_or = am.both, am.either
    sym_not, sym_ite = am.opposite, am.chosen

    # ---- layouts of a shape: sizes and strides are lists of nodes
    is_channels_last_contiguous_2d = _in_order(CHANNELS_LAST_2D)
    is_channels_last_contiguous_3d = _in_order(CHANNELS_LAST_3D)
    is_channels_last_strides_2d = _strides_in_order(CHANNELS_LAST_2D)
    is_channels_last_strides_3d = _strides_in_order(CHANNELS_LAST_3D)

    def is_contiguous(self, sizes: list, strides: list) -> Node:
        """Row-major."""
        return self.wrap_bool(in_order(self, sizes, strides, range(len(sizes) - 1, -1, -1)))

    def is_non_overlapping_anddense(self, sizes: list, strides: list) -> Node:
        """Dense in some order of the dims."""
        return self.wrap_bool(dense(self, sizes, strides))

    def is_non_overlapping_and_dense_indicator(self, sizes: list, strides: list) -> Node:
        """The same as 0 or 1."""
        return self.wrap_int(int(dense(self, sizes, strides)))

    def __getattr__(self, name: str) -> Any:
        """math functions of floats as torch names them: sqrt, sym_sqrt, sym_cos..."""
        plain = name.removeprefix("sym_")
        if (plain == name and name != "sqrt") or (plain, 1) not in sf.MATH:
            raise AttributeError(f"{type(self).__name__} has no {name}", name=name, obj=self)
        return partial(am.of_math, plain, self)


def apply(function: Callable, args: tuple) -> Any:
    """`arithmetic.apply` on numbers of which one is symbolic."""
    first = next(a.node for a in args if isinstance(a, (torch.SymInt, torch.SymFloat)))
    nodes = [
        a.node if isinstance(a, (torch.SymInt, torch.SymFloat)) else first.make(a, float if type(a) is float else int)
        for a in args
    ]
    made = am.apply(function, nodes)
    return None if made is None else {int: torch.SymInt, float: torch.SymFloat, bool: torch.SymBool}[made.kind](made)
