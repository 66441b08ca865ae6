"""Traces one region: sets up the root frame, runs it, decides where it stops, and then releases the program's objects."""

from __future__ import annotations

import torch

from bytejit.common import ambient, ambient_kinds, torch_controls
from bytejit.guards.sources import Cell, KnownSource, Local, Source, StackSlot
from bytejit.tracer.core.constants import NotConstant, to_python
from bytejit.tracer.core.frame import Frame
from bytejit.tracer.core.iterator_values import GenVar, IterVar
from bytejit.tracer.core.job import Stop, forget_graph
from bytejit.tracer.core.signals import Break, Raised, Restart
from bytejit.tracer.core.tracer import ExitHere, Tracer
from bytejit.tracer.core.values import NONE, NULL, TRUE, CellVar, InstanceVar, Lazy
from bytejit.tracer.objects.class_facts import LOOKED_UP
from bytejit.tracer.objects.made_dicts import MadeDict
from bytejit.tracer.objects.open_writes import OpenWrites


def run_region(t: Tracer) -> Stop:
    """Trace the region. Raises: Restart when it has to be traced again with an earlier end."""
    before = ambient.capture()
    try:
        set_up_root(t)
        value = t.run(t.root_frame)
        if t.root_frame.suspended:
            raise Break("a yield")
        return Stop(value=value)
    except ExitHere:
        return Stop(snapshot=t.snapshot)
    except Raised as e:
        t.break_where = t.raised_at.get(id(e.exc))
        return stop_at_break(t, Break(f"raises {e.exc.cls.__name__}{words_of(t, e.exc)}"))
    except Break as e:
        return stop_at_break(t, e)
    finally:
        if t.effects.state_set and not ambient_kinds.autocast_nesting():
            torch.clear_autocast_cache()  # of casts of fakes
        before.restore()
        t.classes.forget_classes()


def words_of(t: Tracer, exc: InstanceVar) -> str:
    """An exception's message, for a break's reason."""
    try:
        args = to_python(t, exc.slots.get("args", NONE))
    except (NotConstant, Break):
        return ""
    return f": {args[0]}" if args else ""


def stop_at_break(t: Tracer, cause: Break) -> Stop:
    cause.__traceback__ = cause.__context__ = cause.__cause__ = None  # its frames hold the user's objects
    cause.refused = refused(t)
    last = t.snapshot
    step = cause.at_step if cause.at_step is not None else (last.step if last else 0)
    stop = Stop(snapshot=last, cause=cause, where=t.break_where, depth=t.break_depth)
    if last is None or step <= 1:
        stop.snapshot = None
        return stop
    if step == last.step and last.mutations == t.effects.mutations:
        return stop
    raise Restart(step, cause)


def refused(t: Tracer) -> bool:
    """Whether the trace has ended within torch._dynamo.error_on_graph_break(True)."""
    if (switch := torch_controls.break_switch()) is None:
        return False
    space, name = switch
    written = t.effects.globals_written.get(id(space), (space, {}))[1].get(name)
    return bool(space.get(name)) if written is None else t.values.real(written) is TRUE


def set_up_root(t: Tracer) -> None:
    """The root frame as it stands at the point: Lazy values with StackSlot, Local and Cell sources."""
    rewritten, point = t.job.rewritten, t.start
    code = rewritten.original
    frame = t.root = Frame(code, t.job.globals, None)
    flow = rewritten.flow
    state = flow.state(flow.index_at[point.offset])
    t.stale = frozenset(n for i, n in enumerate(code.co_varnames) if state.may >> i & 1 and n not in point.live)
    args, at = t.job.args, 0
    for slot in range(point.depth):
        if slot in point.nulls or slot in point.maybes and not is_bound(t, args[at], StackSlot(at)):
            frame.push(NULL)
        else:
            frame.push(Lazy(args[at], StackSlot(at)))
        at += slot not in point.nulls
    for name in point.live:
        if name in point.bound or is_bound(t, args[at], Local(name)):
            frame.locals[name] = Lazy(args[at], Local(name))
        at += 1
    for name in (*code.co_cellvars, *code.co_freevars):
        frame.cells[name] = CellVar(None) if args[at] is None else t.values.wrap_cell(args[at], Cell(name))
        at += 1
    t.own_cells = dict(frame.cells)
    frame.ip = frame.decoded.index_at[point.offset]
    t.overrides.start_overrides()


def is_bound(t: Tracer, value: object, source: Source) -> bool:
    """Whether a local, or what a comprehension saved of one, has a value; guards that."""
    bound = value is not t.job.unbound
    if bound:
        t.guards.add("ALIAS", source, (KnownSource.of(t.job.unbound), False))
    else:
        t.guards.add("ID_IS", source, value)
    return bound


def let_go(t: Tracer) -> None:
    """Forget the program's objects, once the entry is written. What is left of a trace may stand until the next collection of
    garbage, and must keep nothing of the program alive until then. So every container that is an attribute of the tracer, its
    effects or its parts is emptied: none may be shared with anything that outlives the trace."""
    for v in t.by_id.values():
        if isinstance(v, IterVar):
            v.state.clear()
        elif type(v) is GenVar:
            v.frame = None
    for v in t.keep:
        if type(v) is GenVar:
            v.frame = None
    for v in t.effects.touched.values():
        if isinstance(v, (OpenWrites, MadeDict)):  # which would write them now
            v.late.clear()
        for name in ("items", "ns", "slots", "content", "frame"):
            if hasattr(v, name):
                setattr(v, name, None)
    if t.sizes.env is not None:
        t.sizes.env.let_go()  # sizes that torch holds keep it, out of the collector's sight
    if not t.graph_leaves:
        forget_graph(t.graph)
    parts = tuple(t.parts)
    for part in (t, t.effects, *parts):
        for held in vars(part).values():
            if isinstance(held, (dict, list, set)):
                held.clear()
    LOOKED_UP.clear()
    t.frame = t.root = t.snapshot = t.handled = None
    for part in parts:  # no cycle is left: a finalizer of the program runs when its last name goes
        part.t = None
