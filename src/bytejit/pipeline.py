"""The one file that joins the stages: a function -> its rewritten twin; a site's miss -> trace, backend, entry."""
from __future__ import annotations

import dataclasses
import functools
import operator
import threading
import time
import types
import weakref

import torch

from bytejit.common.graph_info import INFO, info_of
from bytejit.common.overriding import unasked, within_modes
from bytejit.common.text import identifier
from bytejit.common.where import Where, where_of, with_source
from bytejit.guards.generated import compile_entry
from bytejit.guards.library_flags import states_of
from bytejit.guards.sources import Local, ModuleBuffer, ModuleParam, Source, TensorSize, params_of
from bytejit.rewriter.trampoline import follows_lines, in_loop, rewrite
from bytejit.runtime.dispatch import COVERED, MISS, NOT_NOW, UNBOUND, Sites, SiteState, own_exit
from bytejit.runtime.negative_cache import Quiet
from bytejit.runtime.rollback import rewinding, undoing
from bytejit.tracer.core.job import Job
from bytejit.tracer.core.signals import NotNow, TooLong
from bytejit.tracer.core.sizes import Dynamic
from bytejit.tracer.core.trace import Trace, trace

from . import inspection
from .common import interrupts, logs, ranges, registry, torch_controls
from .common.identity import IdentityMap
from .errors import (
    BackendFailed,
    BadSetting,
    CannotRewrite,
    DeviceFault,
    IncorrectResult,
    RecompileError,
    Unsupported,
    backend_name,
    note_place,
)
from .options import Settings
from .runtime.ownership import BYTEJIT, CALLED, PROGRAM, is_own, owner_of
from .runtime.steering import Steering
from .runtime.verification import verify

# owner: handle_of; size: one a living code as the user wrote it: the Handles of its compiled (globals, settings), weakly
_HANDLES: IdentityMap[list[weakref.ref[Handle]]] = IdentityMap()
# owner: handle_of; size: one a living rewritten code: the code as the user wrote it; goes with the code
_ORIGINALS: IdentityMap[types.CodeType] = IdentityMap()
_lock = threading.RLock()
_HANDLE = "__bytejit_handle__"       # attribute of a compiled function: its Handle
MAX_TWINS = 256                      # callees of broken calls whose compiled form a Function keeps
STARVED = 3             # compiles put off (no memory on the GPU, parameters that are not made yet) before a site is left alone
MODULES_LIMIT = 8                    # recompile_limit counts for each module apart; a site holds this many times as many


class Handle:
    """Keeps a Function alive for the compiled functions that share it.

    A code object holds its sites' cells, which hold entries, which hold the Function, which holds the code; and Python's
    garbage collector does not look into code objects. So a Function ends by its handle: the cells are emptied.
    """

    __slots__ = ("function", "__weakref__")

    def __init__(self, function: Function):
        self.function = function
        weakref.finalize(self, _empty, function.rewritten.cells).atexit = False


def _empty(cells: tuple[list, ...]) -> None:
    for cell in cells:
        cell.clear()


class Function:
    """A code object with sites, shared by all functions of that code, globals and settings."""

    def __init__(self, code: types.CodeType, namespace: dict, settings: Settings):
        self.twins: dict[tuple, Handle] = {}
        self.shared = False         # made for callees of broken calls: whatever object they are methods of
        self.settings, self.globals = settings, namespace
        self.rewritten = rewrite(code)
        self.sites = Sites(self.rewritten, self.compile)
        self.dead: set[int] = set()
        self.quiet: dict[int, Quiet] = {}
        self.given_up: list[tuple[weakref.ref, ...]] = []
        self.failures: dict[int, str] = {}
        self.put_off: dict[int, int] = {}       # point id -> compiles put off
        # point id -> sizes and ints seen to change between calls there, with a size above 1 that each had, or 0
        self.changed: dict[int, dict[Source, int]] = {}
        self.where = where_of(code)
        self.steering = Steering()
        self.sites.arm_start()

    def __repr__(self) -> str:
        return f"Function({self.where})"

    @property
    def dynamic(self) -> bool | None:
        """Whether sizes are symbolic: None once they changed, True at once, False never."""
        return torch_controls.dynamic_by(self.settings.dynamic)

    def twin(self, callee):
        """The compiled form of what a broken call calls: Python functions, methods and modules; others as they are."""
        return twin(callee, self)

    # ---- a site's miss -----------------------------------------------------------------------------------------------
    def compile(self, state: SiteState, args: tuple):
        """Trace from the site and build an entry; None when there is nothing to compile."""
        options = torch_controls.with_settings(self.settings.options, dict(self.settings.overrides))
        if self.steering.leaves_alone(state, args, self.where, self.note_size):
            return NOT_NOW
        watcher = watched()
        if watcher:
            if self.settings.nopython:
                raise Unsupported(watcher, self.where, "it is to see each operation, a compiled graph has others",
                                  "call the compiled function outside of it")
            return NOT_NOW
        off = not torch._C._is_torch_function_enabled()
        with torch._C.DisableTorchFunction():       # what overrides are told is the tracer's to say
            return self.compile_unasked(state, args, options, off)

    def compile_unasked(self, state: SiteState, args: tuple, options, overrides_off: bool):
        """`compile`, while torch asks no override. overrides_off: it asks none for the program either."""
        modules = modules_among(args)
        if state.point.id in self.dead or any(same_objects(known, modules) for known in self.given_up):
            return None
        if state.point.id == self.rewritten.start:
            self.revive(args)
        try:
            if any(not hasattr(e, "quiet") for e in state.entries) and not self.may_recompile(state, args, modules, options):
                return None
            entry = self.make_entry(state, args, options, overrides_off)
        except (Unsupported, BadSetting):
            raise
        except _UserError as e:
            raise e.error from None
        except NotNow:
            self.put_off[state.point.id] = self.put_off.get(state.point.id, 0) + 1
            return NOT_NOW
        except TooLong as e:
            return self.leave_uncompiled(str(e))
        except RecursionError:          # values nested deeper than the compiler can follow: the original code may
            if self.settings.nopython:
                raise Unsupported("values nested too deep", self.where, "Python's stack ends", "nest them less") from None
            registry.count("fallbacks", f"values nested too deep in {self.where.function}")
            self.dead.add(state.point.id)
            return None
        except torch.OutOfMemoryError:  # of a GPU: the original code may do with less, and raises itself where it does not
            registry.count("fallbacks", f"no memory on the GPU to compile {self.where.function}")
            if (put_off := self.put_off.get(state.point.id, 0) + 1) >= STARVED:
                self.dead.add(state.point.id)
            self.put_off[state.point.id] = put_off
            return NOT_NOW
        except Exception as e:
            if self.settings.nopython:
                raise
            logs.fault(e, "compiling a region", self.where, options)
            self.dead.add(state.point.id)
            return None
        if entry is not None and entry is not COVERED and not hasattr(entry, "quiet"):
            entry.modules = tuple(weakref.ref(m) for m in modules)
        return entry

    def note_size(self, point: int, name: str, dim: int, size: int) -> None:
        """A size of a local tensor was seen to change."""
        self.changed.setdefault(point, {}).setdefault(TensorSize(Local(name), dim), size)

    def may_recompile(self, state: SiteState, args: tuple, modules: tuple, options) -> bool:
        """Whether a site may get another entry. The limit counts apart for each module that the code is called on.

        A forward that many modules share compiles once for each of them; each may then recompile as often as any function.
        """
        entries = [e for e in state.entries if not hasattr(e, "quiet")]
        alike = [e for e in entries if same_objects(e.modules, modules)]
        if alike:
            self.note_recompile(state, alike, args, options)
            if torch_controls.setting("error_on_recompile"):
                raise RecompileError("a recompile under torch._dynamo.config.error_on_recompile", self.where,
                                     self.failures[state.point.id])
            if self.dynamic is None:
                known = self.changed.setdefault(state.point.id, {})
                for source, size in (item for e in alike if hasattr(e, "changed") for item in e.changed(args).items()):
                    known[source] = size or known.get(source, 0)
        limit = options.recompile_limit
        if len(alike) < limit and len(entries) < limit * MODULES_LIMIT:
            return True
        if modules and len(entries) < limit * MODULES_LIMIT:
            self.given_up.append(tuple(weakref.ref(m) for m in modules))
        else:
            state.freeze()
        self.too_many(state, len(alike) if len(alike) >= limit else len(entries))
        return False

    def leave_uncompiled(self, reason: str):
        """Tracing took too long: the function runs as it is from now on. Raises: Unsupported under nopython."""
        if self.settings.nopython:
            raise Unsupported(reason, self.where, "the limit is config.trace_time_limit", "raise the limit")
        registry.count("fallbacks", f"{reason} in {self.where.function}")
        logs.warn_once(f"slow {self.where.short}", f"{self.where.function} ({self.where.short}) runs uncompiled: {reason}")
        for point in self.rewritten.points:
            if point.site:
                self.dead.add(point.id)
                self.sites.state(point.id).freeze()
        return COVERED

    def make_entry(self, state: SiteState, args: tuple, options, overrides_off: bool):
        began = time.perf_counter()
        job = Job(self.rewritten, state.point.id, args, self.globals, UNBOUND, options.trace_time_limit,
                  not_inlined=not_inlined, original=original_code, function=self.where.function,
                  dynamic=self.dynamic_at(state), by_value=sum(getattr(e, "by_value", False) for e in state.entries),
                  measure=self.settings.nopython, overrides_off=overrides_off,
                  may_wait=self.put_off.get(state.point.id, 0) < STARVED)
        found = trace(job, self.twin)
        try:
            return self.entry_of(state, args, found, options, began)
        finally:
            found.let_go()

    def entry_of(self, state: SiteState, args: tuple, found: Trace, options, began: float):
        """The entry of a trace; where it holds no work, what becomes of the site."""
        where = where_of(self.rewritten.original, state.point.offset)
        if found.cause is not None:
            self.note_break(found, options)
        if found.ops == 0 and (found.empty or not self.leads_on(found, args)):
            self.arm_unvisited(found)
            if found.sizes_leave and inspection.recorded():
                found.settle()
                inspection.note_empty(found, self.where.function, where, state.point.id)
            modules = modules_among(args)
            if self.shared and modules:
                return self.passing(state, args, modules)
            further = found.empty or found.exit_point is not None and found.at_work
            if not further and found.exit_point is not None:
                self.give_up_loops(found)
            return self.held_nothing(state, args, None if further else COVERED, time.perf_counter() - began)
        if state.point.id in self.quiet:
            self.quiet[state.point.id].forget(args)
        entry = self.build(state, found, options, where)
        if found.exit_point is not None:
            self.sites.arm_after(found.exit_point)
        inspection.note_region(found, self.where.function, where, state.point.id, entry, self.rewritten,
                               time.perf_counter() - began, options)
        return entry

    def held_nothing(self, state: SiteState, args: tuple, answer, seconds: float):
        """What becomes of a site whose region is empty: one that may hold work for other values stays armed, quietly.

        Other values come to a function's start, and past it where tensors or modules are at hand; within loops a site
        that passes costs too much.
        """
        point = state.point.id
        at_work = any(issubclass(type(content(a)), (torch.Tensor, torch.nn.Module)) for a in args)
        if point == self.rewritten.start or at_work and not in_loop(self.rewritten, point):
            quiet = self.quiet.setdefault(point, Quiet(state))
            if quiet.hold(args, seconds):
                if answer is None:
                    self.sites.arm_after(point)
                return quiet.entry
        self.dead.add(point)
        return answer

    def revive(self, args: tuple) -> None:
        """The function is called with values of new kinds, or for a while in vain: sites that gave up get another trace."""
        quiet = self.quiet.get(self.rewritten.start)
        if quiet is not None and (quiet.is_new(args) or quiet.due(args)):
            for point in self.dead - {self.rewritten.start}:
                self.sites.forget(point)
            self.dead &= {self.rewritten.start}

    def passing(self, state: SiteState, args: tuple, modules: tuple):
        """The entry of a region that held nothing when called on these modules: others may hold work in the same code."""
        at = [next(i for i, a in enumerate(args) if content(a) is m) for m in modules]
        owner, point, flat = weakref.ref(self), state.point.id, state.flat

        def entry(*args):
            return (args[:flat], point) if all(content(args[i]) is r() for i, r in zip(at, refs)) else MISS

        this = weakref.ref(entry)
        refs = tuple(weakref.ref(m, lambda _: forget_entry(owner, point, this)) for m in modules)
        entry.explain_failure = lambda args: "another module"
        return entry

    def leads_on(self, found: Trace, args: tuple) -> bool:
        """Whether a region without operations is worth an entry: it ends in a call of Python code that may hold work."""
        return "twin" in found.env and any(issubclass(type(content(a)), (torch.Tensor, torch.nn.Module)) for a in args)

    def arm_unvisited(self, found: Trace) -> None:
        """An empty region: the sites behind it, and those on paths that it did not take, may still hold work."""
        if found.exit_point is not None:
            self.sites.arm_after(found.exit_point)
        for point in self.rewritten.points:
            if point.site and point.offset not in found.visited and point.id not in self.dead and self.branch_of(point, found):
                self.sites.state(point.id).arm()

    def give_up_loops(self, found: Trace) -> None:
        """The sites on the way to the exit of a region that met no work are left alone: each would be traced to that exit
        again, at the cost of the whole. Those in loops give up, so that the loop's copy without sites is taken."""
        for loop in self.rewritten.loops:
            for k in loop.sites:
                if k not in self.sites.states and self.rewritten.points[k].offset in found.visited:
                    self.dead.add(k)
                    self.sites.state(k).idle()

    def branch_of(self, point, found: Trace) -> bool:
        return point.id not in self.sites.states

    def dynamic_at(self, state: SiteState) -> Dynamic:
        """Which sizes the next trace from a site makes symbolic."""
        guarded = frozenset(g.source for e in state.entries if hasattr(e, "guards") for g in e.guards if g.kind == "TENSOR")
        return Dynamic(self.dynamic is True, dict(self.changed.get(state.point.id, {})), guarded=guarded)

    def build(self, state: SiteState, found: Trace, options, where: Where):
        """Backend and entry function of a trace."""
        env = {"MISS": MISS, "own_exit": self.failed(state, found), "here": state.point.id, **found.env}
        if "twin" in env:
            env["twin"] = self.twin
        if found.restore:
            env["undo"] = functools.partial(call_all, found.restore)
        if found.graph is not None:
            env["graph"] = self.run_backend(found, where, options)
            if flags := states_of(found.graph.graph.nodes):
                found.guards.add_state(*flags)
        found.settle()
        code = self.rewritten.original
        params = params_of(state.point.values, state.point.live, (*code.co_cellvars, *code.co_freevars))
        owner, point = weakref.ref(self), state.point.id
        entry = compile_entry(
            params,
            found.guards,
            found.inputs,
            found.body,
            env,
            found.outputs,
            on_dead=lambda forget=forget_entry: forget(owner, point, entry_ref),
            name=f"entry_{identifier(code.co_name)}",
        )
        entry.by_value = found.by_value
        entry.leaves = found.leaves
        if found.graph is not None:
            scope = entry.__globals__       # no reference to the entry: nothing may keep it alive
            scope["graph"] = rewinding(scope["graph"], lambda made: scope.update(graph=made))
        if found.modes:
            entry = within_modes(entry, MISS)
        entry_ref = weakref.ref(entry)
        return entry

    def failed(self, state: SiteState, found: Trace):
        """What an entry answers when its graph raises: the original code runs on from the site, and raises itself.

        What a backend of the program's raises, and its own Python code in a graph, reaches the program; the latter by the
        original code where the region has other effects or may catch it.
        """
        point, restore, own = state.point.id, found.restore, is_own(self.backend())
        once = not (found.effects or found.written or found.restore or found.catches)
        doing = logs.ran_place(self.settings.backend)

        def answer(error: BaseException, flat: tuple):
            for function, args in restore:          # here, too, few frames may be left
                function(*args)
            if type(error) is RecursionError:
                return flat, point
            if isinstance(error, DeviceFault) or not isinstance(error, Exception) or interrupts.from_handler(error):
                raise error     # an earlier call's, which running this one again would hide; or an interrupt, or a timeout
            owner = owner_of(error)
            if once and owner in (CALLED, PROGRAM) or not own and owner in (PROGRAM, BYTEJIT):
                raise error if own or owner == CALLED else note_place(error, doing, self.where)
            registry.count("fallbacks", f"a graph raised {type(error).__name__} in {self.where.function}")
            return own_exit(point, flat)
        return answer

    def backend(self):
        """The backend, which the program may have named: torch's stance comes first. Raises: _UserError."""
        forced = torch_controls.stance().backend
        try:
            return registry.lookup_backend(self.settings.backend if forced is None else forced)
        except (ValueError, TypeError, ImportError, BackendFailed) as e:
            raise _UserError(e) from None

    def run_backend(self, found: Trace, where: Where, options):
        backend, name = self.backend(), backend_name(self.settings.backend)
        weights = frozenset(i for i, s in enumerate(found.inputs) if isinstance(s, (ModuleParam, ModuleBuffer)))
        info = dataclasses.replace(info_of(found.graph), settings=self.settings, where=where, weights=weights)
        found.graph.meta[INFO] = info
        registry.count("graphs", name)
        events = () if is_own(backend) and isinstance(backend, types.FunctionType) else ranges.without(found.graph)
        run = operator.call if is_own(backend) else interrupts.interruptible
        try:
            made = run(backend, found.graph, found.examples) if found.ops else found.graph.forward
        except Exception as e:
            if is_own(backend):
                raise
            if not options.raise_on_backend_error:
                registry.count("fallbacks", f"backend {name} raised {type(e).__name__} in {self.where.function}")
                return found.graph.forward
            raise _UserError(note_place(e, logs.backend_place(self.settings.backend), where)) from None
        if not callable(made):
            raise _UserError(BackendFailed(name, f"answered {type(made).__name__}, not a callable", where))
        if options.verify_correctness and found.ops:
            try:
                run(verify, found.graph.forward, made, found.examples, name, where)
            except IncorrectResult as e:
                raise _UserError(e) from None
        made = ranges.around(made, events)
        made = undoing(made, found.written) if found.written and not getattr(made, "writes_last", False) else made
        return unasked(made) if info.overrides else made

    # ---- what is said about it ---------------------------------------------------------------------------------------
    def note_break(self, found: Trace, options) -> None:
        cause, where = found.cause, with_source(found.cause_where or self.where)
        if self.settings.nopython:
            raise Unsupported(cause.reason, where, "it cannot be part of a graph", cause.do or
                              "leave nopython (fullgraph) off, so that this step runs in the original code")
        registry.count("breaks", f"{cause.reason} at {where.short}")
        inspection.note_break(cause.reason, where, cause.do or "", options)

    def note_recompile(self, state: SiteState, entries: list, args: tuple, options) -> None:
        reason = "; ".join(dict.fromkeys(e.explain_failure(args) for e in entries[:3]))
        registry.count("recompiles", f"{self.where.short} {reason}")
        self.failures[state.point.id] = reason
        logs.log("recompiles", reason, where_of(self.rewritten.original, state.point.offset), options)

    def too_many(self, state: SiteState, times: int) -> None:
        reason = self.failures.get(state.point.id, "the module that it is called on")
        if torch_controls.setting("fail_on_recompile_limit_hit"):
            raise RecompileError(f"compiled {times} times, the recompile limit", self.where, reason)
        registry.count("fallbacks", f"recompile limit in {self.where.function}")
        logs.warn_once(
            f"limit {self.where.short} {state.point.id}",
            f"{self.where.function} ({self.where.short}): compiled {times} times and left to the original code from now on; "
            f"what kept changing: {reason}",
        )


def watched() -> str:
    """What is active around the call that has to see the program's own operations, or takes no others; "" when nothing is."""
    if torch._C._len_torch_dispatch_stack():
        return "an active TorchDispatchMode"
    if torch._C._functorch.maybe_current_level() is not None:
        return "a function transform (torch.func, torch.vmap) around the call"
    if torch.autograd.forward_ad._current_level >= 0:
        return "forward-mode differentiation around the call"
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():      # compiling waits for the device
        return "a CUDA graph that is recorded around the call"
    return ""


def call_all(calls: tuple) -> None:
    """Make each call: (function, arguments)."""
    for function, args in calls:
        function(*args)


def modules_among(args: tuple) -> tuple:
    """The modules that a site's code was called on: nn.Modules among its live values and cells, the first two of them."""
    return tuple(m for m in map(content, args) if issubclass(type(m), torch.nn.Module))[:2]      # a weak proxy may be dead


def content(a: object) -> object:
    """What a cell holds, None when it is empty; anything else as it is."""
    if type(a) is types.CellType:
        try:
            return a.cell_contents
        except ValueError:
            return None
    return a


def same_objects(refs: tuple[weakref.ref, ...], objects: tuple) -> bool:
    return len(refs) == len(objects) and all(r() is o for r, o in zip(refs, objects))


class _UserError(Exception):
    """Carries an exception that is the user's own (a backend's) past the handling of internal faults."""

    def __init__(self, error: BaseException):
        self.error = error


def forget_entry(owner, point: int, entry_ref) -> None:
    """An object that an entry's guards know by identity has died."""
    function, entry = owner(), entry_ref()
    if function is not None and entry is not None:
        function.sites.state(point).remove(entry)


# ---- what is left alone ----------------------------------------------------------------------------------------------
def not_inlined(fn) -> str:
    """Why a Python function is never looked into; "" when it may be."""
    reason = registry.kept_out(fn)
    if not reason and follows_lines(original_code(fn.__code__)):
        return f"{fn.__qualname__} has its lines followed (sys.settrace)"
    return reason


def original_code(code: types.CodeType) -> types.CodeType:
    """The code as the user wrote it, for a code object that may be rewritten."""
    return _ORIGINALS.get(code, code)


# ---- public to api.py ------------------------------------------------------------------------------------------------
def handle_of(code: types.CodeType, namespace: dict, settings: Settings) -> Handle:
    """The sites of a code object as the user wrote it, made on first use. Raises: CannotRewrite."""
    with _lock:
        known = [handle for ref in _HANDLES.get(code, ()) if (handle := ref()) is not None]
        for handle in known:
            if handle.function.globals is namespace and handle.function.settings == settings:
                return handle
        handle = Handle(Function(code, namespace, settings))
        _ORIGINALS.set(handle.function.rewritten.code, code)
        _HANDLES.set(code, [weakref.ref(h) for h in (*known, handle)])
        return handle


def handles() -> list[Handle]:
    """All that live."""
    return [handle for refs in _HANDLES.values() for ref in refs if (handle := ref()) is not None]


def with_sites(fn: types.FunctionType, handle: Handle) -> types.FunctionType:
    """A function that runs the rewritten code over the globals, defaults and closure of `fn`."""
    made = types.FunctionType(handle.function.rewritten.code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    if fn.__kwdefaults__:
        made.__kwdefaults__ = fn.__kwdefaults__
    return made


def cannot_rewrite(fn: types.FunctionType, e: CannotRewrite) -> types.FunctionType:
    """`fn`, which runs as it is; said once, and counted."""
    registry.count("fallbacks", f"{fn.__qualname__} cannot be rewritten: {e.reason}")
    logs.warn_once(f"rewrite {fn.__qualname__}", f"{fn.__qualname__} runs uncompiled: {e.reason}")
    return fn


def compile_function(fn: types.FunctionType, settings: Settings):
    """A new function with the rewritten code of `fn` and all else of it shared. A code that cannot be rewritten: `fn`."""
    try:
        handle = handle_of(original_code(fn.__code__), fn.__globals__, settings)
    except CannotRewrite as e:
        return cannot_rewrite(fn, e)
    made = with_sites(fn, handle)
    made.__qualname__, made.__doc__, made.__module__, made.__annotations__ = (
        fn.__qualname__, fn.__doc__, fn.__module__, fn.__annotations__)
    made.__dict__.update(fn.__dict__)
    made.__dict__[_HANDLE] = handle
    made.__wrapped__ = fn
    return made


def twin(callee, owner: Function):
    """The compiled form of a callable that a broken call is about to call; callables without Python code as they are.

    `owner`, whose call it is, keeps what was compiled; the function itself is made for the call, so nothing holds the
    callee's closure longer than the program does.
    """
    if isinstance(callee, types.MethodType):
        func = twin(callee.__func__, owner)
        return callee if func is callee.__func__ else types.MethodType(func, callee.__self__)
    if isinstance(callee, types.FunctionType):
        code = callee.__code__
        if code in _ORIGINALS or not_inlined(callee):
            return callee
        key = (id(code), id(callee.__globals__))        # the handle keeps both alive
        handle = owner.twins.get(key)
        if handle is None:
            if len(owner.twins) >= MAX_TWINS:
                owner.twins.clear()
            try:
                handle = handle_of(code, callee.__globals__, dataclasses.replace(owner.settings, nopython=False))
            except CannotRewrite as e:
                return cannot_rewrite(callee, e)
            handle.function.shared = True
            owner.twins[key] = handle
        return with_sites(callee, handle)
    if not isinstance(callee, type):
        call = getattr(type(callee), "__call__", None)
        if isinstance(call, types.FunctionType):
            return types.MethodType(twin(call, owner), callee)
    return callee


def reset() -> None:
    """Forget all entries; compiled functions compile anew at their next call."""
    with _lock:
        for handle in handles():
            function = handle.function
            function.sites.reset()
            function.dead.clear()
            function.quiet.clear()
            function.given_up.clear()
            function.failures.clear()
            function.put_off.clear()
            function.changed.clear()
