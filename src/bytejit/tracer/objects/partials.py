"""functools.partial: its arguments with those of a call, which take the places that 3.14's Placeholder stands in."""

from __future__ import annotations

import functools

from bytejit.guards.sources import Attr
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import DictVar, InstanceVar, Lazy, SeqVar, Var, expect
from bytejit.tracer.core.versions import PLACEHOLDER


def is_placeholder(v: Var) -> bool:
    return isinstance(v, InstanceVar) and v.real is PLACEHOLDER


def parts_of(t: Tracer, v: InstanceVar) -> tuple[Var, list[Var], dict[str, Var]]:
    """Returns the function that a partial calls, and its arguments."""
    if v.real is None:
        named = {t.const(k): x for k, x in expect(v.slots["keywords"], DictVar).items.values()}
        return v.slots["func"], expect(v.slots["args"], SeqVar).items, named
    function, given, by_name = (Lazy(getattr(v.real, n), Attr(v.origin, n)) for n in ("func", "args", "keywords"))
    return function, t.iteration.iterate(given), {t.const(k): x for k, x in t.iteration.mapping_items(by_name) or ()}


def has_attributes(v: InstanceVar) -> bool:
    """Whether the program has set attributes of a partial: a partial of it keeps it as it is, and takes over no parts. An
    empty namespace is one that looking at it has made."""
    return v.real is not None and bool(v.real.__reduce__()[2][3])


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
