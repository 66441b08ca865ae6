"""Models of set and frozenset: making them and their methods."""

from __future__ import annotations

from collections.abc import Callable

from bytejit.tracer.core import set_tables
from bytejit.tracer.core.models import MODELS
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, DictVar, Known, SeqVar, SetVar, Var
from bytejit.tracer.objects.containers import ELEMENT, base_of, elements, key_of, set_part, sought_key
from bytejit.tracer.objects.set_orders import made_of, note, operand_of, order_of, plain, table_of


def _set_of(cls: type) -> None:
    def make(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        of = set_part(t.values.real(args[0])) if args else SeqVar([], list)
        operand = operand_of(of)
        if isinstance(of, SetVar) or (isinstance(of, Known) and type(of.obj) is frozenset):
            return copied_set(t, of, cls)
        made = SetVar(elements(t, t.iteration.iterate(of)), cls)
        if isinstance(operand, dict):
            made.table = set_tables.Table(None, "of", (cls, operand))
        elif plain(made.items):
            made.table = set_tables.of(cls, made.items)
        return made

    MODELS[cls] = make


_set_of(set)
_set_of(frozenset)


def on_set(*names: str, writes: bool = False) -> Callable:
    def register(handler: Callable) -> Callable:
        for name in names:
            for cls in (set, frozenset):
                if hasattr(cls, name):

                    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
                        if kwargs:
                            raise Break(f"{handler.__name__} of a set with arguments by name")
                        s = base_of(args[0])
                        if isinstance(s, Known):
                            s = copied_set(t, s, type(s.obj))
                        if not isinstance(s, SetVar):
                            raise Break(f"{handler.__name__} of a {t.type_of(args[0]).__name__} that is not modelled")
                        if writes:
                            t.touch(s)
                        before, operands = list(s.items), list(map(operand_of, args[1:]))
                        result = handler(t, s, args[1:])
                        if writes or isinstance(result, SetVar):
                            note(t, s, handler.__name__.removeprefix("set_"), before, operands, result)
                        return NONE if result is None else result

                    MODELS[getattr(cls, name)] = run
        return handler

    return register


@on_set("add", writes=True)
def set_add(t: Tracer, s: SetVar, args: list[Var]) -> None:
    s.items.setdefault(key_of(t, args[0], ELEMENT), args[0])


@on_set("discard", writes=True)
def set_discard(t: Tracer, s: SetVar, args: list[Var]) -> None:
    s.items.pop(sought_key(t, args[0]), None)


@on_set("remove", writes=True)
def set_remove(t: Tracer, s: SetVar, args: list[Var]) -> None:
    if s.items.pop(sought_key(t, args[0]), None) is None:
        t.subscripts.dict_item(DictVar({}), args[0])


@on_set("__init__", writes=True)
def set_init(t: Tracer, s: SetVar, args: list[Var]) -> None:
    s.items.clear()
    for v in t.iteration.each(set_part(args[0])) if args else ():
        s.items.setdefault(key_of(t, t.values.real(v), ELEMENT), t.values.real(v))


@on_set("clear", writes=True)
def set_clear(t: Tracer, s: SetVar, args: list[Var]) -> None:
    s.items.clear()


@on_set("update", writes=True)
def set_update(t: Tracer, s: SetVar, args: list[Var]) -> None:
    for other in args:
        for v in t.iteration.each(set_part(other)):
            s.items.setdefault(key_of(t, t.values.real(v), ELEMENT), t.values.real(v))


@on_set("pop", writes=True)
def set_pop(t: Tracer, s: SetVar, args: list[Var]) -> Var:
    if not s.items:
        raise t.raised(KeyError("pop from an empty set"))
    if s.real is not None:
        raise Break("set.pop of a set from outside")  # where it begins to look depends on what was popped before
    begun, table = t.iteration.iterate(s), table_of(s)
    after = table.then("pop", ()) if table is not None and order_of(s) is not None else None
    first = ({*s.items} - {*made_of(after)}).pop() if after is not None else key_of(t, begun[0])
    return s.items.pop(first)


@on_set("copy")
def set_copy(t: Tracer, s: SetVar, args: list[Var]) -> Var:
    return copied_set(t, s, s.cls)


def copied_set(t: Tracer, s: SetVar | Known, cls: type) -> SetVar:
    """A new set of a set's elements."""
    made = SetVar({k: t.values.constant(k) for k in s.obj} if isinstance(s, Known) else dict(s.items), cls)
    if (table := table_of(s)) is not None:
        made.table = set_tables.Table(None, "as", (cls, table))
    return made


@on_set("union")
def set_union(t: Tracer, s: SetVar, args: list[Var]) -> Var:
    out = dict(s.items)
    for other in args:
        for key, v in elements(t, t.iteration.iterate(set_part(other))).items():
            out.setdefault(key, v)
    return SetVar(out, s.cls)


def _where(t: Tracer, s: SetVar, others: list[Var], held: bool) -> Var:
    """The elements of s that each of the others holds, or that none does."""
    out = dict(s.items)
    for other in map(t.values.real, others):
        keys = t.subscripts.as_set(other).items
        if held and (not isinstance(other, SetVar) or len(keys) <= len(out)):  # of equal ones, those of what is gone through
            out = {k: v for k, v in keys.items() if k in out}
        else:
            out = {k: v for k, v in out.items() if (k in keys) is held}
    return SetVar(out, s.cls)


@on_set("intersection")
def set_intersection(t: Tracer, s: SetVar, args: list[Var]) -> Var:
    return _where(t, s, args, True)


@on_set("difference")
def set_difference(t: Tracer, s: SetVar, args: list[Var]) -> Var:
    return _where(t, s, args, False)


@on_set("symmetric_difference")
def set_symmetric_difference(t: Tracer, s: SetVar, args: list[Var]) -> Var:
    other = t.subscripts.as_set(args[0]).items
    out = {k: v for k, v in s.items.items() if k not in other}
    out.update({k: v for k, v in other.items() if k not in s.items})
    return SetVar(out, s.cls)


@on_set("issubset")
def issubset(t: Tracer, s: SetVar, args: list[Var]) -> Var:
    return t.values.constant(set(s.items) <= set(t.subscripts.as_set(args[0]).items))


@on_set("issuperset")
def issuperset(t: Tracer, s: SetVar, args: list[Var]) -> Var:
    return t.values.constant(
        not t.iteration.until(set_part(args[0]), lambda v: key_of(t, t.values.real(v), ELEMENT) not in s.items)
    )


@on_set("isdisjoint")
def isdisjoint(t: Tracer, s: SetVar, args: list[Var]) -> Var:
    return t.values.constant(not t.iteration.until(set_part(args[0]), lambda v: key_of(t, t.values.real(v), ELEMENT) in s.items))


@on_set("difference_update", writes=True)
def difference_update(t: Tracer, s: SetVar, args: list[Var]) -> None:
    s.items = set_difference(t, s, args).items


@on_set("intersection_update", writes=True)
def intersection_update(t: Tracer, s: SetVar, args: list[Var]) -> None:
    s.items = set_intersection(t, s, args).items


@on_set("symmetric_difference_update", writes=True)
def symmetric_difference_update(t: Tracer, s: SetVar, args: list[Var]) -> None:
    s.items = set_symmetric_difference(t, s, args).items
