"""The orders in which sets of a region are gone through: `SetVar.table` is kept as the region changes them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from bytejit.guards.sources import SetBytes, SetCopy
from bytejit.tracer.core import set_tables
from bytejit.tracer.core.constants import is_constant
from bytejit.tracer.core.set_tables import Table, outsiders
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import DictVar, Known, SeqVar, SetVar, Var, is_object

from .containers import base_of

AT_ONCE = ("update", "union", "init")  # they take what they are given item by item, in its order


def plain(keys: Iterable) -> bool:
    """Whether the place of each of these keys in a set is the same in each call."""
    return all(map(is_constant, keys))


def table_of(v: SetVar | Known) -> Table | None:
    """Returns how a set was made; None where that is not known."""
    if isinstance(v, Known) or v.real is not None and v.table is None:
        return set_tables.outside(v)
    return None if v.table is set_tables.UNKNOWN else v.table


def real_of(v: SetVar | Known) -> Any:
    """The real set of a value from outside."""
    return v.obj if isinstance(v, Known) else v.real


def made_of(table: Table) -> Any:
    """A real set that is made as a table says."""
    return set_tables.made(table, real_of)


def operand_of(v: Var) -> Any:
    """Returns the operand of a method of sets: a table, a dict, or a list or tuple as it is; None for what is not known
    beforehand."""
    v = base_of(v)
    if isinstance(v, SetVar) or isinstance(v, Known) and type(v.obj) is frozenset:
        return table_of(v)
    if isinstance(v, DictVar) and v.cls is dict and v.real is None and plain(v.items):
        return dict.fromkeys(v.items)
    return v if isinstance(v, SeqVar) and v.cls in (list, tuple) else None


def _keys(t: Tracer, v: SeqVar) -> tuple | None:
    """The items of a list or tuple that a method has gone through, where they are constants."""
    keys: list = []
    for i in map(t.values.real, v.items):
        key = _keys(t, i) if isinstance(i, SeqVar) and i.cls is tuple else i.obj if isinstance(i, Known) else None
        if key is None and not is_object(i, None) or not is_constant(key):
            return None
        keys.append(key)
    return tuple(keys)


def note(t: Tracer, s: SetVar, name: str, before: list, operands: list, result: Any) -> None:
    """Note in the tables what a method did, which began with the keys `before`."""
    changed = result if isinstance(result, SetVar) else s
    if changed is s and name in ("add", "discard", "remove") and len(s.items) == len(before):
        return
    operands = [_keys(t, o) if isinstance(o, SeqVar) else o for o in operands]
    changed.table = after(table_of(s), s, name, before, operands, changed) or set_tables.UNKNOWN


def after(table: Table | None, s: SetVar, name: str, before: list, operands: list, changed: SetVar) -> Table | None:
    """The table of `changed`, which a method of s left, or gave."""
    if table is None or changed.table is not None and changed is not s:
        return changed.table if changed is not s else None
    if name in ("add", "discard", "remove"):
        keys = tuple(s.items)[len(before) :] if name == "add" else tuple([k for k in before if k not in s.items])
        return table.then("adds" if name == "add" else "discards", keys) if plain(keys) else None
    if name == "pop" or name == "clear":
        return table.then(name, ())
    if name == "init":
        return set_tables.of(set, s.items) if plain(s.items) and not any(isinstance(o, (Table, dict)) for o in operands) else None
    if name in AT_ONCE and all(o is None or type(o) is tuple for o in operands):
        new = tuple(changed.items)[len(before) :]
        begun = table if name == "update" else table.then("copy", ()) if s.cls is set else None
        return begun.then("adds", new) if begun is not None and plain(new) else None
    if any(o is None for o in operands):
        return None
    return table.then(name, tuple(operands))


def changed_in_place(a: SetVar, name: str, b: SetVar) -> Table:
    """The table of `a` after `a |= b` and the like. name: of the method that makes another set of both."""
    table, other = table_of(a), table_of(b)
    if table is None or other is None:
        return set_tables.UNKNOWN
    return table.then("update" if name == "union" else f"{name}_update", (other,)) or set_tables.UNKNOWN


def order_of(v: SetVar) -> list | None:
    """The keys of a set in the order in which it is gone through; None where that is not known. Raises: Unlike."""
    table = table_of(v)
    if table is None:
        return None
    order = list(made_of(table))
    return order if len(order) == len(v.items) and all(k in v.items for k in order) else None


def guard_orders(t: Tracer, table: Table) -> None:
    """Guard the orders of the sets from outside that a set was made of: a copy has an order of its own. Raises: Unlike."""
    copied = table.name == "as" and table.operands[1].name == "outside"
    for v in outsiders(table):
        if v.source is not None and id(v) in t.effects.touched:
            guard_table(t, v)
        elif v.source is not None and copied:
            t.guard("SET_ITEMS", SetCopy(v.source), tuple([*{*real_of(v)}]))
        elif v.source is not None:
            t.guard("SET_ITEMS", v.source, tuple(real_of(v)))


def guard_table(t: Tracer, v: SetVar | Known) -> None:
    """Guard that a set from outside, and a copy of it, which is changed in its place, have the same places for the same items.
    Raises: Unlike."""
    assert v.source is not None, v
    real = real_of(v)
    for source, value in ((v.source, real), (SetCopy(v.source), set_tables.like(real))):
        t.guard("SET_ITEMS", source, tuple(value))
        t.guard("EQUALS", SetBytes(source), sys.getsizeof(value))
