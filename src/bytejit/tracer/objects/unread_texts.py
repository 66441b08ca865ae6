"""Text made of tensors' values: of a message that is logged at no level, or of an exception that is caught and not looked at.

The values are known only when the graph has run, so such text is not made at all. Where the region reads it, or where it
leaves the region, the region ends before it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from bytejit.tracer.core import texts
from bytejit.tracer.core.texts import UnreadText
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Known, SeqVar, TensorVar, Var

PLAIN = (None, torch.Tensor, torch.nn.Parameter)


class Unfit(Exception):
    """A value that may raise, or run code of the program's, where text is made of it."""


class Stand:
    """Stands for a tensor in a call that finds out whether making the text raises. number: of the kind that it holds, for a
    tensor without dimensions, which is formatted as that."""

    def __init__(self, number: Any) -> None:
        self.number = number

    def __format__(self, spec: str) -> str:
        return format("" if self.number is None else self.number, spec) if spec and self.number is not None else self.plain(spec)

    def plain(self, spec: str) -> str:
        """Raises: Unfit for a format that torch refuses."""
        if spec:
            raise Unfit
        return ""


def unread(
    t: Tracer, function: Callable[..., str], args: Sequence[Var], kwargs: Mapping[str, Var] | None = None
) -> UnreadText | None:
    """What a pure function that makes text gives for tensors, or for text of them; None for other values, or where it may
    raise."""
    given = dict(kwargs or {})
    if not any(map(_is_of_tensors, (*args, *given.values()))) or t.overrides.modes or t.overrides.entered:
        return None
    steps = [t.limits.steps]
    try:
        function(*(_stand(t, v, steps) for v in args), **{k: _stand(t, v, steps) for k, v in given.items()})
    except Exception:  # raised again by the original code
        return None
    return UnreadText(min(steps))


def _is_of_tensors(v: Var) -> bool:
    return isinstance(v, TensorVar) or type(v) is UnreadText or texts.is_row(v) and any(map(_is_of_tensors, v.items))


def _stand(t: Tracer, v: Var, steps: list[int]) -> Any:
    """Raises: Unfit."""
    v = t.values.real(v)
    if type(v) is UnreadText:
        steps.append(v.step)
        return ""
    if isinstance(v, TensorVar):
        return Stand(_number(v))
    if isinstance(v, SeqVar) and texts.is_row(v):
        return tuple([_stand(t, x, steps) for x in v.items])
    if not texts.is_plain(v):
        raise Unfit
    if type(v) is Known and isinstance(v.obj, str) and texts.BY_VALUE.search(v.obj):
        raise Unfit
    return texts.hint(v)


def _number(v: TensorVar) -> Any:
    """Raises: Unfit for a tensor whose class, or layout, may have text of its own."""
    fake = v.fake
    if v.cls not in PLAIN or v.node is None or fake.layout is not torch.strided or fake.device.type == "meta":
        raise Unfit
    if fake.dim() or fake.dtype.is_complex:
        return None
    return True if fake.dtype is torch.bool else 1.5 if fake.is_floating_point() else 1


def container_text(parts: Sequence[Var], join: Callable[[list[str]], str], t: Tracer) -> Known:
    """The text of a container, of that of its items."""
    unread_parts = [p for p in parts if type(p) is UnreadText]
    if unread_parts:
        return UnreadText(min(p.step for p in unread_parts))
    return Known(join([t.const(p) for p in parts]))
