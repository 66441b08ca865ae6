"""Which numbers in a region's result are symbolic: for an export, whose graph computes them again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bytejit.guards.conditions import SizeCondition
from bytejit.shapes.symbols import is_symbolic
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import DictVar, Lazy, SeqVar, SymVar, Var

Path = tuple[Any, ...]  # positions and keys on the way from the result to a number


def returned_sizes(t: Tracer, result: Var) -> tuple[tuple[Path, SizeCondition], ...] | None:
    """The symbolic numbers in lists, tuples and dicts; None where one cannot be told by the inputs' sizes, or one
    may be read out of a tensor."""
    found = tuple(_walk(t, result, ()))
    if t.reads.count or any(t.measures.is_measured(v) for _, v in found):
        return None
    return tuple(
        (path, t.numbers.expr_guard(v.value.node.public))
        for path, v in found
        if is_symbolic(v.value) and not isinstance(v.value.node.public, (int, float))
    )


def _walk(t: Tracer, v: Var, path: Path) -> Iterator[tuple[Path, SymVar]]:
    if type(v) is Lazy:
        if v.var is None:  # nothing has looked at it, nor may anything now: the graph is finished
            return
        v = v.var
    if type(v) is SymVar:
        yield path, v
    elif isinstance(v, SeqVar):
        for i, item in enumerate(v.items):
            yield from _walk(t, item, (*path, i))
    elif isinstance(v, DictVar):
        for key, (_, value) in v.items.items():
            yield from _walk(t, value, (*path, key))
