"""Generators from outside that the region runs to their ends: the trace goes on in their code, the exit closes them.

What a generator holds is read as it stands when the region begins (`iterator_sources.Suspended`). Python gives no way to move a
generator on without running its code, so one that has more to give cannot leave the region: the region then ends before.
"""

from __future__ import annotations

import functools
import types

from bytejit.common.errors import CannotRewrite
from bytejit.guards.iterator_sources import ENDED, NOT_STARTED, NotSeen, StandOf, Suspended
from bytejit.guards.sources import Attr, Item, Source
from bytejit.rewriter.flow import OBJ, Flow, analyse
from bytejit.tracer.core.frame import Frame
from bytejit.tracer.core.iterator_values import GenVar
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Lazy

from .external_iterators import SEEN
from .generators import passes_by


def external_generator(t: Tracer, gen: types.GeneratorType, source: Source) -> GenVar | None:
    """The model of a generator from outside; None for one that cannot be looked into."""
    try:
        stand = Suspended(gen)
        if stand.function is not None and t.not_inlined(stand.function):
            return None
        code = t.job.original(stand.code)
        names, cells = layout(stand, code)
    except NotSeen:
        return None
    held, made = StandOf(source), GenVar(None, 0)
    made.source, made.real = source, gen
    if stand.at == ENDED:
        made.started = made.finished = True
        return made
    assert stand.globals is not None, stand
    frame = made.frame = Frame(code, stand.globals, t.frame)
    frame.generator = made
    sources = [Item(Attr(held, "values"), i) for i in range(stand.count)]
    for name, value, at in zip(names, stand.values, sources):
        if name in cells:
            frame.cells[name] = t.values.wrap_cell(value, at)
        else:
            frame.locals[name] = Lazy(value, at)
    for value, at in zip(stand.values[len(names) :], sources[len(names) :]):
        frame.push(Lazy(value, at))
    if stand.at != NOT_STARTED:
        made.started = True
        frame.ip = frame.decoded.index_at[stand.at] + 1
        made.closable = runs_nothing_when_closed(gen, frame)
    return made


@functools.lru_cache(maxsize=256)
def _flow(code: types.CodeType) -> Flow:
    return analyse(code)


def layout(stand: Suspended, code: types.CodeType) -> tuple[list[str], frozenset[str]]:
    """Names of the locals and cells that hold something, in order, and which names are cells'.

    Raises: NotSeen where what is held cannot be told from the code alone."""
    cells = frozenset((*code.co_cellvars, *code.co_freevars))
    slots = [*code.co_varnames, *(n for n in code.co_cellvars if n not in code.co_varnames), *code.co_freevars]
    if stand.at == ENDED:
        return [], cells
    if stand.at == NOT_STARTED:
        flags = bool(code.co_flags & 4) + bool(code.co_flags & 8)
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + flags]
        names, stack = [n for n in slots if n in given or n in cells], b""
    else:
        if code is not stand.code:
            raise NotSeen("a compiled generator that has begun")
        try:
            flow = _flow(code)
        except CannotRewrite as e:
            raise NotSeen(str(e)) from None
        ins = next(i for i in flow.instrs if i.offset == stand.at)
        state = flow.states[ins.index + 1]
        if state is None or state.handlers:
            raise NotSeen("a generator that handles an exception")
        stack = state.stack[:-1]  # what is sent lies on top
        surely = [n for i, n in enumerate(slots) if n in cells or state.must >> i & 1]
        names = [n for i, n in enumerate(slots) if n in cells or state.may >> i & 1]
        if surely != names:
            raise NotSeen("a generator with locals of which it is not known whether they are set")
    if stack.count(OBJ) != len(stack) or len(names) + len(stack) != stand.count:
        raise NotSeen("a generator in the middle of a call")
    return names, cells


def add_guards(t: Tracer, gen: GenVar) -> None:
    """Guard that the generator is suspended at the same place. Its values are guarded when they are read."""
    assert gen.real is not None, gen
    stand, held = Suspended(gen.real), StandOf(gen.origin)
    t.guard("ID_IS", Attr(held, "code"), stand.code)
    for name in ("at", "count"):
        t.guard("EQUALS", Attr(held, name), getattr(stand, name))
    if stand.at != ENDED:
        t.guard("ID_IS", Attr(held, "globals"), stand.globals)


def close(target: str) -> list[str]:
    """Statements that leave the real generator as the region left its model: at its end."""
    return [f"{target}.close()"]


def runs_nothing_when_closed(gen: types.GeneratorType, frame: Frame) -> bool:
    """Whether the exception that close() throws into a suspended generator passes its code by."""
    inner = gen.gi_yieldfrom
    if inner is not None and type(inner) is not types.GeneratorType and type(inner) not in SEEN:
        return False
    return passes_by(frame)
