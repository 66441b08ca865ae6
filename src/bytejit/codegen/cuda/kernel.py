"""One scheduled kernel as Triton functions: one function, or several for a kernel that is split.

A value has the dims that it depends on: a value that depends on the row only is [X, 1], on the inner point only [1, R], on both
[X, R]. A load is masked along the dims that it depends on, and only where the block does not divide the size.

    points    x[X] = program * X + lane
    tiles     y[Y, 1], x[1, X]; other axes are numbers of the program
    rows      x[X, 1] (a scalar where a program takes one row), r[1, R]: the whole row, or one iteration of a loop over it
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bytejit.codegen.cuda.function import TritonFunction
from bytejit.codegen.cuda.tiles import Tile
from bytejit.codegen.emit import common
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.ir import Axis, Buffer, LoopNest
from bytejit.codegen.loops.plan import Call
from bytejit.codegen.ops.table import OpTable
from bytejit.common.dtypes import DTYPES, itemsize

from .expressions import IndexText
from .rough_results import may_be_rough
from .schedule import CudaSchedule
from .source import Arg, LaunchConfig
from .values import Values, size_text

JOINED = "_to_"  # between the names of the first and the last of several axes that are one


def product(axes: Iterable[Axis]) -> Any:
    """Number of points of a loop nest: an int, or an index over symbols."""
    n: Any = 1
    for a in axes:
        n = ix.size_of(ix.index(n) * a.size)
    return n


def ceil_div(n: Any, d: int) -> Any:
    """n / d rounded up: an int, or an index over symbols."""
    return -(-n // d) if isinstance(n, int) else ix.size_of(ix.floordiv(n + (d - 1), d, {}))


class Printer(Values):
    """Prints one `Call`: here the values, and kernels without reductions; `rows.py` and `looped.py` add the others.
    functions: the printed ones; scratch: bytes that they need."""

    def __init__(self, call: Call, buffers: dict[str, Buffer], table: OpTable) -> None:
        assert isinstance(call.schedule, CudaSchedule)
        self.call, self.kernel, self.sched, self.buffers, self.table = call, call.kernel, call.schedule, buffers, table
        self.symbols = common.kernel_symbols(self.kernel)
        self.sizes = {a.name: a.size for p in self.kernel.nests for a in (*self.kernel.axes, *p.axes)}
        self.outer = {a.name for a in self.kernel.axes}
        self.functions: list[TritonFunction] = []
        self.scratch: Any = 0
        self.counter = 0
        self.raises = False
        self.rough = may_be_rough(self.kernel, buffers)
        self.f = TritonFunction()
        self.dim_of: dict[str, str] = {}
        self.axis_text: dict[str, str] = {}
        self.flat: dict[str, tuple[str, tuple[Axis, ...]]] = {}
        self.masks: dict[str, str] = {}
        self.space: tuple[Axis, ...] | None = None
        self.dims_memo: dict[Any, frozenset[str]] = {}
        self.index = IndexText(self.sizes, self.axis, self.position)
        self.locals: dict[str, tuple[str, Any, Any]] = {}

    def print(self) -> list[TritonFunction]:
        """The functions, in launch order; none for a kernel without points."""
        p = self.kernel.nests[0]
        if any(a.size == 0 for a in (*self.kernel.axes, *p.axes)):
            return []
        self.start()
        (self.points if self.sched.mode == "points" else self.square)(p)
        self.finish()
        return self.functions

    # ---- functions ------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin to print a function."""
        self.f = TritonFunction(tiles=self.sched.tiles)
        self.axis_text, self.flat, self.masks, self.dim_of, self.dims_memo = {}, {}, {}, {}, {}
        self.space = None
        wide = ".to(tl.int64)" if self.sched.wide else ""
        self.f.text.add(f"pid = tl.program_id(0){wide}")

    def finish(self, grid: Any = None, constants: tuple[str, ...] | None = None) -> None:
        """End a function. grid(tile): its number of programs."""
        f = self.f
        wanted = constants or tuple(n for n, _ in f.tiles[0].blocks)
        make = grid or self.grid
        for tile in f.tiles:
            blocks = tuple((n, v) for n, v in tile.blocks if n in wanted)
            f.configs += (LaunchConfig(blocks, tile.warps, tile.stages, (make(tile),)),)
        f.configs = tuple(dict.fromkeys(f.configs))
        order = {"buffer": 0, "scratch": 1, "size": 2, "fault": 3}
        for s in self.symbols:
            f.params.setdefault(f"s_{s}", Arg("size", s, "i64"))
        f.params = dict(sorted(f.params.items(), key=lambda p: order[p[1].kind]))
        self.functions.append(f)

    def pointer(self, buffer: str) -> str:
        """A buffer's parameter, named in order of first use."""
        b = self.buffers[buffer]
        for name, arg in self.f.params.items():
            if arg.kind == "buffer" and arg.name == buffer:
                return name
        name = f"p{sum(a.kind == 'buffer' for a in self.f.params.values())}"
        self.f.params[name] = Arg("buffer", buffer, DTYPES[b.dtype].pointer)
        return name

    def scratch_pointer(self, offset: Any, dtype: str) -> str:
        """A parameter for a place in the scratch block."""
        for name, arg in self.f.params.items():
            if arg.kind == "scratch" and arg.offset == offset and arg.type == DTYPES[dtype].pointer:
                return name
        name = f"q{sum(a.kind == 'scratch' for a in self.f.params.values())}"
        self.f.params[name] = Arg("scratch", "", DTYPES[dtype].pointer, offset)
        return name

    def reserve(self, count: Any, dtype: str) -> Any:
        """Reserves `count` elements of the scratch block. Returns their offset. Units: bytes."""
        at, size = self.scratch, ix.size_of(ix.index(count) * itemsize(dtype))
        end = ix.index(at) + size + 63
        self.scratch = ix.size_of(ix.floordiv(end, 64, {}) * 64)
        return at

    def exact(self, size: Any, block: str) -> bool:
        """Whether the block of every program is full, so that no mask is needed. Alternative tiles for which this differs from
        the first are dropped."""
        if not isinstance(size, int):
            return False
        if size == 0 or size % self.f.tiles[0][block]:
            return False
        self.f.tiles = tuple(t for t in self.f.tiles if size % t[block] == 0)
        return True

    # ---- axes -----------------------------------------------------------------------------------------------------
    def axis(self, name: str) -> str:
        """The text of an axis: the variable of its dim, or a quotient and remainder of it where a dim has several axes."""
        if name not in self.axis_text:
            first, _, last = name.partition(JOINED)
            var, axes = self.flat[self.dim_of[first]]
            names = [a.name for a in axes]
            at, end = names.index(first), names.index(last or first) + 1
            below = product(axes[end:])
            text = var if below == 1 else f"{var} // {size_text(below)}"
            if at:
                text = f"{text if below == 1 else f'({text})'} % {size_text(product(axes[at:end]))}"
            if text == var:
                self.axis_text[name] = var
            else:
                self.axis_text[name] = self.fresh(name + "_")
                self.f.text.add(f"{self.axis_text[name]} = {text}")
        return self.axis_text[name]

    def joined(self, at: ix.Index) -> ix.Index:
        """The index with the flat position in place of the axes that it is made of, where that is the same: the compiler
        moves 16 bytes a lane for `x`, but not for `96 * (x // 96) + x % 96`."""
        for _, axes in self.flat.values():
            step, n = at.coefficient(axes[-1].name) if axes else 0, len(axes) - 1
            if not isinstance(step, int) or not step:
                continue
            while n and ix.index(at.coefficient(axes[n - 1].name)) == ix.index(product(axes[n:])) * step:
                n -= 1
            if n < len(axes) - 1:
                apart = sum((ix.var(a.name) * at.coefficient(a.name) for a in axes[n:]), ix.index(0))
                at = at - apart + ix.var(f"{axes[n].name}{JOINED}{axes[-1].name}") * step
        return at

    def forget(self, axes: Iterable[str]) -> None:
        """Forget the positions along these axes: they are printed again where they are needed."""
        gone = set(axes)
        self.axis_text = {name: text for name, text in self.axis_text.items() if name.partition(JOINED)[0] not in gone}

    def set_dim(self, dim: str, var: str, axes: tuple[Axis, ...], mask: str | None) -> None:
        """Note the axes of a dim. var: the variable that holds their flat position; mask: which positions exist."""
        self.flat[dim] = var, axes
        for a in axes:
            self.dim_of[a.name] = dim
        self.forget(a.name for a in axes)
        self.masks.pop(dim, None)
        if mask:
            self.masks[dim] = mask

    def grid(self, tile: Tile) -> Any:
        """The number of programs of a `points` or `tiles` kernel."""
        axes = self.kernel.nests[0].axes
        if self.sched.mode == "points":
            return ceil_div(product(axes), tile["X"])
        n = ix.index(ceil_div(axes[-2].size, tile["Y"])) * ceil_div(axes[-1].size, tile["X"]) * product(axes[:-2])
        return ix.size_of(n)

    def points(self, p: LoopNest) -> None:
        """Print a kernel in which a program takes consecutive points of the flat range of all axes."""
        n = product(p.axes)
        t = self.f.text
        t.add("x = pid * X + tl.arange(0, X)")
        if not self.exact(n, "X"):
            t.add(f"xm = x < {size_text(n)}")
            self.set_dim("x", "x", p.axes, "xm")
        else:
            self.set_dim("x", "x", p.axes, None)
        self.stores(p)

    def square(self, p: LoopNest) -> None:
        """Print a kernel in which a program takes a rectangle of the last two axes, at one position of the other axes."""
        *rest, ya, xa = p.axes
        t = self.f.text
        t.add(f"across = tl.cdiv({size_text(xa.size)}, X)")
        t.add(f"down = tl.cdiv({size_text(ya.size)}, Y)")
        t.add("x = pid % across * X + tl.arange(0, X)[None, :]")
        t.add("y = pid // across % down * Y + tl.arange(0, Y)[:, None]")
        for dim, a, block in (("x", xa, "X"), ("y", ya, "Y")):
            mask = None if self.exact(a.size, block) else f"{dim}m"
            if mask:
                t.add(f"{mask} = {dim} < {size_text(a.size)}")
            self.set_dim(dim, dim, (a,), mask)
        if rest:
            t.add("z = pid // (across * down)")
            self.set_dim("z", "z", tuple(rest), None)
        self.stores(p)
