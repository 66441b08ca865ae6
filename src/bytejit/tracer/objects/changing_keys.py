"""Items of containers from outside under keys that change between calls, and attributes of objects under such names: each call
looks its item up before the graph runs, and guards what it is. So one more key, with an item like the others, costs no compile.

That holds where the region has not written the container, and the key is there. All else makes the key a constant.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from bytejit.guards.changing_sources import Looked, length_of
from bytejit.guards.conditions import SizeCondition
from bytejit.guards.item_sources import present
from bytejit.guards.references import Ref
from bytejit.guards.sources import Computed, InstanceDict, PastDict, Scope, Source
from bytejit.tracer.core.iterator_values import IterVar
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.values import DictVar, DictView, InstanceVar, Known, SeqVar, SymVar, Var, expect
from bytejit.tracer.sizes.called_anew import changes, computed, hint, source_of

from .class_facts import MODULE_GETATTR, MRO, NAMESPACE, class_attribute
from .containers import keys_source
from .iterator_steps import NEXT
from .made_dicts import MadeDict, state_of
from .open_writes import ExternalDict, OpenWrites

if TYPE_CHECKING:
    from bytejit.tracer.core.tracer import Tracer

MOST_KEYS = 16  # of a dict that is gone through by places
KINDS = (dict, list, tuple, collections.deque)
TWO = "len({key, other}) == 2"  # as a dict tells its keys apart
PLAIN_LOOKUPS = (object.__getattribute__, types.SimpleNamespace.__getattribute__)
OF_MODULES = ("_parameters", "_buffers", "_modules")  # in the order in which nn.Module looks
NAMESPACES = (InstanceDict, PastDict, Scope)  # writes to these are modelled in another place as well


def picked(t: Tracer, container: Var, key: Var) -> Var | None:
    """container[key] for a key that changes between calls; None where the key must be a constant."""
    if isinstance(container, MadeDict):
        return container.found(key)
    source = _source_for(t, container, key)
    if source is None or not isinstance(container, (DictVar, SeqVar)):
        return None
    if isinstance(container, OpenWrites) and source in container.late:
        return container.late[source][1]
    kind = next(k for k in KINDS if isinstance(container.real, k))
    try:
        get = present if kind is dict else kind.__getitem__
        item = get(container.real, hint(t, key))
    except (LookupError, TypeError):  # for who looks at the constant
        return None
    return t.values.memo_lazy(("item", id(container), source), item, lambda: Looked(container.origin, source, kind))


def picked_constant(t: Tracer, seq: SeqVar, key: Var) -> Var | None:
    """seq[key] of numbers that the code itself names (`(1, 2, 4)[k]`), for a key that changes; None for others."""
    if type(key) is not SymVar or seq.real is not None or seq.source is not None or seq.cls not in (list, tuple):
        return None
    numbers, source, n = [v.obj for v in seq.items if isinstance(v, Known)], source_of(t, key), len(seq.items)
    if len(numbers) < n or {*map(type, numbers)} not in ({int}, {float}) or source is None or not -n <= hint(t, key) < n:
        return None
    t.guard("EXPR", source, SizeCondition(f"{-n} <= key < {n}", (("key", source),)))
    table = tuple(numbers)
    return t.values.wrap(table[hint(t, key)], Computed(Ref.strong(table.__getitem__, "item"), (source,)))


def picked_attribute(t: Tracer, v: Var, name: Var) -> Var | None:
    """getattr(v, name) for a name that changes between calls, of what the object itself holds; None where the name must be a
    constant."""
    if not isinstance(v, InstanceVar) or v.real is None or v.source is None or v.ns is None or not changes(t, name):
        return None
    written = (v, v.ns, *map(t.by_id.get, map(id, own_spaces(v.real))))
    if any(id(x) in t.effects.dirty for x in written) or replaces_attributes(type(v.real)):
        return None
    source = source_of(t, name)
    try:
        value = own_attribute(v.real, hint(t, name))
    except (LookupError, TypeError):  # for who looks at the constant
        return None
    at = computed(own_attribute, [v.origin, source])
    return t.values.memo_lazy(("attribute", id(v), source), value, lambda: at) if at is not None else None


def replaces_attributes(cls: type) -> bool:
    """Whether a class says in Python how attributes are read; what nn.Module has of it is known."""
    if class_attribute(cls, "__getattribute__") not in PLAIN_LOOKUPS:
        return True
    return class_attribute(cls, "__getattr__") not in (None, MODULE_GETATTR)


def own_spaces(obj: object) -> tuple[dict, ...]:
    """Returns where an object of such a class holds its attributes."""
    own = object.__getattribute__(obj, "__dict__")
    return (own, *(own[name] for name in OF_MODULES if name in own)) if isinstance(obj, nn.Module) else (own,)


def own_attribute(obj: object, name: str) -> Any:
    """Returns getattr(obj, name) where the object itself holds it and its class has no such name. Raises: KeyError."""
    if not any(name in NAMESPACE(cls) for cls in MRO(type(obj))):
        for space in own_spaces(obj):
            if name in space:
                return space[name]
    raise KeyError(name)


def lacks(t: Tracer, container: DictVar, key: Var) -> bool:
    """Whether a dict has no such key, which changes between calls; guarded where it is so."""
    if isinstance(container, MadeDict):
        return container.lacks(key)
    source = _source_for(t, container, key)
    if source is None or dict.__contains__(container.real, hint(t, key)):
        return False
    t.guard("EXPR", container.origin, SizeCondition("key not in table", (("key", source), ("table", container.origin))))
    return True


def _source_for(t: Tracer, container: Var, key: Var) -> Source | None:
    """The source of a key that changes between calls. None if the key does not change, or if the value under it is not
    known: it is known if the region has not changed the container, or has written this key last."""
    if not changes(t, key) or not isinstance(container, (DictVar, SeqVar)) or not isinstance(container.real, KINDS):
        return None
    if container.source is None or isinstance(container.source, NAMESPACES):
        return None
    source = source_of(t, key)
    if isinstance(container, OpenWrites) and container.late:
        known = source == container.last or source in container.late and all_new(t, container)
        return source if source is not None and (known or _told_apart(t, container, key, source)) else None
    return source if id(container) not in t.effects.dirty else None


def _told_apart(t: Tracer, container: OpenWrites, key: Var, source: Source) -> bool:
    """Whether a key is none of those written, guarded."""
    now, written = hint(t, key), [(of, hint(t, other)) for of, (other, _) in container.late.items()]
    if not isinstance(container, DictVar) and min(now, *(n for _, n in written)) < 0:
        return False
    if any(len({now, other}) == 1 for _, other in written):
        return False
    text = TWO if isinstance(container, DictVar) else "0 <= key != other >= 0"
    for of, _ in written:
        t.guard("EXPR", source, SizeCondition(text, (("key", source), ("other", of))))
    return True


def all_new(t: Tracer, d: OpenWrites) -> bool:
    """Whether what was written under open keys are items that a dict did not have, guarded."""
    if not isinstance(d, ExternalDict):
        return False
    keys = [(source, hint(t, key)) for source, (key, _) in d.late.items()]
    if len({now for _, now in keys}) < len(keys) or any(dict.__contains__(d.real, now) for _, now in keys):
        return False
    for i, (source, _) in enumerate(keys):
        t.guard("EXPR", d.origin, SizeCondition("key not in table", (("key", source), ("table", d.origin))))
        for other, _ in keys[:i]:
            t.guard("EXPR", source, SizeCondition(TWO, (("key", source), ("other", other))))
    return True


def taken_back(t: Tracer, d: DictVar, key: Var) -> bool:
    """del d[key] of what the region put there under an open key: then it never did. False where that is not so."""
    if not isinstance(d, ExternalDict) or not d.late or not changes(t, key):
        return False
    source = source_of(t, key)
    if source is None or source not in d.late or not all_new(t, d):
        return False
    del d.late[source]
    t.effects.mutations += 1
    if not d.late:
        del t.effects.dirty[id(d)]
    return True


def keys_change(t: Tracer, d: DictVar) -> bool:
    """Whether it is a small dict from outside with numbers and texts for keys that a guard found to change, as it came; or as it
    came but for what was put there under open keys."""
    if not isinstance(d, ExternalDict) or type(d.real) not in (dict, collections.OrderedDict) or isinstance(d.source, NAMESPACES):
        return False
    if d.known or (not all_new(t, d) if d.late else id(d) in t.effects.dirty):
        return False
    if not d.late and (not d.real or d.complete or length_of(keys_source(d)) not in t.sizes.dynamic.changed):
        return False
    return len(d.real) <= MOST_KEYS and all(type(key) in (int, str) for key in d.real)


def all_items(t: Tracer, view: DictView | DictVar) -> list[Var] | None:
    """All items of a view of such a dict, or its keys, at once, by their places; None for other views and dicts."""
    d, wanted = (view.unread, view.kind) if isinstance(view, DictView) else (view, "keys")
    if isinstance(d, MadeDict):
        return d.row(wanted) if d.late else None
    if isinstance(view, DictView) and view.complete is None or not isinstance(d, ExternalDict) or not keys_change(t, d):
        return None
    late = [*d.late.values()]
    t.guard("LEN_IS", d.origin, len(d.real))
    rows = [
        [*(_row_of(t, d, function) if d.real else ()), *(pair[i] for pair in late)]
        for i, (kind, function) in enumerate(ROWS.items())
        if wanted in (kind, "items")
    ]
    return rows[0] if len(rows) == 1 else [SeqVar([*pair], tuple) for pair in zip(*rows)]


def iterator_by_places(t: Tracer, view: DictView | DictVar) -> IterVar | None:
    """An iterator over a view of such a dict, or over its keys; None for other views and dicts."""
    items = all_items(t, view)
    if items is None:
        return None
    owner, kind = (view.unread, view.kind) if isinstance(view, DictView) else (view, "keys")
    if isinstance(owner, MadeDict):
        return IterVar("made", state_of(owner, kind, type(iter(getattr(owner.cls(), kind)()))), t.limits.steps)
    cls = type(iter(getattr(owner.real, kind)()))
    return IterVar("places", {"owner": owner, "kind": kind, "rows": items, "at": 0, "cls": cls}, t.limits.steps)


def next_place(t: Tracer, s: dict[str, Any]) -> Var | None:
    """Takes one step of such an iterator. The dict may have other values under its keys meanwhile. Raises: Break."""
    at, rows, written = s["at"], s["rows"], s["owner"].late
    keys: list[Source | None] = []
    if id(s["owner"]) in t.effects.dirty:
        if s["kind"] != "values":
            keys = [source_of(t, t.values.real(row.items[0] if s["kind"] == "items" else row)) for row in rows]
        if not written or not written.keys() <= set(keys):
            raise Break("a dict whose keys change between calls, written while it is iterated over")
    if at >= len(rows):
        return None
    s["at"] += 1
    if s["kind"] == "items" and keys and keys[at] in written:
        return SeqVar([rows[at].items[0], written[keys[at]][1]], tuple)
    return rows[at]


NEXT["places"] = next_place


def next_made(t: Tracer, s: dict[str, Any]) -> Var | None:
    """Takes one step of an iterator over a dict of the region with open keys. Raises: Raised, Break."""
    pairs, at = s["owner"].pairs(), s["at"]
    if len(pairs) != len(s["keys"]):
        raise t.raised(RuntimeError("dictionary changed size during iteration"))
    if any(k is not was for (k, _), was in zip(pairs, s["keys"])):
        raise Break("a dict whose keys change between calls, written while it is iterated over")
    if at >= len(pairs):
        return None
    s["at"] += 1
    return s["owner"].row(s["kind"])[at]


NEXT["made"] = next_made


def _row_of(t: Tracer, d: DictVar, function: Callable[[dict], tuple]) -> list[Var]:
    row = t.values.wrap(function(d.real), Computed(Ref.strong(function, function.__name__), (d.origin,)))
    return expect(row, SeqVar).items


def keys_of(d: dict) -> tuple:
    """The keys of a dict."""
    return tuple(d)


def values_of(d: dict) -> tuple:
    """Its values, in the same order."""
    return tuple(d.values())


ROWS: dict[str, Callable[[dict], tuple]] = {"keys": keys_of, "values": values_of}
