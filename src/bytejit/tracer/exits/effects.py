"""Statements that write the region's changes to objects from outside."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable

from bytejit.tracer.core.values import NULL, CellVar, DictVar, FuncVar, InstanceVar, SeqVar, SetVar, TensorVar, Var
from bytejit.tracer.objects.containers import is_unchanged, real_key
from bytejit.tracer.objects.external_lists import ExternalList
from bytejit.tracer.objects.open_writes import ExternalDict

from .containers import attributes, repeated_on
from .instances import in_order
from .statements import Statements


def write_cell(out: Statements, v: CellVar) -> list[str]:
    if v.source is None:
        return []
    cell = out.at.source(v.source)
    return [f"{cell}.cell_contents = {out.value(v.content)}" if v.content is not None else f"del {cell}.cell_contents"]


def write_sequence(out: Statements, v: SeqVar) -> list[str]:
    target = out.at.source(v.origin)
    if isinstance(v, ExternalList) and v.late:
        return write_open(out, v, v.cls)
    if isinstance(v, ExternalList) and v.tail is not None:
        extend = collections.deque.extend if v.cls is collections.deque else list.extend
        return [f"{out.bind(extend)}({target}, [{out.many(v.tail)}])"]
    inside = out.many(v.items)
    if v.cls is collections.deque:
        return [f"{target}.clear()", f"{target}.extend(({inside}))"]
    return [f"{out.bind(list.__setitem__)}({target}, slice(None), [{inside}])"]


def write_set(out: Statements, v: SetVar) -> list[str]:
    target = out.at.source(v.origin)
    if (made := repeated_on(out, v, target)) is not None:
        return [made]
    return [f"{target}.clear()", f"{target}.update(({out.many(v.items.values())}))"]


def write_external_dict(out: Statements, v: ExternalDict) -> list[str]:
    if not v.late:
        return write_dict(out, v)
    return write_open(out, v, dict_kind(v)) + attributes(out, out.at.source(v.origin), v)


def write_open(out: Statements, v: ExternalDict | ExternalList, kind: type) -> list[str]:
    """Returns the statements that write under open keys, in order."""
    target, setter = out.at.source(v.origin), out.bind(getattr(kind, "__setitem__"))
    return [f"{setter}({target}, {out.value(k)}, {out.value(x)})" for k, x in v.late.values()]


def dict_kind(v: DictVar) -> type:
    """The library's class whose methods write a dict, past those of a subclass."""
    return next((c for c in (collections.OrderedDict, dict) if isinstance(v.real, c)), dict)


def write_dict(out: Statements, v: DictVar) -> list[str]:
    """Write only the changed keys if that gives the right order of keys; else clear the dict and write all of them."""
    target = out.at.source(v.origin)
    real = v.real
    kind = dict_kind(v)
    setter, deleter, clear = (out.bind(getattr(kind, n)) for n in ("__setitem__", "__delitem__", "clear"))
    entries = [(out.value(k), out.value(x), key, x) for key, (k, x) in v.items.items()]
    gone = {real_key(k): None for k in v.deleted}
    if v.complete:  # else nothing has looked at all of its keys, which may be hashed by code of the program
        now, kept = [*map(real_key, v.items)], {k: None for k in real if k not in gone}
        if not _same_keys(now, [*kept, *(k for k in now if k not in kept)]):
            anew = [f"{setter}({target}, {k}, {x})" for k, x, _, _ in entries]
            return [f"{clear}({target})", *anew, *attributes(out, target, v)]
    lines = [f"{deleter}({target}, {out.value(out.t.values.constant(k))})" for k in gone if k in real]
    for k, x, key, var in entries:
        if real_key(key) in gone or not is_unchanged(v, key, var):
            lines.append(f"{setter}({target}, {k}, {x})")
    return lines + attributes(out, target, v)


def _same_keys(a: list, b: list) -> bool:
    """Whether these are the same keys in the same order, as a dict compares keys: tensors by identity."""
    return len(a) == len(b) and all(x is y or hash(x) == hash(y) and x == y for x, y in zip(a, b))


def write_instance(out: Statements, v: InstanceVar) -> list[str]:
    target = out.at.source(v.origin)
    of = threading.local if isinstance(v.real, threading.local) else object
    return [
        f"{out.bind(of.__setattr__)}({target}, {n!r}, {out.value(x)})"
        if x is not NULL
        else f"{out.bind(of.__delattr__)}({target}, {n!r})"
        for n, x in in_order(v.slots)
    ]


def write_function(out: Statements, v: FuncVar) -> list[str]:
    target = out.at.source(v.origin)
    return [f"{out.bind(setattr)}({target}, {name!r}, {out.value(x)})" for name, x in v.attrs.items()]


def write_tensor(out: Statements, v: TensorVar) -> list[str]:
    return attributes(out, out.at.source(v.origin), v)


WRITERS: dict[type[Var], Callable] = {
    CellVar: write_cell,
    SeqVar: write_sequence,
    SetVar: write_set,
    DictVar: write_dict,
    ExternalDict: write_external_dict,
    ExternalList: write_sequence,
    InstanceVar: write_instance,
    FuncVar: write_function,
    TensorVar: write_tensor,
}
