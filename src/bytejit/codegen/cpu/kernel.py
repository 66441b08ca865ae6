"""One scheduled kernel as a C++ function: `static void NAME(pointers..., sizes..., i64 threads, i32* err)`.

A kernel is two functions. `NAME_part` computes a range of the parallel axes; all its operands are parameters, so that nothing
is read again through a lambda's capture. `NAME` divides the range among threads.

    reduction along the innermost axis    an array of `lanes * accumulators` partial results; each iteration takes that many
                                          elements; the compiler keeps the array in vector registers
    blocked axis                          partial results are arrays over the block; the block is the innermost loop
    sin, cos, tan                         the arguments of a chunk are checked first; a chunk with a huge one is not vectorized
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from bytejit.codegen.emit import common
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.ir import Axis, Buffer, LoopNest
from bytejit.codegen.loops.plan import Call
from bytejit.codegen.ops.table import OpTable
from bytejit.common.dtypes import itemsize

from .block_tables import BlockTablePrinter
from .expressions import ExprText, IndexText
from .reductions import CppText

STACK = 64 * 1024  # bytes: at most so many of a thread's row-local buffers are on the stack


def starts(call: Call) -> dict[str, int]:
    """Buffer -> the first element that the kernel may touch, where that is not 0. The pointer that is passed points there. So
    kernels that differ in that element only are one function, such as the steps of a recurrent network."""
    found: dict[str, int] = {}
    for p in call.kernel.nests:
        places = [(s.buffer, s.coords[0]) for s in p.stores]
        for buffer, offset in places + [(e.name, e.attr[0]) for e in common.walk(p.roots()) if e.kind == "load"]:
            first = max(ix.index(offset).const, 0)  # the offset of a masked load may be negative
            found[buffer] = min(found.get(buffer, first), first)
    return {b: found[b] for b in (*call.reads, *call.writes) if found.get(b)}


class KernelPrinter(BlockTablePrinter):
    """Prints one `Call`. text: the lines of its functions; starts: buffer -> elements that callers add to its pointer."""

    def __init__(self, call: Call, buffers: dict[str, Buffer], table: OpTable, name: str) -> None:
        self.call, self.kernel, self.sched, self.buffers, self.table = call, call.kernel, call.schedule, buffers, table
        self.name, self.text = name, CppText()
        self.pointers = {b: f"p{i}" for i, b in enumerate((*call.reads, *call.writes))}
        self.locals = sorted({b for p in self.kernel.nests for b in self._names(p)} - set(self.pointers))
        self.pointers.update((b, f"l{i}") for i, b in enumerate(self.locals))
        self.starts = starts(call)
        self.symbols = common.kernel_symbols(self.kernel)
        self.raises = any(
            e.kind == "op" and table.by_name[e.name].raises and "{err}" in common.row_text(e, table, "cpp")
            for p in self.kernel.nests
            for e in common.walk(p.roots())
        )
        self.names: dict[int, str] = {}
        self.refs: dict[str, frozenset[str]] = {}
        self.ref_text: dict[str, str] = {}
        self.counter = 0
        self.tables, self.tabled = defaultdict(common.Tables), common.Tables()
        self.sizes = {a.name: a.size for p in self.kernel.nests for a in (*self.kernel.axes, *p.axes)}
        self.index = IndexText(self.sizes, lambda e: self.names[id(e)])
        self.expr = ExprText(table, self.names, self.index, self.element)

    def element(self, buffer: str, offset: Any) -> str:
        """An element of a buffer; a row-local buffer has one for each point of a block."""
        text = self.offset(buffer, ix.index(offset) - self.starts.get(buffer, 0))
        if self.sched.block and buffer in self.locals:
            text = f"({text}) * {self.sched.block[1]} + {self.sched.block[0]}_at"
        return f"{self.pointers[buffer]}[{text}]"

    def offset(self, buffer: str, at: ix.Index) -> str:
        """An offset in a buffer. What is computed from values is added up in 32 bits where that is enough: twice as many lanes
        then read at once. Sums that leave 32 bits in between come back, since the offset is one within the buffer."""
        values = [(a, c) for a, c in at.terms if type(a) is ix.Val]
        rest = ix.Index(tuple(t for t in at.terms if t not in values), at.const)
        low, high = ix.bounds(rest, self.sizes)
        b = self.buffers[buffer]
        if not values or not all(isinstance(n, int) for n in (*b.shape, *b.stride, *(c for _, c in values))):
            return self.index(at)
        if max(sum((n - 1) * step for n, step in zip(b.shape, b.stride)) - min(low, 0), high) >= 1 << 31:
            return self.index(at)
        parts = [f"(u32){c} * (u32){self.index(ix.Index(((a, 1),), 0))}" for a, c in values]
        return f"{self.index(rest)} + (i32)({' + '.join(parts)})"

    @staticmethod
    def _names(p: LoopNest) -> set[str]:
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

    def print(self) -> CppText:
        """The kernel's two functions."""
        t, threads = self.text, ["i64 threads"] if self.sched.split else []
        params = [*self.params(), "i64 begin", "i64 end", "i32* err", *threads]
        t.open(f"static void {self.name}_part({', '.join(params)})")
        if self.raises:
            t.add("i32 fault = 0;")
        self.local_rows()
        self.fill_tables()
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
        """Declare the row-local buffers: small ones on the stack."""
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
        """(axis, its number of iterations as text) for the axes that threads share; of a blocked axis the number of blocks."""
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
        """The length of the range that threads share, as text."""
        steps = [n for _, n in self.cut_axes()]
        return " * ".join(f"({n})" if not n.isdigit() else n for n in steps) or "1"

    def outer_loops(self) -> None:
        """Loops over the kernel's axes, around its nests."""
        t, sched, axes = self.text, self.sched, self.kernel.axes
        if not axes and sched.parallel:  # threads share the first axis of the only nest
            self.print_nest(0, cut=sched.parallel[0])
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
            for i in range(len(self.kernel.nests)):
                self.split_nest() if i == 0 and sched.split else self.print_nest(i)
        for _ in range(opened):
            t.close()

    def blocks(self, axis: Axis) -> str:
        width = self.block_width()
        if isinstance(axis.size, int):
            return str(-(-axis.size // width))
        return f"(({self.index(axis.size)} + {width - 1}) / {width})"

    def block(self) -> None:
        """All nests over one block of the last outer axis. The width of a whole block is a constant for the C++ compiler."""
        t = self.text
        assert self.sched.block is not None
        axis, width = self.sched.block
        size = self.sizes[axis]
        t.add(f"const i64 {axis}_low = {axis}_block * {width};")
        whole = isinstance(size, int) and size % width == 0
        if whole:
            t.open("")
            t.add(f"const i64 width = {width};")
        else:
            t.open("auto nests = [&](const i64 width) __attribute__((always_inline))")
        for i in range(len(self.kernel.nests)):
            self.print_nest(i)
        t.close("}" if whole else "};")
        if not whole:
            rest = f"{self.index(size)} - {axis}_low"
            t.add(f"if ({rest} >= {width}) nests({width}); else nests({rest});")
