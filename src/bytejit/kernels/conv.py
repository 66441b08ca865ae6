"""Our own single precision convolution (prelude/conv.h): any layout in, channels innermost out, what follows done on the way.

It reads the weight as it is, or packed once, and competes with the libraries by timing like any other row
(`library.rows("conv")`): nothing here decides when it runs. The torch operators `bytejit::conv`, `conv_packed` stand
for it in graphs.

It returns the channels innermost. A 3 by 3 convolution with stride 1 may use Winograd's sums (prelude/winograd.h; option
`winograd`, on). Results that an infinity or an overflow of that transform spoils are computed plainly. Sums: one accumulator
gets about 192 products in a row, 64 with Winograd's sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .own_library import OwnLibrary

UNIT = r"""
#pragma GCC optimize("O2")
#include "winograd.h"
using namespace bj;
// x, w, bias, other, y, scale, shift (0: none); the sizes as in bj_conv::Conv; threads
static PyObject* conv(PyObject*, PyObject* const* a, bj_size) {
    bj_conv::Conv p;
    p.x = pointer<f32>(a[0]), p.w = pointer<f32>(a[1]), p.other = pointer<f32>(a[3]), p.y = pointer<f32>(a[4]);
    p.scale = pointer<f32>(a[5]), p.shift = pointer<f32>(a[6]);
    const f32* bias = pointer<f32>(a[2]);
    i64 sizes[26];
    for (i64 i = 0; i < 26; ++i) sizes[i] = integer(a[7 + i]);
    __builtin_memcpy((char*)&p + __builtin_offsetof(bj_conv::Conv, xb), sizes, sizeof sizes);
    i64 threads = integer(a[33]);
    void* state = PyEval_SaveThread();
    Scratch own(p.o * 4);
    if (bias) {
        f32* sum = own.as<f32>();
        for (i64 i = 0; i < p.o; ++i) sum[i] = (p.scale ? bias[i] * p.scale[i] : bias[i]) + (p.shift ? p.shift[i] : 0.0f);
        p.shift = sum;
    }
    if (p.packed & 2) {
        p.packed &= 1;
        bj_conv::run_windows(p, threads);
    } else {
        bj_conv::run(p, threads);
    }
    PyEval_RestoreThread(state);
    return PyLong_FromLong(0);
}
// w, out, its four distances, o, c, kh, kw, groups, whether for Winograd's windows
static PyObject* pack(PyObject*, PyObject* const* a, bj_size) {
    bj_conv::Conv p{};
    p.w = pointer<f32>(a[0]);
    p.wo = integer(a[2]), p.wc = integer(a[3]), p.wh = integer(a[4]), p.ww = integer(a[5]);
    p.o = integer(a[6]), p.c = integer(a[7]), p.kh = integer(a[8]), p.kw = integer(a[9]), p.groups = integer(a[10]);
    p.batch = p.oh = p.ow = p.h = p.wide = p.sh = p.sw = p.dh = p.dw = 1;
    if (integer(a[11])) {
        bj_conv::Windows q = bj_conv::windows(p, 1);
        bj_conv::pack_windows(p, bj_conv::plan(p, 1), q, 0, q.panels, pointer<f32>(a[1]));
    } else {
        bj_conv::pack(p, pointer<f32>(a[1]));
    }
    return PyLong_FromLong(0);
}
static PyObject* width(PyObject*, PyObject* const*, bj_size) { return PyLong_FromLong(bj_gemm::NR); }
static bj::Method table[] = {{"conv", conv, 0x80, nullptr}, {"pack", pack, 0x80, nullptr}, {"width", width, 0x80, nullptr}};
BJ_EXPORT(table, 3)
"""
AFTER = (
    "Tensor? b, int[] stride, int[] padding, int[] dilation, int groups, Tensor? scale, Tensor? shift, Tensor? other, "
    "bool relu, bool winograd=False"
)


def _sizes(
    shape: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[int, int]:
    """Height and width of a result."""
    h, w = ((shape[2 + d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1) // stride[d] + 1 for d in (0, 1))
    return h, w


def _run(calls: dict[str, Callable]) -> Callable[..., torch.Tensor]:
    """run(x, w, strides of w, o, packed, what `AFTER` says, out) -> y [B, O, H, W], channels innermost.

    x [B, C, H, W]; scale, shift (O elements, as a batch norm in evaluation has them) are applied, then other (of y's shape) is
    added, then relu. All float32 on the CPU, vectors dense. winograd: by Winograd's sums; 3 by 3, stride 1, no groups."""
    call, threads = calls["conv"], torch.get_num_threads

    def run(
        x: torch.Tensor,
        w: torch.Tensor,
        distances: tuple,
        o: int,
        packed: bool,
        b: torch.Tensor | None,
        stride: list[int],
        padding: list[int],
        dilation: list[int],
        groups: int,
        scale: torch.Tensor | None = None,
        shift: torch.Tensor | None = None,
        other: torch.Tensor | None = None,
        relu: bool = False,
        winograd: bool = False,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        kh, kw = (3, 3) if winograd else w.shape[2:4]
        oh, ow = _sizes(x.shape, (kh, kw), stride, padding, dilation)
        shape = (x.shape[0], o, oh, ow)
        y = torch.empty(shape, memory_format=torch.channels_last) if out is None else out
        if y.numel() == 0:
            return y
        if other is not None and other.stride() != y.stride():
            other = other.contiguous(memory_format=torch.channels_last)
        call(
            x.data_ptr(),
            w.data_ptr(),
            0 if b is None else b.data_ptr(),
            0 if other is None else other.data_ptr(),
            y.data_ptr(),
            0 if scale is None else scale.data_ptr(),
            0 if shift is None else shift.data_ptr(),
            *x.stride(),
            *distances,
            *x.shape,
            o,
            oh,
            ow,
            kh,
            kw,
            *stride,
            *padding,
            *dilation,
            groups,
            packed + 2 * winograd,
            relu,
            threads(),
        )
        return y

    return run


def make_conv(calls: dict[str, Callable]) -> Callable[..., torch.Tensor]:
    """conv(x, w, what `AFTER` says, out) -> y. w [O, C/groups, kh, kw] of any strides."""
    run = _run(calls)

    def conv(x: torch.Tensor, w: torch.Tensor, *after: Any, **named: Any) -> torch.Tensor:
        return run(x, w, w.stride(), w.shape[0], False, *after, **named)

    return conv


def make_packed(calls: dict[str, Callable]) -> Callable[..., torch.Tensor]:
    """conv(x, panels, o, what `AFTER` says, out) -> y: the same with a weight that `pack` made, of `o` channels."""
    run = _run(calls)

    def conv(x: torch.Tensor, panels: torch.Tensor, n: int, *after: Any, **named: Any) -> torch.Tensor:
        return run(x, panels, (0, 0, 0, 0), n, True, *after, **named)

    return conv


def make_pack(calls: dict[str, Callable]) -> Callable[..., torch.Tensor]:
    """pack(w [O, C/groups, kh, kw], groups, winograd) -> panels [groups * P, C/groups, kh, kw, width]; for Winograd's sums 4
    and 4 stand for kh, kw."""
    fill, width = calls["pack"], calls["width"]()

    def pack(w: torch.Tensor, groups: int = 1, winograd: bool = False) -> torch.Tensor:
        o, c, kh, kw = w.shape
        panels = torch.empty((-(-(o // groups) // width) * groups, c, *((4, 4) if winograd else (kh, kw)), width))
        fill(w.data_ptr(), panels.data_ptr(), *w.stride(), o, c * groups, kh, kw, groups, winograd)
        return panels

    return pack


def make_all(calls: dict[str, Callable]) -> dict[str, Callable]:
    """The functions behind the operators by operator name, and "conv_pack"."""
    return {
        "bytejit.conv.default": make_conv(calls),
        "bytejit.conv_packed.default": make_packed(calls),
        "conv_pack": make_pack(calls),
    }


OWN = OwnLibrary(
    UNIT,
    (f"conv(Tensor x, Tensor w, {AFTER}) -> Tensor", f"conv_packed(Tensor x, Tensor panels, int n, {AFTER}) -> Tensor"),
    make_all,
)
