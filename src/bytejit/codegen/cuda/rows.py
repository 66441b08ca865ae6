"""Kernels of rows as Triton: reductions, scans and epilogues; rows in registers, in loops, or cut in parts.

A pass over inner axes is, for a persistent row, straight code over the whole row; for a looped one: values of the row,
accumulators, the loop, one fold along the tile. A reduction of a split row ends in a store of its part; the launches
after it start by combining the parts. What the row needs once is computed before the loop.
"""
from __future__ import annotations

from typing import Any

from bytejit.codegen.emit import common
from bytejit.codegen.loops.ir import Axis, Expr, Pass, Reduce
from bytejit.codegen.loops.passes.online_reductions import KINDS, leader

from .expressions import combine, constant, fold, scan, tl_type
from .kernel import Function, Printer, ceil_div, product, size_text
from .schedule import power

MOST_I64 = common.MOST["i64"]


class KernelPrinter(Printer):
    """Prints any `Call`."""

    def print(self) -> list[Function]:
        if self.sched.mode in ("points", "tiles"):
            return super().print()
        if any(a.size == 0 for a in self.kernel.axes):
            return []
        self.total = product(self.kernel.axes)
        self.states: dict[str, list[str]] = {}
        self.make_locals()
        (self.split if self.sched.mode == "split" else self.whole)()
        return self.functions

    @property
    def axis_number(self) -> int:
        """The tile's dim that is reduced."""
        return 0 if self.sched.single else 1

    def make_locals(self) -> None:
        """A place in scratch for each row-local buffer that is really read from memory."""
        for name in sorted({s.buffer for p in self.kernel.passes for s in p.stores if self.buffers[s.buffer].kind == "local"}):
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
        """All passes in one launch."""
        self.start()
        self.rows()
        for i, p in enumerate(self.kernel.passes):
            if i in self.sched.barriers:
                self.f.text.add("tl.debug_barrier()")
            self.pass_(p)
        self.finish(lambda tile: ceil_div(self.total, tile["X"]))

    def split(self) -> None:
        """A launch for each pass over inner axes; passes without run in the next one, once."""
        parts, waiting = self.sched.parts, []
        self.partial: dict[str, tuple[Any, ...]] = {}
        for p in self.kernel.passes:
            if not p.axes:
                waiting.append(p)
                continue
            self.start()
            self.f.text.add(f"part = pid % {parts}")
            self.rows(f"(pid // {parts})")
            for q in waiting:
                self.pass_(q, "(part == 0)")
            waiting = []
            self.part(p)
            space = f"R{self.sched.spaces.index(p.axes) or ''}"
            used = (("X",) if not self.sched.single else ()) + (space,)
            self.finish(lambda tile: product((Axis("", ceil_div(self.total, tile["X"])), Axis("", parts))), used)
        if waiting:
            self.start()
            self.rows()
            for q in waiting:
                self.pass_(q)
            self.f.tiles = self.f.tiles[:1]
            self.finish(lambda tile: ceil_div(self.total, tile["X"]), ("X",) if not self.sched.single else ("",))

    # ---- passes ---------------------------------------------------------------------------------------------------
    def pass_(self, p: Pass, also: str = "") -> None:
        """One pass; also: a further mask of its stores."""
        self.prepare(p)
        if not p.axes:
            self.space = None
            self.stores(p, also)
        elif self.sched.looped:
            self.turn(p)
        else:
            self.straight(p)
        self.space = None

    def prepare(self, p: Pass) -> None:
        """Results of earlier launches that the pass reads (split)."""
        if self.sched.mode == "split":
            for e in common.walk(p.roots()):
                if e.kind == "ref" and (e.name, None) not in self.f.refs and (
                        e.name in self.partial or (e.name, 0) in self.partial):
                    self.gather(e.name)

    def inner(self, p: Pass, base: str, mask: str | None) -> None:
        """The inner axes of a pass: r holds their flat position."""
        self.space = p.axes
        at = self.sched.spaces.index(p.axes) or ""
        for key in [k for k, d in self.dim_of.items() if d == "r"]:
            del self.dim_of[key]
            self.axis_text.pop(key, None)
        name = self.fresh("r")
        lanes = f"tl.arange(0, R{at})"
        lanes = lanes if self.sched.single else f"{lanes}[None, :]"
        wide = ".to(tl.int64)" if self.sched.wide else ""
        self.f.text.add(f"{name} = {base}{lanes}{wide}")
        masked = f"{name}m" if mask else None
        self.set_dim("r", name, p.axes, masked)
        if masked:
            self.f.text.add(f"{masked} = {name} < {mask}")

    def straight(self, p: Pass) -> None:
        """A whole row at once. Values stay known to later passes over the same axes."""
        kept = self.f.laid.get(p.axes)
        if kept is None:
            size = product(p.axes)
            block = f"R{self.sched.spaces.index(p.axes) or ''}"
            self.inner(p, "", None if self.exact(size, block) else size_text(size))
            self.f.laid[p.axes] = (self.flat["r"], self.masks.get("r"), self.axis_text)
        else:
            self.space = p.axes
            (var, axes), mask, text = kept
            for key in [k for k, d in self.dim_of.items() if d == "r"]:
                del self.dim_of[key]
            names = {a.name: text[a.name] for a in axes if a.name in text}
            self.set_dim("r", var, axes, mask)
            self.axis_text = {k: v for k, v in self.axis_text.items() if k not in {a.name for a in axes}} | names
        self.hoist(p)
        for r in p.reduces:
            self.reduce(r)
        self.stores(p)
        (var, axes), mask, _ = self.f.laid[p.axes]
        self.f.laid[p.axes] = ((var, axes), mask, dict(self.axis_text))

    def hoist(self, p: Pass) -> None:
        """Values of the row alone come first: a loop would compute them again each turn."""
        scans = common.running(p)
        for s in p.stores:
            for name in sorted(common.axes_of(s.coords[0])):
                if self.dim_of.get(name) == "x":
                    self.axis(name)
        for e in common.walk(p.roots()):
            names = frozenset().union(*(common.axes_of(c) for c in e.attr)) if e.kind == "load" else (
                common.axes_of(e.attr) if e.kind == "index" else frozenset())
            for name in sorted(names):
                if self.dim_of.get(name) == "x":
                    self.axis(name)
            if e.refs.isdisjoint(scans) and "r" not in self.dims(e):
                self.value(e)

    def masked(self, r: Reduce, e: Expr, other: Any, dtype: str) -> str:
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
        value = self.masked(r, r.args[0], common.identity(r), dtype)
        if r.running:
            t.add(f"{name} = {scan(r, value, self.axis_number)}", note)
            self.f.refs[r.name, self.space] = name
            self.dims_memo.clear()
            return
        if common.pair(r):
            at = self.masked(r, r.args[1], MOST_I64, "i64")
            t.add(f"_, {name} = bj_{r.kind}({value}, {at}, {self.axis_number})", note)
        else:
            t.add(f"{name} = {fold(r, value, self.axis_number)}", note)
        self.f.refs[r.name, None] = name

    def turn(self, p: Pass, low: str = "0", high: str = "", exact: bool = False) -> dict[Any, str]:
        """A pass in a loop over low..high (the whole row by default). Answers the names of the results, by reduction
        (and its "best" value). exact: low and high are whole turns."""
        t, block = self.f.text, f"R{self.sched.spaces.index(p.axes) or ''}"
        size = product(p.axes)
        self.space = p.axes
        for key in [k for k, d in self.dim_of.items() if d == "r"]:
            del self.dim_of[key]
        for a in p.axes:
            self.dim_of[a.name] = "r"
        self.dims_memo.clear()
        exact = exact or not high and self.exact(size, block)
        for r in p.reduces:
            if r.running:
                self.f.refs[r.name, self.space] = "?"
        self.hoist(p)
        accs = self.accumulators(p)
        base = self.fresh("at")
        end = high or size_text(size)
        t.open(f"for {base} in range({low}, {end}, {block}):")
        before = dict(self.f.names)
        self.inner(p, f"{base} + ", None if exact else end)
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
        for key in [k for k, d in self.dim_of.items() if d == "r"]:
            self.axis_text.pop(key, None)
        self.space = None
        return self.folded(p, accs)

    def accumulators(self, p: Pass) -> dict[str, str]:
        """A tile of partial results for each reduction; a row's running value for each scan."""
        accs: dict[str, str] = {}
        for r in p.reduces:
            if leader(r, p):
                continue
            if r.kind in KINDS:
                for i, start in enumerate(KINDS[r.kind].start):
                    name = accs[r.name, i] = self.fresh("a")
                    self.f.text.add(f"{name} = {constant(start, r.dtype, self.tile_shape())}")
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

    def step(self, r: Reduce, accs: dict) -> None:
        """Feed a turn's tile to a reduction."""
        t, note, name = self.f.text, common.comment(r.where), accs[r.name]
        dtype = common.value_dtype(r)
        value = self.masked(r, r.args[0], common.identity(r), dtype)
        if r.running:
            scanned, tile = self.fresh("m"), self.fresh()
            t.add(f"{tile} = {value}")
            t.add(f"{scanned} = {combine(r, name, scan(r, tile, self.axis_number))}", note)
            t.add(f"{name} = {combine(r, name, fold(r, tile, self.axis_number))}")
            self.f.refs[r.name, self.space] = scanned
        elif common.pair(r):
            at = self.masked(r, r.args[1], MOST_I64, "i64")
            best = "more" if r.kind == "argmax" else "less"
            t.add(f"{name}, {accs[r.name, 'at']} = bj_{best}_of({name}, {accs[r.name, 'at']}, {value}, {at})", note)
        else:
            t.add(f"{name} = {combine(r, name, value)}", note)

    def carry(self, r: Reduce, accs: dict, turn: str) -> None:
        """Feed a turn's tile to a reduction that carries a state. turn: which of the loop, from 1 on."""
        kind = KINDS[r.kind]
        value = self.masked(r, r.args[0], kind.other, r.dtype)
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

    def folded(self, p: Pass, accs: dict) -> dict:
        """The tiles of partial results as one a row. A reduction that carries a state: its parts by number too."""
        out: dict = {}
        for r in p.reduces:
            if r.kind in KINDS:
                out[r.name] = self.ended(r, [accs[r.name, i] for i in range(len(KINDS[r.kind].start))])
                out |= {(r.name, i): name for i, name in enumerate(self.states[r.name])}
        for r in p.reduces:
            if r.running or r.kind in KINDS:
                continue
            if leader(r, p):
                out[r.name] = self.f.refs[r.name, None] = self.states[leader(r, p).name][0]
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
    def part(self, p: Pass) -> None:
        """A pass over this program's part of the row; results go to scratch."""
        t, parts = self.f.text, self.sched.parts
        size = product(p.axes)
        block = f"R{self.sched.spaces.index(p.axes) or ''}"
        widest = max(tile[block] for tile in self.f.tiles)
        each = -(-ceil_div(size, parts) // widest) * widest              # whole turns: parts start where lines start
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



def kept(r: Reduce) -> list[tuple[Any, str]]:
    """What a part of a split row hands to the next launch: (key, dtype) each."""
    if r.kind in KINDS:
        return [((r.name, i), r.dtype) for i in range(len(KINDS[r.kind].start))]
    return [(r.name, r.dtype), *([((r.name, "best"), common.value_dtype(r))] if common.pair(r) else [])]
