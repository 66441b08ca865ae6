"""Functions that are run while tracing, and may warn: the region gives their warnings, in the name of the program's line."""

from __future__ import annotations

import operator
import re
import types
import warnings
from collections.abc import Callable
from typing import Any

from bytejit.tracer.core.models import MODELS
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Known

PATTERNS = (str, bytes, re.Pattern)
# function -> types of the first argument of which it may warn
MAY_WARN: dict[Callable, tuple[type, ...]] = {
    **dict.fromkeys((operator.invert, operator.inv, bool.__invert__), (bool,)),  # 3.12+
    **dict.fromkeys((bool, operator.truth, operator.not_), (types.NotImplementedType,)),  # until 3.13
    complex: (complex,),  # 3.14+: complex(1j, 2)
    # nested sets; 3.13+: how often, by position
    **dict.fromkeys((re.compile, re.match, re.fullmatch, re.search, re.split, re.findall, re.sub, re.subn), PATTERNS),
}


def run_now(t: Tracer, function: Callable, args: tuple | list, kwargs: dict[str, Any]) -> Any:
    """function(*args, **kwargs) of real objects. Raises: Break where a warning is an error, and what it raises."""
    if function in (True.__invert__, False.__invert__):
        function, args = bool.__invert__, (function.__self__, *args)  # type: ignore[attr-defined]
    if not args or type(function).__hash__ is None or not isinstance(args[0], MAY_WARN.get(function, ())):
        return function(*args, **kwargs)
    return _told(t, lambda: function(*args, **kwargs))


class _Index:
    """An object whose `__index__` returns what it is given."""

    def __init__(self, said: int) -> None:
        self.said = said

    def __index__(self) -> int:
        return self.said


def tell_of_index(t: Tracer, said: int) -> None:
    """Warns as Python does of an `__index__` that returns an object of a subclass of int, as a bool is. Raises: Break."""
    _told(t, lambda: operator.index(_Index(said)))


def _told(t: Tracer, run: Callable[[], Any]) -> Any:
    """run(); the warnings that it gives are the region's. Raises: Break where a warning is an error."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        result = run()
    for w in said:
        MODELS[warnings.warn](t, [Known(str(w.message)), Known(w.category)], {})
    return result
