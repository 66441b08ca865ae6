"""Calls of what the user marked: allow_in_graph, disallow_in_graph, assume_constant_result."""
from __future__ import annotations

from bytejit.common import registry
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.values import Var
from bytejit.tracer.objects.containers import NotConstant, to_python


class Marks:
    """The part of the tracer that obeys marks."""

    def call_marked(self, fn: object, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """The result of calling a marked callable; None when it has no mark that decides here. Raises: Break."""
        if registry.marked("disallow", fn):
            raise Break(f"{name_of(fn)} is marked bytejit.disallow_in_graph", "allow it with bytejit.allow_in_graph")
        if registry.marked("allow", fn):
            return self.call_tensor_op(fn, args, kwargs)
        if registry.marked("constant", fn):
            try:
                real = [to_python(self, a, classes=True) for a in args]
                named = {k: to_python(self, v, classes=True) for k, v in kwargs.items()}
            except NotConstant as e:
                raise Break(f"{name_of(fn)} (bytejit.assume_constant_result) of {e}") from None
            try:
                return self.constant(fn(*real, **named))
            except Exception as e:
                raise self.raised(e) from None
        return None


def name_of(fn: object) -> str:
    """A callable as a message names it."""
    return getattr(fn, "__qualname__", None) or type(fn).__qualname__
