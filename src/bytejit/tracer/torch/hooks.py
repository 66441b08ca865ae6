"""Hooks of tensors, which are registered when the region ends, before a backward pass can run; whether there may be hooks of
saved tensors."""

from __future__ import annotations

import types
from collections.abc import Callable

import torch
from torch.utils.hooks import RemovableHandle

from bytejit.common import saved_tensors, spared_hooks
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, DeferredVar, TensorVar, Var

from .histories import check_usable, is_leaf, step_of
from .state import set_state

_autograd = torch._C._autograd


def _deferred(t: Tracer, kind: type, function: Callable, args: list[Var]) -> DeferredVar:
    """The call function(*args) at the end of the region. Raises: Break where the call would raise."""
    v = args[0]
    if not isinstance(v, TensorVar) or not v.fake.requires_grad:
        raise Break(f"Tensor.{function.__name__} of a tensor that needs no gradient")
    made = t.deferred.defer(kind, function, args)
    made.watched = v.fake, v.fake._version
    return made


@models(torch.Tensor.register_hook)
def register_hook(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The hook belongs to the gradient of the tensor's present value: see DeferredVar.watched."""
    if len(args) != 2 or kwargs:
        raise Break("Tensor.register_hook with these arguments")
    return _deferred(t, RemovableHandle, _registering(args[0]), args)


def _registering(v: Var) -> Callable:
    """The function that registers a hook. For the result of an operation with a single result the hook is called only if
    eager's backward pass reaches it."""
    node = step_of(v.fake) if isinstance(v, TensorVar) else None
    return torch.Tensor.register_hook if node is None or len(node._input_metadata) > 1 else spared_hooks.register


@models(torch.Tensor.register_post_accumulate_grad_hook)
def register_post_accumulate_grad_hook(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if len(args) != 2 or kwargs or not isinstance(args[0], TensorVar) or not is_leaf(args[0].fake):
        raise Break("Tensor.register_post_accumulate_grad_hook with these arguments")
    return _deferred(t, RemovableHandle, torch.Tensor.register_post_accumulate_grad_hook, args)


@models(torch.Tensor.retain_grad)
def retain_grad(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if isinstance(args[0], TensorVar):
        check_usable(args[0].fake)
    _deferred(t, types.NoneType, torch.Tensor.retain_grad, args)
    return NONE


@models(_autograd._saved_tensors_hooks_get_disabled_error_message)
def saved_hooks_refusal(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    t.guards.add_state("saved_hooks")
    return t.values.constant(saved_tensors.refusal())


def _refuse(t: Tracer, message: str | None) -> Var:
    t.guards.add_state("saved_hooks")
    present = saved_tensors.refusal()
    set_state(t, saved_tensors.refuse, None, [message], (present,), True)
    return NONE


@models(_autograd._saved_tensors_hooks_disable)
def refuse_saved_hooks(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Raises: Break where torch raises, because there are hooks."""
    if len(args) != 1 or kwargs or saved_tensors.hooks_state()[0] or type(message := t.const(args[0])) is not str:
        raise Break("hooks of saved tensors refused where there are some")
    return _refuse(t, message)


@models(_autograd._saved_tensors_hooks_enable)
def take_saved_hooks(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return _refuse(t, None)
