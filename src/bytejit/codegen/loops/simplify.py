"""Rewriting of expressions and kernels: axes substituted, loads replaced, small algebra, cost, unused stores dropped.

Every rewriting goes through `Rewriter`, which walks a DAG once, operands first, and keeps equal nodes one object.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from bytejit.codegen.loops.expr import Cons, Expr, mark, walk
from bytejit.codegen.ops.table import table
from bytejit.common.dtypes import DTYPES, NARROW, itemsize

from . import index as ix
from .index import Index
from .ir import Axis, Buffer, Kernel, LoopNest, Reduce, Store

#: on_load(load, coords, mask) -> what replaces it, or None: the load itself at the new coordinates
OnLoad = Callable[[Expr, tuple, Any], Any]


class Rewriter:
    """Rewrites expressions: axes by `axes` (simplified under `sizes`), loads by `on_load`; every load gets `mask` as well, and
    what may raise passes its check where the mask does not hold.

    refs: result of a reduction -> its new name, by which the reduction is renamed too, or a value to use in its place.
    only: the buffers whose loads `on_load` may replace, where neither axes nor masks change: expressions without them are
    not walked again.
    """

    def __init__(
        self,
        cons: Cons,
        sizes: Mapping[str, Any],
        axes: Mapping[str, Index] | None = None,
        on_load: OnLoad | None = None,
        mask: Expr | None = None,
        refs: Mapping[str, str | Expr] | None = None,
        only: Collection[str] | None = None,
    ):
        self.cons, self.sizes, self.axes, self.on_load, self.mask = cons, sizes, axes or {}, on_load, mask
        self.refs, self.only = refs or {}, only
        self.marks = functools.reduce(operator.or_, map(mark, only or ()), 0)
        self.parts: list[tuple[Expr, set[str] | None]] | None = None  # of `mask`
        self.memo: dict[int, Expr] = {}
        self.keep: list[Expr] = []  # ids in memo stay valid as long as their nodes live
        self.indices: dict[Index, Index] = {}

    def index(self, x: Any) -> Index:
        """An index rewritten."""
        x = ix.index(x)
        new = self.indices.get(x)
        if new is None:
            new = self.indices[x] = ix.substitute(x, self.axes, self.sizes, self.__call__)
        return new

    def coords(self, coords: tuple) -> tuple:
        """Coordinates rewritten."""
        return tuple(map(self.index, coords))

    def __call__(self, e: Expr) -> Expr:
        """An expression rewritten."""
        memo, keep, part = self.memo, self.keep, self.only is not None
        stack: list[Expr | None] = [e]  # None: the operands of the node below it are rewritten
        while stack:
            node = stack.pop()
            if node is None:
                node = stack.pop()
                assert node is not None
                new = self.node(node)
                if part and new is node:
                    node.simple = all(a.simple for a in node.needs)
            elif id(node) in memo:
                continue
            elif part and self.stays(node):
                new = node
            else:
                stack += (node, None, *node.needs[::-1])
                continue
            memo[id(node)] = new
            keep.append(node)
        return memo[id(e)]

    def stays(self, e: Expr) -> bool:
        """Whether an expression is known not to change."""
        return self.only is not None and e.simple and not e.marks & self.marks and self.refs.keys().isdisjoint(e.refs)

    def node(self, e: Expr) -> Expr:
        """Rewrites one node, whose operands are rewritten already."""
        if e.kind == "op":
            args = tuple(self.memo[id(a)] for a in e.args)
            return make_op(self.cons, e, args if self.mask is None else passing(self.cons, e, args, self.mask))
        if e.kind == "load":
            mask = self.memo[id(e.mask)] if e.mask is not None else None
            coords = self.coords(e.attr)
            if self.mask is not None:
                mask = conjunction(self.cons, mask, self.mask_of(coords))
            if mask is not None and (smaller := sizes_under(mask, self.sizes)) is not None:
                coords = tuple(ix.resimplify(c, smaller) for c in coords)
            new = self.on_load(e, coords, mask) if self.on_load else None
            return new if new is not None else self.cons.load(e.name, coords, e.dtype, mask, e.where)
        if e.kind == "index":
            at = self.index(e.attr)
            if at.value is not None:
                return self.cons.const(at.value, "i64")
            return self.cons.index(at, e.where)
        if e.kind == "ref":
            other = self.refs.get(e.name, e.name)
            return other if isinstance(other, Expr) else self.cons.ref(other, e.dtype, e.where)
        return self.cons.const(e.attr, e.dtype)

    def mask_of(self, coords: tuple) -> Expr | None:
        """The part of `mask` that a load needs to stay within its buffer: without conditions on axes that its coordinates do not
        depend on. Where such a condition is false the loaded value is not used."""
        assert self.mask is not None
        if next(ix.values_in(coords), None) is not None:
            return self.mask
        if self.parts is None:
            self.parts = [(part, None if depends_on_memory(part) else axes_below(part)) for part in conjuncts(self.mask)]
        own, needed = set().union(*map(ix.variables, coords)), None
        for part, axes in self.parts:
            if axes is None or axes & own:
                needed = conjunction(self.cons, needed, part)
        return needed

    def store(self, s: Store) -> Store:
        """A store rewritten."""
        if "_simple" in s.__dict__ and all(map(self.stays, s.roots())):
            return s
        coords, value, mask = self.coords(s.coords), self(s.value), None if s.mask is None else self(s.mask)
        if coords == s.coords and value is s.value and mask is s.mask:
            if self.only is not None:
                s.__dict__["_simple"] = True  # as `Expr.simple`
            return s
        return replace(s, coords=coords, value=value, mask=mask)

    def reduce(self, r: Reduce) -> Reduce:
        """A reduction rewritten."""
        other, args = self.refs.get(r.name, r.name), tuple(map(self, r.args))
        name = r.name if isinstance(other, Expr) else other
        return r if name == r.name and all(map(operator.is_, args, r.args)) else replace(r, name=name, args=args)

    def body(self, p: LoopNest, axes: tuple[Axis, ...] | None = None) -> LoopNest:
        """A nest rewritten, over new axes if they changed."""
        if self.only is not None and "_simple" in p.__dict__ and not self.refs and p.sources.isdisjoint(self.only):
            return p if axes is None else replace(p, axes=axes)
        stores, reduces = tuple(map(self.store, p.stores)), tuple(map(self.reduce, p.reduces))
        if axes is None and all(map(operator.is_, (*stores, *reduces), (*p.stores, *p.reduces))):
            if self.only is not None:
                p.__dict__["_simple"] = True  # as `Expr.simple`
            return p
        return LoopNest(p.axes if axes is None else axes, stores, reduces)


def conjuncts(e: Expr) -> list[Expr]:
    """The parts of a conjunction."""
    if e.kind == "op" and e.name in ("and", "logical_and") and e.dtype == "b8":
        return [part for a in e.args for part in conjuncts(a)]
    return [e]


def depends_on_memory(e: Expr) -> bool:
    """Whether a value depends on the contents of memory, or on a reduction."""
    return any(x.kind in ("load", "ref") for x in walk((e,)))


def axes_at(e: Expr) -> set[str]:
    """The axes that a node itself names, without those that its operands name."""
    at = e.attr if e.kind == "load" else (e.attr,) if e.kind == "index" else ()
    return set().union(*map(ix.variables, at))


def axes_below(e: Expr) -> set[str]:
    """The axes that a value depends on, without those that a reduction which it refers to depends on."""
    return set().union(*map(axes_at, walk((e,))))


def sizes_under(mask: Expr, sizes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The sizes of axes where a mask holds: smaller than `sizes` for an axis that the mask requires to be less than a number.
    None where it requires that of no axis."""
    found: dict[str, int] = {}
    for e in conjuncts(mask):
        if e.kind == "op" and e.name == "lt" and e.args[0].kind == "index" and e.args[1].kind == "const":
            at, most = e.args[0].attr, e.args[1].attr
            name = ix.only_axis(at)
            if name is not None and name in sizes and isinstance(sizes[name], int) and 0 < most < sizes[name]:
                found[name] = min(most, found.get(name, most))
    return {**sizes, **found} if found else None


HEAVY = 3  # additions: cheaper expressions may be computed again instead of stored


def conjunction(cons: Cons, a: Expr | None, b: Expr | None) -> Expr | None:
    """a and b; None is true."""
    if a is None or b is None or a is b:
        return a if b is None else b
    return cons.op("and", (a, b), "b8")


def make_op(cons: Cons, e: Expr, args: tuple[Expr, ...]) -> Expr:
    """The op over new operands, or what it is simplified to."""
    name, a = e.name, args[0]
    if name in ("to", "narrow"):
        if a.dtype == e.dtype:
            return a
        if a.kind == "op" and a.name == "narrow" and a.dtype in NARROW and a.args[0].dtype == e.dtype:
            return a.args[0]  # the implicit rounding between two fused ops
        if (
            a.kind == "op"
            and a.name == "to"
            and a.dtype in NARROW
            and (b := a.args[0]).kind == "op"
            and b.name == "to"
            and b.dtype == e.dtype
            and b.args[0].dtype == a.dtype
        ):
            return b  # it has the values of the narrow dtype already
        if e.dtype in NARROW and a.kind == "op" and a.name == "to" and a.dtype in ("f32", "f64"):
            if a.args[0].dtype == e.dtype:
                return a.args[0]  # only moved: no bit of it changes
        if name == "to" and a.kind == "const" and e.dtype not in NARROW and e.dtype == "f64":
            return cons.const(float(a.attr), e.dtype)
    elif name == "select":
        if a.kind == "const":
            return args[1] if a.attr else args[2]
        if args[1] is args[2] or _is_masked_by(a, args[1]) and _is_zero(args[2]):
            return args[1]
    elif name == "mul" and e.dtype != "b8":
        for x, y in (args, args[::-1]):
            if y.kind == "const" and y.attr == 1:
                return x
    elif name == "and" and any(x.kind == "const" for x in args) and e.dtype == "b8":
        x, y = args if args[0].kind == "const" else args[::-1]
        return y if x.attr else x
    elif name == "isnan" and a.kind == "op" and a.name in ("maximum", "minimum"):
        # asked of each operand: for isnan(maximum(0, x)) GCC emits a branch on which of them is larger, and does not vectorize
        nans = [make_op(cons, e, (x,)) for x in a.args if x.kind != "const" or x.attr != x.attr]
        return functools.reduce(lambda x, y: cons.op("or", (x, y), "b8", e.where), nans) if nans else cons.const(False, "b8")
    elif name in _COMPARE and all(x.kind == "const" for x in args) and args[0].dtype == "i64":
        return cons.const(_COMPARE[name](args[0].attr, args[1].attr), "b8")
    return cons.op(name, args, e.dtype, e.where, e.attr)


def _is_masked_by(mask: Expr, e: Expr) -> bool:
    """Whether a value is loaded, and 0 where the mask is false."""
    return _is_masked_by(mask, e.args[0]) if e.kind == "op" and e.name == "to" else e.kind == "load" and e.mask is mask


def _is_zero(e: Expr) -> bool:
    """Whether a constant is 0, not -0.0."""
    return e.kind == "const" and e.attr == 0 and math.copysign(1, e.attr) == 1


_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "lt": int.__lt__,
    "le": int.__le__,
    "gt": int.__gt__,
    "ge": int.__ge__,
    "eq": int.__eq__,
    "ne": int.__ne__,
}


def loads(roots: Iterable[Expr]) -> list[Expr]:
    """Every load below roots, each once."""
    return list({id(e): e for root in roots for e in root.loads}.values())


def own_cost(e: Expr) -> int:
    """Work of a node without its operands: of an op that of its row. Units: additions."""
    if e.kind != "op":
        return 0
    row = table().by_name.get(e.name)
    return row.cost if row is not None else 1


def cost(roots: Iterable[Expr]) -> int:
    """Work of evaluating the roots once. Units: additions."""
    return sum(map(own_cost, walk(tuple(roots))))


#: Units: additions and loads. Fusion makes no kernel larger than this: g++ takes 1.2 ms an addition (for sin and exp with
#: AVX-512) up to 1,000 in one loop and 3.3 ms above that, and every rewrite walks the whole kernel. Kernels of usual models
#: have less than 350.
MOST_WORK = 768


def work(roots: Iterable[Expr]) -> int:
    """Returns how large a kernel is. Units: additions and loads."""
    found = tuple(roots)
    return cost(found) + len(loads(found))


def may_raise_itself(e: Expr) -> bool:
    """Whether a node may set the error flag: an index out of range, or an integer division by zero."""
    return e.kind == "op" and table().by_name[e.name].raises is not None and e.dtype[0] in "iu"


def passing(cons: Cons, e: Expr, args: tuple[Expr, ...], mask: Expr) -> tuple[Expr, ...]:
    """Operands of an op that may raise an error, changed so that it does not where the mask is false: eager does not
    compute the op there."""
    if not may_raise_itself(e):
        return args
    at, value = table().by_name[e.name].raises or (0, 0)
    checked = args[at]
    if checked.kind == "const" or checked.kind == "load" and (value == 0 or checked.mask is None):
        return args  # a masked load returns 0; without a mask it reads an element that eager checks too
    safe = cons.op("select", (mask, checked, cons.const(value, checked.dtype)), checked.dtype, e.where)
    return (*args[:at], safe, *args[at + 1 :])


def checks(roots: Iterable[Expr]) -> list[Expr]:
    """The nodes at and below roots that may set the error flag, each once."""
    return [e for e in walk(tuple(roots)) if may_raise_itself(e)]


def may_raise(roots: Iterable[Expr]) -> bool:
    """Whether evaluating can set the error flag."""
    return any(map(may_raise_itself, walk(tuple(roots))))


def kernel_roots(k: Kernel) -> tuple[Expr, ...]:
    """All expressions of a kernel."""
    return tuple(r for p in k.nests for r in p.roots())


def written(k: Kernel) -> list[str]:
    """Buffers the kernel stores to, in order, each once."""
    return list(dict.fromkeys(s.buffer for p in k.nests for s in p.stores))


def reads_rows(k: Kernel, buffers: dict[str, Buffer]) -> bool:
    """Whether a kernel reads a row-local buffer: what one nest passes to another within a thread."""
    return any(buffers[e.name].kind == "local" for e in k.loads)


def points(axes: Iterable[Axis]) -> int:
    """Number of points of a loop nest; a symbolic size counts as its hint."""
    n = 1
    for a in axes:
        n *= ix.hint(a.size)
    return n


def elements(b: Buffer) -> int:
    """Number of elements of a buffer; a symbolic size counts as its hint."""
    return points(Axis("", n) for n in b.shape)


def bytes_of(b: Buffer) -> int:
    """Bytes of a buffer's elements; a symbolic size counts as its hint."""
    return elements(b) * (itemsize(b.dtype) if b.dtype in DTYPES else 8)


def known(axes: Iterable[Axis]) -> bool:
    """Whether all sizes are constants."""
    return all(isinstance(a.size, int) for a in axes)


def drop_unused(k: Kernel, used: Callable[[Store], bool]) -> Kernel | None:
    """The kernel without stores that are not used and reductions that nothing reads; None when nothing is left."""
    nests: list[LoopNest] = []
    refs: set[str] = set()
    for p in reversed(k.nests):
        stores = tuple(s for s in p.stores if used(s))
        left = LoopNest(p.axes, stores, ())
        refs.update(*(e.refs for e in left.roots()))
        for r in reversed(p.reduces):  # a scan may read one before it in the same nest
            if r.name in refs:
                refs.update(*(e.refs for e in r.args))
        reduces = tuple(r for r in p.reduces if r.name in refs)
        left = replace(left, reduces=reduces)
        refs.update(*(e.refs for e in left.roots()))
        if stores or reduces:
            nests.append(left)
    return replace(k, nests=tuple(reversed(nests))) if nests else None


def innermost(k: Kernel, p: Any, buffers: dict[str, Buffer]) -> str | None:
    """The axis along which the most accesses of the nest have stride 1; a store counts as two loads. None: there is no such
    axis."""
    names = {a.name for a in (*k.axes, *p.axes)}
    votes: dict[str, int] = {}
    accesses = [(s.buffer, s.coords, 2) for s in p.stores] + [(e.name, e.attr, 1) for e in p.loads]
    for b, coords, weight in accesses:
        for name in ix.consecutive(coords, buffers[b].stride):
            if name in names:
                votes[name] = votes.get(name, 0) + weight
    return max(votes, key=lambda n: votes[n]) if votes else None
