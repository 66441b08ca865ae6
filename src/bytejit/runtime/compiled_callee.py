"""The compiled form of a function whose call broke a graph."""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import torch

from bytejit.common import registry, special_cases
from bytejit.common.errors import CannotRewrite
from bytejit.common.overriding import is_layer, runs_operations
from bytejit.common.torch_controls import unpatched
from bytejit.rewriter.trampoline import follows_lines

from .function import ORIGINALS, CompiledFunction, cannot_rewrite, handle_of, original_code, with_sites

RECURRENT = (
    torch.nn.LSTM,
    torch.nn.GRU,
    torch.nn.RNN,
)  # a packed sequence breaks the graph; compiled they would hold one library call
# Python around a call of torch's C++, which calls the program's forward: compiled it would only break again. None: it is C++
# itself, as in torch 2.15
APPLY = getattr(getattr(torch.autograd.Function.apply, "__func__", None), "__code__", None)
MAX_CALLEES = 256  # callees of broken calls whose compiled form a Function keeps


def not_inlined(fn: Any) -> str:
    """Returns why a Python function is never traced into; "" when it may be."""
    reason = registry.kept_out(fn)
    if not reason and follows_lines(original_code(fn.__code__)):
        return f"{fn.__qualname__} has its lines followed (sys.settrace)"
    return reason


def compiled_callee(callee: Any, owner: CompiledFunction) -> Any:
    """The compiled form of a callable that a broken call is about to call: of Python functions, methods and modules; other
    callables as they are.

    `owner`, whose call it is, keeps what was compiled; the function itself is made for the call, so nothing holds the
    callee's closure longer than the program does.
    """
    if isinstance(callee, types.MethodType):
        func = compiled_callee(callee.__func__, owner)
        return callee if func is callee.__func__ else types.MethodType(func, callee.__self__)
    if isinstance(callee, types.FunctionType):
        return _compiled_function(unpatched(callee), owner)
    if not isinstance(callee, type) and not stays_whole(callee):
        call = getattr(type(callee), "__call__", None)
        if isinstance(call, types.FunctionType):
            return types.MethodType(compiled_callee(call, owner), callee)
    return callee


def stays_whole(callee: object) -> bool:
    """Whether a module that breaks a graph is one call of a library: compiled it would only break again."""
    cls = type(callee)
    if cls in RECURRENT or special_cases.QUANTISED.made(cls):
        return True
    return is_layer(callee) and any(runs_operations(type(w)) for w in callee.__dict__.get("_parameters", {}).values())


def _compiled_function(callee: types.FunctionType, owner: CompiledFunction) -> types.FunctionType:
    code = callee.__code__
    if code in ORIGINALS or code is APPLY or special_cases.NO_TENSORS.made(callee) or not_inlined(callee):
        return callee
    key = (id(code), id(callee.__globals__))  # the handle keeps both alive
    handle = owner.callees.get(key)
    if handle is None:
        if len(owner.callees) >= MAX_CALLEES:
            owner.callees.clear()
        settings = dataclasses.replace(owner.settings, nopython=False)
        try:
            handle = handle_of(code, callee.__globals__, settings, owner.compile_site)
        except CannotRewrite as e:
            return cannot_rewrite(callee, e)
        handle.function.shared = True
        owner.callees[key] = handle
    return with_sites(callee, handle)
