"""The loop IR: buffers, kernels (outer axes, then passes over inner axes), extern calls, and the scheduled plan.

Nothing here names a language or a device. One `Loops` object passes through lower, fuse, memory and schedule; the last
answers a `Plan`, which a printer (C++, Triton) reads.

Worked example: softmax over the rows of x: f32[64,128], after fuse and schedule, as text (`loops_text.text`):

    buffer x: f32[64,128] stride (128,1) input
    buffer o: f32[64,128] stride (128,1) output
    buffer e: f32[128] stride (1) local
    kernel k0 [i:64]
      pass [r:128 reduce]
        t0: f32 = load x[128*i + r]
        m0: f32 = reduce amax t0
      pass [r:128 reduce]
        t0: f32 = load x[128*i + r]
        t1: f32 = ref m0
        t2: f32 = sub(t0, t1)
        t3: f32 = exp(t2)
        m1: f32 = reduce sum t3
        store e[r] = t3
      pass [r:128]
        t0: f32 = load e[r]
        t1: f32 = ref m1
        t2: f32 = div(t0, t1)
        store o[128*i + r] = t2

How a printer runs a kernel: for every point of `Kernel.axes` (all independent; cut over threads as `Schedule.parallel`
says), run the passes in order; a pass loops over its own axes (`PassSchedule.order`, innermost last), evaluates its
expressions once a point, stores, and feeds its reductions. A reduction's result is read in LATER passes by `ref`
(in the same pass too when `Reduce.running`: a scan, whose axis must run in order). A pass without axes runs once a
row: the epilogue of a reduction. Loads and stores of a `Plan` hold ONE coordinate: the offset in elements from the
buffer's first element. Before that (lower, fuse) they hold one coordinate a dimension of the buffer.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .index import values_in

#: IR dtype -> (torch name, bytes). `b8` is torch.bool, stored in a byte.
DTYPES = {
    "f64": ("float64", 8), "f32": ("float32", 4), "f16": ("float16", 2), "bf16": ("bfloat16", 2), "i64": ("int64", 8),
    "i32": ("int32", 4), "i16": ("int16", 2), "i8": ("int8", 1), "u8": ("uint8", 1), "b8": ("bool", 1),
}
FLOATS = frozenset({"f64", "f32", "f16", "bf16"})
# computed in f32: loads are widened by `to`, stores narrowed by `narrow`
NARROW = frozenset({"f16", "bf16"})
INTS = frozenset({"i64", "i32", "i16", "i8", "u8"})

#: kinds of reduction; `emit_common.identity` says what each starts from
REDUCTIONS = ("sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin", "logsum")
CARRIED = ("expsum", "expsum0", "moments")           # of plans for a GPU: `codegen/loops/passes/online_reductions.py`


def itemsize(dtype: str) -> int:
    """Bytes of one stored element. Raises: KeyError for a dtype the IR does not have."""
    return DTYPES[dtype][1]


def acc_dtype(dtype: str) -> str:
    """The dtype an element of `dtype` is computed in: f32 for f16 and bf16, itself otherwise."""
    return "f32" if dtype in NARROW else dtype

NONE: frozenset[str] = frozenset()


class Expr:
    """A node of an expression DAG. Made by `Cons`, so that equal nodes of one graph are one object.

    kind   name          args          attr
    load   buffer        () or (mask,) coordinates: tuple of index expressions (codegen/loops/index.py)
    const  ""            ()            a Python bool, int or float (nan, inf included)
    op     row's name    operands      None, or what the row says (e.g. the label of a bound check)
    index  ""            ()            one index expression, read as a value (dtype i64)
    ref    reduction     ()            None (the `Reduce` of that name)

    A masked load whose mask (dtype b8) is false reads nothing and answers 0. Casts are the ops `to` (explicit:
    rounds) and `narrow` (the implicit rounding of a f16 or bf16 result: may be dropped where it is widened again).
    """
    __slots__ = ("kind", "name", "args", "dtype", "attr", "where", "needs", "refs", "_hash", "_loads")

    def __init__(self, kind: str, name: str, args: tuple[Expr, ...], dtype: str, attr: Any = None, where: Any = None):
        self.kind, self.name, self.args, self.dtype, self.attr, self.where = kind, name, args, dtype, attr, where
        # what must be evaluated first: values inside indirect indices, then operands
        self.needs = (*values_in(attr), *args) if kind == "load" or kind == "index" else args
        self.refs: frozenset[str] = frozenset((name,)) if kind == "ref" else NONE       # names read at and below the node
        for e in self.needs:
            if e.refs:
                self.refs = self.refs | e.refs
        self._hash = hash((kind, name, tuple(a._hash for a in args), dtype, _const_key(attr)))
        self._loads: tuple[Expr, ...] | None = None

    @property
    def loads(self) -> tuple[Expr, ...]:
        """The loads at and below a node, each once, in the order of `walk`; found once."""
        if self._loads is None:
            self._loads = tuple(e for e in walk((self,)) if e.kind == "load")
        return self._loads

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and _same(self, other, set()))

    def __repr__(self) -> str:
        what = {
            "load": f"{self.name}{list(self.attr or ())}",
            "const": repr(self.attr),
            "index": f"index({self.attr})",
            "ref": f"ref {self.name}",
        }.get(self.kind)
        return f"{self.dtype} {what or f'{self.name}({len(self.args)} args)'}"

    @property
    def mask(self) -> Expr | None:
        """The mask of a load, or None."""
        return self.args[0] if self.kind == "load" and self.args else None


def _const_key(attr: Any) -> Any:
    """0.0, -0.0, 0, False and nan are five constants: `==` takes them for two (and nan for none)."""
    return (type(attr).__name__, repr(attr)) if isinstance(attr, (bool, int, float)) else attr


def _same(a: Expr, b: Expr, seen: set[tuple[int, int]]) -> bool:
    """Structural equality; each pair of nodes is looked at once."""
    stack = [(a, b)]
    while stack:
        a, b = stack.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        if (a._hash, a.kind, a.name, a.dtype, len(a.args)) != (b._hash, b.kind, b.name, b.dtype, len(b.args)):
            return False
        if _const_key(a.attr) != _const_key(b.attr):
            return False
        seen.add((id(a), id(b)))
        stack.extend(zip(a.args, b.args))
    return True


class Cons:
    """Makes expression nodes; equal ones once. One a compile, handed along (no global table).

    The first maker's `where` stays: the user line that first computed the value.
    """
    __slots__ = ("table",)

    def __init__(self) -> None:
        self.table: dict[Any, Expr] = {}

    def make(self, kind: str, name: str, args: tuple[Expr, ...], dtype: str, attr: Any, where: Any) -> Expr:
        key = (kind, name, tuple(map(id, args)), dtype, _const_key(attr))
        node = self.table.get(key)
        if node is None:
            node = self.table[key] = Expr(kind, name, args, dtype, attr, where)
        return node

    def load(self, buffer: str, coords: tuple, dtype: str, mask: Expr | None = None, where: Any = None) -> Expr:
        return self.make("load", buffer, () if mask is None else (mask,), dtype, tuple(coords), where)

    def const(self, value: bool | int | float, dtype: str) -> Expr:
        return self.make("const", "", (), dtype, value, None)

    def op(self, name: str, args: tuple[Expr, ...], dtype: str, where: Any = None, attr: Any = None) -> Expr:
        return self.make("op", name, tuple(args), dtype, attr, where)

    def index(self, expr: Any, where: Any = None) -> Expr:
        return self.make("index", "", (), "i64", expr, where)

    def ref(self, name: str, dtype: str, where: Any = None) -> Expr:
        return self.make("ref", name, (), dtype, None, where)


def updates(step: Any) -> list[str]:
    """Buffers that a kernel writes parts of: the rest is another buffer's."""
    return [s.over for p in step.passes for s in p.stores if s.over] if isinstance(step, Kernel) else []


def walk(roots: Iterator[Expr] | tuple[Expr, ...]) -> Iterator[Expr]:
    """Every node below `roots`, operands first, each once, in first-use order; values inside indirect indices too."""
    seen: set[int] = set()
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, done = stack.pop()
            if done:
                yield node
                continue
            if id(node) in seen:
                continue
            seen.add(id(node))
            if not node.needs:
                yield node
                continue
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.needs) if id(a) not in seen)


@dataclass(frozen=True)
class Buffer:
    """Memory with a shape. Units: shape in elements, stride in elements.

    kind: input (the user's: never written but by a mutation), output (fresh, given to the user), temp (the arena's),
    local (a thread's own row, lives for one point of the kernel's outer axes), extern (the tensor that an extern call
    returned).
    """
    name: str
    shape: tuple
    stride: tuple
    dtype: str
    kind: str
    device: str = "cpu"
    where: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        dims = ",".join(map(str, self.shape))
        return f"buffer {self.name}: {self.dtype}[{dims}] stride ({','.join(map(str, self.stride))}) {self.kind}"


@dataclass(frozen=True)
class Axis:
    """A loop. kind: parallel (any order, any thread), reduce (feeds reductions), scan (must run upwards, in order)."""
    name: str
    size: Any                     # int, or an index expression over Syms
    kind: str = "parallel"

    def __repr__(self) -> str:
        return f"{self.name}:{self.size}" + ("" if self.kind == "parallel" else f" {self.kind}")


@dataclass(frozen=True)
class Store:
    """buffer[coords] = value at every point of the pass (where mask holds). mode: set, add (accumulate: duplicates
    allowed). over: the buffer whose elements the others are, until `updates.settle` has found where both lie; then ""."""
    buffer: str
    coords: tuple
    value: Expr
    mask: Expr | None = None
    mode: str = "set"
    over: str = ""
    where: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"store {self.buffer}{list(self.coords)} = {self.value!r}"


@dataclass(frozen=True)
class Reduce:
    """A reduction over all axes of its pass, per point of the kernel's outer axes; result read by `ref(name)`.

    kind: one of REDUCTIONS. logsum: log(exp(a) + exp(b)). argmax and argmin take (value, index as i64) and answer the index of
    the first best one, nan being best; amax and amin propagate nan. running: a scan; `ref` in the same pass reads the value
    after this element.
    dtype: of the accumulator and the result (f32 for f16 and bf16 values; i64 for argmax, argmin).
    """
    name: str
    kind: str
    args: tuple[Expr, ...]
    dtype: str
    running: bool = False
    where: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype} = {'scan' if self.running else 'reduce'} {self.kind}"


@dataclass(frozen=True)
class Pass:
    """One sweep over inner axes. No axes: runs once a point of the kernel's outer axes."""
    axes: tuple[Axis, ...]
    stores: tuple[Store, ...] = ()
    reduces: tuple[Reduce, ...] = ()

    def roots(self) -> tuple[Expr, ...]:
        """Every expression the pass evaluates, in order: reductions' operands, then stores' values, masks, indirect
        indices."""
        out = [a for r in self.reduces for a in r.args]
        for s in self.stores:
            out.extend(values_in(s.coords))
            out.append(s.value)
            if s.mask is not None:
                out.append(s.mask)
        return tuple(out)

    def __repr__(self) -> str:
        return f"pass [{', '.join(map(repr, self.axes))}] {len(self.reduces)} reduces {len(self.stores)} stores"


@dataclass(frozen=True)
class Kernel:
    """A loop nest: for every point of `axes`, the passes in order. ops: names of the ATen ops inside, for reports."""
    name: str
    axes: tuple[Axis, ...]
    passes: tuple[Pass, ...]
    ops: tuple[str, ...] = ()
    where: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        return (
            f"kernel {self.name} [{', '.join(map(repr, self.axes))}] {len(self.passes)} passes: {' '.join(self.ops)}"
        )


@dataclass(frozen=True)
class View:
    """A strided window on a buffer, as an extern call or an output sees it. Units: elements; offset from the first
    element."""
    buffer: str
    shape: tuple
    stride: tuple
    offset: Any = 0

    def __repr__(self) -> str:
        dims, strides = (",".join(map(str, v)) for v in (self.shape, self.stride))
        return f"{self.buffer}[{dims}:{strides}@{self.offset}]"


@dataclass(frozen=True)
class Extern:
    """A call of a torch op. args, kwargs: nested tuples and plain values with `View` where a tensor goes.

    outs: the buffers that receive the results in order (None: result unused). into: the outs are planned memory
    (their kind is not `extern`) and the op's out= form writes them; else the call's own results become the buffers.
    reason: "library" (a library does it best) or "no row".
    """
    name: str
    target: str                   # "aten.mm.default"
    args: tuple
    kwargs: tuple                 # of (name, value)
    outs: tuple
    into: bool = False
    reason: str = "library"
    where: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        outs = ",".join(o or "_" for o in self.outs)
        return f"extern {self.name}: {outs} = {self.target}{'.out' if self.into else ''} ({self.reason})"


@dataclass(frozen=True)
class Result:
    """An element of the graph's flat output tuple: a view of a buffer, or a plain value (scalar, None) in `const`."""
    view: View | None
    const: Any = None


@dataclass(frozen=True)
class MutationCopy:
    """Output `position` is copied into graph input `input` after all steps; done: a kernel wrote the input in place
    already."""
    input: int
    position: int
    done: bool = False


@dataclass(frozen=True)
class Loops:
    """What lower answers and fuse, memory take: steps (Kernel or Extern) in an order that runs, over named buffers."""
    inputs: tuple[str | None, ...]        # buffer of each placeholder; None: the placeholder is no tensor
    buffers: dict[str, Buffer]
    steps: tuple[Kernel | Extern, ...]
    outputs: tuple[Result, ...]
    mutations: tuple[MutationCopy, ...] = ()
    private: frozenset[int] = field(default=frozenset(), compare=False)   # output positions that only mutations use
    symbols: dict[str, int] = field(default_factory=dict)   # size symbol -> the input (an int) that is its value
    cons: Cons = field(default_factory=Cons, compare=False, repr=False)

    def __repr__(self) -> str:
        kernels = sum(isinstance(s, Kernel) for s in self.steps)
        return f"loops: {kernels} kernels, {len(self.steps) - kernels} externs, {len(self.buffers)} buffers"


# ---- the scheduled plan -------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class PassSchedule:
    """How one pass runs. order: its axes, outermost first. vector: the axis in SIMD lanes: the last of `order`, or
    the kernel's blocked axis (then innermost of all), or None (scalar). lanes: elements of the widest dtype touched.
    accumulators: independent partial results of each reduction along the vector axis. tile: (axis, size) pairs to
    block for transposing accesses; both loops over tiles go outside, in `order`.
    """
    order: tuple[str, ...]
    vector: str | None = None
    lanes: int = 1
    accumulators: int = 1
    tile: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Schedule:
    """How one kernel runs.

    parallel: axes collapsed and cut over threads: a prefix of Kernel.axes; or, when Kernel.axes is empty and there is
    one pass without reductions, its first `order` axis, whose range is cut; () runs on the calling thread.
    grain: least iterations of the collapsed range for one thread.
    block: (axis, size): the LAST outer axis runs in blocks of `size` (the rest shorter); each pass runs for a whole
    block with that axis innermost (and in lanes); refs are arrays of `size`. If it is in `parallel` the unit is a
    block.
    split: n > 0: few long rows: the single reducing pass (the first) has its first `order` axis cut in n parts over
    threads; partial results are combined in order; then the other passes run.
    """
    parallel: tuple[str, ...]
    grain: int
    passes: tuple[PassSchedule, ...]
    block: tuple[str, int] | None = None
    split: int = 0


@dataclass(frozen=True)
class Call:
    """Run a kernel. reads, writes: its non-local buffers in first-use order: the pointer arguments (writes last; a
    buffer both read and written is in writes only). free: `extern` buffers dead after this step."""
    kernel: Kernel
    schedule: Schedule
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    free: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"call {self.kernel.name} reads {' '.join(self.reads)} writes {' '.join(self.writes)}"


@dataclass(frozen=True)
class ExternCall:
    """Run an extern; free: `extern` buffers dead after it."""
    extern: Extern
    free: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return repr(self.extern)


@dataclass(frozen=True)
class Plan:
    """All that a printer reads.

    offsets: temp buffer -> byte offset in the arena (a multiple of 64; buffers whose lives do not meet may share
    bytes; an in-place result has its operand's offset). arena: bytes of the one allocation, 0: none. slots: temp buffer of
    symbolic size -> slot; slot_bytes: for each slot the extents in bytes of its buffers, of which the largest counts at the
    call. symbols: size symbol -> the input (an int) that is its value; others are a dim of an input. Output buffers
    (kind `output`) are allocated fresh with their shape and stride. A kernel that can fail (`raises`) sets an error
    flag: the caller raises, and no input has been written.
    """
    inputs: tuple[str | None, ...]
    buffers: dict[str, Buffer]
    steps: tuple[Call | ExternCall, ...]
    outputs: tuple[Result, ...]
    mutations: tuple[MutationCopy, ...]
    offsets: dict[str, int]
    arena: int
    target: str                   # Target.name: "cpu", "cuda"
    slots: dict[str, int] = field(default_factory=dict)
    slot_bytes: tuple[tuple, ...] = ()
    symbols: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        calls = sum(isinstance(s, Call) for s in self.steps)
        return f"plan for {self.target}: {calls} kernels, {len(self.steps) - calls} externs, arena {self.arena} bytes"


@dataclass(frozen=True)
class Target:
    """What schedule needs to know of a device. Units: vector_bytes, cache_bytes (a core's own) in bytes."""
    name: str = "cpu"
    threads: int = 1
    vector_bytes: int = 32
    cache_bytes: int = 512 * 1024
