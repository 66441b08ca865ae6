"""Functions with sites: one `CompiledFunction` for all that share code, globals and settings; a handle keeps it alive."""

from __future__ import annotations

import collections
import functools
import threading
import types
import weakref
from collections.abc import Callable

from bytejit.common import logs, registry, torch_frames, torch_settings
from bytejit.common.errors import CannotRewrite
from bytejit.common.identity import IdentityMap
from bytejit.common.options import Settings
from bytejit.common.where import Where, where_of
from bytejit.rewriter.trampoline import Rewritten, rewrite

from .alike_modules import HANDLE
from .back_off import BackOff
from .dispatch import Sites, SiteState
from .entry import Args, Entry, NotCompiled
from .recompiles import Recompiles
from .region_names import Named, named_for, names_no_class
from .steering import Steering

# compiles a site of a function for a call with these arguments
CompileSite = Callable[["CompiledFunction", SiteState, Args], Entry | NotCompiled | None]

# owner: handle_of; size: one a living code as the user wrote it: the Handles of its compiled (globals, settings), weakly
HANDLES: IdentityMap[list[weakref.ref[Handle]]] = IdentityMap()
# owner: handle_of; size: one a living rewritten code: the code as the user wrote it; goes with the code
ORIGINALS: IdentityMap[types.CodeType] = IdentityMap()
# owner: rewritten_of; size: the codes rewritten last, with cells that are never armed; cleared: never
FORMER: collections.deque[Rewritten] = collections.deque(maxlen=4)
_lock = threading.RLock()


class Handle:
    """Keeps a Function alive for the compiled functions that share it.

    A code object holds its sites' cells, which hold entries, which hold the Function, which holds the code; and Python's
    garbage collector does not look into code objects. So a Function ends by its handle: the cells are emptied.
    """

    __slots__ = ("function", "__weakref__")

    def __init__(self, function: CompiledFunction) -> None:
        self.function = function
        weakref.finalize(self, _empty, function.rewritten.cells).atexit = False


def _empty(cells: tuple[list, ...]) -> None:
    for cell in cells:
        cell.clear()


class CompiledFunction:
    """A code object with sites, shared by all functions of that code, globals and settings."""

    def __init__(self, code: types.CodeType, namespace: dict, settings: Settings, compile_site: CompileSite) -> None:
        self.settings, self.globals, self.compile_site = settings, namespace, compile_site
        self.named = Named(where_of(code))
        self.unnamed = names_no_class(code)
        self.rewritten = rewritten_of(code)
        torch_frames.keep_off(self.rewritten.code)
        self.recompiles = Recompiles(lambda: self.named, self.place, self.dynamic)
        self.sites = Sites(self.rewritten, functools.partial(compile_site, self))
        if not settings.nopython:  # in this mode a call that cannot be compiled raises
            self.sites.given_up = self.gives_up
        self.back_off = BackOff(self.rewritten, self.sites)
        self.steering = Steering()
        self.callees: dict[tuple, Handle] = {}  # compiled callees of calls in this function that broke the graph
        self.shared = False  # made for callees of broken calls: whatever object they are methods of
        self.keeps_generators = False  # a region of it ended before a generator that is not at its end
        self.sites.arm_start()

    def __repr__(self) -> str:
        return f"Function({self.where})"

    def gives_up(self, point: int, args: Args) -> bool:
        """Whether a call that fits no entry of a site runs the original code there: known without a compile."""
        return point in self.back_off.dead or self.recompiles.leave(args)

    @property
    def where(self) -> Where:
        """The place of the whole, for messages."""
        return self.named.where

    def name_after(self, args: Args) -> None:
        """Name the function after the module of this call, where the code itself does not name a class."""
        if self.unnamed:
            self.named = named_for(args) or self.named

    def place(self, point: int) -> Where:
        """The place of a resume point, for messages."""
        return self.where if self.unnamed else where_of(self.rewritten.original, self.rewritten.points[point].offset)

    def dynamic(self) -> bool | None:
        """Whether sizes are symbolic: None once they changed, True at once, False never."""
        return torch_settings.dynamic_by(self.settings.dynamic)

    def forget_entries(self) -> None:
        """Forget all entries: the next call compiles again."""
        self.sites.reset()
        self.back_off.clear()
        self.recompiles.clear()

    def forget_when_dead(self, point: int) -> Callable[[Entry], None]:
        """A callback that removes an entry of a site when an object that its guards compare by identity has died."""
        owner = weakref.ref(self)

        def forget(entry: Entry) -> None:
            function = owner()
            if function is not None:
                function.recompiles.note_dead(point, entry)
                function.sites.state(point).remove(entry)

        return forget


def rewritten_of(code: types.CodeType) -> Rewritten:
    """The code with sites, for one CompiledFunction. A code that was rewritten a short time ago is not analysed again: closures
    are made anew in each call of a program, and one function is compiled with several settings. Raises: CannotRewrite."""
    found = next((former for former in FORMER if former.original is code), None)
    if found is None:
        found = rewrite(code)
        FORMER.append(found)
    return found.renewed()


def original_code(code: types.CodeType) -> types.CodeType:
    """The code as the user wrote it, for a code object that may be rewritten."""
    return ORIGINALS.get(code) or code


def handle_of(code: types.CodeType, namespace: dict, settings: Settings, compile_site: CompileSite) -> Handle:
    """The sites of a code object as the user wrote it, made on first use. Raises: CannotRewrite."""
    with _lock:
        known = [handle for ref in HANDLES.get(code) or () if (handle := ref()) is not None]
        for handle in known:
            if handle.function.globals is namespace and handle.function.settings == settings:
                return handle
        handle = Handle(CompiledFunction(code, namespace, settings, compile_site))
        ORIGINALS.set(handle.function.rewritten.code, code)
        HANDLES.set(code, [weakref.ref(h) for h in (*known, handle)])
        return handle


def with_sites(fn: types.FunctionType, handle: Handle) -> types.FunctionType:
    """A function that runs the rewritten code over the globals, defaults and closure of `fn`."""
    made = types.FunctionType(handle.function.rewritten.code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    if fn.__kwdefaults__:
        made.__kwdefaults__ = fn.__kwdefaults__
    return made


def cannot_rewrite(fn: types.FunctionType, e: CannotRewrite) -> types.FunctionType:
    """Return `fn` uncompiled. Log this once, and count it."""
    registry.count("fallbacks", f"{fn.__qualname__} cannot be rewritten: {e.reason}")
    logs.warn_once(f"rewrite {fn.__qualname__}", f"{fn.__qualname__} runs uncompiled: {e.reason}")
    return fn


def compile_function(fn: types.FunctionType, settings: Settings, compile_site: CompileSite) -> types.FunctionType:
    """A new function with the rewritten code of `fn` and all else of it shared. A code that cannot be rewritten: `fn`."""
    try:
        handle = handle_of(original_code(fn.__code__), fn.__globals__, settings, compile_site)
    except CannotRewrite as e:
        return cannot_rewrite(fn, e)
    made = with_sites(fn, handle)
    made.__qualname__, made.__doc__, made.__module__, made.__annotations__ = (
        fn.__qualname__,
        fn.__doc__,
        fn.__module__,
        fn.__annotations__,
    )
    made.__dict__.update(fn.__dict__)
    made.__dict__[HANDLE] = handle
    made.__wrapped__ = fn  # type: ignore[attr-defined]
    return made


def reset() -> None:
    """Forget all entries; compiled functions compile anew at their next call."""
    with _lock:
        for refs in HANDLES.values():
            for ref in refs:
                if (handle := ref()) is not None:
                    handle.function.forget_entries()
