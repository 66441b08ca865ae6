"""What is the same in each row of a block, as arrays that are filled before the rows.

    for c: for i in a block: o[c, i] = x[c, place(g[i])] * weight(g[i])
    ->  for i in a block: a[i] = place(g[i]), b[i] = weight(g[i]);  for c: for i in a block: o[c, i] = x[c, a[i]] * b[i]

So it is when all channels of an image are read at the same computed places. Without arrays each channel computes them again.
"""

from __future__ import annotations

from bytejit.codegen.emit import common
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr, walk
from bytejit.codegen.loops.simplify import axes_at, cost, may_raise_itself
from bytejit.common.dtypes import itemsize

from .axis_tables import ROOM, TablePrinter
from .expressions import far_text
from .shared_rows import LEAST_ROWS

LEAST_COST = 3  # additions: an element of an array takes less
HELD = {"b8": "i32"}  # a mask is made of elements as wide as what is chosen: of bytes GCC makes no vector code


class BlockTablePrinter(TablePrinter):
    """The part of a kernel's printer for arrays of a block."""

    def print_nest(self, i: int, cut: str | None = None) -> None:
        if self.sched.block is not None:
            self.fill_block(i, *self.sched.block)
        super().print_nest(i, cut)

    def fill_block(self, i: int, axis: str, width: int) -> None:
        """Declare and fill the arrays of a nest."""
        parts, t, saved = self.same_in_rows(i), self.text, dict(self.names)
        if not parts or width * sum(itemsize(HELD.get(e.dtype, e.dtype)) for e in parts) > ROOM:
            return
        arrays = {}
        for e in parts:
            arrays[id(e)], self.counter = f"a{self.counter}", self.counter + 1
            t.add(f"alignas(64) {HELD.get(e.dtype, e.dtype)} {arrays[id(e)]}[{width}];")
        self.expr.forget()
        self.vectorized()
        t.open(f"for (i64 {axis}_at = 0; {axis}_at < width; ++{axis}_at)")
        t.add(f"const i64 {axis} = {axis}_low + {axis}_at;")
        n = self.nest(i)
        for e in walk(tuple(parts)):
            self.statement(n, e, far=False)
        for e in parts:
            t.add(f"{arrays[id(e)]}[{axis}_at] = {self.names[id(e)]};")
        t.close()
        self.names.clear()
        self.names.update(saved)
        for e in parts:
            self.tables[i].parts[id(e)] = axis, f"{arrays[id(e)]}[{axis}_at]{' != 0' * (e.dtype == 'b8')}"

    def same_in_rows(self, i: int) -> list[Expr]:
        """The expressions of a nest that are the same in all its rows, that others read, and that cost enough for an array."""
        p, rows = self.kernel.nests[i], 1
        for name in self.sched.nests[i].order:
            rows *= ix.hint(self.sizes[name])
        if rows < LEAST_ROWS or common.running(p):
            return []
        own, stored, reduced = {*self.sched.nests[i].order}, {s.buffer for s in p.stores}, {r.name for r in p.reduces}
        varies: dict[int, bool] = {}
        read = {id(e) for e in p.roots()}
        for e in walk(p.roots()):
            written = e.kind == "load" and e.name in stored or e.kind == "ref" and e.name in reduced
            single = may_raise_itself(e) or far_text(e, self.table) is not None
            varies[id(e)] = written or single or bool(axes_at(e) & own) or any(varies[id(a)] for a in e.needs)
            if varies[id(e)]:
                read.update(id(a) for a in e.needs)
        n = self.nest(i)
        found = [x.expr for x in n.placed if x.depth == len(n.names) and id(x.expr) in read and not varies[id(x.expr)]]
        short = [e.args[0] if e.name == "to" and e.dtype == "i64" and e.args[0].dtype in ("i32", "f32") else e for e in found]
        return [e for e in {id(e): e for e in short}.values() if e.kind == "op" and cost((e,)) >= LEAST_COST]
