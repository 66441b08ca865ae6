"""Guards that are checked many at a time by a compiled call (tensor_check.py), where the pipeline has given a compiler.

Two groups: tensors' metadata, and what the `__dict__`s of objects hold (a module's hooks, flags, sizes, and names
that must not be shadowed). Dicts are compared by identity; where that fails, a function in Python says whether the
values are equal all the same.
"""

from __future__ import annotations

import collections
import sys
from typing import Any

from bytejit.source import PLAIN, DictItem, InstanceDict, Known, Source, Type
from bytejit.tensor_check import CHECKER, DictWants, dict_table, row, table
from bytejit.tracer.guards import BOOL, DICT_ABSENT, EQUALS, ID_IS, KINDS, TENSOR, TYPE_IS, Guard, neg_possible

FEWEST = 8    # keys: below, the call costs more than it saves


def tensors(rows: list[Guard]) -> dict[Source, list[int]]:
    """Tensors whose checks go into one compiled call, with their table rows."""
    if not CHECKER.usable:
        return {}
    found = {g.source: row(g.value, neg_possible(g.value)) for g in rows if g.kind == TENSOR}
    return {source: words for source, words in found.items() if words is not None}


def emit_tensors(at: Any, together: dict[Source, list[int]]) -> None:
    """Append the call that checks these tensors. `at`: an EntryPrinter."""
    if together:
        words = table(list(together.values()))
        at.bind(words, "table")      # keeps the memory alive
        call = at.bind(CHECKER.call("tensors_are"), "tensors")
        at.check(f"{call}({words.buffer_info()[0]}, {', '.join(map(at.source, together))})")


def dicts(rows: list[Guard]) -> tuple[dict[Source, DictWants], set[int]]:
    """What goes into one compiled call: the dicts, by source, with what they must hold; and the ids of the guards
    that this covers."""
    wants: dict[Source, DictWants] = {}
    covered: set[int] = set()
    if not CHECKER.usable:
        return wants, covered
    kinds = {g.source: g for g in rows if g.kind == TYPE_IS}

    def of(source: Source) -> DictWants:
        return wants.setdefault(source, DictWants())

    for g in rows:
        if g.kind == DICT_ABSENT and _of_instance(g.source) and type(g.value) is str:
            of(g.source).absent.append(sys.intern(g.value))
        elif type(g.source) is DictItem and _of_instance(g.source.base) and type(g.source.key) is str:
            key = sys.intern(g.source.key)
            typed = kinds.get(g.source)
            if g.kind == BOOL and g.value is False and typed and typed.value.get() in (dict, collections.OrderedDict):
                of(g.source.base).empty.append((key, typed.value.get()))
                covered.add(id(typed))
            elif _constant(g):
                of(g.source.base).same.append((key, g.value))
            else:
                continue
        else:
            continue
        covered.add(id(g))
    return (wants, covered) if len(covered) >= FEWEST else ({}, set())


def _of_instance(source: Source) -> bool:
    """Whether it is an instance's `__dict__`: that of a class is a mappingproxy."""
    return type(source) is InstanceDict and not isinstance(source.base, (Known, Type))


def _constant(guard: Guard) -> bool:
    value = guard.value
    plain = type(value) in PLAIN or (type(value) is tuple and all(type(v) in PLAIN for v in value))
    return plain and guard.kind in (EQUALS, ID_IS)


def emit_dicts(at: Any, wants: dict[Source, DictWants], rows: list[Guard]) -> None:
    """Append the call that checks these dicts; `rows` are the guards that it covers. `at`: an EntryPrinter."""
    if not wants:
        return
    words = dict_table(list(wants.values()))
    at.bind((words, wants), "table")
    names = {source: f"d{i}" for i, source in enumerate(wants)}
    lines = [f"def slowly({', '.join(names.values())}):"]
    for g in rows:
        source = g.source if g.source in names else g.source.base
        text = names[source] if source is g.source else f"{names[source]}[{g.source.key!r}]"
        lines.append(f"    if not ({KINDS[g.kind].check(at, text, g.value)}): return False")
    exec("\n".join([*lines, "    return True"]), at.env)
    slowly = at.bind(at.env.pop("slowly"), "slowly")
    args = ", ".join(map(at.source, wants))
    at.check(f"{at.bind(CHECKER.call('dicts_are'), 'dicts')}({words.buffer_info()[0]}, {args}) or {slowly}({args})")
