"""Iterators from outside: those of Python's own containers are looked into ahead, and advanced when the region ends.

`IterVar` of kind "external": `real`, the iterator; `rest`, what it had left; `over`, the containers that it goes through;
`at`, how many items the region took; `end`, whether it also asked past the last one.
"""

from __future__ import annotations

import gc
import itertools
from typing import Any

from bytejit.guards.conditions import SizeCondition
from bytejit.guards.item_sources import TupleItem
from bytejit.guards.iterator_sources import COPIED, INDEXED, JOINED, NotSeen, leaves, rest
from bytejit.guards.iterator_sources import RestOf as RestSource
from bytejit.guards.sources import Attr, CallOf, Item, Source
from bytejit.tracer.core.iterator_values import IterVar
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Lazy, SeqVar, Var

from .iterator_steps import NEXT

LONG = 200  # items taken without a new graph node after which the original code goes on with the iterator
SEEN = frozenset({*INDEXED, *COPIED, *JOINED, map, filter, itertools.count})


def external_iterator(t: Tracer, obj: object, source: Source) -> Var | None:
    """The model of an iterator from outside; None for one that cannot be looked into."""
    if type(obj) in (map, filter):
        return _mapped(t, obj, source)
    try:
        left, within = rest(obj), leaves(obj)
    except NotSeen:
        return None
    if any(t.claimed.setdefault(id(leaf), obj) is not obj for leaf in within):
        raise Break("an iterator that another iterator also reads")
    over = [held for leaf in within for held in gc.get_referents(leaf)]
    state = {"real": obj, "rest": left, "over": over, "at": 0, "end": False, "var": None, "work": (0, 0)}
    made = IterVar("external", state, t.limits.steps)
    made.source, made.state["var"] = source, made
    t.looked_into.append(made)
    return made


def _mapped(t: Tracer, obj: object, source: Source) -> Var | None:
    """A map or filter over iterators that can be looked into: its function is called in the region."""
    made = obj.__reduce__()
    parts = made[1]
    if len(made) > 2 or not all(type(p) in SEEN for p in parts[1:]):
        return None
    args = Item(CallOf(Attr(source, "__reduce__"), ()), 1)
    inner = [t.values.real(Lazy(p, TupleItem(args, i))) for i, p in enumerate(parts[1:], 1)]
    if not all(isinstance(v, IterVar) for v in inner):
        return None
    function = Lazy(parts[0], TupleItem(args, 0))
    var = IterVar("map" if type(obj) is map else "filter", {"function": function, "of": inner, "strict": False}, t.limits.steps)
    if type(obj) is filter:
        var.state["of"] = inner[0]
    var.source = source
    return var


def item_of(iterator: Any, value: Any, source: Source) -> Var:
    """An item: the tuples that enumerate and zip make anew each time are made in the trace."""
    if type(iterator) not in JOINED:
        return Lazy(value, source)
    parts = iterator.__reduce__()[1]
    within = [None, parts[0]] if type(iterator) is enumerate else parts
    return SeqVar([item_of(part, v, TupleItem(source, i)) for i, (part, v) in enumerate(zip(within, value))], tuple)


def _next(t: Tracer, s: dict[str, Any]) -> Var | None:
    left, var = s["rest"], s["var"]
    for container in s["over"]:
        known = t.by_id.get(id(container))
        if known is not None and id(known) in t.effects.dirty:
            raise Break("an iterator from outside over an object that the graph's code changed")
    nodes, since = s["work"]
    if nodes != len(t.graph.nodes):
        s["work"] = len(t.graph.nodes), s["at"]
    elif s["at"] - since > LONG:
        raise Break("a long loop without tensor work")
    t.touch(var)
    if s["at"] >= left.left:
        s["end"] = True
        return None
    s["at"] += 1
    return item_of(s["real"], left.at(s["at"] - 1), CallOf(Attr(RestSource(var.source), "at"), (s["at"] - 1,)))


NEXT["external"] = _next


def add_guards(t: Tracer) -> None:
    """Guard what the region relied on about the number of items."""
    for var in t.looked_into:
        s = var.state
        if s["at"] or s["end"]:
            source = Attr(RestSource(var.origin), "left")
            t.guard("EXPR", source, SizeCondition(f"n == {s['at']}" if s["end"] else f"n >= {s['at']}", (("n", source),)))


def advance(target: str, var: IterVar) -> list[str]:
    """Statements that take from the real iterator what the region took."""
    count = var.state["at"] + var.state["end"]
    step = f"next({target}, None)"
    return [step] * count if count < 4 else [f"for _ in range({count}): {step}"]
