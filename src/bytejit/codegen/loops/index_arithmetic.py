"""Arithmetic of indices: sums and products, division, and proofs about their range (by interval arithmetic for constants, by
lower bounds for symbols). `codegen/loops/index.py` is the module to import.

Operators and division stand in one module because each needs the other: a sum joins `d*(x//d) + x%d`, and sizes are compared by
what can be proved of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import gcd, inf
from typing import Any

from .index_terms import Atom, AxisVar, Div, Mod, Prod, Sym, Terms, Undecided, Val, atoms, invariant, product, variables


class Index(Terms):
    """A sum of atoms with the operators of integers. Division is floor division: `floordiv`, `mod`."""

    __slots__ = ()

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


def _decided(x: Index) -> bool:
    """Whether x >= 0, for all sizes or for none. Raises: Undecided."""
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
        quotient = floordiv(x, d, {})
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


def bounds(x: Index, sizes: Mapping[str, Size]) -> tuple[float, float]:
    """Least and greatest value; infinite where unknown. Units: elements."""
    lo = hi = x.const
    for atom, c in x.terms:
        a, b = _atom_bounds(atom, sizes)
        if c < 0:
            a, b = b, a
        lo, hi = lo + c * a, hi + c * b
    return lo, hi


def _atom_bounds(atom: Atom, sizes: Mapping[str, Size]) -> tuple[float, float]:
    if type(atom) is AxisVar or type(atom) is Val:
        size = sizes.get(atom.parts[0]) if type(atom) is AxisVar else atom.parts[1]
        return (0, max(size - 1, 0)) if type(size) is int else (0, inf)
    if type(atom) is Sym:
        return atom.low, inf
    if type(atom) is Prod:
        low: float = 1
        high: float = 1
        for a, b in (_atom_bounds(p, sizes) for p in atom.parts):
            if a < 0:
                return -inf, inf
            low, high = low * a, 0 if 0 in (b, high) else high * b
        return low, high
    x, d = atom.parts
    if not isinstance(d, int):
        return (0, inf) if type(atom) is Mod or bounds(x, sizes)[0] >= 0 else (-inf, inf)
    if type(atom) is Mod:
        return 0, d - 1
    lo, hi = bounds(x, sizes)
    return (lo // d if lo > -inf else lo), (hi // d if hi < inf else hi)


def floordiv(x: Size, d: Size, sizes: Mapping[str, Size]) -> Index:
    """x // d, simplified. d > 0."""
    x, d = index(x), size_of(d)
    if not isinstance(d, int):
        q, rest = divide(x, d)
        return q if in_range(rest, d, sizes) else q + index(Div(rest, d))
    if d == 1:
        return x
    if not x.terms:
        return Index((), x.const // d)
    whole = tuple((a, c // d) for a, c in x.terms if c % d == 0)
    rest = Index(tuple((a, c) for a, c in x.terms if c % d), x.const % d)
    out = Index(whole, x.const // d)
    if not rest.terms:
        return out
    lo, hi = bounds(rest, sizes)
    if lo // d == hi // d and lo > -inf and hi < inf:
        return out + int(lo // d)
    g = gcd(d, *(c for _, c in rest.terms))
    if g > 1:
        return out + floordiv(Index(tuple((a, c // g) for a, c in rest.terms), rest.const // g), d // g, sizes)
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and not rest.const:
        atom = rest.terms[0][0]
        if type(atom) is Div and isinstance(atom.parts[1], int):
            return out + floordiv(atom.parts[0], atom.parts[1] * d, sizes)
        if type(atom) is Mod and isinstance(atom.parts[1], int) and atom.parts[1] % d == 0:
            return out + mod(floordiv(atom.parts[0], d, sizes), atom.parts[1] // d, sizes)
    return out + index(Div(rest, d))


def mod(x: Size, d: Size, sizes: Mapping[str, Size]) -> Index:
    """x % d, simplified. d > 0."""
    x, d = index(x), size_of(d)
    if not isinstance(d, int):
        _, rest = divide(x, d)
        return rest if in_range(rest, d, sizes) else index(Mod(rest, d))
    if d == 1:
        return ZERO
    rest = Index(tuple((a, c) for a, c in x.terms if c % d), x.const % d)
    if not rest.terms:
        return rest
    lo, hi = bounds(rest, sizes)
    if lo // d == hi // d and lo > -inf and hi < inf:
        return rest - int(lo // d) * d
    g = gcd(d, *(c for _, c in rest.terms))
    if g > 1:
        low = rest.const % g
        return mod(Index(tuple((a, c // g) for a, c in rest.terms), rest.const // g), d // g, sizes) * g + low
    flat: list[tuple[Atom, int]] = []
    const = rest.const
    for atom, c in rest.terms:  # (x % m) % d is x % d when d divides m
        if type(atom) is Mod and isinstance(atom.parts[1], int) and atom.parts[1] % d == 0:
            flat.extend((a, k * c) for a, k in atom.parts[0].terms)
            const += atom.parts[0].const * c
        else:
            flat.append((atom, c))
    if len(flat) != len(rest.terms) or const != rest.const or any(f is not t for f, t in zip(flat, rest.terms)):
        again = collected(flat, const)
        return index(Mod(again, d)) if again == rest else mod(again, d, sizes)
    return index(Mod(rest, d))


def without(factors: Iterable[Atom], wanted: Iterable[Atom]) -> list[Atom] | None:
    """The factors without the wanted ones; None where one of those is missing."""
    left = list(factors)
    for w in wanted:
        if w not in left:
            return None
        left.remove(w)
    return left


def divide(x: Index, d: Index) -> tuple[Index, Index]:
    """(q, r) with x = q*d + r: q collects the terms of x that are multiples of d. d has symbols; r may still be larger than d."""
    lead, c = max(d.terms, key=lambda t: (len(_factors(t[0])), t[0].rank, str(t[0].key)))
    wanted = _factors(lead)
    q = ZERO
    for _ in range(16):
        found = None
        for atom, k in x.terms:
            left = without(_factors(atom), wanted)
            if k % c == 0 and left is not None:
                found = Index(((product(left), k // c),), 0) if left else Index((), k // c)
                break
        if found is None:
            break
        q, x = q + found, x - found * d
    return q, x


def _factors(atom: Atom) -> tuple[Atom, ...]:
    return atom.parts if type(atom) is Prod else (atom,)


def in_range(x: Index, size: Size, sizes: Mapping[str, Size]) -> bool:
    """Whether 0 <= x < size can be shown for every point and every value of the symbols."""
    return at_least(x, 0, sizes) and at_least(index(size) - 1 - x, 0, sizes)


def at_least(x: Size, low: Size, sizes: Mapping[str, Size]) -> bool:
    """Whether x >= low can be shown for every point and every value of the symbols."""
    x = index(x) - low
    if bounds(x, sizes)[0] >= 0:
        return True
    if not any(type(a) is Sym for a in atoms(x)) and all(isinstance(sizes.get(v), int) for v in variables(x)):
        return False
    least = lowest(x, sizes)
    return least is not None and _never_negative(least)


def lowest(x: Index, sizes: Mapping[str, Size]) -> Index | None:
    """A lower bound of x, as a size over symbols alone; None when none is found."""
    out: list[tuple[Atom, int]] = []
    moving: dict[Atom, list] = {}
    for atom, c in x.terms:
        parts = _factors(atom)
        moves = [p for p in parts if not invariant(p)]
        if not moves:
            out.append((atom, c))
        elif len(moves) == 1:
            rest = [p for p in parts if p is not moves[0]]
            moving.setdefault(moves[0], []).append((product(rest), c) if rest else (None, c))
        elif c < 0 or any(_range(m, sizes)[0] is None for m in moves):
            return None
    least = collected(out, x.const)
    for atom, terms in moving.items():
        k = collected([t for t in terms if t[0] is not None], sum(c for a, c in terms if a is None))
        low, high = _range(atom, sizes)
        end = low if _never_negative(k) else high if _never_negative(-k) else None
        if end is None:
            return None
        least = least + k * end
    return least


def _range(atom: Atom, sizes: Mapping[str, Size]) -> tuple[Index | None, Index | None]:
    """Least and greatest value of an axis, a value, a remainder or a quotient, as sizes over symbols; None where unknown."""
    if type(atom) in (AxisVar, Val):
        size = sizes.get(atom.parts[0]) if type(atom) is AxisVar else atom.parts[1]
        return ZERO, None if size is None else index(size) - 1
    if type(atom) is Mod:
        return ZERO, index(atom.parts[1]) - 1
    x, d = atom.parts
    top = lowest(-x, sizes)
    return ZERO if at_least(x, 0, sizes) else None, None if top is None else floordiv(-top, d, {})


def _never_negative(x: Index) -> bool:
    """Whether a size over symbols can be shown to be at least 0 for all their values: each symbol is replaced by its least value
    plus a variable that is at least 0, and then no coefficient may be negative."""
    out = index(x.const)
    for atom, c in x.terms:
        term = index(c)
        for p in _factors(atom):
            low = _atom_bounds(p, {})[0]
            if low == -inf:
                return False
            term = term * (index(AxisVar(f"{p!r}")) + int(low))
        out = out + term
    return out.const >= 0 and all(c > 0 for _, c in out.terms)
