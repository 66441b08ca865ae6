"""The one file that joins the stages: a site's miss -> trace, backend, entry.

`compile_site` is what the sites of every compiled function call on a miss; runtime/ decides when and how often.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import time
import types
from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.graph_info import INFO, info_of, report_of
from bytejit.common.graph_modules import copy_of
from bytejit.common.overriding import unasked, within_modes
from bytejit.common.text import identifier
from bytejit.common.warned import silenced
from bytejit.common.where import Where, with_source
from bytejit.guards.generated import Work, compile_entry
from bytejit.guards.library_flags import states_of
from bytejit.guards.module_sources import ModuleBuffer, ModuleParam
from bytejit.guards.source import Source, params_of
from bytejit.guards.sources import Drawn, Local, StackSlot, TensorSize, TensorStride
from bytejit.rewriter.trampoline import UNBOUND
from bytejit.runtime import function as functions
from bytejit.runtime.circumstances import watched
from bytejit.runtime.compiled_callee import compiled_callee, not_inlined
from bytejit.runtime.dispatch import SiteState
from bytejit.runtime.early_draws import drawing
from bytejit.runtime.entry import MISS, Args, Entry, NotCompiled
from bytejit.runtime.failures import compile_or_leave, exit_of_failed_graph, leave_uncompiled
from bytejit.runtime.function import CompiledFunction, original_code
from bytejit.runtime.live_values import ModulePass, holds_work, modules_among
from bytejit.runtime.module import follow, part
from bytejit.runtime.ownership import UserError, is_own
from bytejit.runtime.rollback import rewinding
from bytejit.runtime.verification import verify
from bytejit.tools import inspection
from bytejit.tools.advice import advice
from bytejit.tracer.core.job import Job
from bytejit.tracer.core.named_sources import NamedSources
from bytejit.tracer.core.open_values import Differs
from bytejit.tracer.core.signals import Break, NotLoaded, NotNow, TooLong
from bytejit.tracer.core.sizes import Dynamic
from bytejit.tracer.trace import Trace, trace

from .common import interrupts, logs, profiler_ranges, profiling, registry, torch_controls, torch_settings
from .common.errors import BackendFailed, IncorrectResult, Unsupported, backend_name, note_place
from .common.options import Options, Settings

reset = functions.reset


def compile_function(fn: types.FunctionType, settings: Settings) -> types.FunctionType:
    """A new function with the rewritten code of `fn` and all else of it shared. A code that cannot be rewritten: `fn`."""
    made = functions.compile_function(fn, settings, compile_site)
    if made is not fn:
        made.__dict__["_repr_html_"] = functools.partial(_cell, made.__dict__[functions.HANDLE])  # notebooks ask for it
    return made


def _cell(handle: functions.Handle, *called_on: object) -> str:
    from bytejit.tools.cell import cell

    return cell(handle, *called_on)


# ---- a site's miss ---------------------------------------------------------------------------------------------------
def compile_site(function: CompiledFunction, state: SiteState, args: Args) -> Entry | NotCompiled | None:
    """Trace from the site and build an entry; None when there is nothing to compile."""
    settings = function.settings
    options = torch_settings.with_settings(settings.options, dict(settings.overrides))
    function.name_after(args)
    modules = modules_among(args)
    if any([follow(m) for m in modules]):
        return NotCompiled.NOT_NOW
    if not settings.nopython and function.recompiles.crowded(state, modules) and any([part(m) for m in modules[:1]]):
        return NotCompiled.NOT_NOW
    note_size = lambda point, name, dim, size: function.recompiles.note_size(point, TensorSize(Local(name), dim), size)
    if function.steering.leaves_alone(state, args, function.where, note_size):
        return NotCompiled.NOT_NOW
    if watcher := watched():
        if settings.nopython:
            raise Unsupported(
                watcher,
                function.where,
                "it observes each operation, and a compiled graph runs other operations",
                "call the compiled function outside of it",
            )
        return NotCompiled.NOT_NOW
    overrides_off = not torch._C._is_torch_function_enabled()  # torch asks no override for the program either
    doing = profiling.scope(f"bytejit compile {function.where.function} {function.place(state.point.id).short}")
    with doing, torch._C.DisableTorchFunction():  # what overrides are told is the tracer's to say
        return _compile_unasked(function, state, args, options, overrides_off)


def _compile_unasked(
    function: CompiledFunction, state: SiteState, args: Args, options: Options, overrides_off: bool
) -> Entry | NotCompiled | None:
    """`compile_site`, while torch asks no override."""
    modules, point = modules_among(args), state.point.id
    if point in function.back_off.dead or function.recompiles.gave_up_on(modules):
        return None
    if point == function.rewritten.start:
        function.back_off.revive(args)

    def compile() -> Entry | NotCompiled | None:
        if (state.died or any(not e.negative for e in state.entries)) and not function.recompiles.allowed(
            state, args, modules, options
        ):
            return None
        return _traced_entry(function, state, args, options, overrides_off)

    entry = compile_or_leave(function, point, options, compile)
    if isinstance(entry, Entry) and not entry.negative:
        entry.remember(modules)
    return entry


def _traced_entry(
    function: CompiledFunction, state: SiteState, args: Args, options: Options, overrides_off: bool
) -> Entry | NotCompiled | None:
    began, point = time.perf_counter(), state.point.id
    registry.begin(function.settings.backend, options)
    job = Job(
        function.rewritten,
        point,
        args,
        function.globals,
        UNBOUND,
        options.trace_time_limit,
        not_inlined=not_inlined,
        original=original_code,
        function=function.where.function,
        dynamic=_dynamic_at(function, state, options),
        by_value=sum(e.by_value for e in state.entries),
        measure=function.settings.nopython,
        overrides_off=overrides_off,
        may_wait=not function.back_off.starved(point),
        generators=function.keeps_generators,
        unloadable=state.unloadable,
    )
    entry: Entry | NotCompiled | None = None
    for _ in range(2):
        try:
            found = trace(job, functools.partial(compiled_callee, owner=function))
        except NotNow:
            return function.back_off.put_off(point)
        except NotLoaded as e:
            state.wanted = e.name
            return NotCompiled.NOT_LOADED
        except TooLong as e:
            return leave_uncompiled(function, str(e))
        function.keeps_generators |= found.cause is not None and found.cause.generator
        try:
            entry = _entry_of(function, state, args, found, options, began)
            if not isinstance(entry, Entry) or found.fits_call():
                break
        finally:
            found.let_go()
        # a size was traced as it was before, and the backend's conditions exclude what it is now
        job = dataclasses.replace(job, dynamic=job.dynamic.as_it_is())
    return entry


def _dynamic_at(function: CompiledFunction, state: SiteState, options: Options) -> Dynamic:
    """Returns which sizes the next trace from a site makes symbolic."""
    guarded = frozenset(g.source for e in state.entries for g in e.guards if g.kind == "TENSOR")
    changed = dict(function.recompiles.changed.get(state.point.id, {}))
    unlike = frozenset() if function.settings.nopython else _unlike_at(function, state.point.id)
    named = NamedSources(options.dynamic_sources, function.named.reworded)
    of_modules = frozenset(function.recompiles.of_modules.get(state.point.id, ()))
    return Dynamic(function.dynamic() is True, changed, guarded=guarded, unlike=unlike, of_modules=of_modules, named=named)


def _unlike_at(function: CompiledFunction, point: int) -> frozenset[Source]:
    """Returns sources of values that differ in each call, as sites of the function have seen. Each has a stack of its own."""
    found = function.recompiles.unlike.items()
    sources = {
        s for seen, unlike in found for s in unlike if seen == point or not any(isinstance(r, StackSlot) for r in s.roots())
    }
    return frozenset(s for s in sources if not isinstance(s, (TensorSize, TensorStride)))


def _entry_of(
    function: CompiledFunction, state: SiteState, args: Args, found: Trace, options: Options, began: float
) -> Entry | NotCompiled | None:
    """The entry of a trace; where it holds no work, what becomes of the site."""
    point = state.point.id
    where = function.place(point)
    if found.cause is not None:
        _note_break(function, found.cause, found.cause_where, options)
    works = found.asked or "compiled_callee" in found.env and (found.callee_works or holds_work(args))
    if found.ops == 0 and (found.empty or not works):
        return _held_nothing(function, state, args, found, where, time.perf_counter() - began)
    function.back_off.found_work(point, args)
    entry = _build(function, state, found, options, where)
    if found.exit_point is not None:
        function.sites.arm_after(found.exit_point)
    inspection.note_region(found, function, point, entry, time.perf_counter() - began, options)
    return entry


def _held_nothing(
    function: CompiledFunction, state: SiteState, args: Args, found: Trace, where: Where, seconds: float
) -> Entry | NotCompiled | None:
    """Decides about a site whose region has no operation, and does not end in a call of Python code that may have some.

    Returns an entry that lets such calls pass, or why none is made."""
    function.back_off.arm_unvisited(found.exit_point, found.visited)
    if found.sizes_leave and inspection.recorded():
        found.resolve()
        inspection.note_empty(found, function.named, where, state.point.id)
    modules = modules_among(args)
    if function.shared and modules:
        point = state.point.id
        return ModulePass(modules, args, state.flat, point, function.forget_when_dead(point))
    further = found.empty or found.exit_point is not None and found.at_work
    if not further and found.exit_point is not None:
        function.back_off.leave_loops(found.visited)
    return function.back_off.held_nothing(state, args, further, seconds)


def _build(function: CompiledFunction, state: SiteState, found: Trace, options: Options, where: Where) -> Entry:
    """Backend and entry function of a trace."""
    point, backend = state.point.id, _backend(function)
    runs_once = not (found.effects or found.written or found.restore or found.catches)
    report = report_of(found.graph) if found.graph is not None and not found.tried else None
    failed = exit_of_failed_graph(function, point, found.restore, is_own(backend), runs_once, report, options.debug)
    env = {"MISS": MISS, "own_exit": failed, "here": point, **found.env}
    if found.restore:
        env["undo"] = functools.partial(call_all, found.restore)
    if found.graph is not None:
        shown = f"bytejit {function.where.function} {where.short}"
        env |= {"profiler": profiling.FLAG, "profiled": functools.partial(profiling.call_in_scope, shown)}
        env["graph"], written = run_backend(function, backend, found, found.graph, where, options)
        if flags := states_of(found.graph.graph.nodes):
            found.guards.add_state(*flags)
    found.resolve()
    code = function.rewritten.original
    params = params_of(state.point.values, state.point.live, (*code.co_cellvars, *code.co_freevars))
    inputs = [*(s for s in found.inputs if type(s) is not Drawn), *found.generators]
    work = Work(inputs, found.body, env, found.outputs, found.only_looked_at)
    name = f"entry_{identifier(code.co_name)}"
    entry = compile_entry(params, found.guards, work, on_dead=function.forget_when_dead(point), name=name)
    entry.by_value, entry.leaves, entry.rank = found.by_value, found.leaves, int(isinstance(found.cause, Differs))
    if found.graph is not None:
        scope = entry.run.__globals__  # no reference to the entry: nothing may keep it alive
        places = [i for i, s in enumerate(found.inputs) if type(s) is Drawn]

        def use(made: Callable) -> None:
            scope["graph"] = drawing(made, found.draws, places, len(found.generators)) if places else made

        use(rewinding(scope["graph"], written, use))
    if found.modes:
        entry.run = within_modes(entry.run, entry.leaves, MISS)
    return entry


def call_all(calls: tuple[tuple[Callable, tuple], ...]) -> None:
    """Make each call: (function, arguments)."""
    for function, args in calls:
        function(*args)


# ---- the backend -----------------------------------------------------------------------------------------------------
def _backend(function: CompiledFunction) -> Callable:
    """The backend, which the program may have named: torch's stance comes first. Raises: UserError."""
    forced = torch_controls.stance().backend
    try:
        return registry.lookup_backend(function.settings.backend if forced is None else forced)
    except (ValueError, TypeError, ImportError, BackendFailed) as e:
        raise UserError(e) from None


def run_backend(
    function: CompiledFunction, backend: Callable, found: Trace, graph: torch.fx.GraphModule, where: Where, options: Options
) -> tuple[Callable, tuple[int, ...]]:
    """Calls the backend with a trace's graph. Returns the callable, and the inputs that it may have written when it raises.

    Raises: UserError with the exception of a backend of the program's own.
    """
    name, own = backend_name(function.settings.backend), is_own(backend)
    weights = frozenset(i for i, s in enumerate(found.inputs) if isinstance(s, (ModuleParam, ModuleBuffer)))
    info = dataclasses.replace(
        info_of(graph), settings=function.settings, where=where, weights=weights, texts=inspection.recorded()
    )
    graph.meta[INFO] = info
    registry.count("graphs", name)
    events = () if own and isinstance(backend, types.FunctionType) else profiler_ranges.without(graph)
    run: Callable[..., Any] = operator.call if own else interrupts.interruptible
    kept = options.verify_correctness or options.check or not (own or options.raise_on_backend_error)
    as_traced = copy_of(graph) if kept else graph  # a backend may change its own
    try:
        made = run(backend, graph, found.examples) if found.ops else graph.forward
    except Exception as e:
        error = e.error if isinstance(e, UserError) else e  # the former of a compiler of the program's own in `aot`
        if own and error is e:
            raise
        if not options.raise_on_backend_error:
            registry.count("fallbacks", f"backend {name} raised {type(error).__name__} in {function.where.function}")
            return as_traced.forward, found.written
        raise UserError(note_place(error, logs.backend_place(function.settings.backend), where)) from None
    if not callable(made):
        raise UserError(BackendFailed(name, f"returned {type(made).__name__}, not a callable", where))
    if found.ops:
        try:
            if options.verify_correctness:
                run(verify, as_traced.forward, made, found.examples, name, where)
            if options.check:
                from bytejit.tools.accuracy import check_region

                run(check_region, as_traced, made, backend, found.examples, name, where)
        except IncorrectResult as e:
            raise UserError(e) from None
    if inspection.timed() and found.ops:
        from bytejit.tools.timing import seconds_of

        report_of(graph).run_seconds = run(seconds_of, made, found.examples)
    last = report_of(graph).writes_last
    written = () if last is not None and made is last() else found.written
    made = silenced(profiler_ranges.around(made, events), found.warned)
    return (unasked(made) if info.overrides else made), written


def _note_break(function: CompiledFunction, cause: Break, at: Where | None, options: Options) -> None:
    where = with_source(at or function.where)
    if function.settings.nopython or cause.refused:
        off = "leave nopython (fullgraph) off" if function.settings.nopython else "leave torch._dynamo.error_on_graph_break off"
        do = cause.do or f"{advice(cause.reason)}; or {off}, so that this step runs in the original code"
        raise Unsupported(cause.reason, where, "it cannot be part of a graph", do)
    registry.count("breaks", f"{cause.reason} at {where.short}")
    inspection.note_break(cause.reason, where, cause.do or advice(cause.reason), options)
