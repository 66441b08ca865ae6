"""Our own single precision matrix product, for where neither MKL nor oneDNN uses the machine well (prelude/gemm.h).

It reads the weight as it is, in either orientation, or packed once. It competes with the libraries by timing like
any other row (`library.rows("linear")`): nothing here decides when it runs. The torch operator `bytejit::linear`
stands for it in graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ..options import Options
from .build_cpp import build

# -O3 spends 4.6 s on the tiles, -O2 0.8 s for the same speed: the tiles spell out their vectors
UNIT = r"""
#pragma GCC optimize("O2")
#include "gemm.h"
using namespace bj;
// x, w, b (0: none), y, m, k, n, row distance of x, of w, form, relu, threads
static PyObject* linear(PyObject*, PyObject* const* a, bj_size) {
    bj_gemm::Problem p{pointer<f32>(a[0]), pointer<f32>(a[1]), pointer<f32>(a[2]), pointer<f32>(a[3]),
                       integer(a[4]), integer(a[5]), integer(a[6]), integer(a[7]), integer(a[8]), integer(a[9]),
                       integer(a[10])};
    i64 threads = integer(a[11]);
    void* state = PyEval_SaveThread();
    bj_gemm::multiply(p, threads);
    PyEval_RestoreThread(state);
    return PyLong_FromLong(0);
}
// w, out, n, k, row distance of w, form: all panels, in order, each [k][NR]
static PyObject* pack(PyObject*, PyObject* const* a, bj_size) {
    bj_gemm::Problem p{};
    p.w = pointer<f32>(a[0]);
    f32* out = pointer<f32>(a[1]);
    p.n = integer(a[2]), p.k = integer(a[3]), p.lw = integer(a[4]), p.form = integer(a[5]);
    for (i64 col = 0; col < p.n; col += bj_gemm::NR) {
        if (p.form == 1) bj_gemm::flipped(p, col, 1, 0, p.k, out + col * p.k);
        else bj_gemm::panel(p, col, 0, p.k, out + col * p.k);
    }
    return PyLong_FromLong(0);
}
static PyObject* width(PyObject*, PyObject* const*, bj_size) { return PyLong_FromLong(bj_gemm::NR); }
static bj::Method table[] = {
    {"linear", linear, 0x80, nullptr}, {"pack", pack, 0x80, nullptr}, {"width", width, 0x80, nullptr}};
BJ_EXPORT(table, 3)
"""
BUILT: dict[str, Callable] = {}      # what `register` made: filled once a process, empty where there is no compiler
PLAIN, FLIPPED, PACKED = 0, 1, 2


def functions(options: Options) -> dict[str, Callable]:
    """The compiled unit's functions, from the cache when it was built before. Raises: NoCompiler, BuildFailed."""
    return build((UNIT,), options).calls[0]


@functools.cache
def _namespace() -> torch.library.Library:
    """The operators' definitions; torch forgets them when this object goes."""
    made = torch.library.Library("bytejit", "DEF")
    made.define("linear(Tensor x, Tensor w, Tensor? b, bool relu) -> Tensor")
    made.define("linear_packed(Tensor x, Tensor panels, int n, Tensor? b, bool relu) -> Tensor")
    return made


@functools.cache
def register(options: Options) -> dict[str, Callable]:
    """Build the unit and make `bytejit::linear`, `bytejit::linear_packed` run it. Returns the Python functions
    behind the operators by operator name, and "pack": an emitter may call these directly and save the dispatcher.
    Raises: NoCompiler, BuildFailed."""
    calls = functions(options)
    pack, packed = make_packed(calls)
    made = {"bytejit.linear.default": make_linear(calls), "bytejit.linear_packed.default": packed, "pack": pack}
    if not BUILT:
        _namespace().impl("linear", made["bytejit.linear.default"], "CPU")
        _namespace().impl("linear_packed", packed, "CPU")
    BUILT.update(made)
    return made


def make_linear(calls: dict[str, Callable]) -> Callable[..., torch.Tensor]:
    """linear(x, w, b=None, relu=False) -> y, contiguous. x [..., K]; w [N, K] of any strides: read in place when
    dense along a dimension, else copied first. All float32 on the CPU."""
    run = calls["linear"]
    threads = torch.get_num_threads

    def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None, relu: bool = False) -> torch.Tensor:
        n, k = w.shape
        if 1 not in w.stride():
            w = w.contiguous()
        row, step = w.stride()
        form, distance = (PLAIN, row) if step == 1 else (FLIPPED, step)
        if not x.is_contiguous():
            x = x.contiguous()
        y = torch.empty((*x.shape[:-1], n))
        m = y.numel() // n if n else 0
        if m:
            run(x.data_ptr(), w.data_ptr(), 0 if b is None else b.data_ptr(), y.data_ptr(), m, k, n, k, distance, form,
                1 if relu else 0, threads())
        return y

    return linear


def make_packed(calls: dict[str, Callable]) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """(pack, linear): pack(w [N, K]) -> panels [P, K, width]; linear(x, panels, n, b=None, relu=False) -> y."""
    run, pack_into, width = calls["linear"], calls["pack"], calls["width"]()
    threads = torch.get_num_threads

    def pack(w: torch.Tensor) -> torch.Tensor:
        n, k = w.shape
        if 1 not in w.stride():
            w = w.contiguous()
        row, step = w.stride()
        panels = torch.empty((-(-n // width), k, width))
        pack_into(w.data_ptr(), panels.data_ptr(), n, k, *((row, PLAIN) if step == 1 else (step, FLIPPED)))
        return panels

    def linear(x: torch.Tensor, panels: torch.Tensor, n: int, b: torch.Tensor | None = None,
               relu: bool = False) -> torch.Tensor:
        if not x.is_contiguous():
            x = x.contiguous()
        k = panels.shape[1]
        y = torch.empty((*x.shape[:-1], n))
        m = y.numel() // n if n else 0
        if m:
            run(x.data_ptr(), panels.data_ptr(), 0 if b is None else b.data_ptr(), y.data_ptr(), m, k, n, k, k, PACKED,
                1 if relu else 0, threads())
        return y

    return pack, linear
