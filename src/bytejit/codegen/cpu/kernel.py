"""One scheduled kernel as a C++ function: `static void NAME(pointers..., sizes..., i64 threads, i32* err)`.

The function over a range of the parallel axes comes first (all its operands are parameters, so that nothing is read
again through a capture), then the function that cuts the range over threads.

    reduction along the innermost axis    `lanes * accumulators` partial results in an array; the loop takes that many
                                          elements a turn; the compiler keeps the array in vector registers
    blocked axis                          partial results are arrays over the block; the block is the innermost loop
    sin, cos, tan                         a chunk's arguments are checked first; a chunk with a huge one runs scalar
"""
from __future__ import annotations

from typing import Any

from bytejit.codegen.cpu.sums import CHAIN, sums_of
from bytejit.codegen.emit import common
from bytejit.codegen.loops.ir import Axis, Buffer, Call, Expr, Pass, itemsize
from bytejit.codegen.ops.table import OpTable

from .expressions import TRIG, ExprText, IndexText
from .reductions import Nest, Reductions, Text, narrow

STACK = 64 * 1024      # bytes of a thread's rows that may lie on the stack
CHUNK = 1024           # elements whose trigonometric arguments are checked together: stays in the first cache


class KernelPrinter(Reductions):
    """Prints one `Call`. text: the function's lines."""

    def __init__(self, call: Call, buffers: dict[str, Buffer], table: OpTable, name: str) -> None:
        self.call, self.kernel, self.sched, self.buffers, self.table = call, call.kernel, call.schedule, buffers, table
        self.name, self.text = name, Text()
        self.pointers = {b: f"p{i}" for i, b in enumerate((*call.reads, *call.writes))}
        self.locals = sorted({b for p in self.kernel.passes for b in self._names(p)} - set(self.pointers))
        self.pointers.update((b, f"l{i}") for i, b in enumerate(self.locals))
        self.symbols = common.kernel_symbols(self.kernel)
        self.raises = any(e.kind == "op" and table.by_name[e.name].raises and "{err}" in common.row_text(e, table, "cpp")
                          for p in self.kernel.passes for e in common.walk(p.roots()))
        self.names: dict[int, str] = {}
        self.refs: dict[str, frozenset[str]] = {}
        self.ref_text: dict[str, str] = {}
        self.counter = 0
        self.sizes = {a.name: a.size for p in self.kernel.passes for a in (*self.kernel.axes, *p.axes)}
        self.index = IndexText(self.sizes, lambda e: self.names[id(e)])
        self.expr = ExprText(table, self.names, self.index, self.element)

    def element(self, buffer: str, offset: Any) -> str:
        """An element of a buffer; a thread's row has a place for each point of a block."""
        text = self.index(offset)
        if self.sched.block and buffer in self.locals:
            text = f"({text}) * {self.sched.block[1]} + {self.sched.block[0]}_at"
        return f"{self.pointers[buffer]}[{text}]"

    @staticmethod
    def _names(p: Pass) -> set[str]:
        return {s.buffer for s in p.stores} | {e.name for e in common.walk(p.roots()) if e.kind == "load"}

    # ---- signatures -----------------------------------------------------------------------------------------------
    def params(self) -> list[str]:
        """Parameters that both functions take."""
        call = self.call
        out = [f"const {self.buffers[b].dtype}* {self.pointers[b]}" for b in call.reads]
        out += [f"{self.buffers[b].dtype}* {self.pointers[b]}" for b in call.writes]
        return out + [f"i64 s_{s}" for s in self.symbols]

    def arguments(self) -> list[str]:
        return [self.pointers[b] for b in (*self.call.reads, *self.call.writes)] + [f"s_{s}" for s in self.symbols]

    def print(self) -> Text:
        """The kernel's two functions."""
        t, threads = self.text, ["i64 threads"] if self.sched.split else []
        params = [*self.params(), "i64 begin", "i64 end", "i32* err", *threads]
        t.open(f"static void {self.name}_part({', '.join(params)})")
        if self.raises:
            t.add("i32 fault = 0;")
        self.local_rows()
        self.outer_loops()
        if self.raises:
            t.add("if (fault) __atomic_fetch_or(err, fault, __ATOMIC_RELAXED);")
        t.close()
        t.open(f"BJ_KERNEL {self.name}({', '.join([*self.params(), 'i64 threads', 'i32* err'])})")
        call = f"{self.name}_part({', '.join([*self.arguments(), 'begin', 'end', 'err'])});"
        if self.sched.split:
            t.add(f"{self.name}_part({', '.join([*self.arguments(), '0', '1', 'err', 'threads'])});")
        elif self.sched.parallel:
            t.add(f"bj::parallel({self.total()}, {self.sched.grain}, threads, [&](i64 begin, i64 end) {{ {call} }});")
        else:
            t.add(call.replace("begin, end", f"0, {self.total()}"))
        t.close()
        return t

    def local_rows(self) -> None:
        """Rows of a thread: on the stack as far as they are small."""
        used = 0
        for b in self.locals:
            buffer = self.buffers[b]
            count = [self.index(s) for s in buffer.shape]
            if self.sched.block:
                count.append(str(self.sched.block[1]))
            known = all(isinstance(s, int) for s in buffer.shape)
            size = itemsize(buffer.dtype)
            for s in buffer.shape:
                size *= s if known else 1
            size *= self.sched.block[1] if self.sched.block else 1
            name, length = self.pointers[b], " * ".join(f"({c})" for c in count) or "1"
            if known and used + size <= STACK:
                used += size
                self.text.add(f"alignas(64) {buffer.dtype} {name}[{size // itemsize(buffer.dtype) or 1}];")
            else:
                self.text.add(f"bj::Scratch {name}_memory(({length}) * (i64)sizeof({buffer.dtype}));")
                self.text.add(f"{buffer.dtype}* const {name} = {name}_memory.as<{buffer.dtype}>();")

    # ---- outer loops ----------------------------------------------------------------------------------------------
    def cut_axes(self) -> list[tuple[str, str]]:
        """(axis, number of steps as text) of the collapsed range; a blocked axis counts blocks."""
        sizes = {a.name: a.size for a in self.kernel.axes}
        out = []
        for name in self.sched.parallel:
            size = sizes.get(name, self.sizes.get(name))
            text = self.index(size)
            if self.sched.block and self.sched.block[0] == name:
                width = self.sched.block[1]
                text = str(-(-size // width)) if isinstance(size, int) else f"(({text} + {width - 1}) / {width})"
            out.append((name, text))
        return out

    def total(self) -> str:
        """Length of the range that is cut over threads."""
        steps = [n for _, n in self.cut_axes()]
        return " * ".join(f"({n})" if not n.isdigit() else n for n in steps) or "1"

    def outer_loops(self) -> None:
        """Loops over the kernel's axes, around its passes."""
        t, sched, axes = self.text, self.sched, self.kernel.axes
        if not axes and sched.parallel:                     # the only pass's first axis is what is cut
            self.pass_(0, cut=sched.parallel[0])
            return
        opened = 0
        steps = self.cut_axes()
        if steps:
            t.open("for (i64 n = begin; n < end; ++n)")
            opened += 1
            rest = "n"
            for k in range(len(steps) - 1, -1, -1):
                name, count = steps[k]
                var = f"{name}_block" if sched.block and sched.block[0] == name else name
                t.add(f"const i64 {var} = {rest if k == 0 else f'{rest} % ({count})'};")
                if k:
                    t.add(f"const i64 n{k} = {rest} / ({count});")
                    rest = f"n{k}"
        for a in axes:
            blocked = sched.block and sched.block[0] == a.name
            if a.name not in sched.parallel:
                var, size = (f"{a.name}_block", self.blocks(a)) if blocked else (a.name, self.index(a.size))
                t.open(f"for (i64 {var} = 0; {var} < {size}; ++{var})")
                opened += 1
        if sched.block:
            self.block()
        else:
            for i in range(len(self.kernel.passes)):
                self.split_pass() if i == 0 and sched.split else self.pass_(i)
        for _ in range(opened):
            t.close()

    def blocks(self, axis: Axis) -> str:
        width = self.sched.block[1]
        if isinstance(axis.size, int):
            return str(-(-axis.size // width))
        return f"(({self.index(axis.size)} + {width - 1}) / {width})"

    def block(self) -> None:
        """All passes over one block of the last outer axis. A whole block's width is a constant to the compiler."""
        t = self.text
        axis, width = self.sched.block
        size = self.sizes[axis]
        t.add(f"const i64 {axis}_low = {axis}_block * {width};")
        whole = isinstance(size, int) and size % width == 0
        if whole:
            t.open("")
            t.add(f"const i64 width = {width};")
        else:
            t.open("auto passes = [&](const i64 width) __attribute__((always_inline))")
        for i in range(len(self.kernel.passes)):
            self.pass_(i)
        t.close("}" if whole else "};")
        if not whole:
            rest = f"{self.index(size)} - {axis}_low"
            t.add(f"if ({rest} >= {width}) passes({width}); else passes({rest});")

    # ---- one pass -------------------------------------------------------------------------------------------------
    def nest(self, i: int) -> Nest:
        p, sched = self.kernel.passes[i], self.sched.passes[i]
        names = list(sched.order)
        block = None
        if self.sched.block:
            names.append(self.sched.block[0])
            block = (self.sched.block[0], "width")
        n = Nest(p, sched, names, self.sizes, block=block)
        scans = common.running(p)
        self.refs.update((name, frozenset(names)) for name in scans)      # at each point: of the block too
        held = {b: frozenset((self.sched.block[0],)) for b in self.locals} if self.sched.block else {}
        n.placed = common.place(p, names, self.refs, held)
        n.trig = tuple(x.expr for x in n.placed if x.expr.kind == "op" and x.expr.name in TRIG)
        inner = self.sizes[names[-1]] if names else 1
        if p.reduces and not block and not scans and sched.vector and names and sched.vector == names[-1]:
            lanes = max(sched.lanes, 1) * max(sched.accumulators, 1)
            while isinstance(inner, int) and lanes > max(inner, 1):
                lanes //= 2
            n.lanes = max(lanes, 1)
        if p.reduces:
            n.sums = sums_of(sched.order, self.sizes, 1 if self.raises else n.lanes, n.lanes == 1 and not block or bool(scans))
        return n

    def pass_(self, i: int, cut: str | None = None) -> None:
        """The loops of one pass, its reductions' start and end."""
        n = self.nest(i)
        t = self.text
        for r in n.p.reduces:
            self.start(r, n)
        self.statements(n, 0)
        inner = n.names[-1] if n.names else None
        tiles = dict(n.sched.tile)
        for axis, size in n.sched.tile:
            t.open(f"for (i64 {axis}_tile = {'begin' if axis == cut else 0}; {axis}_tile < {self.high(axis, cut)}; "
                   f"{axis}_tile += {size})")
        for depth, axis in enumerate(n.names, 1):
            low, high = ("begin" if axis == cut else "0"), self.high(axis, cut)
            if axis in tiles:
                whole = axis != cut and isinstance(self.sizes[axis], int) and self.sizes[axis] % tiles[axis] == 0
                stop = f"{axis}_tile + {tiles[axis]}"
                low, high = f"{axis}_tile", stop if whole else self.least(stop, high)
            if axis == inner:
                self.innermost(n, axis, low, high)
            else:
                t.open(f"for (i64 {axis} = {low}; {axis} < {high}; ++{axis})")
                self.statements(n, depth)
        if inner is None:
            self.body(n, 0, far=True)
        for axis in n.names[-2::-1]:
            self.empty(n, axis, now_and_then=True)
            t.close()
            if n.sums.at_end:
                self.empty(n, axis)
        for _ in n.sched.tile:
            t.close()
        for r in n.p.reduces:
            self.finish(r, n)

    def high(self, axis: str, cut: str | None) -> str:
        return "end" if axis == cut else self.index(self.sizes[axis])

    @staticmethod
    def least(a: str, b: str) -> str:
        return f"({a} < {b} ? {a} : {b})"

    def innermost(self, n: Nest, axis: str, low: str, high: str) -> None:
        """The innermost loop: in lanes where the schedule says so; in checked chunks when it computes sines."""
        t = self.text
        far = [e for e in n.trig if self.depth_of(n, e) == len(n.names)]
        if n.block:
            width = n.block[1]
            self.checked(n, far, lambda any_: self.block_loop(n, axis, width, any_), axis, "0", width)
            return
        if not far or n.sched.vector is None:
            self.loop(n, axis, low, high, bool(far))
            return
        t.open(f"for (i64 low = {low}; low < {high}; low += {CHUNK})")
        t.add(f"const i64 high = {self.least(f'low + {CHUNK}', high)};")
        self.checked(n, far, lambda any_: self.loop(n, axis, "low", "high", any_), axis, "low", "high")
        t.close()

    def checked(self, n: Nest, far: list[Expr], emit: Any, axis: str, low: str, high: str) -> None:
        """`emit(False)`, guarded by a loop that looks for huge arguments of sin, cos and tan; else `emit(True)`."""
        t = self.text
        if not far:
            emit(False)
            return
        t.add("i32 far = 0;")
        t.add("#pragma omp simd reduction(| : far)")
        var = f"{axis}_at" if n.block else axis
        t.open(f"for (i64 {var} = {low}; {var} < {high}; ++{var})")
        if n.block:
            t.add(f"const i64 {axis} = {axis}_low + {axis}_at;")
        args = [a for e in far for a in e.args]
        saved = dict(self.names)
        self.statements(n, len(n.names), only=args)
        for a in args:
            t.add(f"far |= bj::trig_far({self.names[id(a)]});")
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

    def depth_of(self, n: Nest, e: Expr) -> int:
        return next(x.depth for x in n.placed if x.expr is e)

    def simd(self, n: Nest, far: bool) -> None:
        """The pragma, where the loop may run in lanes."""
        plain = n.sched.vector is not None and not far
        if plain and not common.running(n.p) or plain and n.block:
            self.text.add("#pragma omp simd reduction(| : fault)" if self.raises else "#pragma omp simd")

    def block_loop(self, n: Nest, axis: str, width: str, far: bool) -> None:
        t = self.text
        self.simd(n, far)
        t.open(f"for (i64 {axis}_at = 0; {axis}_at < {width}; ++{axis}_at)")
        t.add(f"const i64 {axis} = {axis}_low + {axis}_at;")
        self.body(n, len(n.names), far)
        t.close()

    def loop(self, n: Nest, axis: str, low: str, high: str, far: bool) -> None:
        """The plain innermost loop, or turns of `lanes` elements with a partial result each."""
        t = self.text
        if n.lanes == 1 or far or self.raises:
            if n.lanes == 1:
                self.simd(n, far) if not n.p.reduces else None
            t.open(f"for (i64 {axis} = {low}; {axis} < {high}; ++{axis})")
            self.body(n, len(n.names), far, lane="0")
            self.empty(n, axis, now_and_then=True)
            t.close()
            if n.sums.at_end:
                self.empty(n, axis)
            return
        size, saved = self.sizes[axis], dict(self.names)
        exact = isinstance(size, int) and size % n.lanes == 0 and high == self.index(size)
        t.open("")
        t.add(f"i64 turn = {low};")
        long = n.sums.axis == axis
        if long:
            t.open(f"for (i64 stop = turn; turn + {n.lanes} <= {high};)")
            t.add(f"stop = {self.least(f'stop + {n.lanes * CHAIN}', high)};")
        t.open(f"for (; turn + {n.lanes} <= {'stop' if long else high}; turn += {n.lanes})")
        self.turn(n, axis, str(n.lanes))
        t.close()
        if long:
            self.empty(n, axis)
            t.close()
        if not exact:
            self.names.clear()
            self.names.update(saved)
            t.add(f"const i64 rest = {high} - turn;")
            self.turn(n, axis, "rest")
            if n.sums.at_end:
                self.empty(n, axis)
        t.close()

    def turn(self, n: Nest, axis: str, count: str) -> None:
        t = self.text
        t.add("#pragma omp simd")
        t.open(f"for (i64 lane = 0; lane < {count}; ++lane)")
        t.add(f"const i64 {axis} = turn + lane;")
        self.body(n, len(n.names), False, lane="lane")
        t.close()

    # ---- statements -----------------------------------------------------------------------------------------------
    def statements(self, n: Nest, depth: int, only: list[Expr] | None = None, far: bool = False) -> None:
        """The statements of one depth; with `only`, those that these expressions need. Below the innermost loop, `far`
        is the scalar form."""
        wanted = {id(x) for x in common.walk(tuple(only))} if only is not None else None
        for x in n.placed:
            if x.depth == depth and (wanted is None or id(x.expr) in wanted):
                self.statement(n, x.expr, far or depth < len(n.names))

    def statement(self, n: Nest, e: Expr, far: bool) -> None:
        if e.kind == "ref":
            scans = common.running(n.p)
            self.names[id(e)] = (
                narrow(scans[e.name], n, e.name) if e.name in scans and not n.block else self.ref(e.name))
            return
        text = self.expr.inline(e)
        if text is None:
            text = f"t{self.counter}"
            self.counter += 1
            note = common.comment(e.where) if e.kind == "op" else ""
            self.text.add(f"const {e.dtype} {text} = {self.expr(e, far)};", note)
        self.names[id(e)] = text

    def ref(self, name: str) -> str:
        return self.ref_text[name]

    def body(self, n: Nest, depth: int, far: bool, lane: str = "0") -> None:
        """The statements of the innermost depth, the reductions' steps, the stores."""
        scans = common.running(n.p)
        if scans:
            self.scan_body(n, depth, far)
            return
        if n.sched.vector is None and not n.block and any(x.expr.kind == "load" and x.expr.mask is not None for x in n.placed):
            # GCC (12) unrolls a short loop into the one around it, runs that in lanes, and gives neighbouring loads under
            # one mask the first lanes' masks: such a loop stays scalar
            self.text.add('__asm__ volatile("");')
        self.statements(n, depth, far=far)
        for r in n.p.reduces:
            self.step(r, n, lane)
        self.stores(n)

    def scan_body(self, n: Nest, depth: int, far: bool) -> None:
        """A scan's operands come first, then its step, then what reads the running value."""
        done: set[int] = set()
        for r in n.p.reduces:
            for x in n.placed:
                if x.depth == depth and id(x.expr) not in done and any(common.below(a, (x.expr,)) for a in r.args):
                    done.add(id(x.expr))
                    self.statement(n, x.expr, far)
            self.step(r, n, "0")
        for x in n.placed:
            if x.depth == depth and id(x.expr) not in done:
                self.statement(n, x.expr, far)
        self.stores(n)

    def stores(self, n: Nest) -> None:
        t = self.text
        for s in n.p.stores:
            dtype, value = self.buffers[s.buffer].dtype, self.names[id(s.value)]
            if s.value.dtype != dtype:
                value = f"bj::to<{dtype}>({value})"
            place = self.element(s.buffer, s.coords[0])
            guard = f"if ({self.names[id(s.mask)]}) " if s.mask is not None else ""
            note = common.comment(s.where or s.value.where)
            if s.mode == "set":
                t.add(f"{guard}{place} = {value};", note)
            elif dtype in ("bf16", "f16"):
                t.add(f"{guard}{place} = bj::to<{dtype}>(bj::wide({place}) + bj::wide({value}));", note)
            else:                # points that may meet are one after another: `ordered` of codegen/cpu/schedule.py
                t.add(f"{guard}{place} += {value};", note)
