"""Online reductions: a nest's reduction that needs the result of an earlier nest's moves into that nest, so that the row is read
one time less.

    nest: m0 = amax v                       nest: m0 = amax v, m1 = expsum v       (softmax, log_softmax, cross entropy)
    nest: m1 = sum exp(v - m0)       ->

    nest: m0 = sum v                        nest: m0 = sum v, m1 = moments v       (var, layer, group and batch norm)
    nest: m1 = sum (v - m0 / n) ** 2 ->

Each has a state of several values (`Carried`), which is corrected when the maximum or the mean changes: the online softmax,
Welford's algorithm. For looped and split rows on a GPU; the functions are in `kernels/prelude/triton_reductions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.ir import Axis, Kernel, LoopNest, Reduce
from bytejit.codegen.loops.simplify import loads, points
from bytejit.common.light_dataclass import light_dataclass

DTYPES = ("f32", "f64")


@light_dataclass(frozen=True)
class Carried:
    """How a reduction with a state runs: names of functions. start: the state's first values; step(state, value, mask, turn) ->
    state, for each element of a tile; fold(state, axis) -> the state of a row; end(state) -> the result; other: the operand in
    lanes past the end of the row; group: elements that one lane of the state may take in a step."""

    start: tuple[float, ...]
    step: str
    fold: str
    end: str
    other: float = 0.0
    group: int = 1


INF = float("inf")
KINDS = {
    "expsum": Carried((-INF, 0.0), "bj_expsum_step", "bj_expsum_fold", "bj_expsum_end", -INF, 8),
    "expsum0": Carried((-INF, 0.0), "bj_expsum_step", "bj_expsum_fold", "bj_expsum0_end", -INF, 8),  # of logsumexp
    "moments": Carried((0.0, 0.0, 0.0), "bj_moments_step", "bj_moments_fold", "bj_moments_end"),
}


def joined(k: Kernel, overlap: Callable[[str, str], bool]) -> Kernel:
    """The kernel with such reductions moved into the nest whose result they need. overlap: whether two buffers may share
    bytes."""
    nests = list(k.nests)
    for i, p in enumerate(nests):
        for r in p.reduces:
            for j in range(i + 1, len(nests)):
                if nests[j].axes == p.axes and p.axes:
                    _join(nests, i, j, r, overlap)
    return replace(k, nests=tuple(p for p in nests if p.stores or p.reduces))


def _join(nests: list[LoopNest], i: int, j: int, r: Reduce, overlap: Callable[[str, str], bool]) -> None:
    for s in nests[j].reduces:
        kind = online_kind(s, r, nests[j].axes)
        stored = {x.buffer for p in nests[i:j] for x in p.stores}
        if kind and not any(overlap(e.name, b) for e in loads(r.args) for b in stored):
            nests[j] = replace(nests[j], reduces=tuple(x for x in nests[j].reduces if x is not s))
            nests[i] = replace(nests[i], reduces=(*nests[i].reduces, replace(s, kind=kind, args=r.args)))


def online_kind(s: Reduce, r: Reduce, axes: tuple[Axis, ...]) -> str:
    """The key in KINDS of a sum `s` that reads the result of `r`; "" when it is none of them."""
    if s.running or r.running or s.kind != "sum" or s.dtype not in DTYPES or r.dtype != s.dtype:
        return ""
    e = s.args[0]
    if r.kind == "amax" and _is(e, "exp") and _is(e.args[0], "sub") and e.args[0].args[0] == r.args[0]:
        top = e.args[0].args[1]
        if _ref(top, r):
            return "expsum"
        if (
            _is(top, "select")
            and _ref(top.args[2], r)
            and _is(top.args[0], "isinf")
            and _ref(top.args[0].args[0], r)
            and top.args[1].kind == "const"
            and top.args[1].attr == 0
        ):
            return "expsum0"
    if r.kind == "sum" and _is(e, "mul") and e.args[0] == e.args[1] and _is(e.args[0], "sub"):
        value, mean = e.args[0].args
        if (
            value == r.args[0]
            and _is(mean, "div")
            and _ref(mean.args[0], r)
            and mean.args[1].kind == "const"
            and all(isinstance(a.size, int) for a in axes)
            and mean.args[1].attr == points(axes)
        ):
            return "moments"
    return ""


def _is(e: Expr, name: str) -> bool:
    return e.kind == "op" and e.name == name


def _ref(e: Expr, r: Reduce) -> bool:
    return e.kind == "ref" and e.name == r.name


def leader(r: Reduce, p: LoopNest) -> Reduce | None:
    """The reduction of the same nest whose state contains the result of `r`, a maximum; None when there is none."""
    if r.kind != "amax" or r.running:
        return None
    return next((s for s in p.reduces if s.kind.startswith("expsum") and s.args == r.args), None)
