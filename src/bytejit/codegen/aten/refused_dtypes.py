"""Dtypes that torch's kernels take, where neither its meta kernels nor our rows refuse the others."""

from __future__ import annotations

import functools
from typing import Any

import torch

from bytejit.common.dtypes import COMPLEX_DTYPES, FLOAT_DTYPES, INT_DTYPES, WIDE_DTYPES

from .mutation import CannotNormalise

BOOL = frozenset((torch.bool,))
_PADS = tuple(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3))
_NEAREST = tuple(f"{kind}{n}d" for kind in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3))
_NORMS = "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training native_layer_norm native_group_norm"
_SOFTMAX = "_softmax _log_softmax _safe_softmax softmax log_softmax"
_RESIZED = "upsample_linear1d upsample_trilinear3d grid_sampler_2d grid_sampler_3d"
_POOLS = "_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d"
# operators, and the dtypes that they take
_ROWS = (
    (f"glu {_NORMS} {_SOFTMAX} {_RESIZED} {_POOLS}".split(), FLOAT_DTYPES),
    ("logcumsumexp var std var_mean std_mean".split(), FLOAT_DTYPES | COMPLEX_DTYPES),
    ((*_NEAREST, "upsample_bilinear2d", "upsample_bicubic2d"), FLOAT_DTYPES | {torch.uint8}),
    (("avg_pool2d",), FLOAT_DTYPES | {torch.int64}),
    (("avg_pool3d",), frozenset((torch.float64, torch.float32, torch.int64))),
    ("max_pool2d_with_indices max_pool3d_with_indices argmax argmin searchsorted bucketize".split(), FLOAT_DTYPES | INT_DTYPES),
    (_PADS, FLOAT_DTYPES | INT_DTYPES | COMPLEX_DTYPES),
    (("trace",), (FLOAT_DTYPES if torch.__version__ >= (2, 13) else WIDE_DTYPES) | INT_DTYPES | COMPLEX_DTYPES),
    (("im2col", "col2im"), FLOAT_DTYPES | COMPLEX_DTYPES | BOOL),
    (("lerp",), FLOAT_DTYPES | COMPLEX_DTYPES),
    ("mse_loss smooth_l1_loss huber_loss".split(), FLOAT_DTYPES),
)
TAKES: dict[str, frozenset[torch.dtype]] = {name: taken for names, taken in _ROWS for name in names}
_WINDOWS = "avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices upsample_bilinear2d upsample_bicubic2d"
# where the kernels of a GPU take others
ON_GPU = {name: FLOAT_DTYPES for name in _WINDOWS.split()} | {
    "trace": WIDE_DTYPES | INT_DTYPES | COMPLEX_DTYPES | FLOAT_DTYPES | BOOL
}
ON_GPU |= dict.fromkeys("mm bmm addmm baddbmm addbmm dot vdot mv addmv linear convolution".split(), FLOAT_DTYPES | COMPLEX_DTYPES)
_KNOWN = FLOAT_DTYPES | COMPLEX_DTYPES | INT_DTYPES | BOOL
PROMOTED = frozenset("lerp mse_loss smooth_l1_loss huber_loss".split())  # computed in the common dtype of their operands


def refused_dtype(name: str, given: dict) -> bool:
    """Whether torch's kernel of an operator refuses the dtype of a call's arguments."""
    tensors = [x for x in given.values() if isinstance(x, torch.Tensor)]
    if not tensors or tensors[0].device.type not in ("cpu", "cuda"):
        return False
    found = tensors[0].dtype
    if name in PROMOTED:
        found = functools.reduce(torch.promote_types, (x.dtype for x in tensors))
    found = given.get("dtype") or found
    taken = TAKES.get(name, _KNOWN)
    if tensors[0].device.type == "cuda":
        taken = ON_GPU.get(name, taken)
    return found in _KNOWN and found not in taken


# functions with kernels of their own, of which fakes run another that takes more dtypes
_POOL = torch.ops.aten.max_pool1d
OF_FUNCTIONS = dict.fromkeys((torch.nn.functional.max_pool1d, torch.max_pool1d, _POOL, _POOL.default), FLOAT_DTYPES)
OF_FUNCTIONS[torch.nn.functional.interpolate] = FLOAT_DTYPES | {torch.uint8}  # under symbols it is no operator any more


def check_function(function: Any, args: tuple, kwargs: dict) -> None:
    """Raises: CannotNormalise for a call whose kernel on a CPU refuses its dtype. With indices it is another kernel."""
    if function not in OF_FUNCTIONS or kwargs.get("return_indices", len(args) > 6 and args[6]):
        return
    x = args[0] if args else kwargs.get("input", kwargs.get("self"))
    if isinstance(x, torch.Tensor) and x.device.type == "cpu" and x.dtype not in OF_FUNCTIONS[function]:
        raise CannotNormalise(f"{function.__name__}: a dtype that torch refuses")
