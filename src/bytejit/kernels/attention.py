"""Our own single precision attention (prelude/attention.h): strided operands, any mask, the heads side by side in the result.

It competes with torch's by timing like any other row (`library.rows("attention")`): nothing here decides when it
runs. The torch operator `bytejit::attention` stands for it in graphs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .own_library import OwnLibrary

UNIT = r"""
#pragma GCC optimize("O2")
#include "attention.h"
extern "C" double PyFloat_AsDouble(PyObject*);
using namespace bj;
// scale; q, k, v, y, mask (0: none); the distances of q, k, v, y (3 each) and of the mask (4), then as in bj_attention::Attention
static PyObject* attention(PyObject*, PyObject* const* a, bj_size) {
    bj_attention::Attention p{};
    p.scale = (f32)PyFloat_AsDouble(a[0]);
    bj_attention::View* views[4] = {&p.q, &p.k, &p.v, &p.y};
    for (i64 i = 0; i < 4; ++i) {
        PyObject* const* d = a + 6 + 3 * i;
        *views[i] = {pointer<f32>(a[1 + i]), integer(d[0]), integer(d[1]), integer(d[2])};
    }
    p.mask = pointer<void>(a[5]);
    i64* rest[] = {&p.mb, &p.mh, &p.ml, &p.ms, &p.flags, &p.batch, &p.heads, &p.group,
                   &p.rows, &p.keys, &p.dim, &p.out, &p.causal, &p.strict};
    for (i64 i = 0; i < 14; ++i) *rest[i] = integer(a[18 + i]);
    i64 threads = integer(a[32]);
    void* state = PyEval_SaveThread();
    bj_attention::run(p, threads);
    PyEval_RestoreThread(state);
    return PyLong_FromLong(0);
}
static bj::Method table[] = {{"attention", attention, 0x80, nullptr}};
BJ_EXPORT(table, 1)
"""


def make_attention(calls: dict[str, Callable]) -> Callable[..., torch.Tensor]:
    """attention(q, k, v, mask, causal, scale, aside, strict=False, out=None) -> y [B, H, L, E], in `out` when given, else with
    the heads innermost but one (a transposed [B, L, H, E]) when `aside`, row-major otherwise. q [B, H, L, D], k [B, G, S, D],
    v [B, G, S, E], all float32, H a multiple of G; mask [..., L, S], broadcast, float32 or bool, or None; causal: row i
    sees keys 0 .. i; strict: a row whose scores are all -inf is NaN, else 0."""
    run, threads = calls["attention"], torch.get_num_threads

    def attention(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None,
        causal: bool,
        scale: float,
        aside: bool,
        strict: bool = False,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        batch, heads, rows, dim = q.shape
        shared, keys, wide = k.shape[1], k.shape[2], v.shape[3]
        y = out
        if y is None:
            y = torch.empty((batch, rows, heads, wide)).transpose(1, 2) if aside else torch.empty((batch, heads, rows, wide))
        if not y.numel() or not keys or not dim:
            return y.zero_()
        q, k, v = (t if t.stride(3) == 1 else t.contiguous() for t in (q, k, v))
        of_mask: tuple[int, ...] = (0, 0, 0, 0)
        address, flags = 0, 0
        if mask is not None:
            of_mask, address, flags = _broadcast(mask), mask.data_ptr(), mask.dtype is torch.bool
        run(
            scale,
            q.data_ptr(),
            k.data_ptr(),
            v.data_ptr(),
            y.data_ptr(),
            address,
            *q.stride()[:3],
            *k.stride()[:3],
            *v.stride()[:3],
            *y.stride()[:3],
            *of_mask,
            flags,
            batch,
            heads,
            heads // shared,
            rows,
            keys,
            dim,
            wide,
            causal,
            strict,
            threads(),
        )
        return y

    return attention


def _broadcast(mask: torch.Tensor) -> tuple[int, ...]:
    """Distances of a mask's four dimensions, 0 where it has one value for all."""
    found = [0 if n == 1 else s for n, s in zip(mask.shape, mask.stride(), strict=True)]
    return (0,) * (4 - len(found)) + tuple(found)


OWN = OwnLibrary(
    UNIT,
    ("attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool causal, float scale, bool aside, bool strict=False) -> Tensor",),
    lambda calls: {"bytejit.attention.default": make_attention(calls)},
)
