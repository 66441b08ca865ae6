"""functools.partial: its arguments with those of a call, which take the places that 3.14's Placeholder stands in."""

from __future__ import annotations

import functools

from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import InstanceVar, Var
from bytejit.tracer.core.versions import PLACEHOLDER


def is_placeholder(v: Var) -> bool:
    return isinstance(v, InstanceVar) and v.real is PLACEHOLDER


def filled(t: Tracer, given: list[Var], args: list[Var]) -> list[Var]:
    """A partial's arguments, then those of a call or of a partial of it; the first of these take the open places."""
    made, left = [], list(args)
    for v in map(t.values.real, given):
        made.append(left.pop(0) if left and is_placeholder(v) else v)
    return made + left


def called_with(t: Tracer, given: list[Var], args: list[Var]) -> list[Var]:
    """The arguments of a call. Raises: Raised(TypeError) where a place stays open."""
    if (places := sum(is_placeholder(t.values.real(v)) for v in given)) > len(args):
        raise t.fold_error(functools.partial(max, *[PLACEHOLDER] * places, None), *[None] * len(args))
    return filled(t, given, args) if places else [*given, *args]
