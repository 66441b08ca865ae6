"""The kinds of ambient state, a row each: how a kind is read, and how it is made a given value.

A write is absolute: it leads to that value from whatever is there, so it may be repeated, or follow a write that was cut
short. What only the program sets (flags of the process that no code here touches, `WATCHED`) is read for comparison, never
written: another thread may have set it meanwhile. A new kind is a row; tests/common/test_ambient.py wants a change of it.
"""

from __future__ import annotations

import functools
import gc
import operator
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _python_dispatch

from bytejit.common.light_dataclass import light_dataclass

from . import attention_choice, inference, saved_tensors

_C = torch._C
_AUTOGRAD, _FUNCTORCH, _AD = _C._autograd, _C._functorch, torch.autograd.forward_ad


@light_dataclass(frozen=True)
class Kind:
    """A kind of ambient state. `write(read())` changes nothing, whatever happened in between is undone by it."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None  # None: watched only
    same: Callable[[Any, Any], bool] = operator.eq


def _identical(a: tuple, b: tuple) -> bool:
    return len(a) == len(b) and all(map(operator.is_, a, b))


def _none(*_: object) -> None:
    """Stands for a getter or setter that this torch lacks."""


# ---- torch's stacks --------------------------------------------------------------------------------------------------
def _read_function_modes() -> tuple:
    return tuple([_C._get_function_stack_at(i) for i in range(_C._len_torch_function_stack())])


def _write_function_modes(modes: tuple) -> None:
    while not _identical(now := _read_function_modes(), modes[: len(now)]):
        _C._pop_torch_function_stack()
    for mode in modes[len(now) :]:
        _C._push_on_torch_function_stack(mode)


def _read_dispatch_modes() -> tuple:
    return tuple([_C._get_dispatch_stack_at(i) for i in range(_C._len_torch_dispatch_stack())])


def _write_dispatch_modes(modes: tuple) -> None:
    while not _identical(now := _read_dispatch_modes(), modes[: len(now)]):
        _C._pop_torch_dispatch_stack(getattr(now[-1], "_mode_key", None))
    for mode in modes[len(now) :]:
        _C._push_on_torch_dispatch_stack(mode)


# what TorchDispatchMode notes of modes in Python, and how it tells torch's C++
_MODE_FLAGS = [
    n
    for n in (
        "_is_in_torch_dispatch_mode",
        "_is_in_non_infra_torch_dispatch_mode",
        "_is_in_any_mode_without_ignore_compile_internals",
    )
    if hasattr(_python_dispatch, n)
]
_tell_mode_flag = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", _none)


def _read_mode_flags() -> tuple:
    return tuple([getattr(_python_dispatch, n) for n in _MODE_FLAGS])


def _write_mode_flags(values: tuple) -> None:
    for name, value in zip(_MODE_FLAGS, values):
        setattr(_python_dispatch, name, value)
    if len(values) == 3:
        _tell_mode_flag(values[2])


def _read_overrides_off() -> tuple:
    """Whether torch calls overrides, and a context manager whose exit restores that state. The exit may be called several
    times."""
    manager = _C.DisableTorchFunction()
    there_and_back = manager.__enter__, functools.partial(manager.__exit__, None, None, None)
    tuple(map(operator.call, there_and_back))  # one step of the interpreter: no interrupt in between
    return _C._is_torch_function_enabled(), _C._is_torch_function_all_disabled(), manager


def _write_overrides_off(state: tuple) -> None:
    state[2].__exit__(None, None, None)


_depth = getattr(_FUNCTORCH, "get_dynamic_layer_stack_depth", lambda: 0)


def _pop_transforms(depth: int) -> None:
    while _depth() > depth:  # torch has a function for it, which in 2.11 pops one too many
        _FUNCTORCH.pop_dynamic_layer_stack()


def _pop_dual_levels(level: int) -> None:
    while _AD._current_level > level:
        _AD.exit_dual_level()


def _read_hooks() -> tuple:
    """The saved-tensors hooks on top, and why there may be none."""
    return _AUTOGRAD._top_saved_tensors_default_hooks(True) or (), saved_tensors.refusal()


def _write_hooks(state: tuple) -> None:
    hooks, refused = state
    while (now := _read_hooks()[0]) and not _identical(now, hooks):
        _AUTOGRAD._pop_saved_tensors_default_hooks()
    if hooks and not now:
        _AUTOGRAD._saved_tensors_hooks_enable()
        _AUTOGRAD._push_saved_tensors_default_hooks(*hooks)
    saved_tensors.refuse(refused)


# ---- dispatch keys and inference mode ----------------------------------------------------------------------------------
_KEYS = [
    key
    for name in (
        "Python",
        "PythonTLSSnapshot",
        "PythonDispatcher",
        "PreDispatch",
        "ADInplaceOrView",
        "AutogradOther",
        "AutogradNestedTensor",
        "AutogradFunctionality",
        "BackendSelect",
        "Functionalize",
        "FuncTorchDynamicLayerFrontMode",
        "FuncTorchDynamicLayerBackMode",
        "FuncTorchVmapMode",
    )
    if (key := _C.DispatchKey.__members__.get(name)) is not None
]


def _read_keys() -> tuple:
    return _C._dispatch_tls_local_include_set().raw_repr(), _C._dispatch_tls_local_exclude_set().raw_repr()


def _write_keys(state: tuple) -> None:
    included, excluded = map(_C.DispatchKeySet.from_raw_repr, state)
    for key in _KEYS:
        _C._dispatch_tls_set_dispatch_key_included(key, included.has(key))
        _C._dispatch_tls_set_dispatch_key_excluded(key, excluded.has(key))


_HELD: list[object] = []  # owner: _write_inference; size: one for each inference mode that was left half-way


def _read_inference() -> tuple[bool, int]:
    return torch.is_inference_mode_enabled(), inference.depth()


def _write_inference(state: tuple[bool, int]) -> None:
    inference.leave_to(state[1])
    if torch.is_inference_mode_enabled() is not state[0]:  # its manager was lost: one that never ends sets it
        _HELD.append(_C._InferenceMode(state[0]))


# ---- autocast --------------------------------------------------------------------------------------------------------
_DEVICES = tuple(map(str, getattr(_C, "_autocast_supported_devices", lambda: ("cpu", "cuda"))()))
_THERE_AND_BACK = (torch.autocast_increment_nesting, torch.autocast_decrement_nesting)


def autocast_nesting() -> int:
    """Returns how many autocast blocks are around."""
    return tuple(map(operator.call, _THERE_AND_BACK))[1]  # one step of the interpreter: no interrupt in between


def _write_nesting(depth: int) -> None:
    while (now := autocast_nesting()) != depth:
        torch.autocast_decrement_nesting() if now > depth else torch.autocast_increment_nesting()
    if depth == 0:
        torch.clear_autocast_cache()


def clear_cache_at(inside: int) -> None:
    """Empty autocast's cache of cast weights where no block is around but `inside` ones, which are a graph's own."""
    if autocast_nesting() + inside == 0:
        torch.clear_autocast_cache()


def nest(blocks: int) -> None:
    """Enter so many autocast blocks more, or leave so many, as far as the nesting goes."""
    _write_nesting(autocast_nesting() + blocks)


def _autocast_kind(device: str) -> Kind:
    def read() -> tuple[bool, torch.dtype]:
        return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def write(state: tuple[bool, torch.dtype]) -> None:
        torch.set_autocast_enabled(device, state[0])
        torch.set_autocast_dtype(device, state[1])

    return Kind(f"autocast {device}", read, write)


# ---- CUDA and Python ---------------------------------------------------------------------------------------------------
def _read_cuda() -> tuple | None:
    """The thread's device and stream; None where CUDA is not in use."""
    return (torch.cuda.current_device(), torch.cuda.current_stream()) if torch.cuda.is_initialized() else None


def _write_cuda(state: tuple | None) -> None:
    if state is not None:
        torch.cuda.set_stream(state[1])
        torch.cuda.set_device(state[0])


def _read_warnings() -> tuple:
    return warnings.filters, warnings.showwarning, getattr(warnings, "_showwarnmsg_impl", None)


def _write_warnings(state: tuple) -> None:
    warnings.filters, warnings.showwarning = state[:2]
    if state[2] is not None:
        warnings._showwarnmsg_impl = state[2]  # type: ignore[attr-defined]
    warnings._filters_mutated()  # type: ignore[attr-defined]  # takes the lock of 3.14 itself


def _read_limit() -> int:
    """The recursion limit. Raises: RecursionError where it could not be set back from this depth."""
    sys.setrecursionlimit(limit := sys.getrecursionlimit())
    return limit


# ---- the table ---------------------------------------------------------------------------------------------------------
# In the order of writing: what the later rows' calls go through comes first, Python's limits last.
KINDS: tuple[Kind, ...] = (
    Kind("dispatch modes", _read_dispatch_modes, _write_dispatch_modes, _identical),
    Kind("dispatch mode flags", _read_mode_flags, _write_mode_flags),
    Kind("function transforms", _depth, _pop_transforms),
    Kind("inference mode", _read_inference, _write_inference),
    Kind("dispatch keys", _read_keys, _write_keys),
    Kind("torch functions asked", _read_overrides_off, _write_overrides_off, lambda a, b: a[:2] == b[:2]),
    Kind("function modes", _read_function_modes, _write_function_modes, _identical),
    Kind("grad mode", torch.is_grad_enabled, _C._set_grad_enabled),
    Kind("forward grad mode", _C._is_fwd_grad_enabled, _C._set_fwd_grad_enabled),
    Kind("forward levels", lambda: _AD._current_level, _pop_dual_levels),
    Kind("multithreading", _C._is_multithreading_enabled, _C._set_multithreading_enabled),
    Kind("view replay", _C._is_view_replay_enabled, _C._set_view_replay_enabled),
    Kind("saved tensors hooks", _read_hooks, _write_hooks),
    Kind(
        "anomaly",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda state: torch.set_anomaly_enabled(*state),
    ),
    *map(_autocast_kind, _DEVICES),
    Kind("autocast cache", torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    Kind("autocast nesting", autocast_nesting, _write_nesting),
    Kind("attention", attention_choice.settled, attention_choice.write),
    Kind("cuda", _read_cuda, _write_cuda),
    Kind("warnings", _read_warnings, _write_warnings, _identical),
    Kind("collector", gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    Kind("recursion limit", _read_limit, sys.setrecursionlimit),
)
WATCHED: tuple[Kind, ...] = (
    Kind("default dtype", torch.get_default_dtype),
    Kind("default device", torch.get_default_device),
    Kind(
        "deterministic",
        lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        ),
    ),
    Kind("random numbers", lambda: torch.default_generator.get_state(), same=torch.equal),
    # in the newer words: torch refuses to say the older ones once a program has used both
    Kind("matmul precision", lambda: _C._get_fp32_precision_getter("cuda", "matmul")),
    Kind("mkldnn", _C._get_mkldnn_enabled),
    Kind("cudnn", lambda: (_C._get_cudnn_enabled(), _C._get_cudnn_benchmark(), _C._get_cudnn_deterministic())),
    Kind("threads", torch.get_num_threads),
)


_SETTABLE = {
    "inference mode",
    "dispatch keys",
    "function modes",
    "grad mode",
    "anomaly",
    "autocast cache",
    "autocast nesting",
    "attention",
    "saved tensors hooks",
    "warnings",
    *(f"autocast {device}" for device in _DEVICES),
}
SET_BY_EXITS = tuple(kind for kind in KINDS if kind.name in _SETTABLE)
