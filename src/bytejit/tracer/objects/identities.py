"""Whether values from outside are one object: what `is`, plain equality and keys of dicts and sets go by, with its guards.

That two places hold one object is guarded where the second is looked at (`Wrapping.alias`). That they hold two matters only
where something asks: then it is a guard as well, as the places may hold one in the next call.
"""

from __future__ import annotations

import itertools

from bytejit.guards.conditions import SizeCondition
from bytejit.guards.sources import KnownSource
from bytejit.tracer.core.numpy_values import NumpyVar
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FuncVar, Lazy, MethodVar, SymVar, Var

BY_VALUE = (int, str, bool, bytes, type(None))  # whether equal ones are one object is no promise of Python's
MOST_PAIRS = 5  # keys of one class that are told apart by pairs; of more one guard counts the objects


def told_apart(t: Tracer, a: Lazy, b: Lazy) -> bool | None:
    """Whether two values that nothing has looked at are one object, with a guard. None: the caller has to look at them."""
    if type(a.obj) in BY_VALUE or type(b.obj) in BY_VALUE or a.source is None or b.source is None:
        return None
    if a.source == b.source:
        return True
    same = a.obj is b.obj
    t.guards.add("ALIAS", a.origin, (b.source, same), t.tensors.where())
    return same


def are_two(t: Tracer, a: Var, b: Var) -> None:
    """Guard that two modelled values are two objects, where both are from outside and might be one."""
    if a.source is None or b.source is None or isinstance(a.source, KnownSource) and isinstance(b.source, KnownSource):
        return
    if type(a) is type(b) and not isinstance(a, (MethodVar, SymVar, NumpyVar)) and t.type_of(a) is t.type_of(b):
        t.guards.add("ALIAS", a.origin, (b.source, False), t.tensors.where())


def keyed(t: Tracer, v: Var) -> None:
    """Note that a value from outside is a key, compared with others by identity."""
    if isinstance(v, FuncVar):
        fixed(t, v)
    elif v.source is not None:
        t.keyed[id(v)] = v


def fixed(t: Tracer, v: Var) -> None:
    """Guard that this is the same object: a look-up depends on it."""
    if not isinstance(v.source, KnownSource):
        t.guard("ID_IS", v.source, getattr(v, "real"))


def fix_key(t: Tracer, key: object) -> None:
    """Guard that the objects in a key of a dict from outside are the same objects."""
    if type(key) is tuple:
        for part in key:
            fix_key(t, part)
    elif (v := t.by_id.get(id(key))) is not None and getattr(v, "real", None) is key:
        fixed(t, v)


def add_key_guards(t: Tracer) -> None:
    """Guard that the keys of containers that the region made are different objects."""
    by_class: dict[type, list[Var]] = {}
    for v in t.keyed.values():
        if not any(guard.kind == "ID_IS" for guard in t.guards.on(v.origin)):
            by_class.setdefault(t.type_of(v), []).append(v)
    for found in by_class.values():
        if len(found) > MOST_PAIRS:
            names = tuple((f"o{i}", v.origin) for i, v in enumerate(found))
            ids = ", ".join(f"id({name})" for name, _ in names)
            outside = next((v.source for v in found if not isinstance(v.source, KnownSource)), None)
            if outside is not None:
                t.guards.add("EXPR", outside, SizeCondition(f"len({{{ids}}}) == {len(found)}", names))
            continue
        for a, b in itertools.combinations(found, 2):
            if not (isinstance(a.source, KnownSource) and isinstance(b.source, KnownSource)):
                t.guards.add("ALIAS", a.origin, (b.source, False))
