"""The public functions: `compile`, `optimize`, `explain`, `export`, `reset`.

The marks that steer the tracer are in `runtime/marks.py`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import sys
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from .common import caches, debug, logs, registry, torch_controls, torch_settings
from .common.errors import Unsupported, backend_name
from .common.late_imports import import_module
from .common.options import Settings, config
from .common.text import unknown
from .common.where import where_of
from .runtime import module
from .runtime.builtin_functions import in_python
from .runtime.origins import is_made_of, mark, needs_arguments, original, plain, settings_of, settings_of_function

CAN_COMPILE = (
    "bytejit compiles Python functions, methods, lambdas, closures, builtin functions, functools.partial of these, objects "
    "whose class defines __call__ in Python, and instances of torch.nn.Module"
)
# function -> settings -> its compiled form. Owner: _compile_function; size: one entry a live compiled function. The compiled
# function refers to the plain one, so it is held weakly: both go when the user lets go of it. Cleared by nothing.
_COMPILED: weakref.WeakKeyDictionary[Callable, weakref.WeakValueDictionary[Settings, Callable]] = weakref.WeakKeyDictionary()


def _pipeline() -> types.ModuleType:
    """The module that joins the stages, imported on the first compile: `import bytejit` stays light."""
    return import_module("bytejit.pipeline")


@functools.cache
def _refused() -> str:
    """Returns why nothing can be compiled under this torch and Python; "" where it can."""
    from .compat.probes import PROBES, refused
    from .kernels.json_cache import json_cache

    PROBES.open_store = lambda: json_cache("probes", config.current.cache_path, config.current.cache_mb)
    return refused()


def _compile_function(fn: Any, settings: Settings) -> Any:
    if settings_of_function(fn) == settings or registry.marked("disable", fn) or torch_controls.disabled(fn):
        return fn
    fn = original(fn)
    known = _COMPILED.setdefault(fn, weakref.WeakValueDictionary())
    compiled = known.get(settings)
    if compiled is None or not is_made_of(compiled, fn):
        if (why := _refused()) and settings.nopython:
            raise Unsupported(why, where_of(fn.__code__), "it is not supported", "see `python -m bytejit.verify`")
        if why:
            return fn
        compiled = _pipeline().compile_function(fn, settings)
        if compiled is fn:  # cannot be rewritten: it runs as it is
            return fn
        mark(compiled, fn, settings)
        known[settings] = compiled
    return compiled


def _refuse(target: object) -> TypeError:
    """The error for something that cannot be compiled: what it is, why not, what can be."""
    name = getattr(target, "__qualname__", type(target).__qualname__)
    if inspect.isclass(target):
        hint = "compile an instance of it" if issubclass(target, torch.nn.Module) else "compile its methods or an instance"
        return TypeError(f"cannot compile the class {name}: {hint}. {CAN_COMPILE}")
    if isinstance(target, functools._lru_cache_wrapper):
        return TypeError(
            f"cannot compile {name} from outside functools.cache: compile the function below the cache. {CAN_COMPILE}"
        )
    if callable(target):
        return TypeError(f"cannot compile the {type(target).__name__} object {name}: it is not written in Python. {CAN_COMPILE}")
    return TypeError(f"cannot compile {type(target).__name__} {target!r:.60}: it is not callable. {CAN_COMPILE}")


def _called(target: object) -> types.FunctionType | types.MethodType:
    """The Python that a call of a builtin function (torch.sin, F.gelu) or of an object runs. Raises: TypeError."""
    if isinstance(target, types.BuiltinFunctionType):
        return in_python(target)
    call = getattr(type(target), "__call__", None)
    if not inspect.isclass(target) and isinstance(call, types.FunctionType):
        return types.MethodType(call, target)
    raise _refuse(target)


def compile_any(target: Any, settings: Settings) -> Any:
    """The compiled form of whatever can be compiled; what is compiled already with these settings is returned as it is.

    What torch.compile made is compiled as what it was made from. Raises: TypeError.
    """
    target = torch_controls.wrapped(target)
    if isinstance(target, types.FunctionType):
        return _compile_function(target, settings)
    if isinstance(target, types.MethodType):
        if not isinstance(target.__func__, types.FunctionType):
            raise _refuse(target.__func__)
        fn = module.own_method(target) if isinstance(target.__self__, torch.nn.Module) else target.__func__
        compiled = _compile_function(fn, settings)
        return target if compiled is target.__func__ else types.MethodType(compiled, target.__self__)
    if isinstance(target, torch.nn.Module):
        return module.compile_module(target, settings, _compile_function, _compile_again)
    if isinstance(target, functools.partial):
        inner = compile_any(target.func, settings)
        if inner is target.func:
            return target
        made = type(target)(inner, *target.args, **target.keywords)
        made.__dict__.update(target.__dict__)
        return made
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(compile_any(target.__func__, settings))
    return compile_any(_called(target), settings)


def _compile_again(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
    """The method `compile` of a compiled module: it is compiled anew as these arguments say, the original stays as it is."""
    module.become(self, compile(module.given(self), *args, **kwargs))


def compile(
    model: Any = None,
    *,
    backend: str | Callable | None = None,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
    name: str | None = None,
) -> Any:
    """Compile a function or an nn.Module; without a model, a decorator that does.

    backend: a name of `list_backends()`, or a callable `(gm: torch.fx.GraphModule, example_inputs) -> callable`. None is
    what torch.compiler.set_default_backend was told, else "inductor".
    fullgraph: raise `bytejit.exc.Unsupported` where a graph break would be needed.
    dynamic: None makes a size symbolic once it changed between calls, True at once, False never.
    mode: "default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs".
    options: fields of `bytejit.Options`, for this model only; also names of torch.compile's, such as "triton.cudagraphs".
    disable: return the model as it is. name: taken for torch.compile's sake, and not used.
    Compilation itself happens in the first call. A compiled function is a function of its own: later changes of the
    original's `__defaults__` or `__code__` are not its own. A compiled module runs the `forward` that the original's class has
    at the time. Raises: ValueError (backend, mode, options), TypeError (model).
    """
    backend = torch_controls.default_backend() if backend is None else backend
    settings = Settings.make(registry.check_backend(backend), fullgraph, dynamic, mode, options)

    def decorate(target: Any) -> Any:
        return target if disable or torch_settings.switched_off() else compile_any(target, settings)

    return decorate if model is None else decorate(model)


def optimize(
    backend: str | Callable | None = None,
    *,
    nopython: bool = False,
    dynamic: bool | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
) -> Callable:
    """A decorator that compiles: `@optimize("inductor")`, `optimize(my_backend)(model)`. See `compile`.

    Without parentheses (`@optimize`) it compiles what cannot be a backend: a module, a function that does not take the two
    arguments of one. One that does is taken for a backend, which the first call says. Raises: as `compile`.
    """
    settings: dict[str, Any] = {"fullgraph": nopython, "dynamic": dynamic, "mode": mode, "options": options, "disable": disable}
    if not _may_be_backend(backend):
        return compile(backend, **settings)
    decorate = compile(backend=backend, **settings)

    @functools.wraps(decorate)
    def decorate_one(*args: object, **kwargs: object) -> object:
        if kwargs or len(args) != 1 or not callable(args[0]):
            raise TypeError(
                f"bytejit.optimize was given {backend_name(backend)!r} as its backend, and is called with what is "
                "no model. As a decorator it has parentheses: @bytejit.optimize()"
            )
        return decorate(*args)

    return decorate_one


def _may_be_backend(backend: object) -> bool:
    """Whether something can be a backend: a name, or what takes a graph and example inputs."""
    if isinstance(backend, torch.nn.Module):
        return False
    if not isinstance(backend, (types.FunctionType, types.MethodType)):
        return True
    try:
        inspect.signature(backend).bind(None, None)
    except TypeError:
        return False
    return True


def explain(fn: Callable, *args: object, html: str | os.PathLike | None = None, **kwargs: object) -> object:
    """Call `fn` once, compiled anew, and say what became of it: graphs, guards, ops, break reasons with file:line.

    The result prints well and unpacks into (explanation, out_guards, graphs, ops_per_graph, break_reasons,
    explanation_verbose). Settings of a compiled `fn` are kept, but graph breaks are shown, not raised. html: a file for the
    report as one page: the program with its graphs and breaks, pictures, kernels beside the lines, times; each graph then
    runs some times more, on copies. A notebook shows the result so by itself. `explain(fn)(x)`, torch's form, is the same
    where `fn` needs arguments. Raises: what `fn` raises; OSError for the file.
    """
    if not args and not kwargs and needs_arguments(fn):
        return functools.partial(explain, fn, html=html)
    from .explanation import explain as call_and_explain

    target, settings = _with_settings(fn)
    settings = settings.anew(nopython=False)
    return call_and_explain(compile_any(target, settings), args, kwargs, settings.backend, _name(target), html)


def minify(
    fn: Callable,
    *args: object,
    against: str = "eager",
    tolerance: float | None = None,
    file: str | os.PathLike | None = "minified.py",
    **kwargs: object,
) -> object:
    """Turn a call whose compiled form fails into a script of a few lines that fails in the same way.

    `fn` is called once, in eager, graph by graph; the settings of a compiled `fn` are kept. Both passes of a training graph are
    looked at. against: "eager", or "float64": wrong is what is also twice as far from float64 as eager's. tolerance: relative
    and absolute; None: by the dtype. file: where the script goes; None: nowhere, it is the result's `text`.
    Raises: bytejit.exc.NothingFails where no graph fails by itself; what `fn` raises in eager; OSError
    for the file, before the call.
    """
    from .tools.minify import check_against
    from .tools.minify import minify as search

    check_against(against)
    target, settings = _with_settings(fn)
    settings = settings.anew(nopython=False, dynamic=False)
    again = lambda f: compile_any(f, settings.anew())
    once = lambda backend: compile_any(target, settings.anew(backend=backend))(*args, **kwargs)
    return search(once, again, settings.arguments(), against, tolerance, file)


def export(
    fn: Callable,
    *args: object,
    aten_graph: bool = False,
    decomposition_table: Mapping[Callable, Callable] | None = None,
    tracing_mode: str | None = None,
    dynamic: bool | None = None,
    **kwargs: object,
) -> object:
    """The one FX graph of a call and its guards: `gm, guards = export(fn, x)`; `gm(x)` returns what `fn(x)` returns.

    `fn` is called once. Parameters and buffers become attributes of `gm`; each node's `stack_trace` names the user's line.
    aten_graph: functional ATen operators in place of torch calls. Then decomposition_table says what to put in place of
    some: {operator: function of the same arguments}; and tracing_mode "symbolic" makes sizes symbolic, "real" and "fake"
    leave them as they are. dynamic: as in `compile`. `export(fn)(x)`, torch's form, is the same where `fn` needs arguments.
    Warns where `fn` changes Python objects: `gm` does not. Raises: bytejit.exc.Unsupported where the call is not one graph;
    AssertionError, as torch's own export, for decomposition_table or tracing_mode without aten_graph.
    """
    from .exporting import Capture, ExportForm
    from .exporting import export as call_and_export

    if not aten_graph and (decomposition_table is not None or tracing_mode not in (None, "real")):
        raise AssertionError("decomposition_table and tracing_mode need aten_graph=True")
    if tracing_mode not in (None, "real", "fake", "symbolic"):
        raise ValueError(unknown("tracing_mode", tracing_mode, ("real", "fake", "symbolic")))
    if not args and not kwargs and needs_arguments(fn):
        later: dict[str, Any] = {"decomposition_table": decomposition_table, "tracing_mode": tracing_mode, "dynamic": dynamic}
        return functools.partial(export, fn, aten_graph=aten_graph, **later)
    dynamic = True if tracing_mode == "symbolic" and dynamic is None else dynamic
    target, settings = _with_settings(fn)
    capture = Capture()
    settings = settings.anew(nopython=True, backend=capture, **({} if dynamic is None else {"dynamic": dynamic}))
    form = ExportForm(aten_graph, dict(decomposition_table or {}))
    return call_and_export(compile_any(target, settings), capture, args, kwargs, form)


def _name(target: object) -> str:
    return getattr(target, "__qualname__", None) or type(target).__qualname__


def _with_settings(fn: object) -> tuple[Callable, Settings]:
    """The uncompiled callable below `fn` and its settings. Raises: TypeError for what cannot be compiled."""
    target = plain(fn)
    if isinstance(target, torch.nn.Module) or isinstance(target, (types.FunctionType, types.MethodType, functools.partial)):
        return target, settings_of(fn)
    return _called(target), settings_of(fn)


def reset() -> None:
    """Forget all compiled entries, loaded kernels, counters and warnings said once: the next calls compile anew.

    Kernels on the disk stay.
    """
    registry.counters.clear()
    caches.clear()
    logs.forget()
    debug.forget()
    if (pipeline := sys.modules.get(f"{__package__}.pipeline")) is not None:
        pipeline.reset()


class _RunOnly:
    """What `run()` gives: a context manager, and a decorator."""

    def __init__(self) -> None:
        self.open: list[contextlib.AbstractContextManager] = []

    def __call__(self, fn: Callable) -> Callable:
        return run(fn)

    def __enter__(self) -> _RunOnly:
        self.open.append(registry.run_only())
        self.open[-1].__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.open.pop().__exit__(*exc)


def run(fn: Callable | None = None) -> Any:
    """A callable that uses what is compiled already and compiles nothing new: a miss runs the original code.

    Without a callable, a context manager and decorator that does so: `with bytejit.run(): ...`, `@bytejit.run()`.
    """
    if fn is None:
        return _RunOnly()
    if not callable(fn):
        raise TypeError(f"run takes a callable, not {type(fn).__name__}")

    @functools.wraps(fn)
    def runs(*args: object, **kwargs: object) -> object:
        with registry.run_only():
            return fn(*args, **kwargs)

    registry.mark("disable", runs)
    return runs
