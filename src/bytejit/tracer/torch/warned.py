"""Warnings that torch gives while an operation is traced. A function of torch's in Python that warns is followed as the program's
own are, so that each call warns. Others are given in the name of the user's line, once for each compile."""

from __future__ import annotations

import re
import types
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

from bytejit.common import given_warnings, special_cases
from bytejit.common.graph_calls import GraphCall, called_name, parts_of
from bytejit.common.warned import silently, warnings_to
from bytejit.common.where import Where
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer


class Warns(BaseException):
    """A function of torch's in Python warns: it is to be followed. It passes by what tries several ways to infer a result."""


def say(t: Tracer, message: Any, category: type[Warning], at: Where | None = None) -> None:
    """Give a warning as often as Python's filters allow. Raises: the warning, where a filter makes it an error."""
    if t.deferred.filters:
        raise Break("an operation that warns, where the program has changed which warnings are given")
    if isinstance(message, str) and (env := t.sizes.env) is not None:  # sizes, not symbols
        names = {str(s): str(hint) for s, hint in env.hints.items()}
        message = re.sub(r"\bs\d+\b", lambda found: names.get(found[0], found[0]), message)
    where, registry = at or t.tensors.where(), t.tensors.users_frame().globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, where.file, where.line, registry=registry)


def say_once(t: Tracer, message: Any, category: type[Warning]) -> None:
    """Give a warning that the graph is not to repeat."""
    t.deferred.said.add(str(message))
    say(t, message, category)


def say_of_c(t: Tracer, fn: Any, message: str, category: type[Warning]) -> None:
    """Give a warning of torch's C++, which the graph is not to repeat. Of a transform it is that the operation is slow under it;
    other words are those of operations that are not eager's."""
    at = None
    if isinstance(fn, GraphCall) and not t.deferred.filters:
        slow = re.match(r"There is a performance drop because .* for aten::(\w+)", message)
        if slow is None or (node := named(fn.parts, slow[1])) is None:
            return
        at = node.meta.get("where")
    t.deferred.said.add(message)
    say(t, message, category, at)


def named(parts: tuple[torch.fx.GraphModule, ...], name: str) -> torch.fx.Node | None:
    """The first node of these graphs, or of those that they run, that calls the function or method of that name."""
    for node in (n for part in parts for n in part.graph.nodes):
        found = node if called_name(node) == name else named(parts_of(node), name)
        if found is not None:
            return found
    return None


def heard_of(t: Tracer, fn: Any, follows: bool = False) -> AbstractContextManager[None]:
    """Around a function that is run on fakes. What torch has in C++ may be inferred by references in Python: their words are not
    eager's. follows: whether Warns is raised where the function can be followed."""
    tell, in_c = partial(say_once, t), partial(say_of_c, t, fn)
    if not isinstance(fn, types.FunctionType):
        return warnings_to(tell if t.deferred.filters else silently, in_c)
    follows &= special_cases.TORCH_FUNCTIONS.made(fn) and not t.deferred.parts
    return warnings_to(follow if follows and given_warnings.manner() != given_warnings.OTHERWISE else tell, in_c)


def follow(message: Any, category: type[Warning]) -> None:
    """Raises: Warns."""
    raise Warns


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
