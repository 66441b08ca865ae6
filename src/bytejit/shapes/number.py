"""A symbolic number: an expression, the environment that knows its symbols, and how its truth is decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, Self

from . import integer_math as sm
from .conditions import RELATIONS, Condition


class Environment(Protocol):
    """The interface of `environment.Env` that a number uses."""

    version: int
    taken: Callable[[Any], float] | None

    def simplified(self, e: Any) -> Any: ...
    def public(self, e: Any) -> Any: ...
    def value(self, e: Any) -> Any: ...
    def decide(self, kind: str, d: Any) -> bool | None: ...
    def ask(self, kind: str, d: Any) -> bool: ...
    def waive(self, kind: str, d: Any) -> None: ...
    def record_as_is(self, relation: Condition) -> None: ...
    def equal_hint(self, e: Any) -> Any: ...
    def is_total(self, e: Any) -> bool: ...
    def compute(self, name: str, a: Any, b: Any) -> Any: ...


class Number:
    """An int, a float or a bool that is an expression over symbols. `kind`: which of the three.

    `e`: an int, float, bool, an expression, or (of a bool) what `Env.ask` takes: (kind, difference) or a Condition.
    """

    __slots__ = ("env", "e", "kind", "_at", "_simple")

    def __init__(self, env: Environment, e: Any, kind: type) -> None:
        self.env, self.e, self.kind = env, e, kind
        self._at, self._simple = -1, e

    def __repr__(self) -> str:
        return self.str()

    def str(self) -> str:
        """The text for users."""
        return sm.text(self.value) if self.kind is not bool else repr(self.e)

    @property
    def value(self) -> Any:
        """The expression as far as it is known now."""
        if self._at != self.env.version:
            if self.kind is not bool:
                self._simple = self.env.simplified(self.e)
            self._at = self.env.version
        return self._simple

    @property
    def public(self) -> Any:
        """The value in the form that later stages read."""
        return self.env.public(self.e) if self.kind is not bool else self.truth()

    @property
    def hint(self) -> Any:
        """The value while tracing. Adds no condition."""
        if self.kind is not bool:
            return self.env.value(self.value)
        return self._relation_at_hint() if not isinstance(self.e, bool) else self.e

    @property
    def constant(self) -> Any:
        """The value where it is a constant now, else None."""
        return self.value if isinstance(self.value, (int, float, bool)) else None

    def _relation_at_hint(self) -> bool:
        if isinstance(self.e, Condition):
            return RELATIONS[self.e.op](self.env.value(self.e.left), self.env.value(self.e.right))
        kind, d = self.e
        at = self.env.value(self.env.simplified(d))
        return {"ge0": at >= 0, "eq0": at == 0, "ne0": at != 0}[kind]

    def truth(self) -> bool:
        """Decide a relation. Where it is not known, it becomes a condition."""
        if isinstance(self.e, bool):
            return self.e
        if isinstance(self.e, Condition):
            truth = self._relation_at_hint()
            self.env.record_as_is(self.e if truth else self.e.negated())
            return truth
        return self.env.ask(*self.e)

    def known(self) -> bool | None:
        """The truth of a relation; None where it is not known without a condition."""
        if isinstance(self.e, bool):
            return self.e
        return None if isinstance(self.e, Condition) else self.env.decide(*self.e)

    # ---- others like it
    def make(self, e: Any, kind: type | None = None) -> Self:
        """Another number over the same symbols."""
        return type(self)(self.env, e, kind or self.kind)

    def wrap_int(self, n: int) -> Self:
        """A constant int."""
        return self.make(int(n), int)

    def wrap_float(self, x: float) -> Self:
        """A constant float."""
        return self.make(float(x), float)

    def wrap_bool(self, b: bool) -> Self:
        """A constant bool."""
        return self.make(bool(b), bool)

    # ---- Python's numbers: these make it the constant that it is now, as a condition
    def int_(self) -> int:
        """int(self)."""
        return int(self.env.equal_hint(self.value))

    def float_(self) -> float:
        """float(self)."""
        return float(self.env.equal_hint(self.value))

    def bool_(self) -> bool:
        """bool(self)."""
        if self.kind is bool:
            return self.truth()
        zero = self.kind(0)
        at = self.value
        if isinstance(at, (int, float)):
            return at != zero
        return self.make(("ne0", at) if self.kind is int else Condition("!=", at, zero), bool).truth()
