"""Statements by which caches of functions see the calls that tracing made in their place (`objects/caching.py`)."""

from __future__ import annotations

from bytejit.guards.sources import SourcePrinter
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import InstanceVar, Var

from .statements import Statements


def count_calls(t: Tracer, at: SourcePrinter) -> list[str]:
    """Statements that make the calls, which the caches count as hits; but those that tracing made, once."""
    return [
        source.call(at) if made is None else f"{at.bind(made)}.pop() if {at.bind(made)} else {source.call(at)}"
        for source, made in t.cached_calls
    ]


def symbolic_calls(out: Statements) -> list[str]:
    """Statements that ask the caches, by which these count hits and are filled as in eager."""

    def text(fn: InstanceVar, args: list[Var], kwargs: dict[str, Var]) -> str:
        given = [*map(out.value, args), *(f"{k}={out.value(v)}" for k, v in kwargs.items())]
        return f"{out.at.source(fn.origin)}({', '.join(given)})"

    return [text(fn, args, kwargs) for fn, args, kwargs, *_ in out.t.symbolic_calls]
