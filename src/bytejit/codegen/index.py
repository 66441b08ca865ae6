"""Integer index algebra: affine forms over axes and symbols, with floordiv, mod and values read from memory as atoms.

An `Index` is `const + sum(coefficient * atom)`. Atoms: `Var` (an axis), `Sym` (a size symbol), `Div`, `Mod`, `Prod`
(a product that is not affine) and `Val` (an i64 expression: an index read from memory). Simplification uses the sizes
of the axes: a mapping from axis name to size, every axis running over range(size). All are immutable and hash by
structure. Division is floor division, as in Python. Text: `128*i + r//4`, `[t3]` for a value; `parse_index` reads it
back.
"""
from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import gcd, inf
from typing import Any


class Atom:
    """A factor of an index term. `key` orders atoms, so that equal sums are equal tuples."""
    __slots__ = ("key", "parts", "_hash")

    def __init__(self, *parts: Any):
        self.parts = parts
        self.key = (self.rank, *(p.key if isinstance(p, (Atom, Index)) else p if isinstance(p, (str, int)) else hash(p)
                                 for p in parts))
        self._hash = hash((self.rank, parts))

    rank = 0

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and self._hash == other._hash and self.parts == other.parts)

    def __repr__(self) -> str:
        return text_of(self, repr)


class Var(Atom):
    """An axis of the kernel or pass: Var(name)."""
    __slots__ = ()
    rank = 1


class Sym(Atom):
    """A size known only at the call: Sym(name). low: its least value (-inf: unknown); hint: what it was when the graph was made;
    text: how it is computed from others, as Python text. Equal by name."""
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
        self._key = None

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
        return self is other or (isinstance(other, Index) and self._hash == other._hash and self.const == other.const
                                 and self.terms == other.terms)

    def __add__(self, other: Size) -> Index:
        other = index(other)
        if not other.terms:
            return Index(self.terms, self.const + other.const) if other.const else self
        if not self.terms:
            return Index(other.terms, self.const + other.const) if self.const else other
        return _collect((*self.terms, *other.terms), self.const + other.const)

    __radd__ = __add__

    def __mul__(self, other: Size) -> Index:
        other = index(other)
        if not self.terms:
            self, other = other, self
        if not other.terms:
            k = other.const
            return (
                self
                if k == 1
                else ZERO if k == 0 else Index(tuple((a, c * k) for a, c in self.terms), self.const * k)
            )
        return _product(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Index:
        return self * -1

    def __sub__(self, other: Size) -> Index:
        return self + index(other) * -1

    def __rsub__(self, other: Size) -> Index:
        return index(other) + self * -1

    @property
    def value(self) -> int | None:
        """The number, when no atom is left; else None."""
        return None if self.terms else self.const

    def coefficient(self, name: str) -> Size:
        """Of the axis `name`: a number, or an index over symbols; 0 when it has none (it may still occur inside another atom)."""
        number, rest = 0, []
        for a, c in self.terms:
            if type(a) is Var:
                number += c if a.parts[0] == name else 0
            elif type(a) is Prod and any(type(p) is Var and p.parts[0] == name for p in a.parts):
                others = [p for p in a.parts if type(p) is not Var or p.parts[0] != name]
                if len(others) != len(a.parts) - 1 or not all(still(p) for p in others):
                    return 0
                rest.append((product(others), c))
        return _collect(rest, number) if rest else number

    def within_atoms(self, name: str) -> bool:
        """Whether the axis occurs elsewhere than as a factor that `coefficient` answers: inside a division, or beside
        another axis."""
        for a, _ in self.terms:
            parts = a.parts if type(a) is Prod else (a,)
            plain = [p for p in parts if type(p) is Var]
            if any(p.parts[0] == name for p in plain) and not all(still(p) for p in parts if p is not plain[0]):
                return True
            if any(name in variables(index(p)) for p in parts if type(p) is not Var):
                return True
        return False

    def __repr__(self) -> str:
        return index_text(self)

    # A size is ordered where that holds for every value of its symbols; else the question has no answer here.
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
    """A question about a symbolic size whose answer differs from call to call. What asked cannot be compiled for all sizes."""


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
    """Any size, atom or index as an Index."""
    if type(x) is Index:
        return x
    if isinstance(x, Atom):
        return Index(((x, 1),), 0)
    return Index((), int(x))


def var(name: str) -> Index:
    """The axis `name`."""
    return Index(((Var(name), 1),), 0)


def size_of(x: Size) -> Size:
    """An int where the index is one: sizes are ints as far as they are known."""
    return x if type(x) is int else x.const if not x.terms else x


def _collect(terms: Iterable[tuple[Atom, int]], const: int) -> Index:
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
    """d*(x//d) + x%d is x: what a reshape and its inverse leave behind."""
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
    return _collect(terms, a.const * b.const)


def product(factors: Iterable[Atom]) -> Atom:
    """The atom of a product of at least one atom, in one form whatever the order."""
    flat = [q for p in factors for q in (p.parts if type(p) is Prod else (p,))]
    flat.sort(key=lambda p: (p.rank, str(p.key)))
    return Prod(*flat) if len(flat) > 1 else flat[0]


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
    if type(atom) is Var or type(atom) is Val:
        size = sizes.get(atom.parts[0]) if type(atom) is Var else atom.parts[1]
        return (0, max(size - 1, 0)) if type(size) is int else (0, inf)
    if type(atom) is Sym:
        return atom.low, inf
    if type(atom) is Prod:
        low, high = 1, 1
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
    for atom, c in rest.terms:                       # (x % m) % d is x % d when d divides m
        if type(atom) is Mod and isinstance(atom.parts[1], int) and atom.parts[1] % d == 0:
            flat.extend((a, k * c) for a, k in atom.parts[0].terms)
            const += atom.parts[0].const * c
        else:
            flat.append((atom, c))
    if len(flat) != len(rest.terms) or const != rest.const or any(f is not t for f, t in zip(flat, rest.terms)):
        again = _collect(flat, const)
        return index(Mod(again, d)) if again == rest else mod(again, d, sizes)
    return index(Mod(rest, d))


# ---- symbolic sizes -------------------------------------------------------------------------------------------------

def still(atom: Atom) -> bool:
    """Whether an atom is made of size symbols alone: the same at every point of a kernel."""
    return type(atom) is Sym or type(atom) not in (Var, Val) and all(
        isinstance(p, int) or all(still(a) for a, _ in p.terms) if not isinstance(p, Atom) else still(p)
        for p in atom.parts)


def symbols(x: Any) -> dict[str, Sym]:
    """The size symbols in a size or index, by name, in order of use."""
    return {a.parts[0]: a for a in atoms(x) if type(a) is Sym} if type(x) is Index else {}


def hint(x: Size) -> int:
    """The size that it had when the graph was made: for choices, never for what must be right. Units: elements."""
    if isinstance(x, int):
        return x
    return x.const + sum(c * _atom_hint(a) for a, c in x.terms)


def _atom_hint(atom: Atom) -> int:
    kind = type(atom)
    if kind is Sym:
        return atom.hint
    if kind is Prod:
        out = 1
        for p in atom.parts:
            out *= _atom_hint(p)
        return out
    if kind in (Var, Val):
        return 0
    x, d = hint(atom.parts[0]), max(1, hint(atom.parts[1]))
    return x // d if kind is Div else x % d


def evaluate(x: Size, values: Mapping[str, int]) -> int:
    """The size with numbers for its symbols. Raises: KeyError for a symbol without one."""
    if isinstance(x, int):
        return x
    out = x.const
    for atom, c in x.terms:
        out += c * _atom_value(atom, values)
    return out


def _atom_value(atom: Atom, values: Mapping[str, int]) -> int:
    kind = type(atom)
    if kind in (Sym, Var):
        return values[atom.parts[0]]
    if kind is Prod:
        out = 1
        for p in atom.parts:
            out *= _atom_value(p, values)
        return out
    x, d = evaluate(atom.parts[0], values), evaluate(atom.parts[1], values)
    return x // d if kind is Div else x % d


def divide(x: Index, d: Index) -> tuple[Index, Index]:
    """(q, r) with x = q*d + r: what of x is a multiple of d, term by term. d has symbols; r may still be more than d."""
    lead, c = max(d.terms, key=lambda t: (len(_factors(t[0])), t[0].rank, str(t[0].key)))
    wanted = _factors(lead)
    q = ZERO
    for _ in range(16):
        found = None
        for atom, k in x.terms:
            left = list(_factors(atom))
            if k % c == 0 and all(w in left and left.remove(w) is None for w in wanted):
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
    """A size over symbols alone that x never goes below; None when none is found."""
    out: list[tuple[Atom, int]] = []
    moving: dict[Atom, list] = {}
    for atom, c in x.terms:
        parts = _factors(atom)
        moves = [p for p in parts if not still(p)]
        if not moves:
            out.append((atom, c))
        elif len(moves) == 1:
            rest = [p for p in parts if p is not moves[0]]
            moving.setdefault(moves[0], []).append((product(rest), c) if rest else (None, c))
        elif c < 0 or any(_range(m, sizes)[0] is None for m in moves):
            return None
    least = _collect(out, x.const)
    for atom, terms in moving.items():
        k = _collect([t for t in terms if t[0] is not None], sum(c for a, c in terms if a is None))
        low, high = _range(atom, sizes)
        end = low if _never_negative(k) else high if _never_negative(-k) else None
        if end is None:
            return None
        least = least + k * end
    return least


def _range(atom: Atom, sizes: Mapping[str, Size]) -> tuple[Index | None, Index | None]:
    """Least (0, or None) and greatest value of an axis, a value, a remainder or a quotient, over symbols."""
    if type(atom) in (Var, Val):
        size = sizes.get(atom.parts[0]) if type(atom) is Var else atom.parts[1]
        return ZERO, None if size is None else index(size) - 1
    if type(atom) is Mod:
        return ZERO, index(atom.parts[1]) - 1
    x, d = atom.parts
    top = lowest(-x, sizes)
    return ZERO if at_least(x, 0, sizes) else None, None if top is None else floordiv(-top, d, {})


def _never_negative(x: Index) -> bool:
    """Whether a size over symbols is at least 0 for every value of them: every symbol written as its least value and more."""
    out = index(x.const)
    for atom, c in x.terms:
        term = index(c)
        for p in _factors(atom):
            low = _atom_bounds(p, {})[0]
            if low == -inf:
                return False
            term = term * (index(Var(f"{p!r}")) + int(low))
        out = out + term
    return out.const >= 0 and all(c > 0 for _, c in out.terms)


def substitute(x: Index, axes: Mapping[str, Index], sizes: Mapping[str, Size],
               value: Callable[[Any], Any] | None = None) -> Index:
    """Axes replaced by indices (and values by `value(expr)`), simplified again under the new `sizes`."""
    out, const, plain = [], x.const, True
    for atom, c in x.terms:
        new = _substitute_atom(atom, axes, sizes, value)
        plain = plain and new is atom
        if isinstance(new, Atom):
            out.append((new, c))
        else:
            out.extend((a, k * c) for a, k in new.terms)
            const += new.const * c
    return x if plain else _collect(out, const)


def _substitute_atom(atom: Atom, axes: Mapping[str, Index], sizes: Mapping[str, Size], value: Any) -> Index | Atom:
    kind = type(atom)
    if kind is Var:
        return axes.get(atom.parts[0], atom)
    if kind is Sym:
        return atom
    if kind is Val:
        return Val(value(atom.parts[0]), atom.parts[1]) if value else atom
    if kind is Prod:
        out = ONE
        for p in atom.parts:
            out = out * index(_substitute_atom(p, axes, sizes, value))
        return out
    a, b = atom.parts
    x = substitute(a, axes, sizes, value)
    return floordiv(x, b, sizes) if kind is Div else mod(x, b, sizes)


def resimplify(x: Index, sizes: Mapping[str, Size]) -> Index:
    """Every floordiv and mod tried again under `sizes` (after axes shrank or were split)."""
    if all(type(a) in (Var, Sym, Val) for a, _ in x.terms):
        return x
    out = Index((), x.const)
    for atom, c in x.terms:
        out = out + index(_substitute_atom(atom, {}, sizes, None)) * c
    return out


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
    return {a.parts[0] for a in atoms(x) if type(a) is Var}


def values_in(x: Any) -> Iterator[Any]:
    """Every value expression (Val) in an index or a tuple of indices."""
    for part in x if isinstance(x, tuple) else (x,):
        if type(part) is Index:
            for atom in atoms(part):
                if type(atom) is Val:
                    yield atom.parts[0]


def axis_terms(x: Index) -> list[tuple[str, Size]] | None:
    """(axis, coefficient) of an index that is linear in its axes (coefficients may be symbolic); None when it is not. What
    has no axis (the constant, symbols) is left out."""
    names = variables(x)
    if any(type(a) is Val for a in atoms(x)) or any(x.within_atoms(n) for n in names):
        return None
    return [(n, x.coefficient(n)) for n in sorted(names)]


def quotient(a: Size, b: Size) -> Size | None:
    """a / b where b divides a for every value of the symbols, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if a % b == 0 else None
    a, b = index(a), index(b)
    if b.value is not None:
        k = b.value
        whole = all(c % k == 0 for _, c in a.terms) and a.const % k == 0
        return size_of(Index(tuple((t, c // k) for t, c in a.terms), a.const // k)) if whole else None
    q, rest = divide(a, b)
    return size_of(q) if rest == ZERO else None


def linear(coords: Iterable[Size], stride: Iterable[Size], offset: Size = 0) -> Index:
    """Offset in elements of a point. Units: elements."""
    out = index(offset)
    for c, s in zip(coords, stride):
        out = out + index(c) * s
    return out


def delinear(flat: Index, shape: tuple[Size, ...], sizes: Mapping[str, Size]) -> tuple[Index, ...]:
    """Row-major coordinates in `shape` of a flat position."""
    out: list[Index] = []
    for size in reversed(shape[1:]):
        out.append(mod(flat, size, sizes))
        flat = floordiv(flat, size, sizes)
    return (*((flat,) if shape else ()), *reversed(out))


def index_text(x: Size, name: Callable[[Any], str] = repr) -> str:
    """`128*i + r//4`: values are printed by `name`, in brackets."""
    x = index(x)
    parts = []
    for atom, c in x.terms:
        body = text_of(atom, name)
        parts.append(body if c == 1 else f"{c}*{body}" if type(atom) in (Var, Sym, Val) else f"{c}*({body})")
    if x.const or not parts:
        parts.append(str(x.const))
    return " + ".join(parts).replace("+ -", "- ")


def text_of(atom: Atom, name: Callable[[Any], str]) -> str:
    """One atom as text."""
    kind = type(atom)
    if kind in (Var, Sym):
        return atom.parts[0] if kind is Var else f"${atom.parts[0]}"
    if kind is Val:
        return f"[{name(atom.parts[0])}, {atom.parts[1]}]"
    if kind is Prod:
        return "*".join(f"({text_of(p, name)})" for p in atom.parts)
    x, d = (index_text(p, name) for p in atom.parts)
    simple = len(atom.parts[0].terms) == 1 and not atom.parts[0].const and type(atom.parts[0].terms[0][0]) is Var
    x = x if simple and atom.parts[0].terms[0][1] == 1 else f"({x})"
    return f"{x}{'//' if kind is Div else '%'}{d if isinstance(atom.parts[1], int) else f'({d})'}"


def parse_index(text: str, value: Callable[[str], Any] | None = None) -> Index:
    """The index of a text that `index_text` made. Raises: ValueError on anything else."""
    def go(node: ast.AST) -> Index:
        match node:
            case ast.Constant(value=int() as n):
                return index(n)
            case ast.Name(id=n):
                return index(Sym(n[5:])) if n.startswith("_sym_") else var(n)
            case ast.UnaryOp(op=ast.USub(), operand=x):
                return go(x) * -1
            case ast.List(elts=[ast.Name(id=n), size]) if value:
                return index(Val(value(n), size_of(go(size))))
            case ast.BinOp(left=a, op=ast.Add(), right=b):
                return go(a) + go(b)
            case ast.BinOp(left=a, op=ast.Sub(), right=b):
                return go(a) - go(b)
            case ast.BinOp(left=a, op=ast.Mult(), right=b):
                return go(a) * go(b)
            case ast.BinOp(left=a, op=ast.FloorDiv(), right=b):
                return index(Div(go(a), size_of(go(b))))
            case ast.BinOp(left=a, op=ast.Mod(), right=b):
                return index(Mod(go(a), size_of(go(b))))
        raise ValueError(f"not an index: {text!r}")
    return go(ast.parse(text.strip().replace("$", "_sym_"), mode="eval").body)
