"""Library functions that are called, not traced: Python functions of the standard library that only ask about their arguments."""
from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
import textwrap
import types
import typing

from .calls import HANDLERS, describe
from .containers import NotConstant, to_python
from .signals import Break
from .values import FuncVar, InstanceVar, Known, MethodVar, Var

# Python functions without effects that answer the same as long as their arguments are the same objects
PURE_FUNCTIONS = [
    inspect.signature, inspect.Signature.from_callable, inspect.getfullargspec, inspect.unwrap, inspect.getdoc, inspect.getmodule,
    inspect.getsource, inspect.getfile, inspect.isabstract, inspect.getattr_static,
    typing.get_type_hints, typing.get_origin, typing.get_args,
    re.compile, re.match, re.fullmatch, re.search, re.sub, re.subn, re.split, re.findall, re.escape,
    importlib.util.find_spec, importlib.metadata.version, textwrap.dedent, textwrap.indent, textwrap.fill,
    os.path.join, os.path.basename, os.path.dirname, os.path.splitext, os.path.normpath, os.path.abspath, os.path.isabs,
    sys.getrecursionlimit,
]
# C functions whose answers hold for as long as the process runs
PURE_C_TYPES = (re.Pattern, re.Match, inspect.Signature)


def real_object(t, v: Var) -> object:
    """The real object behind a Var that the trace has not changed. Raises: NotConstant."""
    v = t.real(v)
    if isinstance(v, MethodVar):
        return types.MethodType(real_object(t, v.func), real_object(t, v.self))
    if isinstance(v, FuncVar) and v.real is not None and not v.attrs:
        return v.real
    if isinstance(v, InstanceVar) and v.real is not None:
        return v.real
    if isinstance(v, Known):
        return v.obj
    return to_python(t, v, classes=True)


def fold_call(t, function, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """function(*args, **kwargs) on real objects, at trace time. Raises: Break, Raised."""
    try:
        real_args = [real_object(t, a) for a in args]
        real_kwargs = {k: real_object(t, v) for k, v in kwargs.items()}
    except NotConstant as e:
        raise Break(f"a call of {describe(function)} with {e}") from None
    try:
        result = function(*real_args, **real_kwargs)
    except Exception as e:
        raise t.raised(e) from None
    return t.model(result)


def _folded(function):
    HANDLERS[function] = lambda t, args, kwargs: fold_call(t, function, args, kwargs)


for _function in PURE_FUNCTIONS:
    _folded(_function)
for _cls in PURE_C_TYPES:
    for _method in vars(_cls).values():
        if isinstance(_method, types.MethodDescriptorType):
            _folded(_method)
