"""The parts of indices as data: atoms, sums of atoms, their text. `codegen/loops/index.py` is the module to import.

`codegen/loops/index_arithmetic.py` adds the operators: an `Index` is a `Terms` that can be added, multiplied and compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Atom:
    """A factor of an index term. `key` orders atoms, so that equal sums are equal tuples."""

    __slots__ = ("key", "parts", "_hash")
    key: tuple

    def __init__(self, *parts: Any):
        self.parts = parts
        self.key = (
            self.rank,
            *(p.key if isinstance(p, (Atom, Terms)) else p if isinstance(p, (str, int)) else hash(p) for p in parts),
        )
        self._hash = hash((self.rank, parts))

    rank = 0

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._hash == other._hash and self.parts == other.parts)

    def __repr__(self) -> str:
        return text_of(self, repr)


class AxisVar(Atom):
    """An axis of the kernel or nest: AxisVar(name)."""

    __slots__ = ()
    rank = 1


class Sym(Atom):
    """A size known only at the call: Sym(name). low: its least value (-inf: unknown); hint: its value when the graph was
    compiled; text: how it is computed from others, as Python text. Equal by name."""

    __slots__ = ("low", "hint", "text")
    rank = 0

    def __init__(self, name: str, hint: int = 64, low: float = 2, text: str = ""):
        super().__init__(name)
        self.hint, self.low, self.text = hint, low, text


class Div(Atom):
    """Div(x: Index, d: int or Index): floor division."""

    __slots__ = ()
    rank = 2


class Mod(Atom):
    """Mod(x: Index, d: int or Index): the remainder of floor division."""

    __slots__ = ()
    rank = 3


class Prod(Atom):
    """Prod(*factors: Atom): a product that is not affine (a symbolic stride times an axis). Factors are sorted, none a Prod."""

    __slots__ = ()
    rank = 4


class Val(Atom):
    """Val(expr, size): an i64 expression of the loop IR, known to lie in range(size)."""

    __slots__ = ()
    rank = 5


class Terms:
    """const + sum(coefficient * atom); `terms` is sorted by atom and has no zero coefficient."""

    __slots__ = ("terms", "const", "_hash", "_key")

    def __init__(self, terms: tuple, const: int):
        self.terms, self.const = terms, const
        self._hash = hash((terms, const))
        self._key: tuple | None = None

    @property
    def key(self) -> tuple:
        if self._key is None:
            self._key = (tuple((a.key, c) for a, c in self.terms), self.const)
        return self._key

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return not self.terms and self.const == other
        return self is other or (
            isinstance(other, Terms) and self._hash == other._hash and self.const == other.const and self.terms == other.terms
        )

    @property
    def value(self) -> int | None:
        """The number, when no atom is left; else None."""
        return None if self.terms else self.const

    def __repr__(self) -> str:
        return index_text(self)


class Undecided(Exception):
    """A comparison of symbolic sizes holds for some of their values only: the code that needs it cannot be compiled for all."""


def product(factors: Iterable[Atom]) -> Atom:
    """The atom of a product of at least one atom. It does not depend on the order of the factors."""
    flat = [q for p in factors for q in (p.parts if type(p) is Prod else (p,))]
    flat.sort(key=lambda p: (p.rank, str(p.key)))
    return Prod(*flat) if len(flat) > 1 else flat[0]


def invariant(atom: Atom) -> bool:
    """Whether an atom is made of size symbols alone: the same at every point of a kernel."""
    return (
        type(atom) is Sym
        or type(atom) not in (AxisVar, Val)
        and all(
            isinstance(p, int) or all(invariant(a) for a, _ in p.terms) if not isinstance(p, Atom) else invariant(p)
            for p in atom.parts
        )
    )


def atoms(x: Terms) -> Iterator[Atom]:
    """Every atom in the index, inside other atoms too."""
    stack: list[Any] = [a for a, _ in x.terms]
    while stack:
        atom = stack.pop()
        yield atom
        for part in atom.parts:
            if isinstance(part, Terms):
                stack.extend(a for a, _ in part.terms)
            elif isinstance(part, Atom):
                stack.append(part)


def variables(x: Any) -> set[str]:
    """Names of the axes in an index (not those inside values)."""
    if not isinstance(x, Terms):
        return set()
    return {a.parts[0] for a in atoms(x) if type(a) is AxisVar}


def only_axis(x: Terms) -> str | None:
    """The axis that an index is, and nothing else; None for any other index."""
    if len(x.terms) == 1 and not x.const and x.terms[0][1] == 1 and type(x.terms[0][0]) is AxisVar:
        return x.terms[0][0].parts[0]
    return None


def index_text(x: int | Atom | Terms, name: Callable[[Any], str] = repr) -> str:
    """`128*i + r//4`: values are printed by `name`, in brackets."""
    if isinstance(x, Atom):
        return text_of(x, name)
    if not isinstance(x, Terms):
        return str(int(x))
    parts = []
    for atom, c in x.terms:
        body = text_of(atom, name)
        parts.append(body if c == 1 else f"{c}*{body}" if type(atom) in (AxisVar, Sym, Val) else f"{c}*({body})")
    if x.const or not parts:
        parts.append(str(x.const))
    return " + ".join(parts).replace("+ -", "- ")


def text_of(atom: Atom, name: Callable[[Any], str]) -> str:
    """Prints one atom."""
    kind = type(atom)
    if kind in (AxisVar, Sym):
        return atom.parts[0] if kind is AxisVar else f"${atom.parts[0]}"
    if kind is Val:
        return f"[{name(atom.parts[0])}, {atom.parts[1]}]"
    if kind is Prod:
        return "*".join(f"({text_of(p, name)})" for p in atom.parts)
    x, d = (index_text(p, name) for p in atom.parts)
    simple = len(atom.parts[0].terms) == 1 and not atom.parts[0].const and type(atom.parts[0].terms[0][0]) is AxisVar
    x = x if simple and atom.parts[0].terms[0][1] == 1 else f"({x})"
    return f"{x}{'//' if kind is Div else '%'}{d if isinstance(atom.parts[1], int) else f'({d})'}"
