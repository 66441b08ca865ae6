"""The innermost loop of a scan. Element by element; or a chunk of elements at a time, for sums of exponentials of f32, and for
sums and products of f32 beside costly functions: what is added up and what reads the running values are then vector code, and so
are exponentials and logarithms (`bj::logsum_row`). Other reductions of such a nest read a chunk from a row of their own."""

from __future__ import annotations

from abc import abstractmethod

from bytejit.codegen.emit import common
from bytejit.codegen.loops.expr import Expr, walk
from bytejit.codegen.loops.ir import Reduce
from bytejit.codegen.loops.simplify import cost

from .accumulation import accumulator
from .lane_loops import LaneLoops, least
from .reductions import NestState, combine

CHUNK = 64  # elements: `bj::LOGSUMS` of kernels/prelude/math_f64.h
COSTLY = 8  # additions an element, from which on vectors are worth the way through memory
SHORT = 16  # elements of a row: of fewer there is no chunk


def readers(n: NestState) -> tuple[Expr, ...]:
    """What reads the running values of a nest's scan, or stands beside it: what is stored, and operands of other reductions."""
    stored = (e for s in n.p.stores for e in s.roots())
    return (*stored, *(a for r in n.p.reduces if not r.running for a in r.args))


class ScanLoops(LaneLoops):
    """The part of a kernel's printer for scans."""

    @abstractmethod
    def statement(self, n: NestState, e: Expr, far: bool) -> None:
        """Print one expression."""

    @abstractmethod
    def stores(self, n: NestState) -> None:
        """Print the stores of a nest."""

    def scan_body(self, n: NestState, depth: int, far: bool) -> None:
        """The statements of a nest with scans: for each scan its operands, then its step; then what reads the running values."""
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

    def in_chunks(self, n: NestState, low: str) -> bool:
        """Whether a nest has one scan of f32 along its innermost axis: of exponentials, or beside costly functions; what else it
        reduces are numbers."""
        scans = [r for r in n.p.reduces if r.running]
        others = [r for r in n.p.reduces if not r.running]
        if n.block or n.far or low != "0" or len(scans) != 1 or any(s.mode != "set" for s in n.p.stores):
            return False
        [r] = scans
        if r.dtype != "f32" or accumulator(r, n.sums) != "f64" or any(map(common.pair, others)):
            return False
        size = n.p.axes[-1].size if n.p.axes else 0
        if r.kind == "logsum" or isinstance(size, int) and size < SHORT:
            return r.kind == "logsum"
        return cost((*r.args, *readers(n))) >= COSTLY

    def scan_chunks(self, n: NestState, axis: str, end: str) -> None:
        """Such a loop."""
        [r] = [r for r in n.p.reduces if r.running]
        others = [other for other in n.p.reduces if other is not r]
        t, row, saved = self.text, f"{r.name}_row", dict(self.names)
        t.open(f"for (i64 low = 0; low < {end}; low += {CHUNK})")
        t.add(f"const i64 high = {least(f'low + {CHUNK}', end)};")
        for one in (r, *others):
            t.add(f"alignas(64) {accumulator(one, n.sums)} {one.name}_row[{CHUNK}];")
        for roots in (r.args, readers(n)):
            self.vectorized()
            t.open(f"for (i64 {axis} = low; {axis} < high; ++{axis})")
            if roots is not r.args:
                t.add(f"const f64 {r.name} = {row}[{axis} - low];")
            wanted = {id(e) for e in walk(roots)}
            for x in n.placed:
                if x.depth == len(n.names) and id(x.expr) in wanted:
                    self.statement(n, x.expr, False)
            for one in (r,) if roots is r.args else others:
                t.add(f"{one.name}_row[{axis} - low] = {self.names[id(one.args[0])]};", common.comment(one.where))
            if roots is not r.args:
                self.stores(n)
            t.close()
            if roots is r.args:
                self.chunk_step(r, row)
            self.names.clear()
            self.names.update(saved)
        for one in others:
            self.chunk_result(one, accumulator(one, n.sums))
        t.close()

    def chunk_result(self, r: Reduce, dtype: str) -> None:
        """Adds what a chunk has of a reduction to its result. A sum of doubles is taken in lanes."""
        step = f"for (i64 c = 0; c < high - low; ++c) {r.name}{{}} = {combine(r, f'{r.name}{{}}', f'{r.name}_row[c]')};"
        if r.kind != "sum" or dtype != "f64":
            self.text.add(step.format("", ""))
            return
        self.text.add(f"f64 {r.name}_part = 0;")
        self.text.add(f"#pragma omp simd reduction(+ : {r.name}_part)")
        self.text.add(step.format("_part", "_part"))
        self.text.add(f"{r.name} = {r.name} + {r.name}_part;")

    def chunk_step(self, r: Reduce, row: str) -> None:
        """The running values of a chunk, in place."""
        if r.kind == "logsum":
            self.text.add(f"{r.name} = bj::logsum_row({r.name}, {row}, high - low);")
        elif r.kind == "sum":
            self.text.add(f"{r.name} = bj::sum_row({r.name}, {row}, high - low);")
        else:
            self.text.add(f"for (i64 c = 0; c < high - low; ++c) {row}[c] = {r.name} = {combine(r, r.name, f'{row}[c]')};")
