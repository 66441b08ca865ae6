"""What every printer needs to know about a plan: in which loop a value is computed, what a reduction starts from, the user's
line."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Expr, walk
from bytejit.codegen.loops.ir import Kernel, LoopNest, Reduce
from bytejit.codegen.loops.plan import Call, Plan
from bytejit.codegen.ops.table import OpTable
from bytejit.common.dtypes import FLOATS, itemsize
from bytejit.common.light_dataclass import light_dataclass

LEAST = {"i64": -(1 << 63), "i32": -(1 << 31), "i16": -(1 << 15), "i8": -128, "u8": 0}
MOST = {"i64": (1 << 63) - 1, "i32": (1 << 31) - 1, "i16": (1 << 15) - 1, "i8": 127, "u8": 255}


def axes_of(index: Any) -> frozenset[str]:
    """Axes that an index names, without those inside values that it reads: these are operands of their own."""
    return frozenset(ix.variables(ix.index(index)))


def symbols_in(index: Any) -> Iterable[str]:
    """Size symbols of an index or size, in order of use."""
    if type(index) is ix.Index:
        for atom in ix.atoms(index):
            if type(atom) is ix.Sym:
                yield atom.parts[0]


def symbol_atoms(kernel: Kernel) -> dict[str, ix.Sym]:
    """Every size symbol that a kernel's sizes and offsets name, by name, sorted."""
    found: dict[str, ix.Sym] = {}
    for p in kernel.nests:
        for axis in (*kernel.axes, *p.axes):
            found.update(ix.symbols(axis.size))
        for e in walk(p.roots()):
            for index in e.attr if e.kind == "load" else (e.attr,) if e.kind == "index" else ():
                found.update(ix.symbols(index))
        for s in p.stores:
            for c in s.coords:
                found.update(ix.symbols(c))
    return dict(sorted(found.items()))


def kernel_symbols(kernel: Kernel) -> tuple[str, ...]:
    """The names of a kernel's size symbols, sorted."""
    return tuple(symbol_atoms(kernel))


@light_dataclass(frozen=True)
class Placed:
    """An expression and the depth of the loop nest that it is evaluated at: 0 before the nest's loops."""

    expr: Expr
    depth: int


@dataclass
class Tables:
    """What a nest reads from tables that were filled before its loops. parts: id of an expression -> (the axis that it depends
    on, the element's text); places: an atom of indices -> its text."""

    parts: dict[int, tuple[str, str]] = field(default_factory=dict)
    places: dict[ix.Atom, str] = field(default_factory=dict)


def place(
    p: LoopNest,
    nest: Sequence[str],
    refs: dict[str, frozenset[str]],
    held: dict[str, frozenset[str]] | None = None,
    tables: Tables | None = None,
    first: int = 0,
) -> tuple[Placed, ...]:
    """Each expression of a nest, operands first, at the outermost depth where its axes are known.

    nest: the nest's loops, outermost first. refs: axes that the value of a reduction depends on (a blocked axis; all
    of them for a scan read in its own nest). held: axes that an element of a buffer depends on in addition to those of its
    coordinates (a row-local buffer has one element for each point of a block). tables: what is read from these.
    first: the least depth of a load: that of a loop that never runs, whose buffers may have no memory.
    """
    depth_of = {name: i + 1 for i, name in enumerate(nest)}
    depths: dict[int, int] = {}
    out = []
    tabled = tables.parts if tables is not None else {}
    for e in walk(p.roots(), tabled):
        if id(e) in tabled:
            depths[id(e)] = depth_of.get(tabled[id(e)][0], 0)
            out.append(Placed(e, depths[id(e)]))
            continue
        depth = max((depths[id(a)] for a in e.needs), default=0)
        names: frozenset[str] = frozenset()
        if e.kind == "load":
            names = frozenset().union(*(axes_of(c) for c in e.attr), (held or {}).get(e.name, names))
            depth = max(depth, first)
        elif e.kind == "index":
            names = axes_of(e.attr)
        elif e.kind == "ref":
            names = refs.get(e.name, names)
        depth = max([depth, *(depth_of[n] for n in names if n in depth_of)])
        depths[id(e)] = depth
        out.append(Placed(e, depth))
    return tuple(out)


def below(e: Expr, wanted: Iterable[Expr]) -> bool:
    """Whether any of `wanted` is e or an operand of e, at any depth."""
    ids = {id(w) for w in wanted}
    return any(id(x) in ids for x in walk((e,)))


def running(p: LoopNest) -> dict[str, Reduce]:
    """The scans of a nest by name."""
    return {r.name: r for r in p.reduces if r.running}


def comment(where: Any) -> str:
    """`model.py:14 x*y`; "" when the place is not known."""
    if where is None:
        return ""
    source = " ".join(str(getattr(where, "source", "") or "").split())
    text = f"{getattr(where, 'short', where)} {source}".strip()
    return text.replace("\\", "/")[:100]


def segments(plan: Plan) -> list[list[int]]:
    """Positions of steps, grouped in runs: consecutive kernels are one run, an extern call is one by itself."""
    out: list[list[int]] = []
    for i, step in enumerate(plan.steps):
        if isinstance(step, Call) and out and isinstance(plan.steps[out[-1][-1]], Call):
            out[-1].append(i)
        else:
            out.append([i])
    return out


def traffic(plan: Plan, call: Call) -> int:
    """Bytes of the buffers that a kernel reads and writes, each once; symbolic sizes count as their hints."""
    total = 0
    for name in (*call.reads, *call.writes):
        b = plan.buffers[name]
        n = itemsize(b.dtype)
        for size in b.shape:
            n *= ix.hint(size)
        total += n
    return total


def row_text(e: Expr, rows: OpTable, language: str) -> str:
    """The text of an op's row in a language, for the dtype of the result, or of the operand `Op.by`."""
    row = rows.by_name[e.name]
    return row.text(language, e.dtype if row.by is None else e.args[row.by].dtype)


def rounded(value: float) -> float:
    """A number rounded to f32."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


# ---- reductions ---------------------------------------------------------------------------------------------------
def pair(r: Reduce) -> bool:
    """Whether a reduction has an index beside its value: argmax and argmin."""
    return r.kind in ("argmax", "argmin")


def value_dtype(r: Reduce) -> str:
    """Dtype of the accumulator: for argmax and argmin that of the compared value."""
    return r.args[0].dtype if pair(r) else r.dtype


def identity(r: Reduce) -> Any:
    """Returns the number that a reduction starts from."""
    dtype = value_dtype(r)
    if r.kind in ("sum", "any"):
        return 0
    if r.kind in ("prod", "all"):
        return 1
    least = r.kind in ("amax", "argmax", "logsum")
    if dtype == "b8":
        return not least
    if dtype in FLOATS:
        return -math.inf if least else math.inf
    return (LEAST if least else MOST)[dtype]
