"""json.dumps and json.loads of what is known while tracing: pure functions, whose C parts hide behind objects that have state."""

from __future__ import annotations

import json
from typing import Any

from bytejit.common.plain_types import JSON_TYPES
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Var

LAYOUT = {"indent", "sort_keys", "separators", "ensure_ascii", "allow_nan", "skipkeys"}  # others bring code of the program


@models(json.dumps)
def dumps(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The text of plain data."""
    return t.values.constant(_called(t, json.dumps, args, kwargs, LAYOUT))


@models(json.loads)
def loads(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """New containers, as a text says."""
    return t.calls.model(_called(t, json.loads, args, kwargs, set()))


def _called(t: Tracer, fn: Any, args: list[Var], kwargs: dict[str, Var], taken: set[str]) -> Any:
    """fn of real values. Raises: Break where they are not known, are not plain, or it raises."""
    if len(args) != 1 or not kwargs.keys() <= taken:
        raise Break(f"json.{fn.__name__} with these arguments")
    try:
        value, options = t.const(args[0]), {k: t.const(v) for k, v in kwargs.items()}
        if not _is_plain(value):
            raise Break(f"json.{fn.__name__} of an object that is no plain data")
        return fn(value, **options)
    except (ValueError, TypeError, RecursionError) as e:
        raise Break(f"json.{fn.__name__} raises {type(e).__name__}") from None


def _is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(type(k) in JSON_TYPES and _is_plain(v) for k, v in value.items())
    return all(map(_is_plain, value)) if type(value) in (list, tuple) else type(value) in JSON_TYPES
