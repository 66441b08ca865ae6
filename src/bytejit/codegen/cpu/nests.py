"""One nest of a kernel as C++: its loops, statements and stores."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from typing import Any

from bytejit.codegen.cpu.accumulation import sums_of
from bytejit.codegen.emit import common
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.ops.table import OpTable
from bytejit.common.dtypes import NARROW, itemsize

from . import half_rows
from .expressions import IndexText, far_text
from .lane_loops import least
from .reductions import NestState, narrow
from .scan_loops import ScanLoops

ZEROS = 32768  # bytes of the array of zeros in kernels/prelude/base.h
CHOSEN = frozenset({"f32", "f64", "i32", "i64"})  # the dtypes that `bj::choose` takes
TILES = 8  # operands of which a tile is turned, at most: each takes up to 8 KB of the stack
CHUNK = 1024  # elements: the operands of ops that have an `Op.far` are tested for so many at a time; they stay in the L1 cache


class NestPrinter(ScanLoops):
    """The part of a kernel's printer that knows the loops of one nest."""

    table: OpTable
    pointers: dict[str, str]
    locals: list[str]
    raises: bool
    index: IndexText
    tables: defaultdict[int, common.Tables]  # of each nest (`TablePrinter`)
    tabled: common.Tables  # of the nest that is being printed

    @abstractmethod
    def element(self, buffer: str, offset: Any) -> str:
        """An element of a buffer."""

    # ---- one nest -------------------------------------------------------------------------------------------------
    def nest(self, i: int) -> NestState:
        p, sched = self.kernel.nests[i], self.sched.nests[i]
        names = list(sched.order)
        block = None
        if self.sched.block:
            names.append(self.sched.block[0])
            block = (self.sched.block[0], "width")
        n = NestState(p, sched, names, self.sizes, block=block, tabled=self.tables[i])
        scans = common.running(p)
        self.refs.update((name, frozenset(names)) for name in scans)  # a scan has a value at each point, of a block too
        held = {b: frozenset((self.sched.block[0],)) for b in self.locals} if self.sched.block else {}
        never = 0 if p.reduces else next((d for d, name in enumerate(names, 1) if self.sizes[name] == 0), 0)
        n.placed = common.place(p, names, self.refs, held, self.tables[i], never)
        own = (x.expr for x in n.placed if id(x.expr) not in self.tables[i].parts)
        n.far = tuple(e for e in own if far_text(e, self.table))
        inner = self.sizes[names[-1]] if names else 1
        if p.reduces and not block and not scans and sched.vector and names and sched.vector == names[-1]:
            n.lanes = max(sched.lanes, 1) * max(sched.accumulators, 1)
            while isinstance(inner, int) and n.lanes > max(inner, 1) and not (n.lanes == sched.lanes and self.may_mask(n)):
                n.lanes //= 2
        if p.reduces:
            n.sums = sums_of(sched.order, self.sizes, n.lanes, n.lanes == 1 and not block or bool(scans))
        return n

    def print_nest(self, i: int, cut: str | None = None) -> None:
        """The loops of one nest, with the start and the end of its reductions. cut: the axis that runs from `begin` to `end`."""
        n = self.nest(i)
        t = self.text
        self.expr.forget()
        self.tabled = self.tables[i]
        self.index.tables = self.tabled.places
        for r in n.p.reduces:
            self.start(r, n)
        self.statements(n, 0)
        inner = n.names[-1] if n.names else None
        tiles = dict(n.sched.tile)
        for axis, size in n.sched.tile:
            t.open(
                f"for (i64 {axis}_tile = {'begin' if axis == cut else 0}; {axis}_tile < {self.high(axis, cut)}; "
                f"{axis}_tile += {size})"
            )
        if tiles:
            self.turned_tiles(n, cut)
        for depth, axis in enumerate(n.names, 1):
            low, high = ("begin" if axis == cut else "0"), self.high(axis, cut)
            if axis in tiles:
                whole = axis != cut and isinstance(self.sizes[axis], int) and self.sizes[axis] % tiles[axis] == 0
                stop = f"{axis}_tile + {tiles[axis]}"
                low, high = f"{axis}_tile", stop if whole else least(stop, high)
            if axis == inner:
                self.innermost(n, axis, low, high)
            else:
                t.open(f"for (i64 {axis} = {low}; {axis} < {high}; ++{axis})")
                self.statements(n, depth)
        if inner is None:
            self.body(n, 0, far=True)
        for axis in n.names[-2::-1]:
            self.empty(n, axis, periodic=True)
            t.close()
            if n.sums.at_end:
                self.empty(n, axis)
        for _ in n.sched.tile:
            t.close()
        for r in n.p.reduces:
            self.finish(r, n)

    def turned_tiles(self, n: NestState, cut: str | None) -> None:
        """Turn a tile of each operand that lies along the outer axis, so that the inner loop reads neighbours."""
        (outer, size), (inner, _) = n.sched.tile
        for e in (x.expr for x in n.placed if x.expr.kind == "load" and x.expr.mask is None and x.expr.name not in self.locals):
            at = ix.index(e.attr[0])
            step = at.coefficient(inner)
            plain = not at.within_atoms(outer) and not at.within_atoms(inner) and next(ix.values_in(e.attr), None) is None
            if not plain or at.coefficient(outer) != 1 or not isinstance(step, int) or abs(step) < 2:
                continue
            if len(self.expr.rows) == TILES:
                return
            name, self.counter = f"r{self.counter}", self.counter + 1
            first = self.element(e.name, at - ix.var(outer) - ix.var(inner) * step)
            ends = [f"{least(f'{a}_tile + {size}', self.high(a, cut))} - {a}_tile" for a in (outer, inner)]
            self.text.add(f"alignas(64) {e.dtype} {name}[{size * size}];")
            place = f"&{first} + {outer}_tile + {step}LL * {inner}_tile"
            self.text.add(f"bj::turn<{e.dtype}, {size}>({place}, {step}, {', '.join(ends)}, {name});")
            self.expr.rows[id(e)] = f"{name}[({outer} - {outer}_tile) * {size} + {inner} - {inner}_tile]"

    def high(self, axis: str, cut: str | None) -> str:
        return "end" if axis == cut else self.index(self.sizes[axis])

    def innermost(self, n: NestState, axis: str, low: str, high: str) -> None:
        """The innermost loop: vectorized where the schedule says so; in checked chunks when it has ops with an `Op.far`."""
        t = self.text
        far = [e for e in n.far if self.depth_of(n, e) == len(n.names)]
        if n.block:
            width = n.block[1]
            self.checked(n, far, lambda any_: self.block_loop(n, axis, width, any_), axis, "0", width)
            return
        if self.in_chunks(n, low):
            self.scan_chunks(n, axis, high)
            return
        halves = self.halves(n, axis)
        if not (far or halves) or n.sched.vector is None:
            self.loop(n, axis, low, high, bool(far))
            return
        chunk = half_rows.CHUNK if halves else CHUNK
        t.open(f"for (i64 low = {low}; low < {high}; low += {chunk})")
        t.add(f"const i64 high = {least(f'low + {chunk}', high)};")
        stored = self.read_halves(halves, axis) if halves else []
        self.checked(n, far, lambda any_: self.loop(n, axis, "low", "high", any_), axis, "low", "high")
        for line in stored:
            t.add(line)
        t.close()

    def halves(self, n: NestState, axis: str) -> half_rows.HalfRows | None:
        """The rows of float16 that the innermost loop converts a chunk at a time; None without any."""
        if not half_rows.long_enough(n, axis) or common.running(n.p):
            return None
        if not n.p.reduces and all(self.expr.is_moved(half_rows.before_rounding(s), "f16") for s in n.p.stores):
            return None  # no number is converted
        return half_rows.half_rows(n, axis, {name for name, b in self.buffers.items() if b.dtype == "f16"} - set(self.locals))

    def read_halves(self, halves: half_rows.HalfRows, axis: str) -> list[str]:
        """Prints what a chunk's rows of float16 are before its loop. Returns the lines that store rows after it."""
        after = []
        for made in (*halves.loads, *halves.stores):
            name, self.counter = f"h{self.counter}", self.counter + 1
            self.text.add(f"f32 {name}[{half_rows.CHUNK}];")
            row = f"&{self.element(made.buffer, made.start)} + low"
            self.expr.rows[id(made.of)] = f"{name}[{axis} - low]"
            if made.value is None:
                self.expr.widened.add(id(made.of))
                self.text.add(f"bj::widen_row({name}, {row}, high - low);")
            else:
                after.append(f"bj::narrow_row({row}, {name}, high - low);")
        return after

    def checked(self, n: NestState, far: list[Expr], emit: Any, axis: str, low: str, high: str) -> None:
        """Prints a loop that looks for operands that the text of an op is not right for (`Op.far`); then `emit(False)` for when
        there are none, else `emit(True)`. far: these ops; without any, `emit(False)` alone."""
        t = self.text
        if not far:
            emit(False)
            return
        t.open()  # a scope of its own: the next nest of a block declares the same names
        t.add("i32 far = 0;")
        t.add("#pragma omp simd reduction(| : far)")
        var = f"{axis}_at" if n.block else axis
        t.open(f"for (i64 {var} = {low}; {var} < {high}; ++{var})")
        if n.block:
            t.add(f"const i64 {axis} = {axis}_low + {axis}_at;")
        args = [a for e in far for a in e.args]
        saved = dict(self.names)
        self.statements(n, len(n.names), only=args)
        tests = [texts[0].format(*(self.names[id(a)] for a in e.args)) for e in far if (texts := far_text(e, self.table))]
        for test in dict.fromkeys(tests):
            t.add(f"far |= {test};")
        self.names.clear()
        self.names.update(saved)
        t.close()
        t.open("if (!far)")
        emit(False)
        self.names.clear()
        self.names.update(saved)
        t.close()
        t.open("else")
        emit(True)
        t.close()
        t.close()

    def depth_of(self, n: NestState, e: Expr) -> int:
        return next(x.depth for x in n.placed if x.expr is e)

    def simd(self, n: NestState, far: bool) -> None:
        """The pragma that lets the compiler vectorize a loop, where it may."""
        plain = n.sched.vector is not None and not far
        if plain and not common.running(n.p) or plain and n.block:
            self.vectorized()

    def vectorized(self) -> None:
        """The pragma of a loop that the compiler vectorizes."""
        self.text.add("#pragma omp simd" + " reduction(| : fault)" * self.raises)

    def block_loop(self, n: NestState, axis: str, width: str, far: bool) -> None:
        t = self.text
        self.simd(n, far)
        t.open(f"for (i64 {axis}_at = 0; {axis}_at < {width}; ++{axis}_at)")
        t.add(f"const i64 {axis} = {axis}_low + {axis}_at;")
        self.body(n, len(n.names), far)
        t.close()

    def loop(self, n: NestState, axis: str, low: str, high: str, far: bool) -> None:
        """The plain innermost loop; or, with several lanes, a loop in steps of `lanes` elements, with a partial result for each
        lane."""
        t = self.text
        if n.lanes == 1 or far:
            if n.lanes == 1:
                self.simd(n, far) if not n.p.reduces else None
            t.open(f"for (i64 {axis} = {low}; {axis} < {high}; ++{axis})")
            self.body(n, len(n.names), far, lane=f"{axis} % {n.lanes}")
            self.empty(n, axis, periodic=True)
            t.close()
            if n.sums.at_end:
                self.empty(n, axis)
            return
        self.lane_loops(n, axis, low, high)

    # ---- statements -----------------------------------------------------------------------------------------------
    def statements(self, n: NestState, depth: int, only: list[Expr] | None = None, far: bool = False) -> None:
        """The statements of one depth of the nest; with `only`, those that these expressions need. far: as in `ExprText`; outside
        of the innermost loop it always holds."""
        wanted = {id(x) for x in common.walk(tuple(only))} if only is not None else None
        for x in n.placed:
            if x.depth == depth and (wanted is None or id(x.expr) in wanted):
                self.statement(n, x.expr, far or depth < len(n.names))
        if only is None and depth == len(n.names) - 1 and (n.sched.vector or n.block):
            self.shared_conditions(n)

    def shared_conditions(self, n: NestState) -> None:
        """Statements before a vectorized loop, for conditions that are the same in all its lanes. GCC would not vectorize a loop
        with such a condition, but branch for each element. So a masked load reads from an array of zeros where the mask is
        false, and a select combines bits."""
        inner = {id(x.expr) for x in n.placed if x.depth == len(n.names)}
        choices: dict[int, str] = {}
        for e in (x.expr for x in n.placed if id(x.expr) in inner and id(x.expr) not in self.tabled.parts):
            if e.kind == "load" and e.mask is not None and not any(id(a) in inner for a in e.needs):
                self.shared_row(n.names[-1], e)
            elif e.kind == "load" and e.mask is not None:
                self.steady_element(n.names[-1], e)
            elif e.kind == "op" and e.name == "select" and e.dtype in CHOSEN and id(e.args[0]) not in inner:
                condition = e.args[0]
                if id(condition) not in choices:
                    choices[id(condition)] = name = f"c{self.counter}"
                    self.counter += 1
                    self.text.add(f"const i64 {name} = bj::choice({self.names[id(condition)]});")
                self.expr.choices[id(e)] = choices[id(condition)]

    def shared_row(self, inner: str, e: Expr) -> None:
        """Declare a pointer to the elements that a masked load reads along the innermost axis, or to zeros where the mask is
        false. Only where the array of zeros is long enough."""
        at, size, room = ix.index(e.attr[0]), self.sizes[inner], ZEROS // itemsize(e.dtype)
        step = at.coefficient(inner)
        if not isinstance(step, int) or step < 0 or not isinstance(size, int) or step * (size - 1) >= room:
            return
        if at.within_atoms(inner) or e.name in self.locals:
            return
        name, self.counter = f"r{self.counter}", self.counter + 1
        first = self.element(e.name, at - ix.var(inner) * step)
        self.text.add(f"const {e.dtype}* const {name} = {self.names[id(e.mask)]} ? &{first} : bj::zeros<{e.dtype}>();")
        self.expr.rows[id(e)] = f"{name}[{self.index(ix.var(inner) * step)}]"

    def steady_element(self, inner: str, e: Expr) -> None:
        """Declare what a load reads in all lanes where its mask holds, if it may be read where the mask does not hold either."""
        at, b = ix.index(e.attr[0]), self.buffers[e.name]
        if e.name in self.locals or at.coefficient(inner) != 0 or at.within_atoms(inner) or next(ix.values_in(e.attr), None):
            return
        low, high = ix.bounds(at, self.sizes)
        known = all(isinstance(v, int) and v > 0 for v in b.shape) and all(isinstance(v, int) for v in b.stride)
        if known and 0 <= low and high <= sum((v - 1) * step for v, step in zip(b.shape, b.stride)):
            name, self.counter = f"s{self.counter}", self.counter + 1
            self.text.add(f"const {e.dtype} {name} = {self.expr.read(e)};")
            self.expr.steady[id(e)] = name

    def statement(self, n: NestState, e: Expr, far: bool) -> None:
        if e.kind == "ref":
            scans = common.running(n.p)
            self.names[id(e)] = narrow(scans[e.name], n, e.name) if e.name in scans and not n.block else self.ref(e.name)
            return
        text = self.expr.inline(e)
        if text is None:
            text = f"t{self.counter}"
            self.counter += 1
            note = common.comment(e.where) if e.kind == "op" else ""
            dtype = "f32" if id(e) in self.expr.widened else e.dtype
            made = self.tabled.parts[id(e)][1] if id(e) in self.tabled.parts else self.expr(e, far)
            self.text.add(f"const {dtype} {text} = {made};", note)
        self.names[id(e)] = text

    def ref(self, name: str) -> str:
        return self.ref_text[name]

    def body(self, n: NestState, depth: int, far: bool, lane: str = "0") -> None:
        """The statements of the innermost depth, the reductions' steps, the stores."""
        scans = common.running(n.p)
        if scans:
            self.scan_body(n, depth, far)
            return
        if n.sched.vector is None and not n.block and any(x.expr.kind == "load" and x.expr.mask is not None for x in n.placed):
            # GCC 12 unrolls a short loop into the loop around it, vectorizes that, and uses wrong masks for loads of
            # neighbouring elements under one mask. This statement keeps the loop from being vectorized
            self.text.add('__asm__ volatile("");')
        self.statements(n, depth, far=far)
        for r in n.p.reduces:
            self.step(r, n, lane)
        self.stores(n)

    def stores(self, n: NestState) -> None:
        t = self.text
        for s in n.p.stores:
            note = common.comment(s.where or s.value.where)
            if id(s) in self.expr.rows:  # a row of float16: see `read_halves`
                t.add(f"{self.expr.rows[id(s)]} = {self.names[id(half_rows.before_rounding(s))]};", note)
                continue
            dtype, value = self.buffers[s.buffer].dtype, self.names[id(s.value)]
            if s.value.dtype != dtype:
                value = f"bj::to<{dtype}>({value})"
            place = self.element(s.buffer, s.coords[0])
            mask = self.names[id(s.mask)] if s.mask is not None else self.last
            guard = f"if ({mask}) " if mask else ""
            if s.mode == "set":
                t.add(f"{guard}{place} = {value};", note)
            elif dtype in NARROW:
                t.add(f"{guard}{place} = bj::to<{dtype}>(bj::wide({place}) + bj::wide({value}));", note)
            else:  # not atomic: one thread takes points that may have the same element (`ordered` in codegen/cpu/schedule.py)
                t.add(f"{guard}{place} += {value};", note)
