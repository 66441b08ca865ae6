"""The loop IR: buffers, kernels (outer axes, then nests over inner axes) and extern calls.

Nothing here names a language or a device. `lower` makes a `Loops`, passes return new ones, and a schedule makes of it a
`Plan` (`plan.py`), which a printer (C++, Triton) reads.

Worked example: softmax over the rows of x: f32[64,128], after fuse and schedule, as text (`codegen/loops/text.py`):

    buffer x: f32[64,128] stride (128,1) input
    buffer o: f32[64,128] stride (128,1) output
    buffer e: f32[128] stride (1) local
    kernel k0 [i:64]
      nest [r:128 reduce]
        t0: f32 = load x[128*i + r]
        m0: f32 = reduce amax t0
      nest [r:128 reduce]
        t0: f32 = load x[128*i + r]
        t1: f32 = ref m0
        t2: f32 = sub(t0, t1)
        t3: f32 = exp(t2)
        m1: f32 = reduce sum t3
        store e[r] = t3
      nest [r:128]
        t0: f32 = load e[r]
        t1: f32 = ref m1
        t2: f32 = div(t0, t1)
        store o[128*i + r] = t2

What the printed code of a kernel does: for every point of `Kernel.axes` (points are independent; `Schedule.parallel` says
how threads share them) it runs the nests in order. A nest loops over its own axes (`NestSchedule.order`, innermost last).
At each point it evaluates its expressions once, stores, and updates its reductions. A reduction's result is read in LATER
nests by `ref` (in the same nest too when `Reduce.running`: a scan, whose axis must run in order). A point of the outer axes
is also called a row. A nest without axes runs once a row: the epilogue of a reduction. Loads and stores of a `Plan` have ONE
coordinate: the offset in elements from the buffer's first element. Before that (lower, fuse) they have one coordinate for
each dimension of the buffer.
"""

from __future__ import annotations

from dataclasses import field
from functools import cached_property
from itertools import chain
from typing import Any

from bytejit.codegen.loops.expr import Cons, Expr
from bytejit.common.light_dataclass import light_dataclass

from .index import values_in

#: kinds of reduction; `emit.common.identity` says what each starts from
REDUCTIONS = ("sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin", "logsum")


def updates(step: Any) -> tuple[str, ...]:
    """Buffers of which a kernel writes some elements only: the others are copied from `Store.over`, or lie there already."""
    return step.updates if isinstance(step, Kernel) else ()


@light_dataclass(frozen=True)
class Buffer:
    """Memory with a shape. Units: shape in elements, stride in elements.

    kind: input (the user's: only a mutation may write it), output (allocated in each call and returned to the user), temp (in
    the arena), local (memory of one thread, which holds one row and is reused for the next), extern (the tensor that an extern
    call returned).
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


@light_dataclass(frozen=True)
class Axis:
    """A loop. kind: parallel (any order, any thread), reduce (feeds reductions), scan (must run in increasing order)."""

    name: str
    size: Any  # int, or an index expression over Syms
    kind: str = "parallel"

    def __repr__(self) -> str:
        return f"{self.name}:{self.size}" + ("" if self.kind == "parallel" else f" {self.kind}")


@light_dataclass(frozen=True)
class Store:
    """buffer[coords] = value at every point of the nest (where mask holds). mode: set, or add (accumulate: two points may have
    the same coords). over: for a store of some elements of `buffer`: the buffer that has the other elements. It is "" once
    `inplace.place_writes` has chosen where both lie."""

    buffer: str
    coords: tuple
    value: Expr
    mask: Expr | None = None
    mode: str = "set"
    over: str = ""
    where: Any = field(default=None, compare=False)

    def roots(self) -> tuple[Expr, ...]:
        """Every expression that it evaluates: indirect indices, value, mask. Found once."""
        found = self.__dict__.get("_roots")
        if found is None:
            mask = () if self.mask is None else (self.mask,)
            found = self.__dict__["_roots"] = (*values_in(self.coords), self.value, *mask)
        return found

    def __repr__(self) -> str:
        return f"store {self.buffer}{list(self.coords)} = {self.value!r}"


@light_dataclass(frozen=True)
class Reduce:
    """A reduction over all axes of its nest, per point of the kernel's outer axes; result read by `ref(name)`.

    kind: one of REDUCTIONS. logsum: log(exp(a) + exp(b)). argmax and argmin take (value, index as i64) and return the index of
    the first largest or smallest one, or of the first nan; amax and amin propagate nan. running: a scan; `ref` in the same nest
    reads the value after this element. dtype: of the accumulator and the result (f32 for f16 and bf16 values; i64 for argmax,
    argmin).
    """

    name: str
    kind: str
    args: tuple[Expr, ...]
    dtype: str
    running: bool = False
    where: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"{self.name}: {self.dtype} = {'scan' if self.running else 'reduce'} {self.kind}"


@light_dataclass(frozen=True)
class LoopNest:
    """One sweep over inner axes. No axes: runs once a point of the kernel's outer axes."""

    axes: tuple[Axis, ...]
    stores: tuple[Store, ...] = ()
    reduces: tuple[Reduce, ...] = ()

    def roots(self) -> tuple[Expr, ...]:
        """Every expression the nest evaluates, in order: reductions' operands, then stores' values, masks, indirect
        indices. Found once."""
        found = self.__dict__.get("_roots")
        if found is None:
            reduced = (r.args for r in self.reduces)
            found = self.__dict__["_roots"] = tuple(chain(*reduced, *(s.roots() for s in self.stores)))
        return found

    @cached_property
    def loads(self) -> tuple[Expr, ...]:
        """Every load of the nest, each once."""
        return tuple({id(e): e for root in self.roots() for e in root.loads}.values())

    @cached_property
    def sources(self) -> frozenset[str]:
        """The buffers that it loads."""
        return frozenset(e.name for e in self.loads)

    def joined(self, other: LoopNest, axes: tuple[Axis, ...]) -> LoopNest:
        """Join two nests over axes of the same names. The result keeps what was computed about both (loads, sources), so
        that a nest that grows step by step is not analysed again at each step."""
        both = LoopNest(axes, self.stores + other.stores, self.reduces + other.reduces)
        if not both.reduces:
            both.__dict__["loads"] = tuple({id(e): e for e in (*self.loads, *other.loads)}.values())
            both.__dict__["sources"] = self.sources | other.sources
            if "_simple" in self.__dict__ and "_simple" in other.__dict__:
                both.__dict__["_simple"] = True
        return both

    def __repr__(self) -> str:
        return f"nest [{', '.join(map(repr, self.axes))}] {len(self.reduces)} reduces {len(self.stores)} stores"


@light_dataclass(frozen=True)
class Kernel:
    """Outer loops: for every point of `axes`, the loop nests in order. ops: names of the ATen ops inside, for reports."""

    name: str
    axes: tuple[Axis, ...]
    nests: tuple[LoopNest, ...]
    ops: tuple[str, ...] = ()
    where: Any = field(default=None, compare=False)

    @cached_property
    def loads(self) -> tuple[Expr, ...]:
        """Every load of the kernel, each once."""
        if len(self.nests) == 1:
            return self.nests[0].loads
        return tuple({id(e): e for p in self.nests for e in p.loads}.values())

    @cached_property
    def updates(self) -> tuple[str, ...]:
        """Buffers of which it writes some elements only: as `updates`."""
        return tuple(s.over for p in self.nests for s in p.stores if s.over)

    def __repr__(self) -> str:
        return f"kernel {self.name} [{', '.join(map(repr, self.axes))}] {len(self.nests)} nests: {' '.join(self.ops)}"


@light_dataclass(frozen=True)
class View:
    """A strided view of a buffer, as an extern call or an output sees it. Units: elements; offset from the first
    element."""

    buffer: str
    shape: tuple
    stride: tuple
    offset: Any = 0

    def __repr__(self) -> str:
        dims, strides = (",".join(map(str, v)) for v in (self.shape, self.stride))
        return f"{self.buffer}[{dims}:{strides}@{self.offset}]"


@light_dataclass(frozen=True)
class Extern:
    """A call of a torch op. args, kwargs: nested tuples and plain values with `View` where a tensor goes.

    outs: the buffers that receive the results in order (None: result unused). into: the outs are planned memory
    (their kind is not `extern`) and the op's out= form writes them; else the call's own results become the buffers.
    reason: "library" (a library is faster than a kernel of ours), "library, may fail" (for values or dtypes of its operands: no
    input is written before) or "no row".
    """

    name: str
    target: str  # "aten.mm.default"
    args: tuple
    kwargs: tuple  # of (name, value)
    outs: tuple
    into: bool = False
    reason: str = "library"
    where: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        outs = ",".join(o or "_" for o in self.outs)
        return f"extern {self.name}: {outs} = {self.target}{'.out' if self.into else ''} ({self.reason})"


@light_dataclass(frozen=True)
class Result:
    """An element of the graph's flat output tuple: a view of a buffer, or a plain value (scalar, None) in `const`."""

    view: View | None
    const: Any = None


@light_dataclass(frozen=True)
class MutationCopy:
    """Output `position` is copied into graph input `input` after all steps; done: a kernel wrote the input in place
    already."""

    input: int
    position: int
    done: bool = False


@light_dataclass(frozen=True)
class Loops:
    """What `lower` returns, and what fusion and memory planning take: steps (Kernel or Extern) over named buffers, each after
    the steps that it depends on."""

    inputs: tuple[str | None, ...]  # buffer of each placeholder; None: the placeholder is no tensor
    buffers: dict[str, Buffer]
    steps: tuple[Kernel | Extern, ...]
    outputs: tuple[Result, ...]
    mutations: tuple[MutationCopy, ...] = ()
    private: frozenset[int] = field(default=frozenset(), compare=False)  # output positions that only mutations use
    symbols: dict[str, int] = field(default_factory=dict)  # size symbol -> the input (an int) that is its value
    cons: Cons = field(default_factory=Cons, compare=False, repr=False)

    def __repr__(self) -> str:
        kernels = sum(isinstance(s, Kernel) for s in self.steps)
        return f"loops: {kernels} kernels, {len(self.steps) - kernels} externs, {len(self.buffers)} buffers"
