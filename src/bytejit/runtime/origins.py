"""What a compiled function, method, module or partial was made from, and with which settings."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import torch

from bytejit.common import torch_frames
from bytejit.common.options import Settings
from bytejit.common.quiet_reads import function_of

from . import module

_SETTINGS = "__bytejit_settings__"  # attribute of a compiled function: its code, its settings, the code it was made from


def mark(compiled: types.FunctionType, fn: types.FunctionType, settings: Settings) -> None:
    """Record on a function that it is `fn`, compiled with these settings. Its `__wrapped__` becomes `fn`."""
    setattr(compiled, _SETTINGS, (compiled.__code__, settings, fn.__code__))
    torch_frames.mark_compiled(compiled, fn)


def settings_of_function(fn: object) -> Settings | None:
    """The settings of a compiled function; None for any other, also for one that got its attributes from functools.wraps."""
    code, settings, _ = getattr(fn, "__dict__", {}).get(_SETTINGS, (None, None, None))
    return settings if code is not None and code is getattr(fn, "__code__", None) else None


def is_made_of(compiled: Any, fn: Any) -> bool:
    """Whether a compiled function, made of `fn`, has the code and the defaults that `fn` has now: a reload gives it others."""
    return (
        compiled.__dict__[_SETTINGS][2] is fn.__code__
        and compiled.__defaults__ is fn.__defaults__
        and (compiled.__kwdefaults__ or None) is (fn.__kwdefaults__ or None)
    )


def settings_of(target: object) -> Settings:
    """The settings that a compiled function, method, module or partial was made with; the defaults for anything else."""
    if isinstance(target, torch.nn.Module):
        return module.settings_of(target) or Settings()
    if isinstance(target, functools.partial):
        return settings_of(target.func)
    return settings_of_function(function_of(target)) or Settings()


def needs_arguments(target: object) -> bool:
    """Whether a function, method or module cannot be called without arguments."""
    call = target.forward if isinstance(target, torch.nn.Module) else target
    try:
        signature = inspect.signature(call) if callable(call) else None
    except (TypeError, ValueError):  # one in C that has none
        return False
    needed = () if signature is None else signature.parameters.values()
    return any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in needed)


def original(fn: Any) -> Any:
    """The function below a compiled function; anything else is returned as it is."""
    return fn.__wrapped__ if settings_of_function(fn) is not None else fn


def plain(target: Any) -> Any:
    """The function, bound method, module or partial before it was compiled; anything else is returned as it is."""
    if isinstance(target, torch.nn.Module):
        return module.plain(target)
    if isinstance(target, types.MethodType):
        return types.MethodType(original(target.__func__), target.__self__)
    if isinstance(target, functools.partial):
        return type(target)(plain(target.func), *target.args, **target.keywords)
    return original(target)
