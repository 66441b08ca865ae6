"""Models of torch functions that ask or set global state, and of a few library functions around torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import NoneType
from typing import Any, NoReturn

import torch

from bytejit.common import ambient_kinds, attention_choice, profiler_ranges, registry, special_cases
from bytejit.guards.sources import KnownSource
from bytejit.tracer.core.constants import to_python
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.texts import TextVar, UnreadText
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FALSE, NONE, TRUE, SymVar, TensorVar, Var, expect

from . import encoders

_C = torch._C
_regions = itertools.count(1)


def _as_it_is(getter: Callable[[], object]) -> Callable[[tuple], tuple]:
    return lambda args: (getter(),)


# setter -> the arguments that would set the present state
SETTERS = {
    _C._set_grad_enabled: lambda args: (torch.is_grad_enabled(),),
    torch.set_autocast_enabled: lambda args: _autocast_key(args, torch.is_autocast_enabled),
    torch.set_autocast_dtype: lambda args: (args[0], torch.get_autocast_dtype(args[0])),
    torch.set_autocast_cache_enabled: lambda args: (torch.is_autocast_cache_enabled(),),
    torch.set_anomaly_enabled: lambda args: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
    **{setter: _as_it_is(getter) for setter, getter in attention_choice.GETTERS.items()},
}
# setter -> the states that a guard checks at the begin of the region; autocast's depend on the device
GUARDS = {
    _C._set_grad_enabled: ("grad_mode",),
    torch.set_autocast_cache_enabled: ("autocast_cache",),
    torch.set_anomaly_enabled: ("anomaly", "anomaly_nan"),
    **dict.fromkeys(attention_choice.GETTERS, ("attention",)),
}
GUARDED_DEVICES = ("cpu", "cuda")
GETTERS = {
    torch.is_grad_enabled: "grad_mode",
    torch.is_inference_mode_enabled: "inference_mode",
    torch.is_autocast_enabled: "autocast",
    torch.get_autocast_dtype: "autocast_cpu",
    torch.is_autocast_cache_enabled: "autocast_cache",
    torch.get_default_dtype: "default_dtype",
    torch.is_anomaly_enabled: "anomaly",
    torch.is_anomaly_check_nan_enabled: "anomaly_nan",
    torch.are_deterministic_algorithms_enabled: "deterministic",
    torch.is_deterministic_algorithms_warn_only_enabled: "deterministic_warns",
    torch._C._get_deterministic_algorithms: "deterministic",
    torch._C._get_deterministic_algorithms_warn_only: "deterministic_warns",
    **dict.fromkeys(attention_choice.GETTERS.values(), "attention"),
}
# results that do not change while a compiled function runs
FIXED = {
    _C._get_tracing_state: None,
    _C._is_tracing: False,
    torch.jit.is_scripting: False,
    torch.jit.is_tracing: False,
    torch.compiler.is_exporting: False,
    torch._C._functorch.peek_interpreter_stack: None,
    torch._C._len_torch_dispatch_stack: 0,
    torch.is_autocast_cpu_enabled: None,
    torch._C._are_functorch_transforms_active: False,
}
for _name in ("is_fx_tracing", "is_fx_symbolic_tracing"):  # the second is of torch 2.9 and later
    if hasattr(torch.fx._symbolic_trace, _name):
        FIXED[getattr(torch.fx._symbolic_trace, _name)] = False
_ASKED = {torch.is_autocast_cpu_enabled}


def _autocast_key(args: tuple, getter: Callable) -> tuple:
    return (args[0], getter(args[0])) if len(args) == 2 else (getter("cuda"),)


def _setter(function: Callable, current: Callable) -> None:
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        real = [to_python(t, a) for a in args]
        device = real[0] if type(real[0]) is str else None
        guarded = device is None or device in GUARDED_DEVICES
        if guarded:  # before it is set, because guards check the state at the begin of the region
            t.guards.add_state(*GUARDS.get(function, ("autocast", f"autocast_{device or 'cuda'}")))
        set_state(t, function, device, real, current(real), guarded)
        if function is _C._set_grad_enabled and real[0]:
            t.reads_grad = True
        return NONE

    models(function)(run)


def set_state(t: Tracer, function: Callable, device: str | None, args: list, first: tuple, guarded: bool) -> None:
    """Call a setter now, in the graph, and where the region ends. first: its arguments as the region begins."""
    t.state_first.setdefault((function, device), (first, guarded))
    function(*args)
    effect_node(t, function, *args)
    t.effects.state_set[(function, device)] = tuple(args)


def _getter(function: Callable, state: Any) -> None:
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        t.guards.add_state(*((state,) if state != "autocast" else ("autocast", "autocast_cpu", "autocast_cuda")))
        return t.values.constant(function(*(to_python(t, a) for a in args)))

    models(function)(run)


for _function, _current in SETTERS.items():
    _setter(_function, _current)
for _function, _state in GETTERS.items():
    _getter(_function, _state)
for _function, _answer in FIXED.items():
    if _function in _ASKED:
        models(_function)(lambda t, args, kwargs, f=_function: t.values.constant(f()))
    else:
        models(_function)(lambda t, args, kwargs, a=_answer: t.values.constant(a))


@models(_C._is_torch_function_mode_enabled)
def is_torch_function_mode_enabled(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    t.guards.add_state("function_modes")
    return t.values.constant(bool(t.overrides.modes or t.devices or t.overrides.outer_device))


@models(_C._len_torch_function_stack)
def len_torch_function_stack(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    t.guards.add_state("function_modes")
    return t.values.constant(_C._len_torch_function_stack() + len(t.devices) + len(t.overrides.entered))


@models(torch.device.__enter__)
def device_enter(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """`with torch.device(d)`: what makes tensors inside is given the device, see `Calls.call_known`."""
    t.guards.add_state("function_modes")
    device = t.const(args[0])
    if _C._len_torch_function_stack() or t.overrides.modes or t.overrides.all_off or t.overrides.functions_off:
        raise Break(f"the manager {device!r} within another mode", "pass device= to the functions that make tensors")
    t.effects.mutations += 1
    t.devices.append(device)
    return args[0]


@models(torch.device.__exit__)
def device_exit(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not t.devices:
        raise Break("the end of a device manager that was entered before the region")
    t.effects.mutations += 1
    t.devices.pop()
    return NONE


@models(torch.set_grad_enabled)
def set_grad_enabled(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The class: used as a function or a context manager; its methods are Python and are inlined."""
    made = t.instantiation.object_new(torch.set_grad_enabled)
    init = t.values.constant(torch.set_grad_enabled.__init__)
    t.calls.call(init, [made, *args], kwargs)
    return made


# Autocast's nesting decides only when its cache of cast weights is emptied. A graph leaves it alone, so that every backend,
# and a graph that raises, leaves it alike: where an autocast block ends, a node empties the cache if no block is around the
# region; what the region as a whole enters or leaves is its exit's to do.


@models(torch.autocast_increment_nesting)
def autocast_increment_nesting(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    t.nesting += 1
    t.effects.mutations += 1
    return _nesting(t)


@models(torch.autocast_decrement_nesting)
def autocast_decrement_nesting(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    t.nesting -= 1
    effect_node(t, ambient_kinds.clear_cache_at, t.nesting)
    if t.present_frame.code is torch.autocast.__exit__.__code__:  # which empties the cache at 0: the node has done so
        return t.values.constant(1)
    return _nesting(t)


def _nesting(t: Tracer) -> Var:
    """The present nesting of autocast, which the program may read."""
    t.guards.add_state("autocast_nesting")
    return t.values.constant(ambient_kinds.autocast_nesting() + t.nesting)


@models(torch.clear_autocast_cache)
def clear_autocast_cache(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return effect_node(t, torch.clear_autocast_cache)


def effect_node(t: Tracer, function: Callable, *args: object) -> Var:
    """Record a node that runs for its effect. Returns None, as the program sees it."""
    node = t.graph.call_function(function, args)
    node.meta["val"], node.meta["where"] = None, t.tensors.where()
    t.effects.mutations += 1
    return NONE


@models(torch.manual_seed)
def manual_seed(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Sets the seed when the graph runs, between the operations that draw."""
    given = t.values.real([*args, *kwargs.values()][0])
    if type(given) is SymVar and isinstance(given.value, torch.SymInt):
        seed = t.tensors.to_node_arg(given)
    elif type(seed := t.const(given)) is not int:
        raise Break("a seed that is not a plain int")
    node = t.graph.call_function(torch.manual_seed, (seed,))
    node.meta["val"], node.meta["where"] = None, t.tensors.where()
    t.effects.mutations += 1
    return t.values.wrap(torch.default_generator, KnownSource.of(torch.default_generator), guard=False)


def _seed_for_gpus(function: Callable) -> None:
    """Models what notes a seed for GPUs, where there are none: nothing reads the note. Whether there are is not asked before: the
    question alone makes CUDA unusable in a process that is forked later."""

    @models(function)
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if len(args) != 1 or kwargs or t.type_of(args[0]) is not int:
            raise Break(f"torch.cuda.{function.__name__} with these arguments")
        if torch.cuda.is_available():
            raise Break(f"torch.cuda.{function.__name__} where there is a GPU")
        t.deferred.defer(NoneType, function, args)
        return NONE


_seed_for_gpus(torch.cuda.manual_seed)
_seed_for_gpus(torch.cuda.manual_seed_all)


@models(torch.is_tensor)
def is_tensor(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.values.constant(isinstance(args[0], TensorVar))


@models(torch.is_floating_point)
def is_floating_point(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.values.constant(
        expect(args[0], TensorVar, "torch.is_floating_point of a value that is not a tensor").fake.is_floating_point()
    )


@models(profiler_ranges.enter)
def enter_range(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """A range of the profiler, which the graph opens. Where the graph raises, those that it has opened are ended."""
    name, said = (_name_of_range(t, t.values.real(a)) for a in args)
    if type(name) is not str or not isinstance(said, str | None):
        raise Break("torch.profiler.record_function with a name that is not a string")
    if not t.ranges:
        t.ranges = next(_regions)
    return t.tensors.effect_only(profiler_ranges.enter, None, (name, said, t.ranges), {})


def _name_of_range(t: Tracer, v: Var) -> Any:
    """A range's name or arguments, as a constant. Text that changes between calls is left out: only a profiler shows it."""
    if not isinstance(v, TextVar | UnreadText):
        return t.const(v)
    if profiler_ranges.profiled():
        raise Break(
            "torch.profiler.record_function with a name that changes between calls, under a profiler",
            "give it a name that stays, or open it around the call of the compiled function",
        )
    t.guards.add_state("profiler")
    return ""


@models(torch.profiler.record_function.__enter__)
def enter_outside_range(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """A manager made outside, such as that of a decorator: the region ends before it where it would end within."""
    enter_range(
        t, [t.values.real(t.attributes.getattr(args[0], "name")), t.values.real(t.attributes.getattr(args[0], "args"))], {}
    )
    t.external_ranges.append(t.limits.steps)
    return args[0]


@models(torch.profiler.record_function.__exit__)
def leave_outside_range(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not t.external_ranges:
        raise Break("the end of a profiler's range that was opened before the region")
    t.external_ranges.pop()
    return leave_range(t, [], {})


@models(torch.compiler.cudagraph_mark_step_begin)
def mark_step(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Nothing to do: a recording keeps its outputs for as long as the program holds them."""
    return NONE


@models(profiler_ranges.leave)
def leave_range(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.tensors.effect_only(profiler_ranges.leave, None, (), {})


@models(torch._C._log_api_usage_once)
def log_api_usage(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return NONE


@models(
    torch.autograd._profiler_enabled if hasattr(torch.autograd, "_profiler_enabled") else torch._C._autograd._profiler_enabled
)
def profiler_enabled(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return FALSE


@models(torch._assert)
def torch_assert(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if isinstance(args[0], TensorVar):
        return t.tensors.call_tensor_op(torch._assert, args, kwargs)
    if not t.comparisons.truth(args[0]):
        raise t.raised(AssertionError(t.const(args[1])))
    return NONE


@models(torch._check_with)
def check_with(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """torch._check and its variants: a condition on Python values or sizes, which must hold."""
    if len(args) != 3 or not issubclass(t.type_of(args[1]), bool) or not t.comparisons.truth(args[1]):
        raise Break("a torch._check that does not hold")
    return NONE


@models(registry.is_compiling)
@models(torch.compiler.is_compiling)
@models(torch.compiler.is_dynamo_compiling)
def is_compiling(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """True. A region without work becomes an entry for that, unless only torch's own code asks."""
    asks = t.present_frame
    while asks.code.co_name == "is_compiling" and asks.parent is not None:  # torch has it under several names
        asks = asks.parent
    if asks.parent is None and not t.job.measure and encoders.is_encoder(asks.code):
        return FALSE
    t.asked = t.asked or not special_cases.TORCH.runs(asks.globals)
    return TRUE


@models(registry.graph_break)
def graph_break(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> NoReturn:
    said = t.const([*args, *kwargs.values()][0]) if args or kwargs else ""
    if special_cases.BYTEJIT.runs(t.present_frame.globals):  # of code that stands for a function of torch's or Python's
        raise Break(said)
    raise Break(f"bytejit.graph_break({said!r})" if said else "bytejit.graph_break()")
