"""Settings of torch's libraries: `torch.backends.cudnn.benchmark`, the number of threads.

Each read is a guard. One may be set to what it is: what it was is guarded, and the exit sets it. Those of cuDNN may be set to
anything where no operation can look at them, for want of a GPU: the exit sets what is different at the region's end. Setting
others breaks the graph, so they are constant within a region.
"""

from __future__ import annotations

from collections.abc import Callable
from types import NoneType

import torch

from bytejit.guards.references import Ref
from bytejit.guards.sources import CallOf, KnownSource
from bytejit.tracer.core.models import MODELS, models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, Var

_C = torch._C
GETTERS = """
    _get_blas_preferred_backend _get_cublas_allow_bf16_reduced_precision_reduction _get_cublas_allow_fp16_accumulation
    _get_cublas_allow_fp16_reduced_precision_reduction _get_cublas_allow_tf32 _get_cudnn_allow_tf32 _get_cudnn_benchmark
    _get_cudnn_depthwise_kernel _get_cudnn_deterministic _get_cudnn_enabled _get_float32_matmul_precision
    _get_fp32_precision_getter
    _get_linalg_preferred_backend _get_mkldnn_deterministic _get_mkldnn_enabled _get_nnpack_enabled _get_onednn_allow_tf32
    _get_qengine
""".split()


# setter -> its getter; those of cuDNN, which do not depend on each other
SWITCHES = {
    "_set_cudnn_enabled": "_get_cudnn_enabled",
    "_set_cudnn_benchmark": "_get_cudnn_benchmark",
    "_set_cudnn_deterministic": "_get_cudnn_deterministic",
    "_set_cudnn_depthwise_kernel": "_get_cudnn_depthwise_kernel",
    "_cuda_set_cudnn_benchmark_limit": "_cuda_get_cudnn_benchmark_limit",
}
# setter -> its getter, which is given all arguments of the setter but the last
OTHERS = {
    "_set_cublas_allow_tf32": "_get_cublas_allow_tf32",
    "_set_cudnn_allow_tf32": "_get_cudnn_allow_tf32",
    "_set_float32_matmul_precision": "_get_float32_matmul_precision",
    "_set_fp32_precision_setter": "_get_fp32_precision_getter",
    "_set_mkldnn_deterministic": "_get_mkldnn_deterministic",
    "_set_mkldnn_enabled": "_get_mkldnn_enabled",
    "_set_nnpack_enabled": "_get_nnpack_enabled",
    "_set_onednn_allow_tf32": "_get_onednn_allow_tf32",
}


def asked(function: Callable, setter: Callable | None = None) -> None:
    """Models a question without effects: its answer is guarded. setter: what sets it, if the region may."""

    @models(function)
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if (set_here := t.effects.state_set.get((setter, None))) is not None:
            return t.values.constant(set_here[0])
        real, named = tuple(t.const(a) for a in args), {k: t.const(v) for k, v in kwargs.items()}
        found = function(*real, **named)
        if found is None or type(found) in (bool, int, str, tuple):
            t.guard("EQUALS", CallOf(KnownSource.of(function), real, tuple(named.items())), found)
        else:  # an enumeration in C++: each value is one object
            t.guard("EQUALS", CallOf(KnownSource.of(_as_int), (Ref(function), *real)), int(found))
        return t.values.constant(found)


def _as_int(function: Callable, *args: object) -> int:
    return int(function(*args))


def _set(setter: Callable, getter: Callable, free: bool) -> None:
    """Models a setter. free: any value may be set where there is no GPU."""

    @models(setter)
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if not args or kwargs:
            raise Break(f"{setter.__name__} with these arguments")
        *place, value = map(t.const, args)
        present = t.const(MODELS[getter](t, args[:-1], {}))
        if type(value) is not type(present):
            raise Break(f"{setter.__name__} with these arguments")
        if value == present:
            if not free:  # what it sets beside that is so already, but where a program mixes torch's ways to say it
                t.deferred.defer(NoneType, setter, args)
            return NONE
        if not free or torch.cuda.is_available() or t.program_operators.reaches:
            raise Break(f"{setter.__name__} changes how operations run")
        t.state_first.setdefault((setter, None), ((present,), True))
        t.effects.state_set[setter, None] = (value,)
        t.effects.mutations += 1
        return NONE


def _pairs() -> dict[Callable, Callable]:
    """Setter -> getter of those that this torch has."""
    both = SWITCHES | OTHERS
    return {getattr(_C, s): getattr(_C, g) for s, g in both.items() if hasattr(_C, s) and hasattr(_C, g)}


_PAIRS = _pairs()
_SETTERS = {getter: setter for setter, getter in _PAIRS.items()}
for _name in dict.fromkeys((*GETTERS, *SWITCHES.values(), *OTHERS.values())):
    if hasattr(_C, _name):  # versions of torch differ in which they have
        asked(getattr(_C, _name), _SETTERS.get(getattr(_C, _name)))
for _setter, _getter in _PAIRS.items():
    _set(_setter, _getter, _setter.__name__ in SWITCHES)
asked(torch.get_num_threads)


@models(torch.use_deterministic_algorithms)
def use_deterministic_algorithms(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Setting what is so already; torch notes it for its own compiler, too."""
    named = {name: t.const(v) for name, v in kwargs.items()}
    given = [*map(t.const, args), *(named[name] for name in ("mode", "warn_only") if name in named)]
    if len(args) > 1 or named.keys() - {"mode", "warn_only"} or not given or any(type(v) is not bool for v in given):
        raise Break("torch.use_deterministic_algorithms with these arguments")
    t.guards.add_state("deterministic", "deterministic_warns")
    present = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    if (*given, False)[:2] != present:
        raise Break("torch.use_deterministic_algorithms changes how operations run")
    t.deferred.defer(NoneType, _deterministic, [t.values.constant(v) for v in present])
    return NONE


def _deterministic(mode: bool, only_warns: bool) -> None:
    torch.use_deterministic_algorithms(mode, warn_only=only_warns)
