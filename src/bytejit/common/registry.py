"""Global state with an owner each: backends and targets by name, marks on functions and tensors.

BACKENDS   owner: register_backend       size: one entry a name              cleared: never (names stay known)
TARGETS    owner: register_target        size: one entry a name              cleared: never
MARKS      owner: the decorators of api  size: one entry a marked function   cleared: never (the user's code has them)
"""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from bytejit.common import packages, special_cases, torch_controls
from bytejit.common.identity import IdentityMap
from bytejit.common.quiet_reads import function_of

from .counters import count as count
from .counters import counters as counters
from .errors import BackendFailed, BadSetting, MissingPackage
from .former_backends import DEBUGGING, FORMER, refusal
from .late_imports import import_module
from .options import Options
from .text import unknown

MODULE_TRAIT = "__bytejit_module__"  # attribute of the class of a compiled module (runtime/module.py): what it was made from


class PresentMethod:
    """A method of a compiled module's class that stands for what the original's class has by that name: a trace looks past it."""

    __slots__ = ()


def seen_as(cls: type) -> type:
    """The class that the program made; for the class of a compiled module, the original's."""
    trait = vars(cls).get(MODULE_TRAIT)
    return cls if trait is None else trait.cls


# A name stands for a callable `(gm, example_inputs) -> callable`, or for "module:attribute", imported on first use.
BACKENDS: dict[str, str | Callable] = {
    "eager": "bytejit.backends.eager:eager",
    "aot_eager": "bytejit.backends.aot_eager:aot_eager",
    "inductor": "bytejit.backends.inductor:inductor",
    "cudagraphs": "bytejit.backends.cudagraphs:cudagraphs",
    "aot_cudagraphs": "bytejit.backends.cudagraphs:aot_cudagraphs",
    "ts": "bytejit.backends.torchscript:ts",
    "aot_ts": "bytejit.backends.torchscript:aot_ts",
    "ofi": "bytejit.backends.torchscript:ofi",
    "onnxrt": "bytejit.backends.onnxrt:onnxrt",
    "openvino": "bytejit.backends.openvino:openvino",
    "tvm": "bytejit.backends.tvm:tvm",
}
OWN = "bytejit.backends."
# What a backend of ours begins before its first graph is traced: a callable (options). It imports less than the backend.
AHEAD = {"inductor": "bytejit.backends.checks:install_checks"}
# A type of device, or another name, stands for a callable `(device, options) -> Target` (`backends/target.py`), or its path.
TARGETS: dict[str, str | Callable] = {
    "cpu": "bytejit.backends.cpu:CpuTarget",
    "cuda": "bytejit.backends.cuda:CudaTarget",
    "interpreter": "bytejit.backends.cuda:InterpretedTarget",
}


def register_backend(backend: str | Callable | None = None, *, name: str | None = None) -> Any:
    """Register a backend: `register_backend(fn, name="mine")`, or as a decorator, bare or with a name.

    `backend` is a callable `(gm: torch.fx.GraphModule, example_inputs: list) -> callable`, or an import path
    "module:attribute". Returns what it was given. Raises: TypeError, ValueError.
    """
    if backend is None:
        return lambda fn: register_backend(fn, name=name)
    if isinstance(backend, str):
        if ":" not in backend:  # @register_backend("mine")
            return lambda fn: register_backend(fn, name=backend)
        if not name:
            raise ValueError(f"backend {backend!r} is an import path: give it a name, register_backend({backend!r}, name=...)")
    elif not callable(backend):
        raise TypeError(f"a backend is a callable (gm, example_inputs) -> callable, not {type(backend).__name__}")
    BACKENDS[name or getattr(backend, "__name__")] = backend
    return backend


class Availability(NamedTuple):
    """available: whether a backend can be used here; why: why not; do: what to install, or to use instead; former: a name with
    nothing behind it."""

    available: bool
    why: str = ""
    do: str = ""
    former: bool = False


def backends_table() -> dict[str, Availability]:
    """Every name of a backend that bytejit knows, in order: whether it can be used here, why not, and what to do.

    Names of TorchDynamo's documents that have nothing behind them are there too, with what to use instead.
    """
    found = {name: Availability(False, row.was, f"use {row.instead}", True) for name, row in FORMER.items()}
    for name, target in BACKENDS.items():
        found[name] = Availability(True)
        if isinstance(target, str) and target.startswith(OWN):
            try:
                packages.require(name)
            except MissingPackage as e:
                found[name] = Availability(False, "; ".join(e.faults), e.install)
    return dict(sorted(found.items()))


def list_backends() -> list[str]:
    """The names of the backends that can be used here, in order. `backends_table()` has the others too, with reasons."""
    return [name for name, row in backends_table().items() if row.available]


def check_backend(backend: object) -> str | Callable:
    """The backend, when it can be one; for a name that only torch knows, the program's callable.

    Raises: ValueError (unknown name), BadSetting (a name with nothing behind it), TypeError (neither name nor callable).
    """
    if isinstance(backend, str):
        if backend not in BACKENDS:
            if (of_torch := torch_controls.backend_named(backend)) is None:
                if backend in FORMER or backend in DEBUGGING:
                    raise BadSetting(refusal(backend))
                raise ValueError(unknown("backend", backend, BACKENDS))
            return of_torch
    elif not callable(backend):
        raise TypeError(f"backend is a name or a callable (gm, example_inputs) -> callable, not {type(backend).__name__}")
    return backend


def lookup_backend(backend: str | Callable) -> Callable:
    """The callable of a backend; a registered import path is imported now.

    Raises: ValueError, BackendFailed, MissingPackage.
    """
    found = check_backend(backend)
    return _imported(BACKENDS, found) if isinstance(found, str) else found


def begin(backend: str | Callable, options: Options) -> None:
    """Begin what the backend needs for any graph, beside the trace."""
    if isinstance(backend, str) and backend in AHEAD:
        module, _, attribute = AHEAD[backend].partition(":")
        getattr(import_module(module), attribute)(options)


def _imported(table: dict[str, str | Callable], name: str) -> Callable:
    """Imports what a name of a table stands for, on first use. Raises: BackendFailed, MissingPackage."""
    target = table[name]
    if not isinstance(target, str):
        return target
    module, _, attribute = target.partition(":")
    if module.startswith(OWN):
        packages.require(name)
    found = getattr((import_module if module.startswith(OWN) else importlib.import_module)(module), attribute, None)
    if not callable(found):
        raise BackendFailed(name, f"is registered as {module}:{attribute}, which is not callable")
    table[name] = found
    return found


def register_target(name: str, target: str | Callable) -> None:
    """Register a target: what graphs on devices of the type `name` compile for, and a backend of that name for any graph.

    `target` makes a `bytejit.backends.target.Target` of (device, options), as its subclasses do, or is the import path
    "module:attribute" of what does. Raises: TypeError.
    """
    if not callable(target) and not (isinstance(target, str) and ":" in target):
        raise TypeError(f"a target is a callable (device, options) -> Target, or its import path, not {target!r}")
    TARGETS[name] = target
    BACKENDS[name] = functools.partial(_on_target, name=name)


def lookup_target(name: str) -> Callable:
    """The callable of a target. Raises: KeyError, BackendFailed."""
    return _imported(TARGETS, name)


def _on_target(gm: object, example_inputs: list, name: str) -> Callable:
    """The backend that a target's name stands for."""
    return importlib.import_module("bytejit.backends.inductor").named_target(gm, example_inputs, name)


# --- marks -------------------------------------------------------------------------------------------------------

MARK_KINDS = ("disable", "allow", "disallow", "constant")
# object -> the reason that was given, or "". By identity, as torch's builtins take no attributes; a mark goes with its object
MARKS: dict[str, IdentityMap[str]] = {kind: IdentityMap() for kind in MARK_KINDS}


def mark(kind: str, obj: object, reason: str = "") -> None:
    """Mark a callable: "disable" (never look inside), "allow" (one graph node), "disallow" (break), "constant"."""
    MARKS[kind].set(obj, reason)


def marked(kind: str, obj: object) -> bool:
    """Whether a callable, or the function of a bound method, has a mark."""
    table = MARKS[kind]
    return bool(table) and (obj in table or function_of(obj) in table)


def any_marked() -> bool:
    """Whether something has a mark other than "disable": nothing has in most programs."""
    return any(MARKS[kind] for kind in MARK_KINDS if kind != "disable")


# modules of torch whose Python drives its autograd engine, makes graphs of functions, or frees and fills the memory of
# parameters (FSDP): nothing in them is for a graph
LEFT_WHOLE = frozenset(
    {
        "torch.autograd.functional",
        "torch.autograd.gradcheck",
        "torch.fx._symbolic_trace",
        "torch.fx.experimental.proxy_tensor",
        "torch.fx.experimental.const_fold",
        "torch.distributed.fsdp._runtime_utils",
        "torch.distributed.fsdp._flat_param",
        "torch.distributed.fsdp._unshard_param_utils",
    }
)

EXPOSED = ("torch.func", "torch._functorch.eager_transforms")
_COLLECTIVES = """
    all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_gather_single all_reduce all_reduce_coalesced
    all_to_all all_to_all_single barrier batch_isend_irecv broadcast broadcast_object_list gather gather_object irecv isend
    monitored_barrier recv recv_object_list reduce reduce_scatter reduce_scatter_single reduce_scatter_tensor scatter
    scatter_object_list send send_object_list
""".split()
# modules and what in them is never traced: code that reads lengths from a tensor, which differ each batch; logging, of
# numbers too, which differ by name and by stage; a checkpoint that a function is decorated with; filters of
# warnings, which would apply to operations that the graph runs later; code that prepares gradients for
# other processes, and meets them
AS_THEY_ARE = (
    (
        special_cases.PACKED_SEQUENCES,
        frozenset({"pack_padded_sequence", "pad_packed_sequence", "pack_sequence", "unpack_sequence"}),
    ),
    (special_cases.CHECKPOINTS, frozenset({"_checkpoint_impl"})),
    (special_cases.LOGGING, frozenset({"Logger._log"})),
    (special_cases.LIGHTNING, frozenset({"LightningModule.log", "LightningModule.log_dict"})),
    (
        special_cases.DISTRIBUTED,
        frozenset({"DistributedDataParallel._pre_forward", "DistributedDataParallel._post_forward"}),
    ),
    (special_cases.COLLECTIVES, frozenset(_COLLECTIVES)),
    (
        special_cases.SHARDED_TENSORS,
        frozenset({f"DTensor.{n}" for n in ("from_local", "to_local", "redistribute", "full_tensor")} | {"distribute_tensor"}),
    ),
    (
        special_cases.WARNINGS,
        frozenset({"catch_warnings.__enter__", "catch_warnings.__exit__", "simplefilter", "filterwarnings", "resetwarnings"}),
    ),
)


def kept_out(fn: Callable) -> str:
    """Returns why a Python function is never compiled, nor inlined; "" when it may be."""
    name = getattr(fn, "__qualname__", "a function")
    if marked("disable", fn):
        reason = MARKS["disable"].get(function_of(fn))
        return f"{name} is marked bytejit.disable" + (f": {reason}" if reason else "")
    if marked("disallow", fn):
        return f"{name} is marked bytejit.disallow_in_graph"
    if torch_controls.disabled(fn):
        return torch_controls.disabled_text(name, torch_controls.disabled_for(fn))
    if torch_controls.loaded() and (reason := torch_controls.refused(fn)):
        return reason
    if (
        fn.__module__ in LEFT_WHOLE
        or fn.__module__ in EXPOSED
        and name.startswith("linearize")
        or any(name in names and where.made(fn) for where, names in AS_THEY_ARE)
    ):
        return f"{fn.__module__}.{name} runs as it is"
    return ""


def unmark(kind: str, obj: object) -> None:
    """Take a mark away; nothing happens when there is none."""
    MARKS[kind].pop(obj)


DYNAMIC_DIMS = "_bytejit_dynamic"  # attribute of a tensor: {dim: (min, max)}, set by mark_dynamic
STATIC_DIMS = "_bytejit_static"  # attribute of a tensor: frozenset of dims, set by mark_static


# --- what the tracer knows by identity ---------------------------------------------------------------------------


def graph_break(reason: str = "") -> None:
    """Cut the graph here; does nothing when the code runs uncompiled. `reason` is shown by `explain`."""


def is_compiling() -> bool:
    """True while bytejit traces the code, False when it runs. A branch on it is decided at compile time."""
    return False


class _State(threading.local):
    run_only = 0


_state = _State()


@contextmanager
def run_only() -> Iterator[None]:
    """While it is entered, in this thread compiled entries are used but none are made: a miss runs the original code."""
    _state.run_only += 1
    try:
        yield
    finally:
        _state.run_only -= 1


def while_running_only(fn: Callable, args: tuple, kwargs: dict) -> object:
    """fn(*args, **kwargs) inside `run_only`, without the cost of a manager."""
    _state.run_only += 1
    try:
        return fn(*args, **kwargs)
    finally:
        _state.run_only -= 1


def only_runs() -> bool:
    """Whether this thread is inside `run_only`."""
    return _state.run_only > 0
