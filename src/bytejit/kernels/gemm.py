"""Our own single precision matrix product, for where neither MKL nor oneDNN uses the machine well (prelude/gemm.h).

It reads the weight as it is, in either orientation, or packed once. It competes with the libraries by timing like
any other row (`library.rows("linear")`): nothing here decides when it runs. The torch operator `bytejit::linear`
stands for it in graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from .own_library import OwnLibrary

# -O3 spends 4.6 s on the tiles, -O2 0.8 s for the same speed: the tiles spell out their vectors
UNIT = r"""
#pragma GCC optimize("O2")
#include "gemm.h"
using namespace bj;
enum { MOST = 8 };  // products in one call
// x, m, k, threads, then for each product: w, b (0: none), y, n, row distance of w, form, epilogue
static PyObject* linear(PyObject*, PyObject* const* a, bj_size given) {
    bj_gemm::Problem all[MOST];
    i64 count = (given - 4) / 7;
    for (i64 i = 0; i < count; ++i) {
        PyObject* const* c = a + 4 + 7 * i;
        all[i] = {pointer<f32>(a[0]), pointer<f32>(c[0]), pointer<f32>(c[1]), pointer<f32>(c[2]), integer(a[1]), integer(a[2]),
                  integer(c[3]), integer(a[2]), integer(c[4]), integer(c[5]), integer(c[6])};
    }
    i64 threads = integer(a[3]);
    void* state = PyEval_SaveThread();
    bj_gemm::multiply(all, count, threads);
    PyEval_RestoreThread(state);
    return PyLong_FromLong(0);
}
// w, out, n, k, row distance of w, form: all panels, in order, each [k][NR]
static PyObject* pack(PyObject*, PyObject* const* a, bj_size) {
    bj_gemm::Problem p{};
    p.w = pointer<f32>(a[0]);
    f32* out = pointer<f32>(a[1]);
    p.n = integer(a[2]), p.k = integer(a[3]), p.lw = integer(a[4]), p.form = integer(a[5]);
    for (i64 col = 0; col < p.n; col += bj_gemm::NR) bj_gemm::fill(p, col, 0, 0, p.k, out + col * p.k);
    return PyLong_FromLong(0);
}
// y, elements, epilogue: what follows a product, as a pass of its own
static PyObject* finish(PyObject*, PyObject* const* a, bj_size) {
    bj_gemm::finish(pointer<f32>(a[0]), integer(a[1]), integer(a[2]));
    return PyLong_FromLong(0);
}
static PyObject* width(PyObject*, PyObject* const*, bj_size) { return PyLong_FromLong(bj_gemm::NR); }
static bj::Method table[] = {
    {"linear", linear, 0x80, nullptr}, {"pack", pack, 0x80, nullptr}, {"finish", finish, 0x80, nullptr},
    {"width", width, 0x80, nullptr}};
BJ_EXPORT(table, 4)
"""
PLAIN, FLIPPED, PACKED = 0, 1, 2
EPILOGUES = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3}
MOST = 8  # products of one x in a call


def _weight(w: torch.Tensor) -> tuple[torch.Tensor, int, int]:
    """A weight [N, K] as the unit reads it, its row distance and form: copied only when dense along no dimension."""
    if 1 not in w.stride():
        w = w.contiguous()
    row, step = w.stride()
    return (w, row, PLAIN) if step == 1 else (w, step, FLIPPED)


def _product(calls: dict[str, Callable]) -> Callable[..., torch.Tensor]:
    """product(x, n, k, b, out, epilogue, weight, distance, form) -> y: one call of the compiled product."""
    run = calls["linear"]
    threads = torch.get_num_threads

    def product(
        x: torch.Tensor,
        n: int,
        k: int,
        b: torch.Tensor | None,
        out: torch.Tensor | None,
        epilogue: int,
        weight: torch.Tensor,
        distance: int,
        form: int,
    ) -> torch.Tensor:
        if not x.is_contiguous():
            x = x.contiguous()
        y = torch.empty((*x.shape[:-1], n)) if out is None else out
        m = y.numel() // n if n else 0
        if m:
            bias = 0 if b is None else b.data_ptr()
            run(x.data_ptr(), m, k, threads(), weight.data_ptr(), bias, y.data_ptr(), n, distance, form, epilogue)
        return y

    return product


def make_linear(calls: dict[str, Callable]) -> Callable[..., torch.Tensor]:
    """linear(x, w, b=None, epilogue=0, out=None) -> y, contiguous, in `out` when given. x [..., K]; w [N, K] of any strides:
    read in place when dense along a dimension, else copied first. All float32 on the CPU. epilogue: a value of EPILOGUES."""
    product = _product(calls)

    def linear(
        x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None, epilogue: int = 0, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        return product(x, *w.shape, b, out, epilogue, *_weight(w))

    return linear


def make_finish(calls: dict[str, Callable]) -> Callable[[torch.Tensor, int], torch.Tensor]:
    """finish(y, epilogue) -> y, contiguous, changed in place. epilogue: a value of EPILOGUES."""
    run = calls["finish"]

    def finish(y: torch.Tensor, epilogue: int) -> torch.Tensor:
        run(y.data_ptr(), y.numel(), epilogue)
        return y

    return finish


def make_linears(calls: dict[str, Callable]) -> Callable[..., list[torch.Tensor]]:
    """linears(x, [w, ...], [b or None, ...]) -> [y, ...]: up to MOST products of one x, on threads that start once."""
    run = calls["linear"]
    threads = torch.get_num_threads

    def linears(x: torch.Tensor, ws: list[torch.Tensor], bs: list[torch.Tensor | None]) -> list[torch.Tensor]:
        if not x.is_contiguous():
            x = x.contiguous()
        k = x.shape[-1]
        m = math.prod(x.shape[:-1])
        made, held, args = [], [], [x.data_ptr(), m, k, threads()]
        for w, b in zip(ws, bs, strict=True):
            w, distance, form = _weight(w)
            y = torch.empty((*x.shape[:-1], w.shape[0]))
            made.append(y)
            held.append(w)
            args += (w.data_ptr(), 0 if b is None else b.data_ptr(), y.data_ptr(), w.shape[0], distance, form, 0)
        if m:
            run(*args)
        return made

    return linears


def make_packed(calls: dict[str, Callable]) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """(pack, linear): pack(w [N, K]) -> panels [P, K, width]; linear(x, panels, n, b=None, epilogue=0, out=None)
    -> y."""
    product, pack_into, width = _product(calls), calls["pack"], calls["width"]()

    def pack(w: torch.Tensor) -> torch.Tensor:
        n, k = w.shape
        w, distance, form = _weight(w)
        panels = torch.empty((-(-n // width), k, width))
        pack_into(w.data_ptr(), panels.data_ptr(), n, k, distance, form)
        return panels

    def linear(
        x: torch.Tensor,
        panels: torch.Tensor,
        n: int,
        b: torch.Tensor | None = None,
        epilogue: int = 0,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        k = panels.shape[1]
        return product(x, n, k, b, out, epilogue, panels, k, PACKED)

    return pack, linear


def make_all(calls: dict[str, Callable]) -> dict[str, Callable]:
    """The functions behind the operators by operator name, "pack", and "finish", an epilogue in place."""
    pack, packed = make_packed(calls)
    return {
        "bytejit.linear.default": make_linear(calls),
        "bytejit.linears.default": make_linears(calls),
        "bytejit.linear_packed.default": packed,
        "pack": pack,
        "finish": make_finish(calls),
    }


OWN = OwnLibrary(
    UNIT,
    (
        "linear(Tensor x, Tensor w, Tensor? b, int epilogue=0) -> Tensor",
        "linears(Tensor x, Tensor[] w, Tensor?[] b) -> Tensor[]",
        "linear_packed(Tensor x, Tensor panels, int n, Tensor? b, int epilogue=0) -> Tensor",
    ),
    make_all,
)
