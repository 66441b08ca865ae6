"""What a program tells torch's own compiler, read for this one: marks on functions and tensors, the stance, backends.

torch's compiler is never imported here. Its functions leave an attribute on the user's object, or a note in one of its
modules, which is there once the program has used it. NAMES holds every private name of torch that is read for that, with
what it says and what happens under a torch that has it no more: the name is not found, and that control is not heard.
What its config says is in torch_settings.py.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import torch

from bytejit.common import special_cases
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.quiet_reads import function_of, name_of, own_attributes, special_method

LOADED = "torch._dynamo"
FRAMES = "torch._dynamo.eval_frame"
DECORATORS = "torch._dynamo.decorators"
RULES = "torch._dynamo.trace_rules"
FUNCTIONS = "torch._dynamo.variables.functions"
UTILS = "torch._dynamo.utils"
BACKENDS = "torch._dynamo.backends.registry"
INITS = "torch._dynamo.mutation_guard"


class Name(NamedTuple):
    """A private name of torch: where it stands, what it says, what happens without it."""

    name: str
    where: str
    says: str
    without: str


SCRIPTED = "_torchdynamo_inline"  # an attribute of scripted functions
DISABLED = "_torchdynamo_disable"  # of functions that torch.compiler.disable made
DISABLED_FOR = "_torchdynamo_disable_msg"  # of these: the reason that the program gave

NAMES = {
    row.name: row
    for row in (
        Name(DISABLED, "function", "torch.compiler.disable made it", "it is compiled"),
        Name(DISABLED_FOR, "function", "the reason given to torch.compiler.disable", "the reason is not shown"),
        Name(
            "_torchdynamo_wrapper_id",
            "function",
            "the function that the marks beside it were made for",
            "a wrapper with copied attributes counts as disabled too",
        ),
        Name("_torchdynamo_orig_callable", "function, module", "what it wraps", "it is followed as Python code"),
        Name(
            SCRIPTED,
            "function",
            "torch.jit.script: the function that it was given",
            "calls of scripted ones break",
        ),
        Name("unpatched_nn_module_init", INITS, "nn.Module.__init__ before torch's compiler noted each module", "it is followed"),
        Name("setstate", "function", "the same of nn.Module.__setstate__, in a cell of what stands there", "it is followed"),
        Name("_dynamo_marked_constant", "function", "torch.compiler.assume_constant_result", "it is followed as Python code"),
        Name("_dynamo_forbidden", "function", "torch._dynamo.forbid_in_graph", "it is followed as Python code"),
        Name("_allowed_callable_ids", RULES, "torch.compiler.allow_in_graph", "it is followed as Python code"),
        Name("_nonstrict_trace_callable_ids", RULES, "torch._dynamo.nonstrict_trace", "it is an allow_in_graph"),
        Name("_disallowed_callable_ids", RULES, "torch._dynamo.disallow_in_graph, graph_break", "it is in the graph"),
        Name(
            "PolyfilledFunctionVariable",
            FUNCTIONS,
            "keeps what torch.compiler.substitute_in_graph was given",
            "the function itself is called",
        ),
        Name("skip_code", FRAMES, "what bytejit made runs as it is", "calls of it in code for torch.compile fail"),
        Name("SKIP_DIRS", RULES, "the same of bytejit's files", "torch's compiler looks into bytejit's"),
        Name("_recompile_re", RULES, "the same", "the same"),
        Name("_get_polyfill_handlers", FUNCTIONS, "the same", "the function itself is called"),
        Name(
            "__torch_dynamo_polyfill__", "function", "the Python function of substitute_in_graph", "the function itself is called"
        ),
        Name("_dynamo_dynamic_indices", "tensor", "mark_dynamic: the dimensions", "sizes are learnt from the calls"),
        Name("_dynamo_dynamic_range", "tensor", "mark_dynamic: (dim, min, max)", "no range is promised"),
        Name("_dynamo_weak_dynamic_indices", "tensor", "maybe_mark_dynamic", "sizes are learnt from the calls"),
        Name("_dynamo_unbacked_indices", "tensor", "mark_unbacked", "sizes are learnt from the calls"),
        Name("_dynamo_unbacked_bounds", "tensor", "mark_unbacked: {dim: (min, max)}", "no range is promised"),
        Name("_dynamo_static_indices", "tensor", "mark_static", "a size that changed becomes symbolic"),
        Name("_error_on_graph_break", UTILS, "within torch._dynamo.error_on_graph_break(True)", "graph breaks are no errors"),
        Name("_stance", FRAMES, "torch.compiler.set_stance", "the stance is the default one"),
        Name("get_eval_frame_callback", DECORATORS, "False within torch._dynamo.run", "new code is compiled there"),
        Name("_COMPILER_FNS", BACKENDS, "torch._dynamo.register_backend", "the name of a backend is not known"),
        Name("_default_backend", BACKENDS, "torch.compiler.set_default_backend", "the default is inductor"),
    )
}

OURS = "compiled by bytejit"  # what bytejit's own functions are marked with, for torch's compiler to call them as they are


def loaded() -> bool:
    """Whether the program has loaded torch's compiler: without it there are no marks."""
    return LOADED in sys.modules


def _left(module: str, name: str, otherwise: object = None) -> Any:
    """What a module of torch's compiler holds under a name of NAMES; `otherwise` when it is not loaded or has it not."""
    assert name in NAMES, name
    found = sys.modules.get(module)
    return otherwise if found is None else getattr(found, name, otherwise)


def _mark(fn: object, name: str) -> object:
    """An attribute that torch has set on a function, or on that of a method; None when it has not."""
    assert name in NAMES, name
    return own_attributes(function_of(fn)).get(name)


# ---- functions -------------------------------------------------------------------------------------------------------
def disabled(fn: object) -> bool:
    """Whether torch.compiler.disable made a function; not one that was only given its attributes (functools.wraps)."""
    if _mark(fn, DISABLED) in (None, False, OURS):
        return False
    made = _mark(fn, "_torchdynamo_wrapper_id")
    return (made is None or made == id(function_of(fn))) and not _patched(fn)


def disabled_text(name: str, why: object) -> str:
    """The reason of a break at a disabled function; why: what the program gave torch.compiler.disable as its reason, or None."""
    return f"{name} is marked torch.compiler.disable" + (f": {why}" if isinstance(why, str) and why else "")


def disabled_for(fn: object) -> object:
    """The reason that the program gave when it disabled a function; None where it gave none."""
    return _mark(fn, DISABLED_FOR)


def _patched(fn: object) -> bool:
    """Whether torch itself disabled a function of its own (parts of optimizers) for its own compiler's sake: the wrapper
    stands in the place of the function (a subclass's in that of its base's). What a program disables is an object of its own."""
    fn = function_of(fn)
    module, found = special_cases.module_of(fn), None
    if special_cases.TORCH.named(module):
        found = sys.modules.get(str(module))
        for name in getattr(fn, "__qualname__", "").split("."):
            found = getattr(found, name, None)
    return bool(found is not None and _mark(found, DISABLED))


def unpatched(fn: types.FunctionType) -> types.FunctionType:
    """The function behind one of torch's own that torch disabled for its own compiler's sake; `fn` itself for any other."""
    if not loaded() or _mark(fn, DISABLED) in (None, False, OURS) or disabled(fn):
        return fn
    behind = own_attributes(fn).get("_torchdynamo_orig_callable")
    return behind if _mark(fn, "_torchdynamo_wrapper_id") == id(fn) and isinstance(behind, types.FunctionType) else fn


def disabled_module(module: object) -> bool:
    """Whether torch.compiler.disable made a module: one around another, whose calls are disabled."""
    made = own_attributes(module)
    return made.get("_torchdynamo_wrapper_id") == id(module) and disabled(made.get("forward"))


def wrapped(target: object) -> object:
    """What torch.compile was given to make a function or a module; the target itself for any other."""
    made = own_attributes(target)
    if not loaded() or made.get("_torchdynamo_wrapper_id") != id(target) or disabled(target) or disabled_module(target):
        return target
    return made.get("_orig_mod") or made.get("_modules", {}).get("_orig_mod") or made.get("_torchdynamo_orig_callable", target)


def noted(fn: object) -> object:
    """nn.Module.__init__ or __setstate__ itself for the one that torch's compiler, once used, has put in its place, to note
    modules by their `id`."""
    if not isinstance(fn, types.FunctionType) or fn.__module__ != INITS:
        return fn
    if fn is torch.nn.Module.__init__:
        return _left(INITS, "unpatched_nn_module_init", fn)
    if fn is torch.nn.Module.__setstate__:
        return inspect.getclosurevars(fn).nonlocals.get("setstate", fn)
    return fn


def _among(fn: object, name: str) -> bool:
    ids = _left(RULES, name)
    return ids is not None and id(fn) in ids()


def constant(fn: object) -> bool:
    """Whether a function's result is assumed constant."""
    return bool(_mark(fn, "_dynamo_marked_constant"))


def allowed(fn: object) -> bool:
    """Whether calls of a function are one node."""
    return _among(fn, "_allowed_callable_ids")


def nonstrict(fn: object) -> bool:
    """Whether an allowed function takes containers and modules too."""
    return _among(fn, "_nonstrict_trace_callable_ids")


def refused(fn: object) -> str:
    """Returns why a function is not to be in a graph; "" when it may."""
    name = name_of(fn)
    if _among(fn, "_disallowed_callable_ids"):
        mark = "" if special_cases.TORCH_COMPILER.made(fn) else " is marked torch._dynamo.disallow_in_graph"
        return f"{LOADED}.{name}()" if not mark else name + mark
    if _mark(fn, "_dynamo_forbidden"):
        return f"{name} is marked torch._dynamo.forbid_in_graph"
    return ""


def is_graph_break(fn: object) -> bool:
    """Whether a function is torch._dynamo.graph_break."""
    return name_of(fn) == special_cases.GRAPH_BREAK and special_cases.TORCH_COMPILER.made(fn)


def break_switch() -> tuple[dict[str, Any], str] | None:
    """The namespace, and the name in it, that says whether graph breaks are errors; None before torch's compiler is loaded."""
    found = sys.modules.get(UTILS)
    return None if found is None else (vars(found), "_error_on_graph_break")


def substitute(fn: Callable) -> types.FunctionType | None:
    """The Python function that the program wants followed in place of `fn`; those of torch's own are not the program's."""
    handlers = getattr(_left(FUNCTIONS, "PolyfilledFunctionVariable"), "_get_polyfill_handlers", None)
    hashed_in_python = isinstance(special_method(fn, "__hash__"), types.FunctionType)  # by the program, whose code must not run
    if handlers is None or hashed_in_python:
        return None
    try:
        found = handlers().get(fn)
    except TypeError:  # it has no hash
        return None
    found = getattr(found, "__torch_dynamo_polyfill__", None)
    if not isinstance(found, types.FunctionType) or special_cases.TORCH.made(found):
        return None
    return found


def within_disabled() -> bool:
    """Whether a function that torch.compiler.disable made is being called, or torch._dynamo.run: slow, asked at a miss."""
    frames = sys.modules.get(FRAMES)
    if frames is None:
        return False
    callback = _left(DECORATORS, "get_eval_frame_callback")
    if callback is not None and callback() is False:
        return True
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not called_by_torch.__code__:
        if frame.f_globals is vars(frames) and frame.f_code.co_qualname.startswith("DisableContext.__call__"):
            return True
        frame = frame.f_back
    return False


def called_by_torch(fn: Callable, args: tuple) -> object:
    """fn(*args), where torch's compiler, which disables what it calls, means to call what bytejit compiles."""
    return fn(*args)


# ---- tensors ---------------------------------------------------------------------------------------------------------
class Dims(NamedTuple):
    """Which sizes of a tensor are dynamic (with the range promised), which may become constant after all, which are fixed."""

    dynamic: Mapping[int, tuple[int | None, int | None]]
    weak: frozenset[int]
    fixed: frozenset[int]


def dims_of(t: object) -> Dims | None:
    """The marks of torch._dynamo.mark_dynamic, maybe_mark_dynamic, mark_unbacked and mark_static on a tensor; None: none."""
    marks = getattr(t, "__dict__", None)
    if not marks or not loaded():
        return None
    rank, found = cast(Any, t).dim(), {}
    for d in marks.get("_dynamo_unbacked_indices", ()):
        found[d % rank] = marks.get("_dynamo_unbacked_bounds", {}).get(d, (None, None))
    found.update((d % rank, (None, None)) for d in marks.get("_dynamo_dynamic_indices", ()))
    for r in marks.get("_dynamo_dynamic_range", ()):
        if r.min is not None or r.max is not None:
            found[r.dim % rank] = r.min, r.max
    weak = frozenset(d % rank for d in marks.get("_dynamo_weak_dynamic_indices", ())) - found.keys()
    fixed = frozenset(d % rank for d in marks.get("_dynamo_static_indices", ())) - found.keys()
    found.update((d, (None, None)) for d in weak - fixed)
    return Dims(found, weak, fixed) if found or fixed else None


# ---- the stance ------------------------------------------------------------------------------------------------------
EAGER = "force_eager"
STANCES = ("default", EAGER, "eager_on_recompile", "fail_on_recompile", "eager_then_compile", "aot_eager_then_compile")


@light_dataclass(frozen=True)
class Stance:
    """What torch.compiler.set_stance was told: its name, and the backend that it puts in place of the program's."""

    name: str = "default"
    backend: str | Callable | None = None


def stance() -> Stance:
    """The stance as it is now. Raises: RuntimeError for one that there is not, where torch's compiler notices it, too."""
    found = _left(FRAMES, "_stance")
    if found is None:
        return Stance()
    name = getattr(found, "stance", "default")
    if name not in STANCES:
        raise RuntimeError(f"invalid torch.compile stance '{found}'")
    return Stance(name, getattr(found, "backend", None))


def forced() -> object:
    """Returns the part of the stance that decides which compiled code may run: None, EAGER, or the backend that is forced."""
    found = _left(FRAMES, "_stance")
    if found is None:
        return None
    name = getattr(found, "stance", "default")  # one that there is not fits no entry: `stance` says so at the miss
    return EAGER if name == EAGER or name not in STANCES else getattr(found, "backend", None)


def forced_text(bind: Callable[[object, str], str]) -> str:
    """Python text of `forced()` for a guard; `bind(obj, hint)` names an object.

    Cost: 16 ns before the program has loaded torch's compiler; 10 ns after, until the stance is set again.
    """
    frames = sys.modules.get(FRAMES)
    ask = bind(forced, "forced") + "()"
    if frames is None or forced() is not None or not hasattr(frames, "_stance"):
        return f"(None if {FRAMES!r} not in {bind(sys.modules, 'modules')} else {ask})"
    return f"(None if {bind(frames, 'frames')}._stance is {bind(frames._stance, 'stance')} else {ask})"


# ---- backends --------------------------------------------------------------------------------------------------------
def backend_named(name: str) -> Callable | None:
    """A backend of the program's own that it registered with torch; None when there is none, or it is torch's own."""
    found = (_left(BACKENDS, "_COMPILER_FNS") or {}).get(name)
    return None if found is None or special_cases.TORCH.made(found) else found


def default_backend() -> str | Callable:
    """The backend of a compile that names none."""
    found = _left(BACKENDS, "_default_backend")
    return "inductor" if found is None else found
