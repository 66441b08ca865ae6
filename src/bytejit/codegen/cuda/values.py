"""Values, loads and stores of one kernel as Triton."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from bytejit.codegen.emit import common
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.ir import Axis, Buffer, LoopNest, Store
from bytejit.codegen.ops.table import OpTable

from .expressions import IndexText, constant, operation
from .function import TritonFunction
from .schedule import CudaSchedule, fits_i32
from .source import Arg


def size_text(size: Any) -> str:
    """A size as text: a number, or an expression over size symbols in parentheses."""
    text = IndexText({}, str, repr)(size)
    return text if isinstance(size, int) else f"({text})"


class Values(ABC):
    """The part of a kernel's printer for expressions. f: the function that is being written; masks: dim of its tile -> mask."""

    sched: CudaSchedule
    buffers: dict[str, Buffer]
    table: OpTable
    sizes: dict[str, Any]
    counter: int
    raises: bool
    rough: bool  # `rough_results.may_be_rough`
    f: TritonFunction
    dim_of: dict[str, str]
    masks: dict[str, str]
    dims_memo: dict[Any, frozenset[str]]
    index: IndexText
    space: tuple[Axis, ...] | None  # the inner axes of the nest that is printed
    locals: dict[str, tuple[str, Any, Any]]  # row-local buffer -> its place in scratch, elements, dtype

    @abstractmethod
    def axis(self, name: str) -> str:
        """The position along an axis."""

    @abstractmethod
    def joined(self, at: Any) -> Any:
        """The same index, axes that follow each other in a dim and in memory as one."""

    @abstractmethod
    def pointer(self, buffer: str) -> str:
        """The pointer to a buffer."""

    @abstractmethod
    def scratch_pointer(self, offset: Any, dtype: str) -> str:
        """A pointer into scratch."""

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
        """The dims that an index depends on, by its axes and by the values in it."""
        found = {self.dim_of[a] for a in common.axes_of(index)}
        for v in ix.values_in(ix.index(index)):
            found |= self.dims(v)
        return frozenset(found - {"z"})

    def mask_of(self, dims: frozenset[str], also: str = "") -> str:
        """The mask of a load or store that depends on some dims; "" when it needs none."""
        parts = [self.masks[d] for d in ("y", "x", "r") if d in dims and d in self.masks]
        return " & ".join([*parts, *([also] if also else [])])

    def key(self, e: Expr) -> Any:
        """The key under which a value's name is kept: with the inner axes, for a value that depends on them."""
        return e, self.space if "r" in self.dims(e) else None

    def value(self, e: Expr) -> str:
        """The name of a value; its statements are written first if they are missing."""
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
        """Write the statement of one value whose operands are written; returns its name or text."""
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
            text, note = operation(e, args, self.table, self.fault(e), self.rough), common.comment(e.where)
        name = self.fresh()
        self.f.text.add(f"{name} = {text}", note)
        return name

    def index_value(self, at: Any) -> str:
        """An index as a value, i64: its terms are i32 only where none of them, nor their sum, can leave that range."""
        if self.sched.wide or fits_i32(ix.index(at), self.sizes):
            return f"({self.index(at)}).to(tl.int64)"
        return IndexText(self.sizes, lambda name: f"{self.axis(name)}.to(tl.int64)", self.value)(at)

    def fault(self, e: Expr) -> str:
        """The arguments of an index check: the pointer to the fault word, the mask of the lanes that are checked."""
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
        text = self.element(at)
        return f"{self.pointer(buffer)} + ({text})" if " " in text else f"{self.pointer(buffer)} + {text}"

    def element(self, at: Any) -> str:
        """The number of an element in its buffer."""
        return self.index(self.joined(ix.index(at)))

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
    def stores(self, p: LoopNest, also: str = "") -> None:
        """The nest's stores. also: a further mask."""
        values = [(s, self.value(s.value), self.value(s.mask) if s.mask is not None else "") for s in p.stores]
        for s, value, guard in values:
            self.store(s, value, " & ".join(x for x in (guard, also) if x))

    def store(self, s: Store, value: str, guard: str) -> None:
        at = s.coords[0]
        dims = self.dims_in(at) | ({"x"} if s.buffer in self.locals else frozenset())
        needed = self.dims(s.value) | (self.dims(s.mask) if s.mask is not None else frozenset())
        if s.mode == "add":  # once for each point, also where place and value are the same for all
            needed |= self.tile_dims()
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

    def tile_dims(self) -> frozenset[str]:
        """The dims of a full tile."""
        if self.sched.mode == "points":
            return frozenset("x")
        if self.sched.mode == "tiles":
            return frozenset("xy")
        return frozenset("x" if self.block_name() is None else "xr")

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
        """The name of the block of the current nest's inner axes; None outside of one."""
        if self.space is None:
            return None
        at = self.sched.spaces.index(self.space)
        return f"R{at or ''}"
