"""The parts of indices: atoms and sums of atoms, their arithmetic and text. `codegen/loops/index.py` is the module to import."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

LATER: dict[str, Callable] = {}  # floordiv and at_least of index_order.py, which imports this module and adds them


class Atom:
    """A factor of an index term. `key` orders atoms, so that equal sums are equal tuples."""

    __slots__ = ("key", "parts", "_hash")
    key: tuple

    def __init__(self, *parts: Any):
        self.parts = parts
        self.key = (
            self.rank,
            *(p.key if isinstance(p, (Atom, Index)) else p if isinstance(p, (str, int)) else hash(p) for p in parts),
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


class Index:
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
            isinstance(other, Index) and self._hash == other._hash and self.const == other.const and self.terms == other.terms
        )

    def __add__(self, other: Size) -> Index:
        other = index(other)
        if not other.terms:
            return Index(self.terms, self.const + other.const) if other.const else self
        if not self.terms:
            return Index(other.terms, self.const + other.const) if self.const else other
        return collected((*self.terms, *other.terms), self.const + other.const)

    __radd__ = __add__

    def __mul__(self, other: Size) -> Index:
        other = index(other)
        if not self.terms:
            self, other = other, self
        if not other.terms:
            k = other.const
            return self if k == 1 else ZERO if k == 0 else Index(tuple((a, c * k) for a, c in self.terms), self.const * k)
        return _product(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Size) -> Index:
        return self + index(other) * -1

    def __rsub__(self, other: Size) -> Index:
        return index(other) + self * -1

    def _unknown(self, *_: Any) -> Any:
        """Division makes a float of a size, which is known only at the call. Raises: Undecided."""
        raise Undecided(f"{self!r} is known only at the call")

    __truediv__ = __rtruediv__ = _unknown

    @property
    def value(self) -> int | None:
        """The number, when no atom is left; else None."""
        return None if self.terms else self.const

    def coefficient(self, name: str) -> Size:
        """The coefficient of the axis `name`: a number, or an index over symbols; 0 when it has none (the axis may still occur
        inside another atom)."""
        number, rest = 0, []
        for a, c in self.terms:
            if type(a) is AxisVar:
                number += c if a.parts[0] == name else 0
            elif type(a) is Prod and any(type(p) is AxisVar and p.parts[0] == name for p in a.parts):
                others = [p for p in a.parts if type(p) is not AxisVar or p.parts[0] != name]
                if len(others) != len(a.parts) - 1 or not all(invariant(p) for p in others):
                    return 0
                rest.append((product(others), c))
        return collected(rest, number) if rest else number

    def within_atoms(self, name: str) -> bool:
        """Whether the axis occurs elsewhere than as a factor that `coefficient` returns: inside a division, or beside
        another axis."""
        for a, _ in self.terms:
            parts = a.parts if type(a) is Prod else (a,)
            plain = [p for p in parts if type(p) is AxisVar]
            if any(p.parts[0] == name for p in plain) and not all(invariant(p) for p in parts if p is not plain[0]):
                return True
            if any(name in variables(index(p)) for p in parts if type(p) is not AxisVar):
                return True
        return False

    def __repr__(self) -> str:
        return index_text(self)

    # A size is ordered where that holds for every value of its symbols; else it cannot be decided here.
    def __le__(self, other: Size) -> bool:
        return _decided(index(other) - self)

    def __ge__(self, other: Size) -> bool:
        return _decided(self - other)

    def __lt__(self, other: Size) -> bool:
        return _decided(index(other) - self - 1)

    def __gt__(self, other: Size) -> bool:
        return _decided(self - other - 1)

    def __index__(self) -> int:
        if self.terms:
            raise Undecided(f"the size {self} is known only at the call")
        return self.const

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())


class Undecided(Exception):
    """A comparison of symbolic sizes holds for some of their values only: the code that needs it cannot be compiled for all."""


def _decided(x: Index) -> bool:
    """Whether x >= 0, for all sizes or for none. Raises: Undecided."""
    at_least = LATER["at_least"]
    if at_least(x, 0, {}):
        return True
    if at_least(-x, 1, {}):
        return False
    raise Undecided(f"{x} >= 0 holds for some sizes only")


Size = int | Index


ZERO = Index((), 0)
ONE = Index((), 1)


def index(x: Size | Atom) -> Index:
    """Any size, atom or index as an Index. Raises: Undecided for a number that is not an integer."""
    if type(x) is Index:
        return x
    if isinstance(x, Atom):
        return Index(((x, 1),), 0)
    if isinstance(x, float):
        raise Undecided(f"{x} is not an integer")
    return Index((), int(x))


def var(name: str) -> Index:
    """The axis `name`."""
    return Index(((AxisVar(name), 1),), 0)


def size_of(x: Size) -> Size:
    """The size as an int where it is a constant, else as an Index."""
    return x if isinstance(x, int) else x.const if not x.terms else x


def collected(terms: Iterable[tuple[Atom, int]], const: int) -> Index:
    sums: dict[Atom, int] = {}
    for atom, c in terms:
        sums[atom] = sums.get(atom, 0) + c
    if any(type(a) is Mod for a in sums):
        const = _join_mods(sums, const)
    left = [(a, c) for a, c in sums.items() if c]
    left.sort(key=_term_key)
    return Index(tuple(left), const)


def _term_key(term: tuple[Atom, int]) -> tuple:
    return (term[0].rank, str(term[0].key))


def _join_mods(sums: dict[Atom, int], const: int) -> int:
    """Replaces d*(x//d) + x%d by x. Such sums come from a reshape followed by its inverse."""
    for atom in [a for a in sums if type(a) is Mod and sums[a]]:
        x, d = atom.parts
        if not isinstance(d, int):
            continue
        c = sums[atom]
        quotient = LATER["floordiv"](x, d, {})
        if len(quotient.terms) == 1 and not quotient.const and quotient.terms[0][1] == 1:
            partner = quotient.terms[0][0]
            if sums.get(partner) == c * d:
                sums[partner] = sums[atom] = 0
                for a, k in x.terms:
                    sums[a] = sums.get(a, 0) + k * c
                const += x.const * c
    return const


def _product(a: Index, b: Index) -> Index:
    terms = []
    for x, cx in (*a.terms, (None, a.const)):
        for y, cy in (*b.terms, (None, b.const)):
            if cx and cy and (x or y):
                terms.append((product([p for p in (x, y) if p]), cx * cy))
    return collected(terms, a.const * b.const)


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


def atoms(x: Index) -> Iterator[Atom]:
    """Every atom in the index, inside other atoms too."""
    stack: list[Any] = [a for a, _ in x.terms]
    while stack:
        atom = stack.pop()
        yield atom
        for part in atom.parts:
            if isinstance(part, Index):
                stack.extend(a for a, _ in part.terms)
            elif isinstance(part, Atom):
                stack.append(part)


def variables(x: Any) -> set[str]:
    """Names of the axes in an index (not those inside values)."""
    if type(x) is not Index:
        return set()
    return {a.parts[0] for a in atoms(x) if type(a) is AxisVar}


def index_text(x: Size, name: Callable[[Any], str] = repr) -> str:
    """`128*i + r//4`: values are printed by `name`, in brackets."""
    x = index(x)
    parts = []
    for atom, c in x.terms:
        body = text_of(atom, name)
        parts.append(body if c == 1 else f"{c}*{body}" if type(atom) in (AxisVar, Sym, Val) else f"{c}*({body})")
    if x.const or not parts:
        parts.append(str(x.const))
    return " + ".join(parts).replace("+ -", "- ")


def text_of(atom: Atom, name: Callable[[Any], str]) -> str:
    """One atom as text."""
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
