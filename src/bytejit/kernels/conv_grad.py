"""Our own gradient of a convolution's weight in single precision (prelude/conv_grad.h): images of any layout in, best with the
channels innermost. The torch operator `bytejit::conv_weight_grad` stands for it in graphs; timing decides where it runs.

Sums: one accumulator gets up to 256 products in a row, then the chunks' sums are added.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from .own_library import OwnLibrary

UNIT = r"""
#pragma GCC optimize("O2")
#include "conv_grad.h"
using namespace bj;
// g, x, w; the sizes as in bj_conv::WeightGrad; threads
static PyObject* conv_grad(PyObject*, PyObject* const* a, bj_size) {
    bj_conv::WeightGrad p;
    p.g = pointer<f32>(a[0]), p.x = pointer<f32>(a[1]), p.w = pointer<f32>(a[2]);
    i64 sizes[23];
    for (i64 i = 0; i < 23; ++i) sizes[i] = integer(a[3 + i]);
    __builtin_memcpy((char*)&p + __builtin_offsetof(bj_conv::WeightGrad, gb), sizes, sizeof sizes);
    i64 threads = integer(a[26]);
    void* state = PyEval_SaveThread();
    bj_conv::run_weight(p, threads);
    PyEval_RestoreThread(state);
    return PyLong_FromLong(0);
}
static bj::Method table[] = {{"conv_grad", conv_grad, 0x80, nullptr}};
BJ_EXPORT(table, 1)
"""


def make_weight_grad(call: Callable) -> Callable[..., torch.Tensor]:
    """weight_grad(g [B, O, OH, OW], x [B, C, H, W], (kh, kw), stride, padding, dilation) -> [O, C, kh, kw], row-major. Without
    groups; all float32 on the CPU."""
    threads = torch.get_num_threads

    def weight_grad(
        g: torch.Tensor, x: torch.Tensor, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]
    ) -> torch.Tensor:
        batch, o, oh, ow = g.shape
        w = torch.empty((o, x.shape[1], *kernel))
        sizes = (batch, *x.shape[1:], o, oh, ow, *kernel, *stride, *padding, *dilation)
        call(g.data_ptr(), x.data_ptr(), w.data_ptr(), *g.stride(), *x.stride(), *sizes, threads())
        return w

    return weight_grad


OWN = OwnLibrary(
    UNIT,
    ("conv_weight_grad(Tensor g, Tensor x, int[] kernel, int[] stride, int[] padding, int[] dilation) -> Tensor",),
    lambda calls: {"bytejit.conv_weight_grad.default": make_weight_grad(calls["conv_grad"])},
)
