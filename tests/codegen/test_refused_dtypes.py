"""Dtypes that only torch's kernels refuse: the table says what they take, and compiled programs raise what eager raises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import bytejit
from bytejit.codegen.aten.refused_dtypes import _KNOWN, TAKES

aten = torch.ops.aten


def block(x: torch.Tensor, n: int) -> torch.Tensor:
    """One sample of one channel, with so many dims of size 4."""
    return x[0, 0].expand(1, 1, *(4,) * n).contiguous()


def ones(x: torch.Tensor) -> torch.Tensor:
    return torch.ones(4, dtype=x.dtype)


def resized(name: str, n: int, *more: object) -> Callable:
    op = getattr(aten, name)
    return lambda x: op(block(x, n), [8] * n, *more)


def padded(name: str, n: int) -> Callable:
    op = getattr(aten, name)
    return lambda x: op(block(x, n)[0], [1] * 2 * n)


def pooled(name: str, n: int) -> Callable:
    op = getattr(aten, name)
    return lambda x: op(block(x, n), [2] * n)


def sampled(n: int) -> Callable:
    op = getattr(aten, f"grid_sampler_{n}d")
    return lambda x: op(block(x, n), torch.zeros(1, *(2,) * n, n, dtype=x.dtype), 0, 0, False)


CALLS: dict[str, Callable] = {
    "glu": F.glu,
    "native_batch_norm": lambda x: aten.native_batch_norm(x, None, None, ones(x), ones(x), True, 0.1, 0.1),
    "_native_batch_norm_legit": lambda x: aten._native_batch_norm_legit(x, None, None, ones(x), ones(x), True, 0.1, 0.1),
    "_native_batch_norm_legit_no_training": lambda x: aten._native_batch_norm_legit_no_training(
        x, None, None, ones(x), ones(x), 0.1, 0.1
    ),
    "native_layer_norm": lambda x: aten.native_layer_norm(x, [4], None, None, 0.1),
    "native_group_norm": lambda x: aten.native_group_norm(x[None], None, None, 1, 4, 4, 2, 0.1),
    "_softmax": lambda x: aten._softmax(x, -1, False),
    "_log_softmax": lambda x: aten._log_softmax(x, -1, False),
    "_safe_softmax": lambda x: aten._safe_softmax(x, -1),
    "softmax": lambda x: torch.softmax(x, 0),
    "log_softmax": lambda x: F.log_softmax(x, 0),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "var": lambda x: x.var(0),
    "std": lambda x: x.std(),
    "var_mean": lambda x: torch.var_mean(x, 0),
    "std_mean": lambda x: torch.std_mean(x),
    "argmax": lambda x: x.argmax(0),
    "argmin": lambda x: x.argmin(),
    "searchsorted": lambda x: torch.searchsorted(x, x),
    "bucketize": lambda x: torch.bucketize(x, x[0]),
    "trace": torch.trace,
    "lerp": lambda x: torch.lerp(x, x, 0.5),
    "im2col": lambda x: aten.im2col(x[None, None], [2, 2], [1, 1], [0, 0], [1, 1]),
    "col2im": lambda x: aten.col2im(x[None], [3, 3], [2, 2], [1, 1], [0, 0], [1, 1]),
    "grid_sampler_2d": sampled(2),
    "grid_sampler_3d": sampled(3),
    "upsample_linear1d": resized("upsample_linear1d", 1, False),
    "upsample_bilinear2d": resized("upsample_bilinear2d", 2, False),
    "upsample_bicubic2d": resized("upsample_bicubic2d", 2, False),
    "upsample_trilinear3d": resized("upsample_trilinear3d", 3, False),
    "avg_pool2d": pooled("avg_pool2d", 2),
    "avg_pool3d": pooled("avg_pool3d", 3),
    "_adaptive_avg_pool2d": pooled("_adaptive_avg_pool2d", 2),
    "_adaptive_avg_pool3d": pooled("_adaptive_avg_pool3d", 3),
    "adaptive_max_pool2d": pooled("adaptive_max_pool2d", 2),
    "adaptive_max_pool3d": pooled("adaptive_max_pool3d", 3),
    "max_pool2d_with_indices": pooled("max_pool2d_with_indices", 2),
    "max_pool3d_with_indices": pooled("max_pool3d_with_indices", 3),
}
CALLS |= {name: padded(name, int(name[-2])) for name in TAKES if "_pad" in name}
CALLS |= {name: resized(name, int(name[-2])) for name in TAKES if "nearest" in name}
CALLS |= {name: lambda x, op=getattr(aten, name): op(x, x, 0) for name in ("mse_loss", "smooth_l1_loss", "huber_loss")}


def refusal(f: Callable, x: torch.Tensor) -> tuple | None:
    """The exception's type and text."""
    try:
        f(x)
    except (RuntimeError, NotImplementedError, TypeError) as e:  # TypeError: argmax of complex numbers since torch 2.15
        return type(e), str(e)
    return None


def test_each_row_has_a_call() -> None:
    assert CALLS.keys() == TAKES.keys()


@pytest.mark.parametrize("name", CALLS)
def test_the_table_says_what_torch_takes(name: str) -> None:
    taken = {d for d in _KNOWN if refusal(CALLS[name], torch.ones(4, 4, dtype=d)) is None}
    assert taken == TAKES[name]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_refused_as_in_eager(name: str, dtype: torch.dtype) -> None:
    """Also where nothing reads the result, and of tensors without elements"""
    op = CALLS[name]

    def unread(x: torch.Tensor) -> torch.Tensor:
        op(x.clone())
        return torch.ones(3)

    x = torch.ones(4, 4, dtype=dtype)
    want = refusal(op, x)
    if want is not None:
        for f in (op, unread):
            assert refusal(bytejit.compile(f, backend="aot_eager"), x) == want


OF_BOOLS: dict[str, Callable] = {
    "clamp": lambda x: x.clamp(x, x),
    "clamp_one": lambda x: x.clamp(min=x),
    "pow": lambda x: x**x,
    "pow_number": lambda x: x**2,
    "pow_bool": lambda x: torch.pow(x, True),
    "div_trunc": lambda x: torch.div(x, x, rounding_mode="trunc"),
    "div_floor": lambda x: torch.div(x, x, rounding_mode="floor"),
    "div_number": lambda x: torch.div(x, True, rounding_mode="floor"),
    "div": lambda x: torch.div(x, x),
    "linspace": lambda x: torch.linspace(0, 1, x.shape[0], dtype=x.dtype),
    "arange": lambda x: torch.arange(x.shape[0], dtype=x.dtype),
}


@pytest.mark.parametrize("name", OF_BOOLS)
def test_bools_are_refused_as_in_eager(name: str) -> None:
    op = OF_BOOLS[name]

    def unread(x: torch.Tensor) -> torch.Tensor:
        op(x.clone())
        return torch.ones(3)

    for x in (torch.ones(4, dtype=torch.bool), torch.ones(4)):
        for f in (op, unread):
            assert refusal(bytejit.compile(f, backend="aot_eager"), x) == refusal(f, x)


def test_a_dtype_that_is_asked_for_is_taken() -> None:
    x = torch.arange(4)
    for f in (
        lambda x: torch.softmax(x, 0, dtype=torch.float32),
        lambda x: F.mse_loss(x, x + 0.5),
        lambda x: F.smooth_l1_loss(x + 0.5, x),
        lambda x: x.float().var(),
    ):
        bytejit.counters.clear()
        torch.testing.assert_close(bytejit.compile(f, backend="aot_eager")(x), f(x))
        assert not bytejit.counters["fallbacks"]


W3 = torch.tensor([0, 1, 2])
OF_TWO_DTYPES: dict[str, Callable] = {
    "group_norm": lambda x, w: F.group_norm(x, 2, w, w),
    "group_norm, weight": lambda x, w: F.group_norm(x, 2, w),
    "layer_norm": lambda x, w: F.layer_norm(x, (4,), w, w),
    "batch_norm": lambda x, w: F.batch_norm(x, None, None, w, w, True),
    "batch_norm, statistics": lambda x, w: F.batch_norm(x, w.clone(), w.abs(), None, None, False),
    "instance_norm": lambda x, w: F.instance_norm(x[..., None].expand(3, 4, 5).contiguous(), None, None, w, w),
    "nll_loss": lambda x, w: F.nll_loss(x, W3, w),
    "nll_loss of images": lambda x, w: F.nll_loss(x[..., None, None], W3[:, None, None], w),
    "cross_entropy": lambda x, w: F.cross_entropy(x, W3, w),
    "grid_sample": lambda x, w: F.grid_sample(x[None, None], w.view(1, 1, 2, 2), align_corners=False),
}


def said(f: Callable, *args: torch.Tensor) -> tuple:
    """The dtype of what a call returns, or what it raises."""
    try:
        return (f(*args).dtype,)
    except (RuntimeError, NotImplementedError) as e:
        return type(e), str(e)


@pytest.mark.cxx
@pytest.mark.parametrize("name", OF_TWO_DTYPES)
def test_operands_of_two_dtypes(name: str) -> None:
    f = OF_TWO_DTYPES[name]
    dtypes = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64)
    for x in (torch.ones(3, 4, dtype=d) for d in dtypes[:4]):
        for w in (torch.ones(4, dtype=d) for d in dtypes):
            bytejit.reset()
            assert said(bytejit.compile(f), x, w) == said(f, x, w), (x.dtype, w.dtype)


@pytest.mark.cxx
@pytest.mark.parametrize("classes", [1, 3, 5])
@pytest.mark.parametrize("name", [n for n in OF_TWO_DTYPES if "nll" in n or "entropy" in n])
def test_a_loss_with_too_few_weights(name: str, classes: int) -> None:
    x, w = torch.randn(3, 4), torch.ones(classes)
    bytejit.reset()
    assert said(bytejit.compile(OF_TWO_DTYPES[name]), x, w) == said(OF_TWO_DTYPES[name], x, w)


UNDER_SYMBOLS: dict[str, Callable] = {
    "interpolate": lambda x: F.interpolate(x, scale_factor=2),
    "interpolate, bilinear": lambda x: F.interpolate(x, (3, 4), mode="bilinear"),
    "max_pool1d": lambda x: F.max_pool1d(x[0], 2),
    "max_pool2d": lambda x: F.max_pool2d(x, 2),
    "one_hot": lambda x: F.one_hot(x, 10),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 2),
    "softmax": lambda x: x.softmax(1),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
}


@pytest.mark.cxx
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", UNDER_SYMBOLS)
def test_refused_where_sizes_change(name: str, dynamic: bool | None) -> None:
    f = UNDER_SYMBOLS[name]
    for dtype in (torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool):
        bytejit.reset()
        compiled = bytejit.compile(f, dynamic=dynamic)
        for shape in ((2, 3, 4, 5), (2, 3, 6, 7)):
            x = torch.ones(shape, dtype=dtype)
            assert said(compiled, x) == said(f, x), (dtype, shape)
