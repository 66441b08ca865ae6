"""Warnings that torch's Python gives while an operation is traced. They name the user's line, once for each compile."""

from __future__ import annotations

import re
import types
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from bytejit.common.graph_calls import GraphCall
from bytejit.common.warned import silently, warnings_to
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer


def say(t: Tracer, message: Any, category: type[Warning]) -> None:
    """Give a warning as often as Python's filters allow. Raises: the warning, where a filter makes it an error."""
    if t.deferred.filters:
        raise Break("an operation that warns, where the program has changed which warnings are given")
    if isinstance(message, str) and (env := t.sizes.env) is not None:  # sizes, not symbols
        names = {str(s): str(hint) for s, hint in env.hints.items()}
        message = re.sub(r"\bs\d+\b", lambda found: names.get(found[0], found[0]), message)
    where, registry = t.tensors.where(), t.tensors.users_frame().globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, where.file, where.line, registry=registry)


def heard_of(t: Tracer, fn: Any) -> AbstractContextManager[None]:
    """Around a function that is run on fakes. What torch has in C++ may be inferred by references in Python, and under a
    transform by other operators: their words are not eager's."""
    tell, filters = partial(say, t), t.deferred.filters
    in_python, in_c = isinstance(fn, types.FunctionType), not isinstance(fn, GraphCall)
    return warnings_to(tell if in_python or filters else silently, tell if in_c or filters else silently)


@contextmanager
def heard(t: Tracer) -> Iterator[None]:
    """Around an operation that is traced. Raises: Break where it warns, and the program has changed which warnings are given."""
    if not t.deferred.filters:
        yield
        return
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        yield
    if given:
        say(t, given[0].message, given[0].category)
