"""Models of what the library calls back with: `re.sub` with a function, `operator.call`. The function is traced in each place
where the library would call it."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from bytejit.tracer.core.models import MODELS, models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FuncVar, InstanceVar, Known, MethodVar, SeqVar, Var, expect
from bytejit.tracer.objects.library import fold_call

CALLABLE = (FuncVar, MethodVar, InstanceVar)


def substituted(pattern: re.Pattern, repl: Callable, string: Any, count: int) -> tuple[Any, int]:
    """Pattern.subn with a function."""
    parts: list = []
    at = made = 0
    for match in pattern.finditer(string):
        if count and made >= count:
            break
        if at < match.start():
            parts.append(string[at : match.start()])
        new = repl(match)
        if new is not None:
            parts.append(new)
        at = match.end()
        made += 1
    if at < len(string):
        parts.append(string[at:])
    return string[:0].join(parts), made


def _bound(names: tuple[str, ...], args: list[Var], kwargs: dict[str, Var]) -> list[Var] | None:
    """The arguments by name, numbers that are not given 0; None where they are not what the function takes."""
    given = {**dict(zip(names, args)), **kwargs}
    if len(args) + len(kwargs) != len(given) or not given.keys() <= {*names} or any(n not in given for n in names[:3]):
        return None
    return [given.get(n, Known(0)) for n in names]


def _of_pattern(method: Callable, counts: bool) -> None:
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        given = _bound(("self", "repl", "string", "count"), args, kwargs)
        if given is None or not isinstance(given[1], CALLABLE):
            return fold_call(t, method, args, kwargs)
        found = expect(t.calls.inline(expect(t.values.constant(substituted), FuncVar), given, {}), SeqVar)
        return found if counts else t.values.real(found.items[0])

    MODELS[method] = run


def _of_module(function: Callable, method: Callable) -> None:
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        given = _bound(("pattern", "repl", "string", "count", "flags"), args, kwargs)
        if given is None or not isinstance(given[1], CALLABLE):
            return fold_call(t, function, args, kwargs)
        pattern, *rest, flags = given
        made = fold_call(t, re.compile, [pattern, flags], {})
        return MODELS[method](t, [t.values.real(made), *rest], {})

    MODELS[function] = run


_of_pattern(re.Pattern.sub, False)
_of_pattern(re.Pattern.subn, True)
_of_module(re.sub, re.Pattern.sub)
_of_module(re.subn, re.Pattern.subn)


@models(operator.call)
def operator_call(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not args:
        raise Break("operator.call without a function")
    return t.calls.call(args[0], args[1:], kwargs)
