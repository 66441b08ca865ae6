"""Numbers that the program reads out of tensors and only keeps: see sizes/read_numbers.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .signals import Break
from .values import DeferredVar, TensorVar, Var


class ReadVar(DeferredVar):
    """A number that the exit reads out of a tensor, or computes of such numbers: function(*args), where something needs it.

    `like`: a number of its type. `why`: why nothing else can be done with it. `bits`:
    at most so many has an integer. `step`: when the last of its tensors was read.
    """

    __slots__ = ("like", "why", "bits")

    def __init__(self, function: Callable, args: list[Var], like: Any, why: str, step: int) -> None:
        super().__init__(type(like), function, args, step)
        self.like, self.why, self.bits = like, why, 64

    @property
    def tensor(self) -> TensorVar | None:
        """The tensor that it is read out of; None where it is computed of other numbers."""
        return self.args[0] if isinstance(self.args[0], TensorVar) else None

    def refuse(self) -> Break:
        """The break before the read: what follows may then compute with the number."""
        return Break(self.why, at_step=self.step)


class Decides(Break):
    """The truth of a tensor whose value is not known."""


def refuse_reads(*values: Var) -> None:
    """Raises: Break where a number that is read later is needed now."""
    for v in values:
        if isinstance(v, ReadVar):
            raise v.refuse()
