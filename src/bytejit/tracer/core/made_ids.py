"""id() of objects that a region makes: compared by the object, since the number is known only when the region ends."""

from __future__ import annotations

from .values import Var


class IdVar(Var):
    """id(of), of a value made in the region."""

    __slots__ = ("of",)

    def __init__(self, of: Var) -> None:
        super().__init__(None)
        self.of = of


class IdKey:
    """The key of an IdVar in a modelled dict or set."""

    __slots__ = ("of",)

    def __init__(self, of: Var) -> None:
        self.of = of

    def __hash__(self) -> int:
        return id(self.of)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdKey) and other.of is self.of
