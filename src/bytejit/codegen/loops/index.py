"""Integer index algebra: affine forms over axes and symbols, with floordiv, mod and values read from memory as atoms.

An `Index` is `const + sum(coefficient * atom)`. Atoms: `AxisVar` (an axis), `Sym` (a size symbol), `Div`, `Mod`, `Prod`
(a product that is not affine) and `Val` (an i64 expression: an index read from memory). Simplification uses the sizes
of the axes: a mapping from axis name to size, every axis running over range(size). All are immutable and hash by
structure. Division is floor division, as in Python. Text: `128*i + r//4`, `[t3]` for a value; `parse_index` reads it
back.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from .index_arithmetic import (
    ONE,
    ZERO,
    Index,
    Size,
    at_least,
    bounds,
    collected,
    divide,
    floordiv,
    in_range,
    index,
    inf,
    lowest,
    mod,
    size_of,
    var,
)
from .index_terms import (
    Atom,
    AxisVar,
    Div,
    Mod,
    Prod,
    Sym,
    Undecided,
    Val,
    atoms,
    index_text,
    invariant,
    only_axis,
    product,
    text_of,
    variables,
)

__all__ = [
    "ONE",
    "ZERO",
    "Atom",
    "Div",
    "Index",
    "Mod",
    "Prod",
    "Size",
    "Sym",
    "Undecided",
    "Val",
    "AxisVar",
    "at_least",
    "atoms",
    "axis_terms",
    "bounds",
    "consecutive",
    "delinear",
    "divide",
    "evaluate",
    "floordiv",
    "hint",
    "in_range",
    "index",
    "index_text",
    "inf",
    "linear",
    "lowest",
    "mod",
    "parse_index",
    "product",
    "quotient",
    "resimplify",
    "size_of",
    "invariant",
    "only_axis",
    "substitute",
    "symbols",
    "text_of",
    "values_in",
    "var",
    "variables",
]


def symbols(x: Any) -> dict[str, Sym]:
    """The size symbols in a size or index, by name, in order of use."""
    return {a.parts[0]: a for a in atoms(x) if type(a) is Sym} if type(x) is Index else {}


def hint(x: Size) -> int:
    """The value that the size had when the graph was compiled. For choices of speed only: results may not depend on it.
    Units: elements."""
    if isinstance(x, int):
        return x
    return x.const + sum(c * _atom_hint(a) for a, c in x.terms)


def _atom_hint(atom: Atom) -> int:
    if isinstance(atom, Sym):
        return atom.hint
    kind = type(atom)
    if kind is Prod:
        out = 1
        for p in atom.parts:
            out *= _atom_hint(p)
        return out
    if kind in (AxisVar, Val):
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
    if kind in (Sym, AxisVar):
        return values[atom.parts[0]]
    if kind is Prod:
        out = 1
        for p in atom.parts:
            out *= _atom_value(p, values)
        return out
    x, d = evaluate(atom.parts[0], values), evaluate(atom.parts[1], values)
    return x // d if kind is Div else x % d


def substitute(
    x: Index, axes: Mapping[str, Index], sizes: Mapping[str, Size], value: Callable[[Any], Any] | None = None
) -> Index:
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
    return x if plain else collected(out, const)


def _substitute_atom(atom: Atom, axes: Mapping[str, Index], sizes: Mapping[str, Size], value: Any) -> Index | Atom:
    kind = type(atom)
    if kind is AxisVar:
        return axes.get(atom.parts[0], atom)
    if kind is Sym:
        return atom
    if kind is Val:
        if value is None:
            return atom
        new = value(atom.parts[0])
        return new.attr if new.kind == "index" else Val(new, atom.parts[1])
    if kind is Prod:
        out = ONE
        for p in atom.parts:
            out = out * index(_substitute_atom(p, axes, sizes, value))
        return out
    a, b = atom.parts
    x = substitute(a, axes, sizes, value)
    return floordiv(x, b, sizes) if kind is Div else mod(x, b, sizes)


def resimplify(x: Index, sizes: Mapping[str, Size]) -> Index:
    """The index with every floordiv and mod simplified again under `sizes` (after axes shrank or were split)."""
    if all(type(a) in (AxisVar, Sym, Val) for a, _ in x.terms):
        return x
    out = Index((), x.const)
    for atom, c in x.terms:
        out = out + index(_substitute_atom(atom, {}, sizes, None)) * c
    return out


def values_in(x: Any) -> Iterator[Any]:
    """Every value expression (Val) in an index or a tuple of indices."""
    for part in x if isinstance(x, tuple) else (x,):
        if type(part) is Index:
            for atom in atoms(part):
                if type(atom) is Val:
                    yield atom.parts[0]


def axis_terms(x: Index) -> list[tuple[str, Size]] | None:
    """(axis, coefficient) of an index that is linear in its axes (coefficients may be symbolic); None when it is not. Terms
    without an axis (the constant, symbols) are left out."""
    names = variables(x)
    if any(type(a) is Val for a in atoms(x)) or any(x.within_atoms(n) for n in names):
        return None
    return [(n, x.coefficient(n)) for n in sorted(names)]


def quotient(a: Size, b: Size) -> Size | None:
    """a / b if b divides a for every value of the symbols, else None."""
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
    """The offset of a point in memory. Units: elements."""
    out = index(offset)
    for c, s in zip(coords, stride):
        out = out + index(c) * s
    return out


def consecutive(coords: tuple[Size, ...], stride: tuple[Size, ...]) -> list[str]:
    """The axes along which an access has stride 1."""
    sums: dict[str, int] = {}
    for x, s in zip(coords, stride):
        for atom, c in index(x).terms:
            if type(atom) is not AxisVar or not isinstance(s, int):
                flat = linear(coords, stride)
                return [a.parts[0] for a, c in flat.terms if c == 1 and type(a) is AxisVar]
            sums[atom.parts[0]] = sums.get(atom.parts[0], 0) + c * s
    return sorted(name for name, c in sums.items() if c == 1)


def delinear(flat: Index, shape: tuple[Size, ...], sizes: Mapping[str, Size]) -> tuple[Index, ...]:
    """Row-major coordinates in `shape` of a flat position."""
    out: list[Index] = []
    for size in reversed(shape[1:]):
        out.append(mod(flat, size, sizes))
        flat = floordiv(flat, size, sizes)
    return (*((flat,) if shape else ()), *reversed(out))


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
