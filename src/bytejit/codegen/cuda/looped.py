"""Nests as loops in Triton: for rows too long for the registers of a program, and for rows that several programs share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from bytejit.codegen.cuda.tiles import power
from bytejit.codegen.emit import common
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.ir import Axis, LoopNest, Reduce
from bytejit.codegen.loops.passes.online_reductions import KINDS, leader

from .aligned_rows import LANES, aligned, all_aligned, common_start, row_start
from .expressions import combine, constant, fold, scan
from .kernel import Printer, ceil_div, product, size_text

MOST_I64 = common.MOST["i64"]


def kept(r: Reduce) -> list[tuple[Any, str]]:
    """Returns what a part of a split row stores for the next launch: (key, dtype) each."""
    if r.kind in KINDS:
        return [((r.name, i), r.dtype) for i in range(len(KINDS[r.kind].start))]
    return [(r.name, r.dtype), *([((r.name, "best"), common.value_dtype(r))] if common.pair(r) else [])]


class LoopedRows(Printer):
    """The part of a kernel's printer that walks long rows: accumulators, steps, and the combination of parts. total: the rows;
    states: what a reduction that carries a state ended with; partial: what a part of a split row left in scratch; row_begin:
    where the row of an aligned loop begins, while that is printed."""

    row_begin: ix.Index | None = None
    total: Any
    states: dict[str, list[str]]
    partial: dict[Any, tuple[Any, ...]]

    @property
    @abstractmethod
    def axis_number(self) -> int:
        """The tile's dim that is reduced."""

    @abstractmethod
    def hoist(self, p: LoopNest) -> None:
        """Compute loop-invariant values before the loop."""

    @abstractmethod
    def prepare(self, p: LoopNest) -> None:
        """Results of earlier launches that the nest reads (split)."""

    @abstractmethod
    def inner(self, p: LoopNest, base: str, mask: str | None) -> None:
        """The inner axes of a nest: r holds their flat position."""

    @abstractmethod
    def masked(self, e: Expr, other: Any, dtype: str) -> str:
        """The operand of a reduction, with `other` in lanes past the end of the row."""

    def turn(self, p: LoopNest, low: str = "0", high: str = "", exact: bool = False) -> dict[Any, str]:
        """A nest in a loop over low..high (the whole row by default). Returns the names of the results, by reduction
        (and its "best" value). exact: the range is a multiple of the block. Else the last iteration is printed by itself, with
        masks. With masks in all iterations the GPU does not overlap their loads (log_softmax of 50,257 columns: 0.70 ms, not
        0.39)."""
        block = f"R{self.sched.spaces.index(p.axes) or ''}"
        size = product(p.axes)
        self.enter_row(p)
        exact = exact or not high and self.exact(size, block)
        self.hoist(p)
        start = common_start(p) if self.sched.single and not high else None
        accs = self.accumulators(p, start)
        end = high or size_text(size)
        if start is not None:
            self.from_aligned(p, accs, start, size)
        elif exact:
            self.loop(p, accs, (low, low, end), None)
        else:
            begin, count = ("", end) if low == "0" else (f"{low} + ", f"({end} - {low})")
            whole = self.fresh("w")
            self.f.text.add(f"{whole} = {begin}{count} // {block} * {block}")
            self.loop(p, accs, (low, low, whole), None)
            self.enter_row(p)
            self.loop(p, accs, (low, whole, end), end)
        return self.folded(p, accs)

    def from_aligned(self, p: LoopNest, accs: dict, start: ix.Index, size: int) -> None:
        """The loop over a row that begins between two multiples of 16 bytes: its first elements, whole blocks, the rest."""
        block, head, whole = f"R{self.sched.spaces.index(p.axes) or ''}", self.fresh("h"), self.fresh("w")
        self.f.text.add(f"{head} = tl.minimum(-({self.index(self.joined(start))}) & {LANES - 1}, {size})")
        self.f.text.add(f"{whole} = {head} + ({size} - {head}) // {block} * {block}")
        self.loop(p, accs, ("0", "0", head), head)
        self.row_begin = start
        for ends, mask in ((("0", head, whole), None), (("0", whole, str(size)), str(size))):
            self.enter_row(p)
            self.loop(p, accs, ends, mask)
        self.row_begin = None

    def element(self, at: Any) -> str:
        """The number of an element in its buffer, said to be a multiple of LANES in the first lane where it is."""
        text = super().element(at)
        if self.row_begin is None or self.space is None:
            return text
        start = row_start(LoopNest(self.space), at)
        if start is None or not aligned(start - self.row_begin):
            return text
        return f"tl.multiple_of({text}, {LANES})"

    def enter_row(self, p: LoopNest) -> None:
        """The inner axes are those of the nest; its running values are known within a turn only."""
        self.space = p.axes
        self.drop_inner_axes()
        for a in p.axes:
            self.dim_of[a.name] = "r"
        self.dims_memo.clear()
        for r in p.reduces:
            if r.running:
                self.f.refs[r.name, self.space] = "?"

    def drop_inner_axes(self) -> list[str]:
        """End the scope of the inner axes. Returns their names."""
        names = [k for k, d in self.dim_of.items() if d == "r"]
        for name in names:
            del self.dim_of[name]
        return names

    def loop(self, p: LoopNest, accs: dict, ends: tuple[str, str, str], mask: str | None) -> None:
        """The turns of a nest. ends: where the row begins, where the loop begins and ends. mask: lanes from there on are off."""
        low, first, last = ends
        t, block, base = self.f.text, f"R{self.sched.spaces.index(p.axes) or ''}", self.fresh("at")
        t.open(f"for {base} in range({first}, {last}, {block}):")
        before = dict(self.f.names)
        self.inner(p, f"{base} + ", mask)
        for r in p.reduces:
            if r.kind in KINDS:
                self.carry(r, accs, f"({base} - {low}) // {block} + 1" if low != "0" else f"{base} // {block} + 1")
            elif not leader(r, p):
                self.step(r, accs)
        self.stores(p)
        t.close()
        self.f.names = {k: v for k, v in before.items() if k[1] is None}
        for r in p.reduces:
            self.f.refs.pop((r.name, self.space), None)
        self.forget(k for k, d in self.dim_of.items() if d == "r")
        self.space = None

    def accumulators(self, p: LoopNest, begin: ix.Index | None) -> dict[Any, str]:
        """Declare a tile of partial results for each reduction, and the running value of a row for each scan. begin: what the
        loop over the row is aligned with."""
        accs: dict[Any, str] = {}
        for r in p.reduces:
            if leader(r, p):
                continue
            if r.kind in KINDS:
                for i, start in enumerate(KINDS[r.kind].start):
                    name = accs[r.name, i] = self.fresh("a")
                    self.f.text.add(f"{name} = {constant(start, r.dtype, self.state_shape(r, p, begin))}")
                continue
            name = accs[r.name] = self.fresh("a")
            shape = self.tile_shape()
            if r.running:
                shape = "()" if self.sched.single else "[X, 1]"
            self.f.text.add(f"{name} = {constant(common.identity(r), common.value_dtype(r), shape)}")
            if common.pair(r):
                accs[r.name, "at"] = self.fresh("a")
                self.f.text.add(f"{accs[r.name, 'at']} = {constant(MOST_I64, 'i64', shape)}")
        return accs

    def state_shape(self, r: Reduce, p: LoopNest, begin: ix.Index | None) -> str:
        """Shape of a state: a lane for each of a tile's lanes, or for those that a thread reads at once."""
        block, group = self.block_name(), KINDS[r.kind].group
        few = block is None or min(t[block] for t in self.f.tiles) < group
        if few or not self.sched.single or not all_aligned(p, r.args, begin):
            return self.tile_shape()
        return f"[{block} // {group}]"

    def step(self, r: Reduce, accs: dict) -> None:
        """Update a reduction with the tile of one iteration."""
        t, note, name = self.f.text, common.comment(r.where), accs[r.name]
        dtype = common.value_dtype(r)
        value = self.masked(r.args[0], common.identity(r), dtype)
        if r.running:
            scanned, tile = self.fresh("m"), self.fresh()
            t.add(f"{tile} = {value}")
            t.add(f"{scanned} = {combine(r, name, scan(r, tile, self.axis_number))}", note)
            t.add(f"{name} = {combine(r, name, fold(r, tile, self.axis_number))}")
            self.f.refs[r.name, self.space] = scanned
        elif common.pair(r):
            at = self.masked(r.args[1], MOST_I64, "i64")
            best = "more" if r.kind == "argmax" else "less"
            t.add(f"{name}, {accs[r.name, 'at']} = bj_{best}_of({name}, {accs[r.name, 'at']}, {value}, {at})", note)
        else:
            t.add(f"{name} = {combine(r, name, value)}", note)

    def carry(self, r: Reduce, accs: dict, turn: str) -> None:
        """Update a reduction that has a state (`Carried`) with the tile of one iteration. turn: its number, from 1."""
        kind = KINDS[r.kind]
        value = self.masked(r.args[0], kind.other, r.dtype)
        state = ", ".join(accs[r.name, i] for i in range(len(kind.start)))
        ok = self.masks.get("r") or constant(True, "b8")
        self.f.text.add(f"{state} = {kind.step}({state}, {value}, {ok}, {turn})", common.comment(r.where))

    def ended(self, r: Reduce, state: list[str]) -> str:
        """The result of a reduction from the tiles of its state; its own name stands for it from here on."""
        kind = KINDS[r.kind]
        names = [self.fresh("m") for _ in state]
        self.f.text.add(f"{', '.join(names)} = {kind.fold}({', '.join(state)}, {self.axis_number})", common.comment(r.where))
        name = self.f.refs[r.name, None] = self.fresh("m")
        self.f.text.add(f"{name} = {kind.end}({', '.join(names)})")
        self.states[r.name] = names
        return name

    def folded(self, p: LoopNest, accs: dict) -> dict:
        """Combines each tile of partial results to one result for each row. For a reduction with a state, also the values of the
        state, by number."""
        out: dict = {}
        for r in p.reduces:
            if r.kind in KINDS:
                out[r.name] = self.ended(r, [accs[r.name, i] for i in range(len(KINDS[r.kind].start))])
                out |= {(r.name, i): name for i, name in enumerate(self.states[r.name])}
        for r in p.reduces:
            if r.running or r.kind in KINDS:
                continue
            if (first := leader(r, p)) is not None:
                out[r.name] = self.f.refs[r.name, None] = self.states[first.name][0]
                continue
            name = out[r.name] = self.fresh("m")
            if common.pair(r):
                best = out[r.name, "best"] = self.fresh("m")
                self.f.text.add(f"{best}, {name} = bj_{r.kind}({accs[r.name]}, {accs[r.name, 'at']}, {self.axis_number})")
            else:
                self.f.text.add(f"{name} = {fold(r, accs[r.name], self.axis_number)}")
            self.f.refs[r.name, None] = name
        return out

    # ---- parts of a split row -------------------------------------------------------------------------------------
    def part(self, p: LoopNest) -> None:
        """A nest over this program's part of the row; results go to scratch."""
        t, parts = self.f.text, self.sched.parts
        size = product(p.axes)
        block = f"R{self.sched.spaces.index(p.axes) or ''}"
        widest = max(tile[block] for tile in self.f.tiles)
        each = -(-ceil_div(size, parts) // widest) * widest  # a multiple of the block, so that parts start at a cache line
        self.prepare(p)
        t.add(f"low = part * {each}")
        exact = each * parts == size
        t.add(f"high = low + {each}" if exact else f"high = tl.minimum(low + {each}, {size})")
        made = self.turn(p, "low", "high", exact)
        for r in p.reduces:
            for key, dtype in kept(r):
                at = self.reserve(product((Axis("", self.total), Axis("", parts))), dtype)
                self.partial[key] = (at, dtype, r)
                q = self.scratch_pointer(at, dtype)
                mask = self.mask_of(frozenset("x"))
                place = f"{q} + part * {size_text(self.total)} + x"
                value = made[key] if self.sched.single else f"tl.broadcast_to({made[key]}, [X, 1])"
                t.add(f"tl.store({place}, {value}{f', mask={mask}' if mask else ''})")

    def gather(self, name: str) -> None:
        """Combine the parts of a reduction that an earlier launch made."""
        t, parts = self.f.text, self.sched.parts
        _, dtype, r = self.partial[(name, 0) if (name, 0) in self.partial else name]
        lanes = f"tl.arange(0, {power(parts)})" + ("" if self.sched.single else "[None, :]")
        var = self.fresh("q_")
        t.add(f"{var} = {lanes}")
        masks = [m for m in (f"({var} < {parts})" if power(parts) != parts else "", self.masks.get("x", "")) if m]

        def tile(key: Any, kind: str, other: Any) -> str:
            place = f"{self.scratch_pointer(self.partial[key][0], kind)} + {var} * {size_text(self.total)} + x"
            if not masks:
                return f"tl.load({place})"
            mask = " & ".join(masks)
            return f"tl.where({mask}, tl.load({place}, {mask}, other=0), {constant(other, kind)})"

        if r.kind in KINDS:
            self.ended(r, [tile((name, i), r.dtype, start) for i, start in enumerate(KINDS[r.kind].start)])
            return
        out = self.fresh("m")
        if common.pair(r):
            best = tile((name, "best"), common.value_dtype(r), common.identity(r))
            t.add(f"_, {out} = bj_{r.kind}({best}, {tile(name, 'i64', MOST_I64)}, {self.axis_number})")
        else:
            t.add(f"{out} = {fold(r, tile(name, dtype, common.identity(r)), self.axis_number)}", common.comment(r.where))
        self.f.refs[name, None] = out
