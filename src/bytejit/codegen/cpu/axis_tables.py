"""What a nest computes of one axis alone, as tables that are filled before all loops.

    for i: for j: x[i, source(j)] * weight(j)  ->  for j: a[j] = source(j), b[j] = weight(j); for i: for j: x[i, a[j]] * b[j]

So it is when images are resized by odd factors, in pools whose windows differ, and where positions are encoded. Without tables
every row computes the same numbers again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from bytejit.codegen.emit import common
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr, walk
from bytejit.codegen.loops.ir import LoopNest
from bytejit.codegen.loops.simplify import cost, may_raise_itself
from bytejit.common.dtypes import itemsize

from .nests import NestPrinter

ROOM = 8 * 1024  # bytes of the tables of an axis: a part of the L1 cache
LEAST_ROWS = 4  # iterations of the loops around: fewer do not pay for the tables
LEAST_COST = 6  # additions
DIVISION = 6  # additions that a division costs, or a remainder, unless by a power of two
SHORT = 1 << 31


def divisions(x: ix.Index, axis: str) -> Iterator[ix.Atom]:
    """The divisions and remainders of an axis alone, by numbers that are no powers of two, among the terms of an index."""
    for atom, _ in x.terms:
        plain = type(atom) in (ix.Div, ix.Mod) and ix.variables(ix.Index(((atom, 1),), 0)) == {axis}
        if plain and isinstance(atom.parts[1], int) and atom.parts[1] & (atom.parts[1] - 1):
            yield atom


def price(e: Expr, axis: str) -> int:
    """Work of evaluating an expression. Units: additions."""
    found = [x.attr for x in walk((e,)) if x.kind == "index"]
    return cost((e,)) + DIVISION * sum(1 for at in found for _ in divisions(ix.index(at), axis))


def axes_of_parts(p: LoopNest) -> dict[int, frozenset[str] | None]:
    """For each expression of a nest, by id, the axes that it depends on; None where it depends on more, or may raise."""
    found: dict[int, frozenset[str] | None] = {}
    for e in walk(p.roots()):
        own = common.axes_of(e.attr) if e.kind == "index" else frozenset()
        below = [found[id(a)] for a in e.needs]
        more = e.kind in ("load", "ref") or None in below or may_raise_itself(e)
        found[id(e)] = None if more else own.union(*(names for names in below if names))
    return found


def dear_parts(p: LoopNest, depends: Mapping[int, frozenset[str] | None], axis: str) -> list[Expr]:
    """The expressions of a nest that depend on an axis alone, that others read, and that cost enough for a table. depends: as
    `axes_of_parts` returns it."""
    read = {id(e) for e in p.roots()}
    for e in walk(p.roots()):
        if depends[id(e)] != {axis}:
            read.update(id(a) for a in e.needs)
    own = [e for e in walk(p.roots()) if id(e) in read and depends[id(e)] == {axis} and e.kind == "op"]
    plain = [e.args[0] if e.name == "to" and e.args[0].dtype in ("i32", "f32") else e for e in own]
    return list({id(e): e for e in plain if price(e, axis) >= LEAST_COST}.values())


class TablePrinter(NestPrinter):
    """The part of a kernel's printer for tables."""

    def fill_tables(self) -> None:
        """Declare and fill the tables of all nests."""
        for i, p in enumerate(self.kernel.nests):
            if not common.running(p):
                rows, depends = 1, axes_of_parts(p)
                for axis in (*(a.name for a in self.kernel.axes), *self.sched.nests[i].order):
                    if rows >= LEAST_ROWS and axis not in self.sched.parallel and self.sched.block is None:
                        self.fill(i, axis, dear_parts(p, depends, axis))
                    rows *= ix.hint(self.sizes[axis])

    def fill(self, i: int, axis: str, parts: list[Expr]) -> None:
        """The tables of one axis, for some expressions. They are kept where they are known to be small."""
        p, size, t = self.kernel.nests[i], self.sizes[axis], self.text
        places = self.dear_places(p, axis, {id(e) for e in parts})
        width = sum(itemsize(e.dtype) for e in parts) + itemsize("i32") * len(places)
        if not width or not isinstance(size, int) or size * width > ROOM:
            return
        names = []
        for dtype in (*(e.dtype for e in parts), *("i32" for _ in places)):
            names.append(f"a{self.counter}")
            self.counter += 1
            t.add(f"alignas(64) {dtype} {names[-1]}[{size}];")
        t.open(f"for (i64 {axis} = 0; {axis} < {size}; ++{axis})")
        n, saved = self.nest(i), dict(self.names)
        for e in walk(tuple(parts)):
            self.statement(n, e, far=True)
        texts = [self.names[id(e)] for e in parts] + [f"(i32){self.index.atom(atom)}" for atom in places]
        for name, text in zip(names, texts):
            t.add(f"{name}[{axis}] = {text};")
        t.close()
        self.names.clear()
        self.names.update(saved)
        tables = self.tables[i]
        for e, name in zip(parts, names):
            text = f"{name}[{axis}]"
            tables.parts[id(e)] = axis, f"bj::truth(&{text})" if e.dtype == "b8" else text
        for atom, name in zip(places, names[len(parts) :]):
            tables.places[atom] = f"(i64){name}[{axis}]"

    def dear_places(self, p: LoopNest, axis: str, tabled: set[int]) -> list[ix.Atom]:
        """The divisions of an axis in the offsets and indices that are left."""
        left = list(walk(p.roots(), tabled))
        indices = [x for e in left for x in (e.attr if e.kind == "load" else (e.attr,) if e.kind == "index" else ())]
        indices += [c for s in p.stores for c in s.coords]
        found = dict.fromkeys(atom for x in indices for atom in divisions(ix.index(x), axis))
        bounds = {atom: ix.bounds(ix.Index(((atom, 1),), 0), self.sizes) for atom in found}
        return [atom for atom, (low, high) in bounds.items() if -SHORT <= low <= high < SHORT]
