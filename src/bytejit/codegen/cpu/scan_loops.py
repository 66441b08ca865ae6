"""The innermost loop of a scan. Element by element; or, for sums of exponentials of f32, a chunk of elements at a time: what is
added up and what reads the running values are then vector code, and so are exponentials and logarithms (`bj::logsum_row`)."""

from __future__ import annotations

from abc import abstractmethod

from bytejit.codegen.emit import common
from bytejit.codegen.loops.expr import Expr, walk

from .accumulation import accumulator
from .lane_loops import LaneLoops, least
from .reductions import NestState

CHUNK = 64  # elements: `bj::LOGSUMS` of kernels/prelude/math_f64.h


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
        """Whether a nest is one sum of exponentials of f32 along its innermost axis."""
        if n.block or n.far or low != "0" or len(n.p.reduces) != 1 or any(s.mode != "set" for s in n.p.stores):
            return False
        [r] = n.p.reduces
        return r.running and r.kind == "logsum" and r.dtype == "f32" and accumulator(r, n.sums) == "f64"

    def scan_chunks(self, n: NestState, axis: str, end: str) -> None:
        """Such a loop."""
        [r] = n.p.reduces
        t, row, saved = self.text, f"{r.name}_row", dict(self.names)
        t.open(f"for (i64 low = 0; low < {end}; low += {CHUNK})")
        t.add(f"const i64 high = {least(f'low + {CHUNK}', end)};")
        t.add(f"alignas(64) f64 {row}[{CHUNK}];")
        for roots in (r.args, tuple(e for s in n.p.stores for e in s.roots())):
            self.vectorized()
            t.open(f"for (i64 {axis} = low; {axis} < high; ++{axis})")
            if roots is not r.args:
                t.add(f"const f64 {r.name} = {row}[{axis} - low];")
            wanted = {id(e) for e in walk(roots)}
            for x in n.placed:
                if x.depth == len(n.names) and id(x.expr) in wanted:
                    self.statement(n, x.expr, False)
            if roots is r.args:
                t.add(f"{row}[{axis} - low] = {self.names[id(r.args[0])]};", common.comment(r.where))
            else:
                self.stores(n)
            t.close()
            if roots is r.args:
                t.add(f"{r.name} = bj::logsum_row({r.name}, {row}, high - low);")
            self.names.clear()
            self.names.update(saved)
        t.close()
