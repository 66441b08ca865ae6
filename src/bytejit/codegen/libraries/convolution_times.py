"""What each convolution costs in each layout, by timing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from bytejit.codegen.aten.rewrite import (
    at_hints,
    aten,
    bytes_of,
    contiguous,
    sole_user,
    spec_of,
)
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec, channels_last_stride

from . import folded, patches
from .choices import call_of, timed
from .convolution import EVERY_EPILOGUE, ConvBackward, ConvNode, is_nhwc, what_follows

PASS_RATE = 2e10  # bytes a second, read and written, of what follows a convolution in a kernel of its own
BACKWARD_OPS = 1e9  # multiplications and additions of a timed backward pass: of fewer images where there would be more
NEAR_OPS = 10_000_000  # multiply-adds from which distances are measured
APART = "nhwc, the weight's apart"  # the way of a backward pass with our own gradient of the weight
REWRITTEN = (patches.PATCHES, folded.FOLDED)  # ways that write a convolution as something else, and read images in any layout
LEAST_CHANNELS = 8  # with fewer, most lanes of our kernel are empty
CONVERT_START = 4e-6  # seconds a call on top
GPU_CONVERT_START, GPU_CONVERT_RATE = 1e-6, 1.5e12  # the same and bytes a second, in a kernel of ours that often does other work


@light_dataclass(frozen=True)
class Times:
    """Seconds of a convolution per layout, and the name of the best row with the channels innermost; any_layout: that row
    reads its input (of a backward pass: the forward's) in either layout."""

    nchw: float
    nhwc: float
    nhwc_call: str
    any_layout: bool = False


def time_conv(conv: ConvNode, tune: Any, library: Any, packs: bool) -> Times | None:
    geometry = conv.geometry
    x, w = contiguous(at_hints(spec_of(conv.x))), spec_of(conv.w)
    on_gpu = x.device.type != "cpu"
    bias = [] if conv.b is None else [spec_of(conv.b)]
    last: list[torch.Tensor] = []  # the images that were converted last, and what came of it: each run's are the same

    def converted(x: torch.Tensor, w: torch.Tensor, *rest: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if on_gpu:  # such a weight too: its conversion is a kernel of ours
            w = w.contiguous(memory_format=torch.channels_last)
        if not last or last[0] is not x:
            last[:] = x, x.contiguous(memory_format=torch.channels_last)
        return (last[1], w, *rest)

    ways: dict[str, Callable] = {}
    prepare: dict[str, Callable] = {}
    for row in _rows(conv, packs, library):
        ways[row.name] = call_of(row, ("x", "w", "b"), n=w.shape[0], **geometry)
        if row.pack:
            prepare[row.name] = lambda x, w, *b, row=row: (*converted(x, w)[:1], row.pack(w, **geometry, shape=x.shape), *b)
        elif row.layout == "nhwc":
            prepare[row.name] = converted
    if patches.serves(conv):
        ways[patches.PATCHES], prepare[patches.PATCHES] = torch.mm, patches.operands(conv)
    fold = folded.fold_of(conv)
    if fold is not None:
        ways[folded.FOLDED], prepare[folded.FOLDED] = folded.convolve, folded.operands(fold)
    base = "conv_nhwc" if is_nhwc(spec_of(conv.node)) and "conv_nhwc" in ways else ""
    sample = int(spec_of(conv.node).device.type == "cpu")
    kind = "gpu conv" if on_gpu else "conv"
    how = {"sample": sample, "base": base, "measured": [few_rows(x, conv), w, *bias]}
    choice = timed(tune, kind, [x, w, *bias], ways, prepare, cold=[1], attrs=conv.attrs, **how)
    if choice is None:
        return None
    seconds = {n: s + (_left_over(conv, library.ROWS[n]) if n in library.ROWS else 0.0) for n, s in choice.seconds.items()}
    if patches.PATCHES in seconds:
        seconds[patches.PATCHES] += GPU_CONVERT_START + 2 * patches.moved(conv) * x.dtype.itemsize / GPU_CONVERT_RATE
    if folded.FOLDED in seconds and fold is not None:
        seconds[folded.FOLDED] += _folding(fold, x)
    if on_gpu and not is_nhwc(w) and "conv_nhwc" in seconds:
        seconds["conv_nhwc"] += 2 * bytes_of(w) / GPU_CONVERT_RATE
    other = {n: s for n, s in seconds.items() if n != "conv_nchw"}
    best = min(other, key=other.__getitem__) if other else "conv_nhwc"
    # with such a weight torch's own call returns with the channels innermost whatever the input has
    inner = w.stride == channels_last_stride(w.shape) != contiguous(w).stride
    plain = float("inf") if inner else seconds.get("conv_nchw", float("inf"))
    any_layout = not conv.geometry["transposed"] if best in REWRITTEN else library.ROWS[best].any_layout
    return Times(plain, other.get(best, float("inf")), best, any_layout)


def _folding(fold: folded.Fold, x: Spec) -> float:
    """Seconds of the kernels that fold images and filters."""
    return 2 * GPU_CONVERT_START + (bytes_of(x) + folded.moved(fold, x) * x.dtype.itemsize) / GPU_CONVERT_RATE


def few_rows(x: Spec, conv: ConvNode) -> Spec:
    """One image of as many rows as tell how exact a convolution is: the same sums are at each of its points."""
    (_, channels, height, width), w = x.shape, spec_of(conv.w).shape
    ops = w[0] * math.prod(w[1:])  # at each point
    least = conv.geometry["dilation"][0] * (w[2] - 1) + 1
    rows = max(least, -(-NEAR_OPS // (ops * width)) * conv.geometry["stride"][0])
    return contiguous(Spec((1, channels, min(height, rows), width), x.stride, x.dtype, x.device))


def time_backward(conv: ConvBackward, tune: Any, own: Any) -> Times:
    """Chosen by timing, on few images; without timing, the channels innermost. own: our gradient of the weight, beside which
    the library makes that of the input; None where there is none."""
    g, x, w = spec_of(conv.grad), spec_of(conv.x), spec_of(conv.w)
    of = conv.geometry
    ops = 4 * math.prod((x if of["transposed"] else g).shape[1:]) * math.prod(w.shape[1:])
    on_gpu = x.device.type != "cpu"
    images = x.shape[0] if on_gpu else min(x.shape[0], max(1, round(BACKWARD_OPS / ops)))  # few do not fill a GPU
    specs = [Spec((images, *s.shape[1:]), contiguous(s).stride, s.dtype, s.device) for s in (g, x)]

    def call(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor, of_weight: bool = conv.mask[1]) -> torch.Tensor:
        how = (of["stride"], of["padding"], of["dilation"], of["transposed"], of["output_padding"], of["groups"])
        made = aten.convolution_backward.default(g, x, w, None, *how, (conv.mask[0], of_weight, False))
        return made[1] if made[0] is None else made[0]

    def apart(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        made = own(g, x, w.shape[2:], of["stride"], of["padding"], of["dilation"])
        return call(g, x, w, False) if conv.mask[0] else made

    def inner(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple:
        converted = (t.contiguous(memory_format=torch.channels_last) for t in ((g, x, w) if on_gpu else (g, x)))
        return (*converted, w)[:3]

    ways: dict[str, Callable] = {"nchw": call, "nhwc": call}
    prepare: dict[str, Callable] = {"nhwc": inner}
    if own is not None and may_part(conv):
        ways[APART], prepare[APART] = apart, inner
    if patches.serves_backward(conv):
        ways[patches.PATCHES], prepare[patches.PATCHES] = patches.products_backward(conv)
    fold = None if conv.mask[0] else folded.fold_of(conv)
    if fold is not None and w == contiguous(w):
        ways[folded.FOLDED], prepare[folded.FOLDED] = folded.weight_gradient, folded.backward_operands(fold)
    kind = "gpu conv_backward" if on_gpu else "conv_backward"
    choice = timed(tune, kind, [*specs, w], ways, prepare, cold=[2], attrs=conv.attrs)
    if choice is None or not {"nchw", "nhwc"} <= choice.seconds.keys():
        return Times(1.0, 0.5, "")
    seconds = dict(choice.seconds)
    if patches.PATCHES in seconds:
        seconds[patches.PATCHES] += conv.mask.count(True) * (GPU_CONVERT_START + 2 * bytes_of(x) / GPU_CONVERT_RATE)
    if folded.FOLDED in seconds and fold is not None:
        seconds[folded.FOLDED] += _folding(fold, x) + GPU_CONVERT_START
    best = min((n for n in seconds if n != "nchw"), key=seconds.__getitem__)
    row_major, innermost = (seconds[n] * x.shape[0] / images for n in ("nchw", best))
    fixed = w.stride == channels_last_stride(w.shape) != contiguous(w).stride  # results are as the weight is
    own = best in (APART, *REWRITTEN)
    return Times(float("inf") if fixed else row_major, innermost, best if own else "", best in REWRITTEN)


def may_part(conv: ConvBackward) -> bool:
    """Whether our gradient of the weight serves a backward pass."""
    w = spec_of(conv.w)
    dense = w.stride == contiguous(w).stride and w.device.type == "cpu"
    plain = conv.geometry["groups"] == 1 and not conv.geometry["transposed"]
    return conv.mask[1] and dense and plain and w.shape[1] >= LEAST_CHANNELS


def _left_over(conv: ConvNode, row: Any) -> float:
    """Seconds of a pass over the result, when more follows than the row takes along."""
    on_gpu = spec_of(conv.node).device.type != "cpu"  # there the rows take nothing along: see `convolution_cuda.py`
    if on_gpu or what_follows(conv.node, row.epilogues).last is what_follows(conv.node, EVERY_EPILOGUE).last:
        return 0.0
    return CONVERT_START + 2 * bytes_of(spec_of(conv.node)) / PASS_RATE


def _rows(conv: ConvNode, packs: bool, library: Any) -> list:
    """The rows to time. They are few, because each costs a run: with channels innermost a prepacked call beats all others;
    without prepacking, oneDNN is worth a run only where it can fuse the relu."""
    rows = {r.name: r for r in _fitting(conv, packs, library)}
    if packs and "conv_onednn_packed" in rows:
        return [r for r in rows.values() if r.name == "conv_nchw" or (r.pack and r.name != "conv_nhwc_packed")]
    user = sole_user(conv.node)
    fuses = user is not None and user.target in (aten.relu.default, aten.add.Tensor)
    return [r for r in rows.values() if fuses or r.name != "conv_onednn_nhwc"]


def untimed(conv: ConvNode, packs: bool, library: Any) -> Times:
    """Without timing: channels innermost, in torch's own call; prepacked when allowed. No machine met so far is
    slower so."""
    names = [r.name for r in _fitting(conv, packs, library) if r.layout == "nhwc" and not r.name.startswith("conv_own")]
    return Times(1.0, 0.5, names[-1] if packs and names else "conv_nhwc")


def _fitting(conv: ConvNode, packs: bool, library: Any) -> list:
    """The rows that serve a convolution on its device."""
    rows = library.rows("conv", packed=packs, device=spec_of(conv.x).device.type)
    return [r for r in rows if r.fits(spec_of(conv.w).shape, **conv.geometry)]
