"""The one file that joins the stages: a function -> its rewritten twin; a site's miss -> trace, backend, entry."""
from __future__ import annotations

import threading
import time
import types
import weakref
from dataclasses import dataclass, field

import torch

from . import debug, logs, registry
from .dispatch import MISS, UNBOUND, SiteState, Sites, own_exit
from .errors import BackendFailed, CannotRewrite, Unsupported, backend_name, note_place
from .options import Settings
from .source import ModuleBuffer, ModuleParam, params_of
from .tracer.guard_code import compile_entry
from .tracer.signals import Break
from .tracer.trace import Trace, trace
from .tracer.tracer import Job
from .trampoline import rewrite
from .where import Where, where_of

# owner: compile_function; size: one a (code, globals, settings); cleared by reset()
_FUNCTIONS: dict[tuple, "Function"] = {}
# owner: compile_function; size: one a rewritten code, by its id
_ORIGINALS: dict[int, object] = {}
_lock = threading.RLock()
# owner: explain; the list that compilations are recorded into while it runs, else None
_recording: list | None = None


@dataclass
class Region:
    """What `explain` and the logs know of one compiled region."""

    function: str
    where: Where
    trace: Trace
    graph: torch.fx.GraphModule | None
    guards: list[str]
    seconds: float


class Function:
    """A code object with sites, shared by all functions of that code, globals and settings."""

    def __init__(self, code: types.CodeType, namespace: dict, settings: Settings):
        self.settings, self.globals = settings, namespace
        self.rewritten = rewrite(code)
        self.sites = Sites(self.rewritten, self.compile)
        self.dead: set[int] = set()
        self.failures: dict[int, list] = {}
        self.where = where_of(code)
        self.sites.arm_start()

    def __repr__(self) -> str:
        return f"Function({self.where})"

    def twin(self, callee):
        """The compiled form of what a broken call calls: Python functions, methods and modules; others as they are."""
        return twin(callee, self.settings)

    # ---- a site's miss ---------------------------------------------------------------------------------------------------
    def compile(self, state: SiteState, args: tuple):
        """Trace from the site and build an entry; None when there is nothing to compile."""
        options = self.settings.options
        if state.point.id in self.dead:
            return None
        if state.entries:
            self.note_recompile(state, args, options)
            if len(state.entries) >= options.recompile_limit:
                self.too_many(state)
                return None
        try:
            return self.make_entry(state, args, options)
        except Unsupported:
            raise
        except _UserError as e:
            raise e.error from None
        except Exception as e:
            logs.fault(e, "compiling a region", self.where, options)
            self.dead.add(state.point.id)
            return None

    def make_entry(self, state: SiteState, args: tuple, options):
        began = time.perf_counter()
        job = Job(self.rewritten, state.point.id, args, self.globals, UNBOUND, options.trace_time_limit,
                  not_inlined=not_inlined, original=original_code, function=self.where.function)
        found = trace(job, self.twin)
        where = where_of(self.rewritten.original, state.point.offset)
        if found.cause is not None:
            self.note_break(found, options)
        if found.ops == 0 and (found.empty or self.only_reads(found, state)):
            self.dead.add(state.point.id)
            self.arm_unvisited(found)
            return None
        entry = self.build(state, found, options, where)
        if found.exit_point is not None:
            self.sites.arm_after(found.exit_point)
        self.record(found, where, entry, time.perf_counter() - began, options)
        return entry

    def only_reads(self, found: Trace, state: SiteState) -> bool:
        """A region without operations is left to the original code, unless a function with tensors inside was inlined."""
        return True

    def arm_unvisited(self, found: Trace) -> None:
        """An empty region: the sites behind it, and those on paths that it did not take, may still hold work."""
        if found.exit_point is not None:
            self.sites.arm_after(found.exit_point)
        for point in self.rewritten.points:
            if point.site and point.offset not in found.visited and point.id not in self.dead and self.branch_of(point, found):
                self.sites.state(point.id).arm()

    def branch_of(self, point, found: Trace) -> bool:
        return point.id not in self.sites.states

    def build(self, state: SiteState, found: Trace, options, where: Where):
        """Backend and entry function of a trace."""
        env = {"MISS": MISS, "own_exit": self.failed(state), **found.env}
        if "twin" in env:
            env["twin"] = self.twin
        if found.graph is not None:
            env["graph"] = self.run_backend(found, where)
        code = self.rewritten.original
        params = params_of(state.point.values, state.point.live, (*code.co_cellvars, *code.co_freevars))
        owner, point = weakref.ref(self), state.point.id
        entry = compile_entry(params, found.guards, found.inputs, found.body, env, found.outputs,
                              on_dead=lambda forget=forget_entry: forget(owner, point, entry_ref), name=f"entry_{code.co_name.strip('<>')}")
        entry_ref = weakref.ref(entry)
        return entry

    def failed(self, state: SiteState):
        """What an entry answers when its graph raises: the original code runs on from the site, and raises itself."""
        point = state.point.id

        def answer(error: BaseException, flat: tuple):
            registry.count("fallbacks", f"a graph raised {type(error).__name__} in {self.where.function}")
            return own_exit(point, flat)
        return answer

    def run_backend(self, found: Trace, where: Where):
        backend = registry.lookup_backend(self.settings.backend)
        found.graph.meta.update(needs_grad=found.needs_grad, overlapping=found.overlapping, settings=self.settings, where=where)
        found.graph.meta["weights"] = frozenset(i for i, s in enumerate(found.inputs) if isinstance(s, (ModuleParam, ModuleBuffer)))
        registry.count("graphs", backend_name(self.settings.backend))
        try:
            made = backend(found.graph, found.examples)
        except Exception as e:
            if getattr(backend, "__module__", "").startswith("bytejit."):
                raise
            raise _UserError(note_place(e, logs.backend_place(self.settings.backend), where)) from None
        if not callable(made):
            raise _UserError(BackendFailed(backend_name(self.settings.backend), f"answered {type(made).__name__}, not a callable", where))
        return made

    # ---- what is said about it ------------------------------------------------------------------------------------------------
    def note_break(self, found: Trace, options) -> None:
        cause, where = found.cause, found.cause_where or self.where
        where = where_full(where)
        if self.settings.nopython:
            raise Unsupported(cause.reason, where, "it cannot be part of a graph", cause.do or
                              "leave nopython (fullgraph) off, so that this step runs in the original code")
        registry.count("breaks", f"{cause.reason} at {where.short}")
        logs.log("breaks", cause.reason, where, options)

    def note_recompile(self, state: SiteState, args: tuple, options) -> None:
        reason = "; ".join(dict.fromkeys(e.explain_failure(args) for e in state.entries[:3]))
        registry.count("recompiles", f"{self.where.short} {reason}")
        self.failures.setdefault(state.point.id, []).append(reason)
        logs.log("recompiles", reason, where_of(self.rewritten.original, state.point.offset), options)

    def too_many(self, state: SiteState) -> None:
        state.freeze()
        reason = self.failures[state.point.id][-1]
        registry.count("fallbacks", f"recompile limit in {self.where.function}")
        logs.warn_once(f"limit {self.where.short} {state.point.id}",
                       f"{self.where}: compiled {len(state.entries)} times and left to the original code from now on; "
                       f"what kept changing: {reason}")

    def record(self, found: Trace, where: Where, entry, seconds: float, options) -> None:
        region = Region(self.where.function, where, found, found.graph, [repr(g) for g in found.guards], seconds)
        if _recording is not None:
            _recording.append(region)
        if found.graph is not None and logs.wanted("graph", options):
            logs.log("graph", found.graph.code, where, options)
        if logs.wanted("guards", options):
            logs.log("guards", found.guards.text(), where, options)
        if logs.wanted("code", options):
            logs.log("code", entry.text, where, options)
        dump = debug.region(options, where_of(self.rewritten.original), found_point(found))
        if dump:
            write_dump(dump, self, found, entry)


class _UserError(Exception):
    """Carries an exception that is the user's own (a backend's) past the handling of internal faults."""

    def __init__(self, error: BaseException):
        self.error = error


def found_point(found: Trace) -> int:
    return found.exit_point or 0


def forget_entry(owner, point: int, entry_ref) -> None:
    """An object that an entry's guards know by identity has died."""
    function, entry = owner(), entry_ref()
    if function is not None and entry is not None:
        function.sites.state(point).remove(entry)


def where_full(where: Where) -> Where:
    """A place with its source line."""
    if where.source:
        return where
    import linecache
    return Where(where.file, where.line, where.function, linecache.getline(where.file, where.line).rstrip("\n"))


def write_dump(dump, function: Function, found: Trace, entry) -> None:
    import dis
    dump.write("original", dis.Bytecode(function.rewritten.original).dis(), ".txt")
    dump.write("rewritten", dis.Bytecode(function.rewritten.code).dis(), ".txt")
    if found.graph is not None:
        dump.write("graph", found.graph.print_readable(print_output=False), ".py")
    dump.write("guards", found.guards.text(), ".txt")
    dump.write("entry", entry.text, ".py")
    for stage, text, suffix in (found.graph.meta.get("stages", ()) if found.graph is not None else ()):
        dump.write(stage, text, suffix)


# ---- what is left alone --------------------------------------------------------------------------------------------------------
def not_inlined(fn) -> str:
    """Why a Python function is never looked into; "" when it may be."""
    if registry.marked("disable", fn):
        return f"{fn.__qualname__} is marked bytejit.disable"
    if registry.marked("disallow", fn):
        return f"{fn.__qualname__} is marked bytejit.disallow_in_graph"
    if getattr(fn, "_torchdynamo_disable", False):
        return f"{fn.__qualname__} is marked torch.compiler.disable"
    return ""


def original_code(code: types.CodeType) -> types.CodeType:
    """The code as the user wrote it, for a code object that may be rewritten."""
    found = _ORIGINALS.get(id(code))
    return found.original if found is not None else code


# ---- public to api.py -------------------------------------------------------------------------------------------------------------
def compile_function(fn: types.FunctionType, settings: Settings):
    """A new function with the rewritten code of `fn` and all else of it shared. A code that cannot be rewritten: `fn`."""
    code = original_code(fn.__code__)
    key = (id(code), id(fn.__globals__), settings)
    with _lock:
        shared = _FUNCTIONS.get(key)
        if shared is None:
            try:
                shared = Function(code, fn.__globals__, settings)
            except CannotRewrite as e:
                registry.count("fallbacks", f"{fn.__qualname__} cannot be rewritten: {e.reason}")
                logs.warn_once(f"rewrite {fn.__qualname__}", f"{fn.__qualname__} runs uncompiled: {e.reason}")
                return fn
            _FUNCTIONS[key] = shared
            _ORIGINALS[id(shared.rewritten.code)] = shared.rewritten
    made = types.FunctionType(shared.rewritten.code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    made.__kwdefaults__, made.__qualname__, made.__doc__ = fn.__kwdefaults__, fn.__qualname__, fn.__doc__
    made.__module__, made.__annotations__ = fn.__module__, fn.__annotations__
    made.__dict__.update(fn.__dict__)
    made.__wrapped__ = fn
    return made


_twins: "weakref.WeakKeyDictionary" = weakref.WeakKeyDictionary()


def twin(callee, settings: Settings):
    """The compiled form of a callable that a broken call is about to call; callables without Python code as they are."""
    if isinstance(callee, types.MethodType):
        func = twin(callee.__func__, settings)
        return callee if func is callee.__func__ else types.MethodType(func, callee.__self__)
    if isinstance(callee, types.FunctionType):
        known = _twins.setdefault(callee, {})
        found = known.get(settings)
        if found is None:
            if id(callee.__code__) in _ORIGINALS or not_inlined(callee):
                return callee
            found = compile_function(callee, Settings(settings.backend, False, settings.dynamic, settings.overrides))
            known[settings] = weakref.ref(found) if found is callee else found
        return found() if isinstance(found, weakref.ref) else found
    if not isinstance(callee, type):
        call = getattr(type(callee), "__call__", None)
        if isinstance(call, types.FunctionType):
            return types.MethodType(twin(call, settings), callee)
    return callee


def reset() -> None:
    """Forget all entries; compiled functions compile anew at their next call."""
    with _lock:
        for function in _FUNCTIONS.values():
            for state in function.sites.states.values():
                state.reset()
            function.dead.clear()
            function.failures.clear()
            function.sites.arm_start()
