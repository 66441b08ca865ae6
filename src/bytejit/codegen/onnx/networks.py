"""Rows of the layers of networks: convolutions, norms, pools, resizing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from bytejit.common.spec import Spec

from .reductions import spread
from .table import FLOATS, row
from .writer import Cannot, ModelWriter, Tensor

aten = torch.ops.aten


def known(*values: Any) -> list[int]:
    """Integers that have to be constants of the model. Raises: Cannot."""
    if not all(isinstance(v, int) for v in values):
        raise Cannot("a number is known only at the call")
    return list(values)


@row(aten.convolution.default, dtypes=FLOATS)
def convolution(
    w: ModelWriter,
    out: Spec,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Tensor:
    """A convolution, or the transpose of one."""
    rank = len(x.shape) - 2
    if len(weight.shape) != rank + 2:
        raise Cannot("its input has no batch dimension")

    def wide(values: Sequence[int]) -> list[int]:
        return known(*values) * (rank if len(values) == 1 else 1)

    pads = wide(padding) * 2
    settings: dict[str, Any] = {"strides": wide(stride), "pads": pads, "dilations": wide(dilation), "group": groups}
    if transposed:
        settings["output_padding"] = wide(output_padding)
    return w.op("ConvTranspose" if transposed else "Conv", x, weight, bias, **settings)


F32 = frozenset({torch.float32})  # the statistics of ONNX's norms are f32


@row(aten.native_layer_norm.default, dtypes=F32)
def layer_norm(
    w: ModelWriter, out: Any, x: Tensor, shape: Sequence, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, ...]:
    """A norm over the last dimensions. Returns also the mean and 1 / deviation."""
    if weight is None:
        weight = w.constant(torch.ones(known(*shape)).tolist(), x.dtype)
    made = w.several("LayerNormalization", [None] * 3, x, weight, bias, axis=len(x.shape) - len(shape), epsilon=eps, stash_type=1)
    return tuple(made)


@row(aten.native_group_norm.default, dtypes=F32)
def group_norm(
    w: ModelWriter,
    out: Any,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    n: Any,
    c: Any,
    size: Any,
    groups: int,
    eps: float,
) -> tuple[Tensor, ...]:
    """A norm over groups of channels. Returns also the mean and 1 / deviation."""
    known(c, size)
    per = Tensor(w.reshape(x, [n, groups, -1]).name, x.dtype, (n, groups, c // groups * size))
    var, mean = spread(w, per, -1, 0, True)
    scale = w.apply("Sqrt Reciprocal", w.op("Add", var, eps))
    made = w.reshape(w.op("Mul", w.op("Sub", per, mean), scale), x.shape)
    channels = [c] + [1] * (len(x.shape) - 2)
    made = made if weight is None else w.op("Mul", made, w.reshape(weight, channels))
    made = made if bias is None else w.op("Add", made, w.reshape(bias, channels))
    return made, w.reshape(mean, out[1].shape), w.reshape(scale, out[2].shape)


# ---- pools ---------------------------------------------------------------------------------------------------------
def _window(rank: int, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil_mode: bool) -> dict[str, Any]:
    """The attributes of a pool's windows."""
    if ceil_mode:
        raise Cannot("it has ceil_mode")

    def wide(values: Any) -> list[int]:
        values = [values] if isinstance(values, int) else list(values)
        return known(*values) * (rank if len(values) == 1 else 1)

    return {"kernel_shape": wide(kernel), "strides": wide(stride or kernel), "pads": wide(padding) * 2}


def max_pool(
    w: ModelWriter, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, rank: int
) -> Tensor:
    """The largest element of each window."""
    if len(x.shape) != rank + 2:
        raise Cannot("its input has no batch dimension")
    settings = _window(rank, kernel, stride, padding, ceil_mode)
    dilation = [dilation] if isinstance(dilation, int) else list(dilation)
    return w.op("MaxPool", x, dilations=known(*dilation) * (rank if len(dilation) == 1 else 1), **settings)


@row(aten.max_pool2d_with_indices.default, dtypes=F32)
def max_pool2d(
    w: ModelWriter,
    out: Any,
    x: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Tensor | None, ...]:
    """The largest element of each window. Its position, the second result, may not be used."""
    return max_pool(w, x, kernel, stride, padding, dilation, ceil_mode, 2), None


@row(aten.avg_pool2d.default, dtypes=F32)
def avg_pool2d(
    w: ModelWriter,
    out: Spec,
    x: Tensor,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window."""
    if len(x.shape) != 4 or divisor_override is not None:
        raise Cannot("its input has no batch dimension, or it has divisor_override")
    return w.op("AveragePool", x, count_include_pad=int(count_include_pad), **_window(2, kernel, stride, padding, ceil_mode))


@row(aten._adaptive_avg_pool2d.default, dtypes=F32)
def adaptive_avg_pool2d(w: ModelWriter, out: Spec, x: Tensor, size: Sequence[int]) -> Tensor:
    """The mean of each window, where the windows have the same size."""
    if len(x.shape) != 4:
        raise Cannot("its input has no batch dimension")
    heights, widths = known(x.shape[2], size[0]), known(x.shape[3], size[1])
    if heights[0] % heights[1] or widths[0] % widths[1]:
        raise Cannot("its windows differ in size")
    kernel = [heights[0] // heights[1], widths[0] // widths[1]]
    return w.op("AveragePool", x, kernel_shape=kernel, strides=kernel)


# ---- sizes ---------------------------------------------------------------------------------------------------------
def _resized(w: ModelWriter, out: Spec, x: Tensor, scales: Sequence[float | None], **settings: Any) -> Tensor:
    for of, to, scale in zip(x.shape[2:], out.shape[2:], scales):
        if scale is not None and (not isinstance(of, int) or not math.isclose(of * scale, to, rel_tol=1e-9)):
            raise Cannot("its scale is not the ratio of the sizes")
    return w.op("Resize", x, None, None, w.ints(out.shape), **settings)


@row(aten.upsample_nearest2d.default, dtypes=F32)
def nearest(w: ModelWriter, out: Spec, x: Tensor, size: Any, high: Any = None, wide: Any = None) -> Tensor:
    """An image of another size, each point of which is the nearest one of `x`."""
    return _resized(w, out, x, (high, wide), mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")


@row(aten.upsample_bilinear2d.default, dtypes=F32)
def bilinear(w: ModelWriter, out: Spec, x: Tensor, size: Any, align_corners: bool, high: Any = None, wide: Any = None) -> Tensor:
    """An image of another size, each point of which is interpolated between the four nearest ones of `x`."""
    mode = "align_corners" if align_corners else "half_pixel"
    return _resized(w, out, x, (high, wide), mode="linear", coordinate_transformation_mode=mode)
