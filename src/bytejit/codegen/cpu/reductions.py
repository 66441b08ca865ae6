"""Reductions of a nest as C++: accumulators, steps, and how the results of lanes and threads are combined. Also the text that
a printer writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

from bytejit.codegen.cpu.accumulation import Sums, accumulator, emptied
from bytejit.codegen.emit import common
from bytejit.codegen.emit.text import Text
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.ir import Kernel, LoopNest, Reduce
from bytejit.codegen.loops.plan import NestSchedule, Schedule

from .expressions import IndexText, combine, identity


class CppText(Text):
    """A kernel's C++."""

    def add(self, line: str, comment: str = "") -> None:
        if line and not line.startswith("#"):
            super().add(line, comment)
        else:
            self.rows.append((line, comment))

    def open(self, line: str = "") -> None:
        self.add(f"{line} {{".lstrip())
        self.depth += 1

    def close(self, end: str = "}") -> None:
        self.depth -= 1
        self.add(end)


@dataclass
class NestState:
    """The loops of one nest: outermost first; inner: (axis, low text, high text) of the innermost, None when there
    is no loop."""

    p: LoopNest
    sched: NestSchedule
    names: list[str]
    sizes: dict[str, Any]
    lanes: int = 1  # partial results a reduction keeps; 1: one scalar
    block: tuple[str, str] | None = None  # (axis, width text) when the innermost is the kernel's blocked axis
    placed: tuple = ()
    far: tuple[Expr, ...] = field(default=())  # ops that have an `Op.far`
    sums: Sums = Sums()  # how its sums of floats are kept
    tabled: common.Tables = field(default_factory=common.Tables)


def narrow(r: Reduce, n: NestState, text: str) -> str:
    """The text of a reduction's accumulator, converted to the reduction's dtype."""
    return text if common.pair(r) or accumulator(r, n.sums) == r.dtype else f"({r.dtype}){text}"


class Reductions(ABC):
    """The part of a kernel's printer for reductions. ref_text: reduction -> the text of its result; refs: reduction -> the axes
    that the result depends on."""

    text: CppText
    kernel: Kernel
    sched: Schedule
    sizes: dict[str, Any]
    names: dict[int, str]
    ref_text: dict[str, str]
    refs: dict[str, frozenset[str]]
    index: IndexText
    counter: int
    last = ""  # in a step whose last lanes have no element: the text of whether a lane has one

    @abstractmethod
    def nest(self, i: int) -> NestState:
        """The loops of the i-th nest."""

    @abstractmethod
    def print_nest(self, i: int, cut: str | None = None) -> None:
        """Print the i-th nest. cut: the axis that runs from `begin` to `end`, not over its whole size."""

    def block_width(self) -> int:
        """The points of a block of a kernel that has a blocked axis."""
        assert self.sched.block is not None
        return self.sched.block[1]

    def start(self, r: Reduce, n: NestState) -> None:
        """Declare the accumulators of a reduction, set to its identity."""
        t, dtype = self.text, accumulator(r, n.sums)
        if n.block:
            length = self.block_width()
        elif n.lanes > 1:
            length = n.lanes
        else:
            t.add(f"{dtype} {r.name}{'_best' if common.pair(r) else ''} = {identity(r)};")
            if common.pair(r):
                t.add(f"i64 {r.name} = 9223372036854775807LL;")
            self.ref_text[r.name], self.refs[r.name] = narrow(r, n, r.name), self.refs.get(r.name, frozenset())
            return
        suffix = "_best" if common.pair(r) else ""
        tail = "" if n.block else "_part"
        t.add(f"alignas(64) {dtype} {r.name}{suffix}{tail}[{length}];")
        t.add(f"for (int k = 0; k < {length}; ++k) {r.name}{suffix}{tail}[k] = {identity(r)};")
        if common.pair(r):
            t.add(f"alignas(64) i64 {r.name}{tail}[{length}];")
            t.add(f"for (int k = 0; k < {length}; ++k) {r.name}{tail}[k] = 9223372036854775807LL;")
        self.start_wide(r, n, length)
        if n.block:
            self.ref_text[r.name] = narrow(r, n, f"{r.name}[{n.block[0]}_at]")
            self.refs[r.name] = self.refs.get(r.name, frozenset()) | {n.block[0]}

    # ---- long sums of floats ----------------------------------------------------------------------------------------
    def start_wide(self, r: Reduce, n: NestState, length: int) -> None:
        """Declare the `bj::Wide` that the `length` accumulators of a sum are emptied into."""
        if emptied(r, n.sums):
            self.text.add(f"bj::Wide<{r.dtype}, {length}> {r.name}_wide;")

    def empty(self, n: NestState, axis: str, periodic: bool = False) -> None:
        """Empty the accumulators of all sums, if that is done in the loop over `axis`. periodic: not in each of its
        iterations."""
        moves = [f"{r.name}_wide.take({self.accumulators(r, n)});" for r in n.p.reduces if emptied(r, n.sums)]
        if n.sums.axis == axis and moves:
            every = n.sums.every - 1
            self.text.add(f"{f'if (({axis} & {every}) == {every}) ' if periodic and every else ''}{{ {' '.join(moves)} }}")

    def accumulators(self, r: Reduce, n: NestState) -> str:
        """The address of a sum's accumulators."""
        return r.name if n.block else f"{r.name}_part"

    def finish_wide(self, r: Reduce, n: NestState) -> None:
        """The result of a sum whose accumulators were emptied."""
        place = self.accumulators(r, n)
        self.text.add(f"{r.name}_wide.take({place});")
        if n.block:
            self.text.add(f"{r.name}_wide.give({place});")
        else:
            self.text.add(f"const {r.dtype} {r.name} = {r.name}_wide.all();")
            self.ref_text[r.name], self.refs[r.name] = r.name, frozenset()

    def cell(self, r: Reduce, n: NestState, lane: str) -> tuple[str, str]:
        """(accumulator, its index for argmax) of one element."""
        at = f"[{n.block[0]}_at]" if n.block else f"_part[{lane}]" if n.lanes > 1 else ""
        return (f"{r.name}_best{at}", f"{r.name}{at}") if common.pair(r) else (f"{r.name}{at}", "")

    def step(self, r: Reduce, n: NestState, lane: str) -> None:
        into, where = self.cell(r, n, lane)
        values = [self.names[id(a)] for a in r.args]
        note = common.comment(r.where)
        if common.pair(r):
            self.better(r, into, where, values[0], values[1], note)
        else:
            value = values[0] if r.args[0].dtype == r.dtype else f"bj::to<{r.dtype}>({values[0]})"
            made = combine(r, into, value)
            self.text.add(f"{into} = {f'{self.last} ? ({made}) : {into}' if self.last else made};", note)

    def better(self, r: Reduce, into: str, where: str, value: str, at: str, note: str = "") -> None:
        name = f"w{self.counter}"
        self.counter += 1
        t, call = self.text, f"bj::arg_{r.kind[3:]}<{common.value_dtype(r)}>"
        t.add(f"const b8 {name} = {f'{self.last} & ' * bool(self.last)}{call}({value}, {at}, {into}, {where});", note)
        t.add(f"{into} = {name} ? {value} : {into};")
        t.add(f"{where} = {name} ? {at} : {where};")

    def finish(self, r: Reduce, n: NestState) -> None:
        """Combine the partial results of the lanes, sums and their like pairwise."""
        if emptied(r, n.sums):
            self.finish_wide(r, n)
            return
        if n.block or n.lanes == 1:
            return
        t, part = self.text, f"{r.name}_part"
        if common.pair(r):
            t.add(f"bj::best_lane<{n.lanes}, {str(r.kind == 'argmax').lower()}>({r.name}_best_part, {part});")
            t.add(f"const {r.dtype} {r.name} = {part}[0];")
        else:
            dtype = accumulator(r, n.sums)
            both = f"[]({dtype} a, {dtype} b) {{ return {combine(r, 'a', 'b')}; }}"
            t.add(f"const {r.dtype} {r.name} = bj::folded<{n.lanes}>({part}, {both});")
        self.ref_text[r.name], self.refs[r.name] = r.name, frozenset()

    # ---- few long rows, which threads share -----------------------------------------------------------------------
    def split_nest(self) -> None:
        """The first nest, with its first axis divided in `split` parts, which threads share. Each part has its own results. They
        are combined in order, so that the result does not depend on the number of threads that ran."""
        t, p, parts = self.text, self.kernel.nests[0], self.sched.split
        axis = self.sched.nests[0].order[0]
        for r in p.reduces:
            t.add(f"{accumulator(r, self.nest(0).sums)} {r.name}_of[{parts}];")
            if common.pair(r):
                t.add(f"i64 {r.name}_at_of[{parts}];")
        t.open(f"bj::parallel({parts}, 1, threads, [&](i64 first, i64 last)")
        t.open("for (i64 part = first; part < last; ++part)")
        t.add(f"const i64 begin = {self.index(self.sizes[axis])} * part / {parts};")
        t.add(f"const i64 end = {self.index(self.sizes[axis])} * (part + 1) / {parts};")
        self.print_nest(0, cut=axis)
        for r in p.reduces:
            if common.pair(r):
                best = f"{r.name}_best" if self.lanes_of(0) == 1 else f"{r.name}_best_part[0]"
                t.add(f"{r.name}_of[part] = {best}, {r.name}_at_of[part] = {r.name};")
            else:
                t.add(f"{r.name}_of[part] = {r.name};")
        t.close()
        t.close("});")
        for r in p.reduces:
            t.open(f"for (int k = 1; k < {parts}; ++k)")
            if common.pair(r):
                self.better(r, f"{r.name}_of[0]", f"{r.name}_at_of[0]", f"{r.name}_of[k]", f"{r.name}_at_of[k]")
            else:
                t.add(f"{r.name}_of[0] = {combine(r, f'{r.name}_of[0]', f'{r.name}_of[k]')};")
            t.close()
            t.add(f"const {r.dtype} {r.name} = {r.name}{'_at' if common.pair(r) else ''}_of[0];")
            self.ref_text[r.name], self.refs[r.name] = r.name, frozenset()

    def lanes_of(self, i: int) -> int:
        return self.nest(i).lanes
