"""One step of each kind of iterator whose state the tracer holds: the next item, or None at its end."""

from __future__ import annotations

from typing import Any

from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, Known, SeqVar, Var


def _seq(t: Tracer, s: dict[str, Any]) -> Var | None:
    seq = s["seq"]
    _check_size(t, s)
    if s["at"] >= len(seq.items):
        return None
    s["at"] += 1
    return seq.items[s["at"] - 1]


def _check_size(t: Tracer, s: dict[str, Any]) -> None:
    """Checks an iterator over a container that may not change its size meanwhile (`iterators.sized`). Raises: Raised, Break."""
    if "size" in s and len(s["of"].items) != s["size"]:
        s["size"] = -1  # and so it stays
        raise t.raised(RuntimeError(s["words"]))
    if "was" in s and s["was"] != list(s["of"].items):  # an item was set, or others are in it, as many as before
        raise Break("a container that changes while it is iterated over")


def _reversed(t: Tracer, s: dict[str, Any]) -> Var | None:
    _check_size(t, s)
    if s["at"] < 0 or s["at"] >= len(s["seq"].items):
        return None
    s["at"] -= 1
    return s["seq"].items[s["at"] + 1]


def _dict(t: Tracer, s: dict[str, Any]) -> Var | None:
    owner = s["owner"]
    if len(owner.items) != len(s["keys"]):
        raise t.raised(RuntimeError("dictionary changed size during iteration"))
    if s["at"] >= len(s["keys"]):
        return None
    key = s["keys"][s["at"]]
    s["at"] += 1
    if key not in owner.items:
        raise t.raised(RuntimeError("dictionary keys changed during iteration"))
    k, v = owner.items[key]
    return {"keys": k, "values": v, "items": None}[s["kind"]] or SeqVar([k, v], tuple)


def _range(t: Tracer, s: dict[str, Any]) -> Var | None:
    if s["at"] >= len(s["range"]):
        return None
    s["at"] += 1
    element = s["range"][s["at"] - 1]
    return Known(element) if "of" not in s else t.numbers.number(s["of"].element(element))


def _item(t: Tracer, of: Var, at: int) -> Var | None:
    """of[at] of a program's own sequence; None where that says that it has ended."""
    try:
        return t.subscripts.getitem(of, Known(at))
    except Raised as e:
        if issubclass(e.exc.cls, (IndexError, StopIteration)):
            return None
        raise


def _getitem(t: Tracer, s: dict[str, Any]) -> Var | None:
    if (item := _item(t, s["of"], s["at"])) is not None:
        s["at"] += 1
    return item


def _reversed_items(t: Tracer, s: dict[str, Any]) -> Var | None:
    of, at = s["of"], s["at"]
    if of is None or at < 0:
        return None
    s["of"] = None  # at its end after any exception
    if (item := _item(t, of, at)) is not None:
        s.update(of=of, at=at - 1)
    return item


def _enumerate(t: Tracer, s: dict[str, Any]) -> Var | None:
    item = t.iteration.step(s["of"])
    if item is None:
        return None
    number = place(t, s)
    s["at"] += 1
    return SeqVar([number, item], tuple)


def place(t: Tracer, s: dict[str, Any]) -> Var:
    """The number that an enumerate gives next."""
    return t.operators.binary("add", s["first"], Known(s["at"])) if "first" in s else Known(s["at"])


def _zip(t: Tracer, s: dict[str, Any]) -> Var | None:
    out = []
    for n, it in enumerate(s["of"]):
        item = _step(t, s, it)
        if item is None:
            if s["strict"]:
                _same_lengths(t, "zip", s, n)
            return None
        out.append(item)
    return SeqVar(out, tuple) if out else None


def _step(t: Tracer, s: dict[str, Any], it: Var) -> Var | None:
    """The next item of one of several iterators. In strict mode the others are asked at its end, and what it says is lost."""
    return t.iteration.next(it) if s["strict"] else t.iteration.step(it)


def _same_lengths(t: Tracer, name: str, s: dict[str, Any], n: int) -> None:
    """Checks in strict mode of zip or map, where the n-th iterator has ended, that all end. Raises: Raised(ValueError)."""
    if n:
        plural = " 1" if n == 1 else f"s 1-{n}"
        raise t.raised(ValueError(f"{name}() argument {n + 1} is shorter than argument{plural}"))
    for m, it in enumerate(s["of"][1:], 1):
        if t.iteration.next(it) is not None:
            plural = " 1" if m == 1 else f"s 1-{m}"
            raise t.raised(ValueError(f"{name}() argument {m + 1} is longer than argument{plural}"))


def _map(t: Tracer, s: dict[str, Any]) -> Var | None:
    args: list[Var] = []
    for n, it in enumerate(s["of"]):
        if (item := _step(t, s, it)) is None:
            if s["strict"]:
                _same_lengths(t, "map", s, n)
            return None
        args.append(item)
    return t.calls.call(s["function"], args, {})


def _filter(t: Tracer, s: dict[str, Any]) -> Var | None:
    while (item := t.iteration.step(s["of"])) is not None:
        keep = item if t.comparisons.is_same(s["function"], NONE) else t.calls.call(s["function"], [item], {})
        if t.comparisons.truth(keep):
            return item
    return None


def _callable(t: Tracer, s: dict[str, Any]) -> Var | None:
    try:
        value = t.calls.call(s["function"], [], {})
    except Raised as e:
        if issubclass(e.exc.cls, StopIteration):
            return None
        raise
    return None if t.comparisons.equal(s["sentinel"], value) else value


NEXT = {
    "seq": _seq,
    "reversed": _reversed,
    "dict": _dict,
    "range": _range,
    "getitem": _getitem,
    "reversed items": _reversed_items,
    "enumerate": _enumerate,
    "zip": _zip,
    "map": _map,
    "filter": _filter,
    "callable": _callable,
}
ASKING = {"enumerate", "zip", "map", "filter"}  # at their end they ask what they take from once more
