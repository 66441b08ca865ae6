"""Rows of views that only step through their operand (permute, slice, expand, split, ...): each follows from its shape rule.

A rule of `fake/rules/views.py` says how far apart in memory the elements of a view are, in terms of the operand's strides. Given
a name for each of these strides in place of a number, it says in which dims of the operand a dim of the view steps, and how far:
that is the view's index map.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, cast

import torch

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.lowering import Lowering, NoRule
from bytejit.codegen.loops.value import Value
from bytejit.codegen.ops.table import op
from bytejit.common.dtypes import DTYPES
from bytejit.fake.rules.core import FakeStorage, Meta, NeedsMeta
from bytejit.fake.rules.views import STRIDED


def _compared(test: Callable[[int, int], bool]) -> Any:
    return lambda a, b: test(int(a), int(b))


def _arithmetic(function: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    def apply(a: Any, b: Any) -> Any:
        if type(a) is Steps or type(b) is Steps:
            return NotImplemented
        return HintedSize(function(*(x.of if type(x) is HintedSize else ix.index(x) for x in (a, b))))

    return apply, lambda a, b: apply(b, a)


class HintedSize:
    """A symbolic size as a shape rule computes with it. A comparison holds where it did for the sizes at hand: the same rule
    asked it when it inferred the shape, and it is a guard."""

    __slots__ = ("of",)

    def __init__(self, of: ix.Index) -> None:
        self.of = of

    def __index__(self) -> int:
        return ix.hint(self.of)

    __int__ = __index__
    __add__, __radd__ = _arithmetic(operator.add)
    __sub__, __rsub__ = _arithmetic(operator.sub)
    __mul__, __rmul__ = _arithmetic(operator.mul)
    __floordiv__, __rfloordiv__ = _arithmetic(lambda a, b: ix.floordiv(a, ix.size_of(b), {}))
    __lt__, __le__ = _compared(operator.lt), _compared(operator.le)
    __gt__, __ge__ = _compared(operator.gt), _compared(operator.ge)
    __eq__, __ne__ = _compared(operator.eq), _compared(operator.ne)
    __hash__ = None  # type: ignore[assignment]  # equal by the sizes at hand only

    def __neg__(self) -> HintedSize:
        return self * -1


class Steps:
    """A distance in memory: how many steps in each dim of the operand make it."""

    __slots__ = ("of",)

    def __init__(self, of: tuple) -> None:
        self.of = of

    def __add__(self, other: Steps) -> Steps:
        return Steps(tuple(map(operator.add, self.of, other.of)))

    def __mul__(self, times: Any) -> Steps:
        return self if type(times) is int and times == 1 else Steps(tuple([n and n * times for n in self.of]))

    __rmul__ = __mul__


def _given(x: Any) -> Any:
    """Sizes of a call as a rule takes them."""
    if isinstance(x, (list, tuple)):
        return [_given(y) for y in x]
    return HintedSize(x) if isinstance(x, ix.Index) else x


class Operand:
    """The operand, as a rule sees it: in place of strides, a step in each dim."""

    def __init__(self, x: Value) -> None:
        rank = len(x.shape)
        steps: Any = [Steps(tuple([int(i == j) for j in range(rank)])) for i in range(rank)]
        start: Any = Steps((0,) * rank)
        self.m = Meta(tuple(_given(x.shape)), tuple(steps), start, torch.float32, _ANYWHERE, _NOWHERE)


_ANYWHERE, _NOWHERE = torch.device("meta"), FakeStorage(0)


def _seen_through(ctx: Lowering, x: Value, m: Meta, shape: tuple) -> Value:
    """The view that a rule describes. A stride that is a number is that of a dim of one element: nothing steps along it."""
    rank, offset, strides = len(x.shape), cast("Steps", m.offset).of, [s.of if type(s) is Steps else () for s in m.stride]
    own: list[ix.Index] = [ix.index(n.of if type(n) is HintedSize else n) for n in offset]
    same = shape == x.shape and not any(offset)
    moves = [(i, d, n.of if type(n) is HintedSize else n) for i, steps in enumerate(strides) for d, n in enumerate(steps) if n]
    if same and moves == [(i, i, 1) for i in range(rank)]:
        return x

    def back(c: tuple) -> tuple:
        at = list(own)
        for i, d, n in moves:
            at[d] = at[d] + c[i] * n
        return tuple(at)

    return ctx.view(x, shape, back)


def _row(rule: Callable[..., Any]) -> Callable[..., Any]:
    def lower(ctx: Lowering, x: Value, *args: Any, **kwargs: Any) -> Any:
        try:
            made = rule(Operand(x), *_given(args), **{k: _given(v) for k, v in kwargs.items()})
        except NeedsMeta:
            raise NoRule("torch's meta kernel says what it is") from None
        if type(made) is Meta:
            return _seen_through(ctx, x, made, ctx.spec().shape)
        return tuple(_seen_through(ctx, x, m, spec.shape) for m, spec in zip(made, ctx.specs()))

    return lower


for _name, _rule in STRIDED.items():
    _namespace, _, _op = _name.partition("::")
    _overload = f"{_namespace}.{_op}" if "." in _op else f"{_namespace}.{_op}.default"
    op(f"view {_op}", _overload, "view", lower=_row(_rule), dtypes=frozenset(DTYPES))
