"""One scheduled kernel as Triton functions: one a kernel, several for one that is split.

Values have the dims of what they depend on: a value that only depends on the row is [X, 1], one of the inner point alone
[1, R], of both [X, R]; a mask guards only the dims that a load depends on, and only where sizes do not divide.

    points    x[X] = program * X + lane
    tiles     y[Y, 1], x[1, X]; other axes are numbers of the program
    rows      x[X, 1] (a number where a program takes one row), r[1, R]: all of it, or a turn of a loop
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bytejit.codegen.emit import common
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.ir import Axis, Buffer, Call, Expr, Pass, Store, itemsize
from bytejit.codegen.ops.table import OpTable

from .expressions import IndexText, constant, operation
from .schedule import Tile, fits_i32
from .source import POINTERS, Arg, Config


class PyText:
    """Lines with an indent, and beside each the user's line, kept apart: equal code may come from different lines."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.depth = 1

    def add(self, line: str, comment: str = "") -> None:
        self.rows.append(("    " * self.depth + line, comment))

    def open(self, line: str) -> None:
        self.add(line)
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1

    def plain(self) -> str:
        """The code alone: what decides whether two kernels are one."""
        return "\n".join(line for line, _ in self.rows)

    def full(self) -> str:
        """The code with the user's lines."""
        return "\n".join(f"{line}  # {note}" if note else line for line, note in self.rows)


@dataclass
class Function:
    """One Triton function being written. params: what it is passed (name in the function -> Arg); names: what is
    computed already, by (expression, inner axes or None); refs: results of reductions, alike; laid: what holds the inner
    axes that were laid out already."""
    text: PyText = field(default_factory=PyText)
    params: dict[str, Arg] = field(default_factory=dict)
    names: dict[Any, str] = field(default_factory=dict)
    refs: dict[Any, str] = field(default_factory=dict)
    laid: dict[Any, Any] = field(default_factory=dict)
    tiles: tuple[Tile, ...] = ()
    configs: tuple[Config, ...] = ()


def size_text(size: Any) -> str:
    """A size as text: a number, or an expression over size symbols in parentheses."""
    text = IndexText({}, str, repr)(size)
    return text if isinstance(size, int) else f"({text})"


def product(axes: Iterable[Axis]) -> Any:
    """Points of a loop nest: an int, or an index."""
    n: Any = 1
    for a in axes:
        n = ix.size_of(ix.index(n) * a.size)
    return n


def ceil_div(n: Any, d: int) -> Any:
    """n / d rounded up: an int, or an index."""
    return -(-n // d) if isinstance(n, int) else ix.size_of(ix.floordiv(n + (d - 1), d, {}))


class Printer:
    """Prints one `Call`: here the values, and kernels without reductions; `emit_triton_rows` adds the others.
    functions: the results; scratch: bytes that they need."""

    def __init__(self, call: Call, buffers: dict[str, Buffer], table: OpTable) -> None:
        self.call, self.kernel, self.sched, self.buffers, self.table = call, call.kernel, call.schedule, buffers, table
        self.symbols = common.kernel_symbols(self.kernel)
        self.sizes = {a.name: a.size for p in self.kernel.passes for a in (*self.kernel.axes, *p.axes)}
        self.outer = {a.name for a in self.kernel.axes}
        self.functions: list[Function] = []
        self.scratch: Any = 0
        self.counter = 0
        self.raises = False
        self.f = Function()
        self.dim_of: dict[str, str] = {}
        self.axis_text: dict[str, str] = {}
        self.flat: dict[str, tuple[str, tuple[Axis, ...]]] = {}
        self.masks: dict[str, str] = {}
        self.space: tuple[Axis, ...] | None = None
        self.dims_memo: dict[Any, frozenset[str]] = {}
        self.index = IndexText(self.sizes, self.axis, self.position)
        self.locals: dict[str, tuple[str, Any, Any]] = {}

    def print(self) -> list[Function]:
        """The functions, in launch order; none for a kernel without points."""
        p = self.kernel.passes[0]
        if any(a.size == 0 for a in (*self.kernel.axes, *p.axes)):
            return []
        self.start()
        (self.points if self.sched.mode == "points" else self.square)(p)
        self.finish()
        return self.functions

    # ---- functions ------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Begin a function."""
        self.f = Function(tiles=self.sched.tiles)
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
            f.configs += (Config(blocks, tile.warps, tile.stages, (make(tile),)),)
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
        self.f.params[name] = Arg("buffer", buffer, POINTERS[b.dtype])
        return name

    def scratch_pointer(self, offset: Any, dtype: str) -> str:
        """A parameter for a place in the scratch block."""
        for name, arg in self.f.params.items():
            if arg.kind == "scratch" and arg.offset == offset and arg.type == POINTERS[dtype]:
                return name
        name = f"q{sum(a.kind == 'scratch' for a in self.f.params.values())}"
        self.f.params[name] = Arg("scratch", "", POINTERS[dtype], offset)
        return name

    def reserve(self, count: Any, dtype: str) -> Any:
        """Place in the scratch block for some elements. Units: bytes."""
        at, size = self.scratch, ix.size_of(ix.index(count) * itemsize(dtype))
        end = ix.index(at) + size + 63
        self.scratch = ix.size_of(ix.floordiv(end, 64, {}) * 64)
        return at

    def exact(self, size: Any, block: str) -> bool:
        """Whether every program's block is full. Other tiles than the first are dropped where they differ."""
        if not isinstance(size, int):
            return False
        if size == 0 or size % self.f.tiles[0][block]:
            return False
        self.f.tiles = tuple(t for t in self.f.tiles if size % t[block] == 0)
        return True

    # ---- axes -----------------------------------------------------------------------------------------------------
    def axis(self, name: str) -> str:
        """What holds an axis: the flat position of its dim, or its part of that."""
        if name not in self.axis_text:
            dim = self.dim_of[name]
            var, axes = self.flat[dim]
            at = [a.name for a in axes].index(name)
            below = product(axes[at + 1:])
            text = var if below == 1 else f"{var} // {size_text(below)}"
            if at:
                text = f"{text if below == 1 else f'({text})'} % {size_text(axes[at].size)}"
            if text == var:
                self.axis_text[name] = var
            else:
                self.axis_text[name] = self.fresh(name + "_")
                self.f.text.add(f"{self.axis_text[name]} = {text}")
        return self.axis_text[name]

    def set_dim(self, dim: str, var: str, axes: tuple[Axis, ...], mask: str | None) -> None:
        """The axes of a dim, the variable that holds its flat position, and its mask."""
        self.flat[dim] = var, axes
        for a in axes:
            self.dim_of[a.name] = dim
            self.axis_text.pop(a.name, None)
        self.masks.pop(dim, None)
        if mask:
            self.masks[dim] = mask

    def grid(self, tile: Tile) -> Any:
        """Programs of a `points` or `tiles` kernel."""
        axes = self.kernel.passes[0].axes
        if self.sched.mode == "points":
            return ceil_div(product(axes), tile["X"])
        n = ix.index(ceil_div(axes[-2].size, tile["Y"])) * ceil_div(axes[-1].size, tile["X"]) * product(axes[:-2])
        return ix.size_of(n)

    def points(self, p: Pass) -> None:
        """A stretch of the flat range of all axes."""
        n = product(p.axes)
        t = self.f.text
        t.add("x = pid * X + tl.arange(0, X)")
        if not self.exact(n, "X"):
            t.add(f"xm = x < {size_text(n)}")
            self.set_dim("x", "x", p.axes, "xm")
        else:
            self.set_dim("x", "x", p.axes, None)
        self.stores(p)

    def square(self, p: Pass) -> None:
        """A square of the last two axes; the others are fixed for a program."""
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

    # ---- values ---------------------------------------------------------------------------------------------------
    def fresh(self, prefix: str = "t") -> str:
        self.counter += 1
        return f"{prefix}{self.counter - 1}"

    def dims(self, e: Expr) -> frozenset[str]:
        """The dims a value depends on."""
        for node in common.walk((e,)):
            key = (node, self.space)
            if key in self.dims_memo:
                continue
            found = frozenset().union(*(self.dims_memo[a, self.space] for a in node.needs), frozenset())
            if node.kind == "load":
                found = found.union(*(self.dims_in(c) for c in node.attr))
            elif node.kind == "index":
                found |= self.dims_in(node.attr)
            elif node.kind == "ref":
                running = self.space is not None and (node.name, self.space) in self.f.refs
                found |= {"x", "r"} if running else {"x"}
            self.dims_memo[key] = found
        return self.dims_memo[e, self.space]

    def dims_in(self, index: Any) -> frozenset[str]:
        """The dims of an index's axes, and of the values in it."""
        found = {self.dim_of[a] for a in common.axes_of(index)}
        for v in ix.values_in(ix.index(index)):
            found |= self.dims(v)
        return frozenset(found - {"z"})

    def mask_of(self, dims: frozenset[str], also: str = "") -> str:
        """The mask of a load or store that depends on some dims; "" when it needs none."""
        parts = [self.masks[d] for d in ("y", "x", "r") if d in dims and d in self.masks]
        return " & ".join([*parts, *([also] if also else [])])

    def key(self, e: Expr) -> Any:
        """Where a value's name is kept: a value of the inner axes only means something over those axes."""
        return e, self.space if "r" in self.dims(e) else None

    def value(self, e: Expr) -> str:
        """The name of a value; its statements are written where they are missing."""
        key = self.key(e)
        if key not in self.f.names:
            for node in common.walk((e,)):
                if self.key(node) not in self.f.names:
                    self.f.names[self.key(node)] = self.statement(node)
        return self.f.names[key]

    def position(self, e: Expr) -> str:
        """A value read from memory, as a term of an index."""
        return self.value(e) if self.sched.wide else f"{self.value(e)}.to(tl.int32)"

    def statement(self, e: Expr) -> str:
        """Write the statement of one value whose operands are there; answer its name or text."""
        if e.kind == "const":
            return constant(e.attr, e.dtype)
        if e.kind == "ref":
            name = self.f.refs.get((e.name, self.space))
            return name if name is not None else self.f.refs[e.name, None]
        if e.kind == "index":
            text, note = self.index_value(e.attr), ""
        elif e.kind == "load":
            text, note = self.load(e), common.comment(e.where)
        else:
            args = [self.value(a) for a in e.args]
            text, note = operation(e, args, self.table, self.fault(e)), common.comment(e.where)
        name = self.fresh()
        self.f.text.add(f"{name} = {text}", note)
        return name

    def index_value(self, at: Any) -> str:
        """An index as a value, i64: its terms are i32 only where none of them, nor their sum, can leave that range."""
        if self.sched.wide or fits_i32(ix.index(at), self.sizes):
            return f"({self.index(at)}).to(tl.int64)"
        return IndexText(self.sizes, lambda name: f"{self.axis(name)}.to(tl.int64)", self.value)(at)

    def fault(self, e: Expr) -> str:
        """The arguments of an index check: where the fault goes, which lanes count."""
        if e.name not in ("bound", "inside"):
            return "0"
        self.raises = True
        self.f.params["fault"] = Arg("fault", "", "*i32")
        return f"fault, {self.mask_of(self.dims(e)) or 'True'}"

    def place(self, buffer: str, at: Any) -> str:
        """Pointer to an element."""
        if buffer in self.locals:
            pointer, stride = self.scratch_pointer(self.locals[buffer][0], self.buffers[buffer].dtype), self.locals[buffer][1]
            return f"{pointer} + x * {size_text(stride)} + {self.index(at)}"
        text = self.index(at)
        return f"{self.pointer(buffer)} + ({text})" if " " in text else f"{self.pointer(buffer)} + {text}"

    def load(self, e: Expr) -> str:
        at = e.attr[0]
        dims = self.dims_in(at) | ({"x"} if e.name in self.locals else frozenset())
        place = self.place(e.name, at)
        if e.mask is None:
            mask = self.mask_of(dims)
            return f"tl.load({place}, {mask})" if mask else f"tl.load({place})"
        mask = self.mask_of(dims | self.dims(e.mask), self.value(e.mask))
        if not dims >= self.dims(e.mask):
            place = f"({place}) + tl.zeros_like({self.value(e.mask)}).to(tl.int32)"
        return f"tl.load({place}, {mask}, other=0)"

    # ---- stores ---------------------------------------------------------------------------------------------------
    def stores(self, p: Pass, also: str = "") -> None:
        """The pass's stores. also: a further mask."""
        values = [(s, self.value(s.value), self.value(s.mask) if s.mask is not None else "") for s in p.stores]
        for s, value, guard in values:
            self.store(s, value, " & ".join(x for x in (guard, also) if x))

    def store(self, s: Store, value: str, guard: str) -> None:
        at = s.coords[0]
        dims = self.dims_in(at) | ({"x"} if s.buffer in self.locals else frozenset())
        needed = self.dims(s.value) | (self.dims(s.mask) if s.mask is not None else frozenset())
        place = self.place(s.buffer, at)
        if not dims >= needed and not (self.sched.mode != "points" and self.sched.single and needed - dims <= {"x"}):
            place = f"tl.broadcast_to({place}, {self.tile_shape()})"
            value = f"tl.broadcast_to({value}, {self.tile_shape()})"
            dims = dims | needed
        mask = self.mask_of(dims, guard)
        note = common.comment(s.where or s.value.where)
        tail = f", mask={mask}" if mask else ""
        if s.mode == "add":
            self.f.text.add(f'tl.atomic_add({place}, {value}{tail}, sem="relaxed")', note)
        else:
            self.f.text.add(f"tl.store({place}, {value}{tail})", note)

    def tile_shape(self) -> str:
        """Shape of a full tile."""
        if self.sched.mode == "points":
            return "[X]"
        if self.sched.mode == "tiles":
            return "[Y, X]"
        block = self.block_name()
        if block is None:
            return "()" if self.sched.single else "[X, 1]"
        return f"[{block}]" if self.sched.single else f"[X, {block}]"

    def block_name(self) -> str | None:
        """Name of the block of the present inner axes."""
        if self.space is None:
            return None
        at = self.sched.spaces.index(self.space)
        return f"R{at or ''}"

