"""`patch_torch_compile`: calls of torch.compile in code that is not to be changed are bytejit's.

torch's own controls (`torch.compiler.disable`, `torch._dynamo.mark_dynamic`, ...) stay torch's: what they leave behind is
heard, see common/torch_controls.py. nn.Module.compile calls torch.compile, so it is bytejit's too.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

import torch

from . import api
from .common import caches, registry, torch_controls, torch_frames
from .common.errors import backend_name
from .common.former_backends import DEBUGGING
from .common.options import config
from .common.shape_specs import sources_of
from .runtime import module
from .runtime.origins import original

LITE = "lite"  # torch's mode for little work at a compile


def torch_compile(
    model: object = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable | None = None,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    disable: bool = False,
    name: str | None = None,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = False,
    dynamic_shapes: object = None,
    shapes_spec: object = None,
    **more: object,
) -> object:
    """torch.compile, as bytejit's: all its arguments, and what it takes that bytejit.compile refuses.

    A backend of the program's own is handed `mode` and `options`, as torch.compile does; classes get a compiled `__call__`, and
    builtin functions run in a function that calls them. Sizes that `dynamic_shapes` (`shapes_spec` in torch 2.13) names are
    symbolic from the first compile. Arguments of a newer torch are warned of once, and do nothing.
    Raises: RuntimeError, ValueError, TypeError.
    """
    for key, value in more.items():
        if value is not None:
            caches.warn_once(f"argument {key}", f"bytejit: the argument {key} of torch.compile does nothing here")
    if mode == LITE:
        caches.warn_once("mode lite", "bytejit: the mode 'lite' of torch.compile is the default one here")
        mode = None
    backend = _backend(torch_controls.default_backend() if backend is None else backend)
    if not isinstance(backend, str) and (options or mode not in (None, "default")):
        backend, mode, options = with_arguments(backend, mode, options), None, None
    if recompile_limit is not None:
        options = {**(options or {}), "recompile_limit": recompile_limit}
    compile = functools.partial(
        api.compile, backend=backend, fullgraph=fullgraph, dynamic=dynamic, mode=mode, options=options, disable=disable
    )
    compile(_check)  # says what is wrong with the arguments
    specified = shapes_spec if dynamic_shapes is None else dynamic_shapes
    if specified is not None and dynamic is not None:
        raise ValueError("dynamic and dynamic_shapes are both given: dynamic_shapes says what is symbolic")

    def decorate(model: object) -> object:
        if model is None:
            raise RuntimeError("there is no model to compile")
        sources = sources_of(specified, model)
        named = {"options": {**(options or {}), "dynamic_sources": sources}} if sources else {}
        return model if disable else _compiled(model, functools.partial(compile, **named), isolate_recompiles)

    return decorate if model is None else decorate(model)


def _backend(backend: str | Callable) -> str | Callable:
    """What runs the graphs; those by which torch's own compiler is debugged are ours of that sort, with one warning."""
    if backend == "bytejit":
        return "inductor"
    if isinstance(backend, str) and backend in DEBUGGING and backend not in registry.BACKENDS:
        here = DEBUGGING[backend]
        if torch_controls.backend_named(backend) is None:
            caches.warn_once(f"backend {backend}", f"bytejit: the backend {backend!r} of torch.compile is {here!r} here")
            return here
    return registry.check_backend(backend)


def _check() -> None:
    """What is compiled, and never called, to have arguments checked."""


def _compiled(model: object, compile: Callable, alone: bool) -> object:
    if inspect.isclass(model):
        setattr(model, "__call__", compile(module.own(getattr(model, "__call__"))))
        return model
    target = torch_controls.wrapped(model)
    if isinstance(target, functools._lru_cache_wrapper):  # as torch.compile does: the function below is followed
        target = target.__wrapped__
    if callable(target) and not _in_python(target):

        @functools.wraps(target, assigned=("__name__", "__qualname__", "__doc__"), updated=())
        def call(*args: object, **kwargs: object) -> object:
            return target(*args, **kwargs)

        return compile(call)
    if alone and isinstance(target, types.FunctionType):
        return compile(module.own(original(target)))
    if alone and isinstance(target, types.MethodType):
        return types.MethodType(compile(module.own(original(cast(types.FunctionType, target.__func__)))), target.__self__)
    made = compile(target)
    if alone and isinstance(made, torch.nn.Module):
        module.part(made)
    return made


def _in_python(target: Callable) -> bool:
    if isinstance(target, functools.partial):
        return _in_python(target.func)
    if isinstance(target, (types.FunctionType, torch.nn.Module)):
        return True
    code = target.__func__ if isinstance(target, types.MethodType) else type(target).__call__
    return isinstance(code, types.FunctionType)


def with_arguments(backend: Callable, mode: str | None, options: Mapping[str, object] | None) -> Callable:
    """A backend of the program's own that is told the mode and the options of a torch.compile."""
    named: dict[str, object] = {} if mode in (None, "default") else {"mode": mode}
    if options:
        named["options"] = options

    @functools.wraps(backend, assigned=())
    def told(gm: torch.fx.GraphModule, example_inputs: list) -> Callable:
        return backend(gm, example_inputs, **named)

    told.__name__ = told.__qualname__ = backend_name(backend)
    return told


def as_backend(
    gm: torch.fx.GraphModule, example_inputs: list, *, mode: str | None = None, options: Mapping[str, object] | None = None
) -> Callable:
    """The backend `torch.compile(model, backend="bytejit")`: a graph that torch's compiler captured, in bytejit's kernels.

    Named in the entry points `torch_dynamo_backends`. Raises: as `bytejit.compile`, for mode and options.
    """
    _ = gm.code  # its Python code may be made when it is asked for, and `forward` with it
    values = (n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder"))
    sizes = any(isinstance(v, torch.SymInt) for v in values)
    compiled = api.compile(gm.forward, dynamic=sizes or None, mode=mode, options=options)
    return lambda *args: torch_controls.called_by_torch(compiled, args)


class Patched:
    """What `patch_torch_compile` returns: as a `with` block it ends with that, else with `undo`."""

    def __init__(self) -> None:
        self._before: list[tuple[types.ModuleType, str, object]] = []
        for place in dict.fromkeys(place for place, _, _ in NAMES):
            if place in sys.modules:
                self._replace(sys.modules[place])
        torch_frames.when_loaded(self._replace)

    def _replace(self, module: types.ModuleType) -> None:
        """Put ours in place of what a module has."""
        for place, name, ours in NAMES:
            if place == module.__name__ and hasattr(module, name):
                before = getattr(module, name)
                self._before.append((module, name, before))
                setattr(module, name, ours(before))

    def undo(self) -> None:
        """torch.compile is what it was before. Functions that were compiled stay bytejit's."""
        torch_frames.forget(self._replace)
        while self._before:
            setattr(*self._before.pop())

    def __enter__(self) -> Patched:
        return self

    def __exit__(self, *exc: object) -> None:
        self.undo()


def _resetting(before: Callable) -> Callable:
    @functools.wraps(before)
    def reset() -> None:
        before()
        api.reset()

    return reset


@dataclass
class ArtifactInfo:
    """What artifacts hold, as torch tells it: the names of the parts of each kind."""

    artifacts: dict[str, list[str]]


def _saving(before: Callable) -> Callable:
    @functools.wraps(before)
    def save_cache_artifacts() -> tuple[bytes, object] | None:
        """What this process built, as bytes, and the names of its parts. None: nothing."""
        from .kernels import artifacts

        data, names = artifacts.save()
        return (data, ArtifactInfo({"bytejit": names})) if names else None

    return save_cache_artifacts


def _loading(before: Callable) -> Callable:
    @functools.wraps(before)
    def load_cache_artifacts(serialized_artifacts: bytes) -> object:
        """Put what was saved into the cache. Artifacts of torch's own compiler go to torch. Returns: None for what is neither."""
        from .kernels import artifacts
        from .kernels.disk import disk_of

        if not serialized_artifacts.startswith(artifacts.MAGIC):
            return before(serialized_artifacts)
        options = config.current
        try:
            return ArtifactInfo({"bytejit": artifacts.load(serialized_artifacts, disk_of(options.cache_path, options.cache_mb))})
        except artifacts.BadArtifacts as error:
            caches.warn_once(f"artifacts {error}", f"bytejit: {error}: nothing is loaded")
            return None

    return load_cache_artifacts


# what is replaced, where loaded or when it is, and what makes ours of it
NAMES: tuple[tuple[str, str, Callable[[Callable], Callable]], ...] = (
    ("torch", "compile", lambda before: torch_compile),
    ("torch.compiler", "reset", _resetting),
    ("torch.compiler", "save_cache_artifacts", _saving),
    ("torch.compiler", "load_cache_artifacts", _loading),
    ("torch._dynamo", "reset", _resetting),
)


def patch_torch_compile() -> Patched:
    """Make `torch.compile` bytejit's from now on, with all its arguments; `module.compile()`, `torch.compiler.reset` and
    `torch.compiler.save_cache_artifacts`, `load_cache_artifacts` too.

    Also a context manager: `with bytejit.patch_torch_compile(): ...`; else `.undo()` of the result ends it. What was compiled
    before stays as it was. `python -m bytejit run script.py` runs a script so.
    """
    return Patched()
