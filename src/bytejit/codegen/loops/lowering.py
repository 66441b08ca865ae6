"""The interface of op rows for lowering: buffers, axes, loads, casts, kernels, views and extern calls."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from bytejit.codegen.loops.expr import Cons, Expr
from bytejit.codegen.ops.calls import stays
from bytejit.codegen.ops.table import Op, table
from bytejit.common.dtypes import DTYPES, FLOATS, NARROW, acc_dtype, torch_dtype
from bytejit.common.errors import Bug
from bytejit.common.spec import Spec, contiguous_stride

from . import index as ix
from .contraction import contracted, is_sum_of_product
from .index import Index, Sym, Val, var
from .ir import Axis, Buffer, Extern, Kernel, LoopNest, Reduce, Store, View
from .simplify import may_raise_itself
from .sizes import Real
from .value import Value, ir_dtype, number_dtype


class NoRule(Exception):
    """A row cannot lower this use of its op (an argument or a dtype that it does not cover): the op becomes an extern call.
    The message says why."""


class LibraryIsBetter(NoRule):
    """A row leaves this use of its op to a library, whose kernel is faster and covers it."""


def dims_of(shape: tuple) -> tuple[tuple[Index, ...], dict[str, Any]]:
    """The coordinates d0, d1, ... of a shape (0 where the size is 1) and their sizes."""
    coords = tuple(ix.ZERO if s == 1 else var(f"d{i}") for i, s in enumerate(shape))
    return coords, {f"d{i}": s for i, s in enumerate(shape)}


class Lowering:
    """The state of one lowering. The `lower` functions of rows build through its methods."""

    def __init__(self) -> None:
        self.cons = Cons()
        self.buffers: dict[str, Buffer] = {}
        self.steps: list[Kernel | Extern] = []
        self.sizes: dict[str, Any] = {}  # of every axis made
        self.inputs: list[str | None] = []
        self.symbols: dict[str, int] = {}  # symbol -> the input that is its value
        self.reals: dict[str, Sym] = {}  # text of a symbolic float -> the symbol that is its bits
        self.row: tuple[str, tuple[str, ...]] = "", ()  # the buffer that holds symbolic floats, and their texts
        self.counts: dict[str, int] = {}
        self.where: Any = None
        self.node: Any = None
        self.home = "cpu"  # the device that kernels run on; ops on other devices run through torch
        self.checks: dict[int, Expr] = {}  # the checks of indices, by id
        self.written: frozenset = frozenset()  # nodes whose values are written into an input
        self.lineage: dict[tuple, str] = {}  # (partly written buffer, map that it was written through) -> what it was before
        self.shared: set[str] = set()  # results of extern calls that lie in the memory of an operand
        self.brought: dict[Value, Value] = {}  # 0-dim tensors on the CPU -> their copies on the device `home`

    # ---- names, buffers -------------------------------------------------------------------------------------------
    def name(self, kind: str) -> str:
        """The next name of a kind: b0, b1, ..."""
        n = self.counts.get(kind, 0)
        self.counts[kind] = n + 1
        return f"{kind}{n}"

    def buffer(
        self,
        shape: tuple,
        dtype: str,
        stride: tuple | None = None,
        kind: str = "temp",
        device: str | None = None,
        name: str | None = None,
    ) -> Buffer:
        """A new buffer, contiguous unless told."""
        device = device or self.device()
        new = Buffer(
            name or self.name("b"),
            tuple(shape),
            tuple(stride or contiguous_stride(shape)),
            dtype,
            kind,
            device,
            self.where,
        )
        self.buffers[new.name] = new
        return new

    def device(self) -> str:
        """The device of the node being lowered: its results', or its operands' where it returns no tensor."""
        return str(device_of(self.node) or "cpu")

    def spec(self, i: int | None = None) -> Spec:
        """Spec of the node being lowered, or of its i-th result."""
        spec = self.node.meta["spec"]
        return spec if i is None else spec[i]

    def specs(self) -> tuple[Spec, ...]:
        """Specs of the results of the node being lowered, which has several."""
        return tuple(self.node.meta["spec"])

    def used(self, i: int) -> bool:
        """Whether anyone reads the i-th result of the node being lowered."""
        return any(u.target is not operator.getitem or u.args[1] == i for u in self.node.users)

    # ---- axes and loads ---------------------------------------------------------------------------------------------
    def axes(self, shape: tuple, kind: str = "parallel") -> tuple[tuple[Axis, ...], tuple[Index, ...]]:
        """Fresh axes over a shape and the coordinates; dims of size 1 have no axis and coordinate 0."""
        axes, coords = [], []
        for size in shape:
            if size == 1:
                coords.append(ix.ZERO)
                continue
            axis = Axis(self.name("a"), size, kind)
            self.sizes[axis.name] = size
            axes.append(axis)
            coords.append(var(axis.name))
        return tuple(axes), tuple(coords)

    def load(self, v: Value, coords: tuple, mask: Expr | None = None) -> Expr:
        """The element of v at coordinates of v's own shape, as stored."""
        own = coords
        if v.map is not None:
            axes = {f"d{i}": c for i, c in enumerate(coords)}
            own = tuple(ix.substitute(m, axes, self.sizes) for m in v.map)
        if self.checks:
            buffer = self.buffers[v.buffer]
            mask = with_checks(
                self, coords, tuple(c for c, n, s in zip(own, buffer.shape, buffer.stride) if s != 0 and n != 1), mask
            )
        return self.cons.load(v.buffer, own, v.dtype, mask, self.where)

    def read(
        self, v: Value | bool | int | float | complex, coords: tuple, dtype: str | None = None, mask: Expr | None = None
    ) -> Expr:
        """The element at `coords` after broadcasting, converted to `dtype` (default: the dtype that elements of v are computed
        in)."""
        if not isinstance(v, Value):
            return self.const(v, dtype or number_dtype(v))
        coords = coords[len(coords) - len(v.shape) :]
        own = tuple(ix.ZERO if s == 1 else c for s, c in zip(v.shape, coords))
        if self.checks:
            mask = with_checks(self, coords, own, mask)
        return self.cast(self.load(v, own, mask), dtype or acc_dtype(v.dtype))

    def const(self, value: bool | int | float | complex | Index | Real, dtype: str) -> Expr:
        """A constant, rounded to the dtype. A size or float that is known only at the call is computed there. Raises: NoRule."""
        if isinstance(value, Index):
            return self.cast(self.cons.index(value, self.where), dtype)
        if isinstance(value, Real):
            return self.cast(self.real(value), dtype)
        if isinstance(value, complex):
            raise NoRule(f"the complex number {value}")
        value = float(value) if dtype in FLOATS else bool(value) if dtype == "b8" else int(value)
        return self.cons.const(value, dtype)

    def real(self, value: Real) -> Expr:
        """A symbolic float: an element of the tensor that holds such floats (`self.row`), else its bits are passed as a size
        symbol, which Python computes at the call."""
        buffer, texts = self.row
        if value.text in texts and self.device() == self.home:
            return self.cons.load(buffer, (ix.index(texts.index(value.text)),), "f64", None, self.where)
        if value.text not in self.reals:
            self.reals[value.text] = Sym(f"r{len(self.reals)}", 0, -ix.inf, f"bits_of({value.text})")
        return self.op("real_of_bits", self.cons.index(ix.index(self.reals[value.text]), self.where), dtype="f64")

    def cast(self, e: Expr, dtype: str) -> Expr:
        """e as dtype: nothing, a constant, or `to`."""
        if e.dtype == dtype:
            return e
        if e.kind == "const" and dtype not in NARROW:
            return self.const(e.attr, dtype)
        return self.cons.op("to", (e,), dtype, self.where)

    def finish(self, e: Expr, dtype: str) -> Expr:
        """e as it is stored in `dtype`: results computed in f32 for f16 and bf16 are narrowed."""
        if dtype in NARROW and e.dtype == "f32":
            return self.cons.op("narrow", (e,), dtype, self.where)
        return self.cast(e, dtype)

    def rounded(self, e: Expr, dtype: str) -> Expr:
        """e (a constant or a loaded value) rounded to f16 or bf16 and converted to f32. It is still rounded when the op that
        computes the loaded value is fused with this one."""
        if e.kind == "const":
            return self.const(torch.tensor(e.attr, dtype=torch_dtype(dtype)).item(), "f32")
        return self.cast(self.cast(e, dtype), "f32")

    def op(self, name: str, *args: Expr, dtype: str | None = None, attr: Any = None) -> Expr:
        """The op of a row. dtype: default the first operand's, b8 for comparisons. Raises: NoRule for a function of floats with
        integer operands: torch has no such op, and its own call raises torch's error."""
        rule = table().by_name[name].dtype
        if rule == "float" and args[0].dtype not in FLOATS:
            raise NoRule(f"{name} of {args[0].dtype}")
        if dtype is None:
            dtype = "b8" if rule == "bool" else args[0].dtype
        made = self.cons.op(name, args, dtype, self.where, attr)
        if is_sum_of_product(made) and self.device() != "cpu":
            made = contracted(self.cons, made)
        if may_raise_itself(made) and not stays(self.node):
            raise Bug(f"{name}, which may raise, in the row of {self.node.target}, which does not say `refuses`")
        return made

    def bound(self, e: Expr, size: Any, label: str, wrap: bool = True) -> Index:
        """An integer that is read from memory, as a coordinate of a dim of `size`. It is checked. wrap: a negative one counts
        from the end; else it is an error. Raises: NoRule for a dim without elements, as the first element is read where the
        check fails."""
        if isinstance(size, int) and size == 0:
            raise NoRule("an index into a dimension of size 0")
        e = self.cast(e, "i64")
        limit = self.const(size, "i64")
        check = self.op("bound" if wrap else "inside", e, limit, dtype="i64", attr=label)
        self.checks[id(check)] = check
        return ix.index(Val(check, size))

    # ---- kernels ----------------------------------------------------------------------------------------------------
    def pointwise(self, shape: tuple, dtype: str, fn: Callable[[tuple], Expr], stride: tuple | None = None) -> Value:
        """A kernel that stores `fn(coords)` at every point of a new buffer; stride: default contiguous."""
        out = self.buffer(shape, dtype, stride)
        axes, coords = self.axes(tuple(shape))
        value = self.finish(fn(coords), dtype)
        self.kernel(axes, (LoopNest((), (Store(out.name, coords, value, where=self.where),)),))
        return Value(out.name, tuple(shape), dtype)

    def map(self, fn: Callable[[tuple], Expr], i: int | None = None) -> Value:
        """`pointwise` over the node's own spec (or its i-th result's): shape, dtype and strides as eager has them."""
        spec = self.spec(i)
        return self.pointwise(spec.shape, ir_dtype(spec), fn, spec.stride)

    def kernel(self, axes: tuple[Axis, ...], nests: tuple[LoopNest, ...]) -> None:
        """Adds a kernel for the node being lowered."""
        op = self.node.target
        label = str(op).removeprefix("aten.") if self.node.op == "call_function" else self.node.name
        self.steps.append(Kernel(self.name("k"), axes, nests, (label,), self.where))

    def reduce(
        self, v: Value, dims: tuple[int, ...], kind: str, fn: Callable[[tuple], Any] | None = None, dtype: str = "f32"
    ) -> Value:
        """Reduces over `dims`; the result has the other dims. fn(coords) -> operand or operands (default: the element, converted
        to dtype)."""
        kept = tuple(i for i in range(len(v.shape)) if i not in dims)
        shape = tuple(v.shape[i] for i in kept)
        outer, outer_coords = self.axes(shape)
        inner, inner_coords = self.axes(tuple(v.shape[i] for i in dims), "reduce")
        coords: list[Any] = [None] * len(v.shape)
        for i, c in zip((*kept, *dims), (*outer_coords, *inner_coords)):
            coords[i] = c
        args = fn(tuple(coords)) if fn else self.read(v, tuple(coords), dtype)
        red = Reduce(self.name("r"), kind, args if isinstance(args, tuple) else (args,), dtype, where=self.where)
        out = self.buffer(shape, dtype)
        last = Store(out.name, outer_coords, self.cons.ref(red.name, dtype, self.where), where=self.where)
        self.kernel(outer, (LoopNest(inner, (), (red,)), LoopNest((), (last,))))
        return Value(out.name, shape, dtype)

    # ---- views ------------------------------------------------------------------------------------------------------
    def view(self, v: Value, shape: tuple, fn: Callable[[tuple], tuple]) -> Value:
        """A value of `shape` whose point `coords` is v's point `fn(coords)`."""
        coords, sizes = dims_of(shape)
        new = tuple(ix.index(c) for c in fn(coords))
        if v.map is not None:
            axes = {f"d{i}": c for i, c in enumerate(new)}
            new = tuple(ix.substitute(m, axes, sizes) for m in v.map)
        return replace(v, shape=tuple(shape), map=new)

    def as_view(self, v: Value) -> View:
        """v as a strided view of its buffer; it is copied into a new buffer when it is none."""
        b = self.buffers[v.buffer]
        if v.map is None:
            return View(b.name, b.shape, b.stride)
        flat = ix.linear(v.map, b.stride)
        if ix.axis_terms(flat) is not None:
            stride = contiguous_stride(v.shape)
            stride = tuple(s if n == 1 else flat.coefficient(f"d{i}") for i, (n, s) in enumerate(zip(v.shape, stride)))
            if all(ix.at_least(ix.index(s), 0, {}) for s in stride):
                first = ix.substitute(flat, {f"d{i}": ix.ZERO for i in range(len(v.shape))}, {})
                return View(b.name, v.shape, stride, ix.size_of(first))
        return self.as_view(self.copy(v))

    def copy(self, v: Value, stride: tuple | None = None) -> Value:
        """v in a buffer of its own."""
        return self.pointwise(v.shape, v.dtype, lambda c: self.load(v, c), stride)

    # ---- extern calls -----------------------------------------------------------------------------------------------
    def extern(self, target: str, args: tuple, kwargs: dict, row: Op | None, reason: str) -> Any:
        """A call of the op through torch; returns its results as values. reason: as in `Extern`."""

        def arg(a: Any) -> Any:
            if isinstance(a, Value):
                return self.as_view(a)
            return tuple(arg(x) for x in a) if isinstance(a, (tuple, list)) else a

        specs: Any = self.node.meta["spec"]
        many = isinstance(specs, (tuple, list))
        planned = not many and isinstance(specs, Spec) and ir_dtype(specs) in DTYPES  # torch allocates results of other dtypes
        into = row is not None and row.out is not None and planned and self.device() == self.home
        values: list[Value | None] = []
        for i, spec in enumerate(specs if many else (specs,)):
            if spec is None or not isinstance(spec, Spec) or many and not self.used(i):
                values.append(None)
                continue
            b = self.buffer(spec.shape, ir_dtype(spec), spec.stride, "temp" if into else "extern", str(spec.device))
            values.append(Value(b.name, spec.shape, b.dtype))
        outs = tuple(v and v.buffer for v in values)
        if returns_views(self.node.target):
            self.shared.update(o for o in outs if o)
        self.steps.append(
            Extern(
                self.name("e"),
                target,
                arg(args),
                tuple((k, arg(v)) for k, v in kwargs.items()),
                outs,
                into,
                reason,
                self.where,
            )
        )
        return tuple(values) if many else values[0]


def returns_views(target: Any) -> bool:
    """Whether an operator's results lie in the memory of its operands."""
    schema = getattr(target, "_schema", None)
    return schema is not None and any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)


def device_of(node: torch.fx.Node) -> torch.device | None:
    """The device of a node's results, or of its operands if it returns no tensor; None without either."""
    nodes = (node, *node.all_input_nodes)
    return next((s.device for n in nodes for s in pytree.tree_leaves(n.meta.get("spec")) if isinstance(s, Spec)), None)


def with_checks(ctx: Lowering, coords: tuple, used: tuple, mask: Expr | None) -> Expr | None:
    """`mask`, together with the checks of indices in `coords` that the load itself does not use (they are not in `used`): along
    a dim of one element, or an expanded one. Such an index is checked all the same."""
    stay = {id(e) for e in ix.values_in(used)}
    for e in ix.values_in(coords):
        if id(e) in ctx.checks and id(e) not in stay:
            holds = ctx.op("ge", e, ctx.const(0, "i64"))
            mask = holds if mask is None else ctx.op("and", mask, holds)
    return mask
