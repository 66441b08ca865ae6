"""Functions written in C (torch.sin, F.gelu): there is no code to rewrite, so a function in Python that calls one is compiled."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any


def _calling(builtin: types.BuiltinFunctionType) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return builtin(*args, **kwargs)

    call.__name__, call.__qualname__, call.__doc__ = builtin.__name__, builtin.__qualname__, builtin.__doc__
    return call


_calling_shared = functools.cache(_calling)


def in_python(builtin: types.BuiltinFunctionType) -> Callable[..., Any]:
    """A function in Python that calls a builtin: what is compiled in its place. The same one each time, but for methods of
    objects: these would be kept alive."""
    of_object = builtin.__self__ is not None and not isinstance(builtin.__self__, (type, types.ModuleType))
    return (_calling if of_object else _calling_shared)(builtin)
