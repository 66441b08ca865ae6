"""trace(job) -> Trace: runs the tracer, again with an earlier end where it must, and writes the entry's tail."""

from __future__ import annotations

import types
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from bytejit.common import ambient_kinds, given_warnings, inference, profiler_ranges
from bytejit.common.gradients import refused
from bytejit.common.graph_info import INFO, GraphInfo
from bytejit.common.graph_modules import module_of
from bytejit.common.overriding import is_composed, overrides
from bytejit.common.saved_tensors import unhooked
from bytejit.common.where import Where, where_of
from bytejit.fake.tensor import was_written
from bytejit.guards.conditions import Distinct
from bytejit.guards.guard_set import GuardSet
from bytejit.guards.kinds import DISTINCT, TENSOR
from bytejit.guards.references import NotingPrinter, Ref
from bytejit.guards.sources import Attr, Computed, KnownSource, Local, Source, StackSlot, TensorGrad
from bytejit.runtime.early_draws import Draw
from bytejit.tracer.core.job import Job, Stop
from bytejit.tracer.core.signals import Break, CannotReconstruct, LeaveToTorch, Restart, Specialise
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import TensorVar, Var
from bytejit.tracer.exits.replay import SideEffectReplay
from bytejit.tracer.exits.way_out import way_out
from bytejit.tracer.objects import caching, class_facts, external_iterators, generators
from bytejit.tracer.objects.identities import add_key_guards
from bytejit.tracer.sizes.returned import returned_sizes
from bytejit.tracer.torch import checkpoints, inference_mode
from bytejit.tracer.torch.storage_offsets import guard_views_by_offset
from bytejit.tracer.torch.tensor_class import look_up_operators

from .assembly import new_tracer
from .region import let_go, run_region

FEW_PAIRS = 6  # of objects that must not be one: up to so many have a guard each
TORCH_TENSORS = (torch.Tensor, torch.nn.Parameter)  # their `.grad` is torch's own


@dataclass
class Trace:
    """The result of tracing one region. `graph` is None when the region holds no operation; `exit_point` None: it returns."""

    graph: torch.fx.GraphModule | None
    inputs: list[Source]
    examples: list[torch.Tensor]
    guards: GuardSet
    body: Callable[[Any], str]
    outputs: int
    ops: int
    exit_point: int | None
    cause: Break | None
    cause_where: Where | None
    visited: frozenset[int]
    inlined: tuple
    empty: bool = False
    env: dict = field(default_factory=dict)
    written: tuple[int, ...] = ()  # inputs whose storage the graph writes
    draws: tuple[Draw, ...] = ()  # random numbers that are inputs: of each a `Drawn`
    generators: tuple[Source, ...] = ()  # generators of the program's own that they are drawn from
    restore: tuple = ()  # (setter, args): torch's global state as it was at the start
    leaves: tuple = ()  # kinds of ambient state that may differ after the region from before it
    sizes_leave: bool = False  # whether a symbolic number is returned, or stored where other code sees it
    returned_sizes: tuple | None = ()  # (path, SizeCondition) of symbolic numbers in the result; None: not all can be expressed
    resolve: Callable[[], None] = lambda: None  # adds what is known of symbols to the guards: after the backend has run
    fits_call: Callable[[], bool] = lambda: True  # whether the entry holds for this very call: after the backend has run
    asked: bool = False  # whether the program called is_compiling()
    at_work: bool = True  # whether tensors or modules were met
    callee_works: bool = (
        False  # whether operations were met behind its end, before what broke the graph: in the call that it ends at
    )
    let_go: Callable[[], None] = lambda: None  # forgets the program's objects: after the entry is built
    modes: bool = False  # whether torch function modes were active around the call
    by_value: bool = False  # values of tensors among the arguments were taken as constants
    catches: bool = False  # whether the region catches exceptions of the program's own code in the graph
    tried: bool = False  # whether it may catch an error of an operation
    effects: tuple[str, ...] = ()  # objects from outside that the region changes, other than tensors' data
    warned: frozenset[str] = frozenset()  # what torch's C++ warned of: it is said, and the graph does not repeat it
    only_looked_at: tuple[Source, ...] = ()  # what the guards fetch, and nothing behind them reads


def trace(job: Job, compiled_callee: Callable | None = None) -> Trace:
    """Trace a region. Shapes: as the live values have them. Raises: what the compiler's own faults raise, never Break."""
    with unhooked():
        return _trace(job, compiled_callee)


def _trace(job: Job, compiled_callee: Callable | None) -> Trace:
    stop_at, cause, where, depth = None, None, None, 0
    met = 0  # operations before the break
    seen: set[int] = set()
    job = replace(job)
    t = new_tracer(job, stop_at)
    for again in range(50):
        if again:
            let_go(t)
            t = new_tracer(job, stop_at)
        t.limits.visited |= seen
        try:
            stop = run_region(t)
            t.sizes.finishing = True
            if stop.cause is None:
                stop.cause, stop.where, stop.depth = cause, where or place_of(t, stop), depth
            found = finish(t, job, stop, compiled_callee)
            found.callee_works = met > found.ops
            if t.hysteresis.fits_call():
                return found
            job.dynamic, stop_at, cause, where, depth = job.dynamic.as_it_is(), None, None, None, 0
            continue
        except Specialise as s:
            job.dynamic = job.dynamic.as_it_is() if t.hysteresis.in_use else job.dynamic.without(s.sources, s.where)
            continue
        except LeaveToTorch as left:
            job.left_to_torch[left.cls] = left.changes
            continue
        except Restart as r:
            if r.cause.long:
                seen |= t.limits.visited
            if cause is None:
                cause, where, depth = r.cause, t.break_where, t.break_depth
                met = operations(t.graph)
            stop_at = r.stop_at
        except CannotReconstruct as e:
            if cause is None:
                cause, where, depth = Break(f"{e.what} is needed after the graph", generator=e.generator), t.break_where, 0
            stop_at = min(e.step, (stop_at or e.step + 1) - 1, (t.snapshot.step - 1 if t.snapshot and stop_at else e.step))
        if stop_at <= 1:
            return nothing(t, cause, where)
    return nothing(t, cause, where)


def place_of(t: Tracer, stop: Stop) -> Where | None:
    """The line of the function where the region ends before what cannot leave it; None where it does not."""
    if stop.snapshot is None:
        return None
    return where_of(t.root_frame.code, t.root_frame.decoded.ins[stop.snapshot.ip].offset)


def nothing(t: Tracer, cause: Break | None, where: Where | None) -> Trace:
    """The trace of a region that ends where it starts."""
    return Trace(
        None,
        [],
        [],
        t.guards,
        lambda at: "",
        0,
        0,
        t.job.point,
        cause,
        where,
        frozenset(t.limits.visited),
        tuple(t.inlined.values()),
        empty=True,
        let_go=partial(let_go, t),
    )


def finish(t: Tracer, job: Job, stop: Stop, compiled_callee: Callable | None) -> Trace:
    """Graph, guards and tail of a trace that ended at `stop`."""
    if stop.snapshot is None and stop.value is None:
        return nothing(t, stop.cause, stop.where)
    if t.external_ranges:
        raise CannotReconstruct("a range of the profiler", t.external_ranges[0])
    generators.check_left(t)
    replay = SideEffectReplay(t)
    replay.returns = stop.snapshot is None
    way = way_out(t, job, stop, compiled_callee)
    dry = NotingPrinter()
    replay.write(dry, way.values, way.last)  # a dry run finds the graph's outputs, or that a value cannot leave
    caching.check_symbolic(t, replay.names)
    t.traced_arrays.check_writes(any(isinstance(v, TensorVar) and is_written(t, v) for v in t.inputs))
    t.measures.write_requirements()
    outputs = t.backward.without_history(checkpoints.group(t, list(replay.outputs)), replay.without_history_at())
    t.copying.resolve_copies(outputs)
    t.symbol_guards.drop_unused_symbols()
    add_last_guards(t)
    drop_unread(t, outputs)
    calls = [n for n in t.graph.nodes if n.op.startswith("call_")]
    new_grads = replaced_gradients(t, replay, dry.noted)
    gm = graph_module(t, outputs, new_grads) if calls or outputs or t.drawn.draws else None
    inputs = t.inputs if gm is not None else []
    return Trace(
        gm,
        [v.origin for v in inputs],
        [v.real for v in inputs],
        t.guards,
        lambda at: replay.write(at, way.values, way.last),
        len(outputs),
        operations(t.graph),
        way.point,
        stop.cause,
        stop.where,
        frozenset(t.limits.visited),
        tuple(t.inlined.values()),
        env=way.env,
        written=tuple(i for i, v in enumerate(inputs) if isinstance(v, TensorVar) and is_written(t, v)),
        restore=undo_of(t),
        leaves=kinds_left(t, replay),
        modes=bool(t.overrides.outer_modes),
        by_value=t.by_value,
        asked=t.asked,
        catches=t.catches,
        tried=t.tried,
        effects=effects_of(t),
        warned=frozenset(t.deferred.said),
        draws=tuple(t.drawn.draws),
        generators=tuple(g.origin for g in t.drawn.generators),
        only_looked_at=tuple(TensorGrad(t.inputs[i].origin) for _, i in new_grads),
        sizes_leave=t.sizes.sizes_leave,
        returned_sizes=returned_sizes(t, stop.value) if t.sizes.sizes_leave and replay.returns and stop.value is not None else (),
        resolve=lambda: t.symbol_guards.resolve(t.guards),
        fits_call=t.hysteresis.fits_call,
        let_go=partial(let_go, t),
        at_work=any(
            isinstance(v, TensorVar) or issubclass(type(getattr(v, "real", None)), torch.nn.Module) for v in t.by_id.values()
        ),
    )


def operations(graph: torch.fx.Graph) -> int:
    """Counts the operations of a graph."""
    return sum(n.op.startswith("call_") and n.target not in profiler_ranges.NODES for n in graph.nodes)


def add_last_guards(t: Tracer) -> None:
    """Add the guards whose need is known only at the end of the region."""
    if t.reads_grad and not t.grad_matters:
        for v in t.inputs:  # guarded without it when they were read, as long as gradients were off
            if not isinstance(v, TensorVar):
                continue
            for g in t.guards.on(v.origin):
                if g.kind == TENSOR:
                    t.guards.replace(g, replace(g.value, requires_grad=v.real.requires_grad))
    guard_views_by_offset(t)
    guard_detached(t)
    add_alias_guards(t)
    add_key_guards(t)
    external_iterators.add_guards(t)
    for lazy in t.fetched:
        if lazy.var is None and lazy.source is not None:
            t.guards.add("PRESENT", lazy.source)
    look_up_operators(t)
    for cls, lookups in class_facts.guards_of_lookups(t.cannot_change):
        t.guards.add("CLASS", KnownSource.of(cls), lookups)


def guard_detached(t: Tracer) -> None:
    """Guard whether inputs that the region detaches are leaves: torch refuses writes into these, `requires_grad_` of others."""
    for v in t.inputs:
        if isinstance(v, TensorVar) and v.source is not None and v.real.requires_grad and not v.fake.requires_grad:
            t.guard("EQUALS", Attr(v.source, "is_leaf"), v.real.is_leaf)


def drop_unread(t: Tracer, outputs: list[torch.fx.Node]) -> None:
    """Take tensors that the region only looked at out of the graph: a call would hold them, and with them their memory, until
    its end (a step that begins with `zero_grad()`: all gradients of the step before)."""
    given, kept = set(outputs), []
    for v in t.inputs:
        if isinstance(v, TensorVar) and v.node is not None and not v.node.users and v.node not in given and not is_written(t, v):
            t.graph.erase_node(v.node)
        else:
            kept.append(v)
    t.inputs[:] = kept


def replaced_gradients(t: Tracer, replay: SideEffectReplay, read: Container[Source]) -> tuple[tuple[int, int], ...]:
    """(output, input): the output becomes the input's `.grad`, and nothing reads the tensor that was it before. read: what the
    exit reads."""
    if t.deferred_calls:
        return ()
    found = []
    graph_reads = {v.origin for v in t.inputs}
    for i, v in enumerate(t.inputs):
        new = v.attrs.get("grad") if isinstance(v, TensorVar) and type(v.real) in TORCH_TENSORS else None
        at = replay.output_at.get(new.node) if isinstance(new, TensorVar) and new.node is not None else None
        old = TensorGrad(v.origin)
        if at is not None and old not in read and old not in graph_reads:
            found.append((at, i))
    return tuple(found)


def graph_module(t: Tracer, outputs: list[torch.fx.Node], new_grads: tuple[tuple[int, int], ...]) -> torch.fx.GraphModule:
    """The graph with its outputs, and what a backend is told of it."""
    inference_mode.close(t)
    t.graph.output(tuple(outputs))
    gm = module_of(t.graph)
    t.graph_leaves = True
    tensors = [v for v in t.inputs if isinstance(v, TensorVar)]
    values = [n.meta.get("val") for n in outputs]
    gm.meta[INFO] = GraphInfo(
        needs_grad=any(map(gets_history, tensors)) or any(isinstance(v, torch.Tensor) and v.requires_grad for v in values),
        arrays=bool(t.traced_arrays.first_step),
        inference=inference_mode.kind_of_outputs(t, outputs),
        overrides=bool(t.overrides.outer_modes) or any(v.cls is not None and overrides(v.cls) for v in tensors),
        autocast=torch._C._is_any_autocast_enabled(),
        sets_data=bool(t.effects.data_set),
        asked=t.asked,
        measures=any(n.op != "placeholder" for n in t.measures.measured.values()),
        grads_off=torch.is_grad_enabled() and any(v.real.requires_grad for v in tensors),
        backward=bool(t.backward.passes),
        grad_at_start=torch.is_grad_enabled(),
        new_grads=new_grads,
    )
    return gm


def is_written(t: Tracer, v: TensorVar) -> bool:
    """Whether the graph writes an input's storage."""
    if was_written(v.fake) or v in t.effects.data_set:
        return True
    return not is_composed(type(v.real)) and t.stores[v.real.untyped_storage()._cdata].written > 0


def gets_history(v: TensorVar) -> bool:
    """Whether the graph writes an input so that gradients flow through the write: not so where it writes with gradients off."""
    if not was_written(v.fake) or not v.fake.requires_grad:
        return False
    if not v.real.requires_grad:
        return True
    return not refused(v.fake) and v.fake.grad_fn is not None and v.fake.grad_fn.name() != "_NonLeafBackward"


def undo_of(t: Tracer) -> tuple[tuple[Callable, tuple], ...]:
    """(function, arguments): calls that make torch's state what it was when the region began, wherever its graph ended."""
    calls = [(function, args) for (function, _), (args, _) in t.state_first.items()]
    if t.region:
        calls = [(inference.leave_all, (t.region,)), *calls, (torch._C._set_grad_enabled, (t.grad_at_start,))]
    if t.ranges:
        calls.insert(0, (profiler_ranges.leave_all, (t.ranges,)))
    return tuple(calls)


def kinds_left(t: Tracer, replay: SideEffectReplay) -> tuple[ambient_kinds.Kind, ...]:
    """The kinds of ambient state that may differ behind the region from before it. What its graph sets and sets back is put
    back by the entry where that is cut short."""
    set_anew = any(not replay.as_begun(key, args) for key, args in t.effects.state_set.items())
    return ambient_kinds.SET_BY_EXITS if set_anew or t.region or t.deferred.filtered or replay.kinds_entered() else ()


def effects_of(t: Tracer) -> tuple[str, ...]:
    """Names of what changes outside of the region."""
    names = [v.source.name() for v in t.effects.dirty.values() if v.source is not None]
    return (*names, *(f"the global {name}" for _, changes in t.effects.globals_written.values() for name in changes))


def add_alias_guards(t: Tracer) -> None:
    """Guard against aliases. An object that the region changes must not be the same as another object that it read. No two
    tensor arguments may be the same object; they are the most likely aliases."""
    read = _by_type(t.by_id.values())
    for kind, changed in _by_type(t.effects.dirty.values()).items():
        if kind is not types.CellType and not issubclass(kind, torch.nn.Module):
            others = (source for key, source in read.get(kind, {}).items() if key not in changed)
            _guard_distinct(t, [*changed.values()], [*others])
    if t.deferred.recorded:
        _guard_distinct(t, [Computed(Ref(given_warnings.record), ())], [*read.get(list, {}).values()])
    _guard_distinct(t, [v.origin for v in t.inputs if isinstance(v, TensorVar) and _near(v.origin)], [])


def _guard_distinct(t: Tracer, changed: list[Source], others: list[Source]) -> None:
    """Guards that each of the changed is another object than all others. Those known by identity are."""
    pairs = len(changed) * (len(changed) - 1) // 2 + len(changed) * len(others)
    if pairs > FEW_PAIRS and not all(isinstance(s, KnownSource) for s in (*changed, *others)):
        t.guards.add(DISTINCT, changed[0], Distinct(tuple(changed), tuple(others)))
        return
    for i, a in enumerate(changed):
        for b in (*changed[i + 1 :], *others):
            if not (isinstance(a, KnownSource) and isinstance(b, KnownSource)):
                t.guards.add("ALIAS", a, (b, False))


def _by_type(values: Iterable[Var]) -> dict[type, dict[int, Source]]:
    """Type -> id -> source of the objects from outside."""
    found: dict[type, dict[int, Source]] = {}
    for v in values:
        real = getattr(v, "real", None)
        if v.source is not None and real is not None:
            found.setdefault(type(real), {})[id(real)] = v.origin
    return found


def _near(source: Source) -> bool:
    """Locals and stack values: the two arguments of one call are the likeliest aliases."""
    return isinstance(source, (Local, StackSlot))
