"""Kernels of rows as Triton: reductions, scans and epilogues, for rows that are held in registers, looped over, or split.

A nest over inner axes is straight code over the whole row where the row is persistent. Where it is looped: values that are
computed once for the row, accumulators, the loop, and a combination of the tile's partial results. In a split row each program
stores the result of its part; the launches after it begin by combining the parts.
"""

from __future__ import annotations

from typing import Any

from bytejit.codegen.cuda.function import TritonFunction
from bytejit.codegen.cuda.tiles import TILE, Tile, power
from bytejit.codegen.emit import common
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.ir import Axis, LoopNest, Reduce
from bytejit.common.dtypes import itemsize

from .expressions import constant, fold, scan, tl_type
from .kernel import JOINED, ceil_div, product, size_text
from .looped import MOST_I64, LoopedRows

MOST_COMBINED = 8 << 20  # bytes: all programs of a launch read so many bytes of parts from L2 in the time of a launch


class KernelPrinter(LoopedRows):
    """Prints any `Call`. combined: reductions of a split row whose parts a launch has combined already -> offset of the result,
    dtype."""

    combined: dict[str, tuple[Any, str]]

    def print(self) -> list[TritonFunction]:
        if self.sched.mode in ("points", "tiles"):
            return super().print()
        if any(a.size == 0 for a in self.kernel.axes):
            return []
        self.total = product(self.kernel.axes)
        self.states = {}
        self.make_locals()
        (self.split if self.sched.mode == "split" else self.whole)()
        return self.functions

    @property
    def axis_number(self) -> int:
        """The tile's dim that is reduced."""
        return 0 if self.sched.single else 1

    def make_locals(self) -> None:
        """Reserve scratch for each row-local buffer that is still read from memory."""
        for name in sorted({s.buffer for p in self.kernel.nests for s in p.stores if self.buffers[s.buffer].kind == "local"}):
            b = self.buffers[name]
            count = product(tuple(Axis("", n) for n in b.shape))
            total = product((Axis("", count), Axis("", self.total)))
            self.locals[name] = (self.reserve(total, b.dtype), count, b.dtype)

    # ---- one launch -----------------------------------------------------------------------------------------------
    def rows(self, block: str = "pid") -> None:
        """The rows of a program."""
        t, axes = self.f.text, self.kernel.axes
        if self.sched.single:
            t.add(f"x = {block}")
            self.set_dim("x", "x", axes, None)
            return
        t.add(f"x = {block} * X + tl.arange(0, X)[:, None]")
        exact = self.exact(self.total, "X")
        if not exact:
            t.add(f"xm = x < {size_text(self.total)}")
        self.set_dim("x", "x", axes, None if exact else "xm")

    def whole(self) -> None:
        """All nests in one launch."""
        self.start()
        self.rows()
        for i, p in enumerate(self.kernel.nests):
            if i in self.sched.barriers:
                self.f.text.add("tl.debug_barrier()")
            self.print_nest(p)
        self.finish(lambda tile: ceil_div(self.total, tile["X"]))

    def split(self) -> None:
        """A launch for each nest over inner axes; nests without run in the next one, once."""
        parts, waiting = self.sched.parts, []
        self.partial, self.combined = {}, {}
        for p in self.kernel.nests:
            if not p.axes:
                waiting.append(p)
                continue
            if self.combines_too_often():
                self.row_launch(waiting, self.uncombined())
                waiting = []
            self.start()
            self.f.text.add(f"part = pid % {parts}")
            self.rows(f"(pid // {parts})")
            for q in waiting:
                self.print_nest(q, "(part == 0)")
            waiting = []
            self.part(p)
            space = f"R{self.sched.spaces.index(p.axes) or ''}"
            used = (("X",) if not self.sched.single else ()) + (space,)
            self.finish(lambda tile: product((Axis("", ceil_div(self.total, tile["X"])), Axis("", parts))), used)
        if waiting:
            self.row_launch(waiting, [])

    def row_launch(self, nests: list[LoopNest], results: list[str]) -> None:
        """A launch over rows only: it combines the parts of some reductions for the launches after it, and runs nests without
        inner axes."""
        self.start()
        lanes = power(self.sched.parts)
        x = max(1, min(self.sched.tiles[0]["X"], TILE // lanes))
        self.f.tiles = (Tile((("X", x),), max(1, min(8, x * lanes // 256))),)
        self.rows()
        for name in results:
            self.gather(name)
            dtype = self.reduction(name).dtype
            self.combined[name] = self.reserve(self.total, dtype), dtype
            value = self.f.refs[name, None]
            value = value if self.sched.single else f"tl.broadcast_to({value}, [X, 1])"
            mask = self.mask_of(frozenset("x"))
            place = f"{self.scratch_pointer(*self.combined[name])} + x"
            self.f.text.add(f"tl.store({place}, {value}{f', mask={mask}' if mask else ''})")
        for q in nests:
            self.print_nest(q)
        self.finish(lambda tile: ceil_div(self.total, tile["X"]), ("X",) if not self.sched.single else ("",))

    def reduction(self, name: str) -> Reduce:
        """The reduction with this name, that an earlier launch left in parts."""
        return next(r for _, _, r in self.partial.values() if r.name == name)

    def uncombined(self) -> list[str]:
        """The reductions whose parts no launch has combined yet."""
        return [n for n in dict.fromkeys(r.name for _, _, r in self.partial.values()) if n not in self.combined]

    def combines_too_often(self) -> bool:
        """Whether the programs of the next launch, each of which would combine the parts of its row, read so much that a launch
        of its own is cheaper."""
        waiting, parts = self.uncombined(), self.sched.parts
        each = sum(itemsize(dtype) for _, dtype, r in self.partial.values() if r.name in waiting)
        return ix.hint(self.total) * parts * parts * each > MOST_COMBINED

    # ---- nests ---------------------------------------------------------------------------------------------------
    def print_nest(self, p: LoopNest, also: str = "") -> None:
        """Prints one nest; also: a further mask of its stores."""
        self.prepare(p)
        if not p.axes:
            self.space = None
            self.stores(p, also)
        elif self.sched.looped:
            self.turn(p)
        else:
            self.straight(p)
        self.space = None

    def prepare(self, p: LoopNest) -> None:
        """Results of earlier launches that the nest reads (split)."""
        if self.sched.mode != "split":
            return
        for e in common.walk(p.roots()):
            if e.kind == "ref" and (e.name, None) not in self.f.refs:
                if e.name in self.combined:
                    mask = self.mask_of(frozenset("x"))
                    name = self.f.refs[e.name, None] = self.fresh("m")
                    place = f"{self.scratch_pointer(*self.combined[e.name])} + x"
                    self.f.text.add(f"{name} = tl.load({place}{f', mask={mask}' if mask else ''})")
                elif e.name in self.partial or (e.name, 0) in self.partial:
                    self.gather(e.name)

    def inner(self, p: LoopNest, base: str, mask: str | None) -> None:
        """The inner axes of a nest: r holds their flat position."""
        self.space = p.axes
        at = self.sched.spaces.index(p.axes) or ""
        self.forget(self.drop_inner_axes())
        name = self.fresh("r")
        lanes = f"tl.arange(0, R{at})"
        lanes = lanes if self.sched.single else f"{lanes}[None, :]"
        wide = ".to(tl.int64)" if self.sched.wide else ""
        self.f.text.add(f"{name} = {base}{lanes}{wide}")
        masked = f"{name}m" if mask else None
        self.set_dim("r", name, p.axes, masked)
        if masked:
            self.f.text.add(f"{masked} = {name} < {mask}")

    def straight(self, p: LoopNest) -> None:
        """A whole row at once. Values stay known to later nests over the same axes."""
        kept = self.f.laid.get(p.axes)
        if kept is None:
            size = product(p.axes)
            block = f"R{self.sched.spaces.index(p.axes) or ''}"
            self.inner(p, "", None if self.exact(size, block) else size_text(size))
            self.f.laid[p.axes] = (self.flat["r"], self.masks.get("r"), self.axis_text)
        else:
            self.space = p.axes
            (var, axes), mask, text = kept
            self.drop_inner_axes()
            self.set_dim("r", var, axes, mask)
            names = {a.name for a in axes}
            self.axis_text |= {k: v for k, v in text.items() if k.partition(JOINED)[0] in names}
        self.hoist(p)
        for r in p.reduces:
            self.reduce(r)
        self.stores(p)
        (var, axes), mask, _ = self.f.laid[p.axes]
        self.f.laid[p.axes] = ((var, axes), mask, dict(self.axis_text))

    def hoist(self, p: LoopNest) -> None:
        """Print values that depend on the row only before the loop, which would compute them in each iteration."""
        scans = common.running(p)
        for s in p.stores:
            self.row_axes(self.joined(ix.index(s.coords[0])))
        for e in common.walk(p.roots()):
            if e.kind == "load":
                for at in e.attr:
                    self.row_axes(self.joined(ix.index(at)))
            elif e.kind == "index":
                self.row_axes(e.attr)
            if e.refs.isdisjoint(scans) and "r" not in self.dims(e):
                self.value(e)

    def row_axes(self, at: Any) -> None:
        """Print the positions along the row's axes that an index needs."""
        for name in sorted(common.axes_of(at)):
            if self.dim_of.get(name.partition(JOINED)[0]) == "x":
                self.axis(name)

    def masked(self, e: Expr, other: Any, dtype: str) -> str:
        """A reduction's operand over the whole tile, `other` in lanes past the end."""
        text = self.value(e)
        if e.dtype != dtype:
            text = f"({text} != 0)" if dtype == "b8" else f"{text}.to({tl_type(dtype)})"
        mask = self.masks.get("r")
        if mask:
            text = f"tl.where({mask}, {text}, {constant(other, dtype)})"
        if "r" not in self.dims(e) or not self.sched.single and "x" not in self.dims(e):
            text = f"tl.broadcast_to({text}, {self.tile_shape()})"
        return text

    def reduce(self, r: Reduce) -> None:
        """A reduction or scan of a whole row."""
        t, note, name = self.f.text, common.comment(r.where), self.fresh("m")
        dtype = common.value_dtype(r)
        value = self.masked(r.args[0], common.identity(r), dtype)
        if r.running:
            t.add(f"{name} = {scan(r, value, self.axis_number)}", note)
            self.f.refs[r.name, self.space] = name
            self.dims_memo.clear()
            return
        if common.pair(r):
            at = self.masked(r.args[1], MOST_I64, "i64")
            t.add(f"_, {name} = bj_{r.kind}({value}, {at}, {self.axis_number})", note)
        else:
            t.add(f"{name} = {fold(r, value, self.axis_number)}", note)
        self.f.refs[r.name, None] = name
