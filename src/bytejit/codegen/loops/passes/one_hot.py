"""Replaces sums over an axis that has at most one nonzero element: the sum is that element, computed without a loop.

A row of nll_loss's gradient is an example: it is -1/n at the target's index, else 0. The gradient of log_softmax needs its sum.
"""

from __future__ import annotations

from dataclasses import replace

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.expr import Cons, Expr
from bytejit.codegen.loops.ir import Kernel, LoopNest, Reduce
from bytejit.codegen.loops.simplify import Rewriter, axes_below, conjunction, conjuncts


def without_one_hot_sums(k: Kernel, cons: Cons) -> Kernel:
    """The kernel without sums over one-hot values: each becomes a value that is computed once a row. Nests that only such
    sums needed are dropped."""
    found: dict[str, Expr] = {}
    nests: list[LoopNest] = []
    for p in k.nests:
        if found:
            p = Rewriter(cons, {}, refs=found).body(p)
        if len(p.axes) == 1:
            found |= {r.name: e for r in p.reduces if (e := one_element(r, p.axes[0].name, p.axes[0].size, cons)) is not None}
            p = replace(p, reduces=tuple(r for r in p.reduces if r.name not in found))
        if p.stores or p.reduces:
            nests.append(p)
    return replace(k, nests=tuple(nests)) if found else k


def one_element(r: Reduce, axis: str, size: ix.Size, cons: Cons) -> Expr | None:
    """The sum of select(axis == t and more, x, 0): x where 0 <= t < size and more holds, else 0. None for any other reduction."""
    if r.kind != "sum" or r.running:
        return None
    e = r.args[0]
    if e.kind != "op" or e.name != "select" or e.args[2].kind != "const" or e.args[2].attr != 0 or axis in axes_below(e.args[1]):
        return None
    target, more = None, None
    for part in conjuncts(e.args[0]):
        if target is None and (target := equal_to(part, axis)) is not None:
            continue
        if axis in axes_below(part):
            return None
        more = conjunction(cons, more, part)
    if target is None:
        return None
    low = cons.op("ge", (target, cons.const(0, "i64")), "b8")
    high = cons.op("lt", (target, cons.index(ix.index(size))), "b8")
    there = conjunction(cons, conjunction(cons, low, high), more)
    assert there is not None
    zero = cons.const(0.0 if e.dtype[0] in "fb" else 0, e.dtype)
    value = cons.op("select", (there, e.args[1], zero), e.dtype, r.where)
    return cons.op("add", (value, zero), e.dtype, r.where)  # a sum that holds one -0.0 is 0.0


def equal_to(e: Expr, axis: str) -> Expr | None:
    """t where a condition is axis == t, and t is the same all along the axis."""
    if e.kind != "op" or e.name != "eq":
        return None
    for x, t in (e.args, e.args[::-1]):
        if x.kind == "index" and x.attr == ix.var(axis) and t.dtype == "i64" and axis not in axes_below(t):
            return t
    return None
