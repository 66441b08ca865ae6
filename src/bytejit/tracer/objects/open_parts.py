"""Parts of texts and bytes that change between calls, and what contains such values: computed anew in each call."""

from __future__ import annotations

import operator
from functools import partial
from typing import Any

from bytejit.tracer.core.constants import is_constant
from bytejit.tracer.core.texts import TextVar, is_open, text_of
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Known, SetVar, SliceVar, Var
from bytejit.tracer.sizes.called_anew import call_anew


def part_of_text(t: Tracer, text: Known, key: Var) -> Var | None:
    """A letter or a part of text, or of bytes, that changes between calls; None for others, and where constants say more."""
    if not is_open(text):
        return None
    if isinstance(key, SliceVar):
        parts = [p for p in key.parts if type(p) is Known]
        make = text_of if type(text) is TextVar else partial(call_anew, t)
        return make(cut, [text, *parts]) if len(parts) == len(key.parts) else None
    return call_anew(t, operator.getitem, [text, key])  # raises for some texts: known before the graph runs


def contains_anew(t: Tracer, container: Var, item: Var) -> Var | None:
    """Whether a text, or a set of constants, contains a value that changes between calls; None for others."""
    if not is_open(item) and not is_open(container):
        return None
    if isinstance(container, SetVar):
        constants = all(map(is_constant, container.items))
        return call_anew(t, frozenset(container.items).__contains__, [item]) if constants else None
    if is_open(container):
        return call_anew(t, operator.contains, [container, item])
    if type(container) is Known and is_constant(container.obj) and hasattr(container.obj, "__contains__"):
        return call_anew(t, container.obj.__contains__, [item])
    return None


def cut(text: Any, start: int | None, stop: int | None, step: int | None) -> Any:
    """A part of a text, or of bytes."""
    return text[start:stop:step]
