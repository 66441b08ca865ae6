"""id() of objects that a region makes: compared by the object, since the number is known only when the region ends."""

from __future__ import annotations

from .values import Var


class IdVar(Var):
    """id(of), of a value made in the region."""

    __slots__ = ("of",)

    def __init__(self, of: Var) -> None:
        super().__init__(None)
        self.of = of


class KeyOfVar:
    """The key of a value in a modelled dict or set: equal to one of the same class and value."""

    __slots__ = ("var",)

    def __init__(self, var: Var) -> None:
        self.var = var

    def __hash__(self) -> int:
        return id(self.var)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.var is self.var


class ByIdentity(KeyOfVar):
    """The key of a value that hashes by identity."""

    __slots__ = ()


class IdKey(KeyOfVar):
    """The key of an IdVar."""

    __slots__ = ()
