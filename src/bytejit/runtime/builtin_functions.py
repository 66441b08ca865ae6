"""Functions written in C (torch.sin, F.gelu): there is no code to rewrite, so a function in Python that calls one is compiled."""

from __future__ import annotations

import functools
import types
from typing import Any


def _calling(builtin: types.BuiltinFunctionType) -> types.FunctionType:
    def call(*args: Any, **kwargs: Any) -> Any:
        return builtin(*args, **kwargs)

    assert isinstance(call, types.FunctionType)
    call.__name__, call.__qualname__, call.__doc__ = builtin.__name__, builtin.__qualname__, builtin.__doc__
    return call


_calling_shared = functools.cache(_calling)  # owner: in_python; size: the builtins of modules that were compiled


def in_python(builtin: types.BuiltinFunctionType) -> types.FunctionType:
    """A function in Python that calls a builtin: what is compiled in its place. The same one each time, but for methods of
    objects and classes: these would be kept alive."""
    shared = builtin.__self__ is None or isinstance(builtin.__self__, types.ModuleType)
    return (_calling_shared if shared else _calling)(builtin)
