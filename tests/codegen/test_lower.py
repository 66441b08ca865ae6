"""Lowering, fusing and scheduling against eager, through the interpreter: null tests, no compiler."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from graphs import same

from tests.ids import written

X = torch.tensor(
    [
        [1.5, -2.0, 0.0, 3.25, -0.0, 7.0],
        [0.3, -0.7, 2.5, -3.5, 0.5, 1.0],
        [math.nan, math.inf, -math.inf, 1e-3, -20.5, 25.0],
        [4.0, -4.0, 6.0, -6.0, 3.0, -3.0],
    ]
)
Y = torch.tensor([2.0, -1.0, 0.5, 3.0, 1.0, -2.0])
I64 = torch.tensor([[7, -7, 3, -3, 0, 5], [1, 2, -9, 4, 6, -8]])
J64 = torch.tensor([2, 3, -2, -4, 5, 3])

UNARY = """relu relu6 hardtanh silu mish hardsigmoid hardswish leaky_relu hardshrink softshrink logsigmoid gelu elu selu celu
softplus softsign tanhshrink""".split()
MATH = """abs neg sign square exp log sqrt rsqrt sin cos tan sigmoid tanh erf floor ceil round trunc frac reciprocal isnan
isinf isfinite isposinf isneginf signbit nan_to_num expm1 log1p sinc deg2rad logical_not""".split()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", UNARY)
def test_activations(name: str, dtype: torch.dtype) -> None:
    # eager's own gelu returns inf or nan at inf, as its version and the machine have it
    same(lambda x: getattr(F, name)(x), X.to(dtype).nan_to_num(0.0, 30.0, -30.0) if name == "gelu" else X.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", MATH)
def test_math(name: str, dtype: torch.dtype) -> None:
    x = X.nan_to_num(1, 9, -9).to(dtype) if dtype is torch.int64 else X.to(dtype)
    if name in ("frac", "nan_to_num") and dtype is torch.int64:
        pytest.skip("floats only")
    same(lambda x: getattr(torch, name)(x), x)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: x + y,
        lambda x, y: torch.add(x, y, alpha=3),
        lambda x, y: torch.sub(x, y, alpha=2),
        lambda x, y: 2 - x * y,
        lambda x, y: torch.rsub(x, y, alpha=2),
        lambda x, y: x // y,
        lambda x, y: x % y,
        lambda x, y: torch.fmod(x, y),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"),
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: x / y,
        lambda x, y: torch.maximum(x, y),
        lambda x, y: torch.minimum(x, y),
        lambda x, y: x.clamp(-1, 2),
        lambda x, y: torch.clamp(x, min=y),
        lambda x, y: x.clamp_min(0),
        lambda x, y: x.clamp(max=2),
        lambda x, y: x == y,
        lambda x, y: (x > y) & (x != 2),
        lambda x, y: x <= 1,
        lambda x, y: x**2,
        lambda x, y: x**3,
        lambda x, y: torch.where(x > 0, x, y),
        lambda x, y: x.masked_fill(x > 1, 5),
        lambda x, y: torch.addcmul(x, x, y, value=2),
        lambda x, y: torch.logical_xor(x, y),
        lambda x, y: x.to(torch.float64) * 2,
        lambda x, y: x.to(torch.bfloat16).to(torch.float32) + 1,
        lambda x, y: x.bool() | y.bool(),
        lambda x, y: x.bool().sum(1),
        lambda x, y: (x > 0) + (y > 0),
        lambda x, y: x * 2.5,
    ],
    ids=written,
)
@pytest.mark.parametrize("kind", ["float", "int", "bf16"])
def test_binary(fn, kind: str) -> None:
    a, b = (I64, J64) if kind == "int" else (X, Y) if kind == "float" else (X[:2].bfloat16(), Y.bfloat16())
    same(fn, a, b)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x == 0.1, x != 0.1, x < 0.1, x <= 0.1, x > 0.1, x >= 0.1, 0.1 < x, x == torch.full((), 0.1)),
        lambda x: (x % 0.1, torch.remainder(x, 0.3), torch.fmod(x, 0.1), 3.3 % x, x % torch.full((), 0.1, dtype=torch.float64)),
        lambda x: (x // 0.1, 3.3 // x, torch.div(x, 0.1, rounding_mode="trunc")),
        lambda x: (F.hardshrink(x, 0.1), F.threshold(x, 0.1, 0.7), torch.nextafter(x, -x)),
    ],
    ids=["compare", "remainder", "floordiv", "shrink"],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_beside_narrow_floats(fn, dtype: torch.dtype) -> None:
    # where a result jumps at the number itself, it shows whether the number was rounded to the dtype first
    same(fn, torch.tensor([0.1, -0.1, 0.2, 0.3, 0.7, 1.0, -0.3, 1.1, 3.3, 5.0]).to(dtype))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: torch.lerp(x, y, 0.25),
        lambda x, y: torch.lerp(x, y, 0.75),
        lambda x, y: torch.addcdiv(x, x, y),
        lambda x, y: torch.xlogy(x.abs(), y.abs()),
        lambda x, y: torch.logaddexp(x, y),
        lambda x, y: x.abs() ** 0.5,
        lambda x, y: x.abs() ** -0.5,
        lambda x, y: x**-1,
        lambda x, y: x.abs() ** 2.5,
        lambda x, y: x.abs() ** y,
        lambda x, y: x**0,
        lambda x, y: F.glu(x, -1),
        lambda x, y: F.gelu(x, approximate="tanh"),
        lambda x, y: F.threshold(x, 1.0, -3.0),
        lambda x, y: F.prelu(x, y),
        lambda x, y: torch.atan2(x, y),
        lambda x, y: torch.hypot(x, y),
        lambda x, y: torch.copysign(x, y),
        lambda x, y: torch.logit(x, eps=0.1),
        lambda x, y: torch.logit(x, eps=0.7),
        lambda x, y: torch.heaviside(x, y),
        lambda x, y: F.softplus(x, 2, 5),
        lambda x, y: x + True,
    ],
    ids=written,
)
def test_float_functions(fn) -> None:
    same(fn, X, Y)


@pytest.mark.parametrize(
    "fn",
    [
        lambda i, j: i & j,
        lambda i, j: i | 3,
        lambda i, j: i ^ j,
        lambda i, j: ~i,
        lambda i, j: i << 2,
        lambda i, j: i >> j.abs(),
        lambda i, j: i**3,
        lambda i, j: i.to(torch.uint8) + 200,
        lambda i, j: i.to(torch.int8) * 100,
        lambda i, j: i / j,
        lambda i, j: torch.sqrt(i.abs()),
        lambda i, j: i.float().to(torch.int32),
        lambda i, j: i.sum(),
        lambda i, j: i.prod(1),
        lambda i, j: i.to(torch.int32).cumsum(1),
        lambda i, j: (i > j).any(1),
        lambda i, j: i.amax(0),
        lambda i, j: i.argmin(1),
    ],
    ids=written,
)
def test_whole_numbers(fn) -> None:
    same(fn, I64, J64)


VIEWS = [
    lambda x: x.t() + 1,
    lambda x: x.reshape(2, 12) * 2,
    lambda x: x.t().reshape(3, 8).sin(),
    lambda x: x[:, 1:5:2] + 1,
    lambda x: x[1].exp(),
    lambda x: x.unsqueeze(1) - x.unsqueeze(0),
    lambda x: x[None, :, None].squeeze(0) + 1,
    lambda x: torch.cat([x, x * 2, x[:, :1]], 1),
    lambda x: torch.stack([x, x + 1], 1),
    lambda x: x.flip(0, 1),
    lambda x: x.roll(2, 1),
    lambda x: x.repeat(2, 3),
    lambda x: F.pad(x, (1, 2, 0, 1), value=-1.0),
    lambda x: F.pad(x, (-1, 2)),
    lambda x: x.expand(3, 4, 6) * 2,
    lambda x: [p * 2 for p in x.split(4, 1)],
    lambda x: [p + 1 for p in x.chunk(3, 1)],
    lambda x: [p + 1 for p in x.unbind(1)],
    lambda x: x.tril(),
    lambda x: x.triu(1),
    lambda x: x.diagonal() + 1,
    lambda x: x.unfold(1, 3, 2) + 1,
    lambda x: x.clone(),
    lambda x: torch.slice_scatter(x, x[:, :2] * 2, 1, 1, 5, 2),
    lambda x: torch.select_scatter(x, x[0] + 1, 0, 2),
    lambda x: torch.arange(6) + x,
    lambda x: torch.arange(1, 13, 2, dtype=torch.float32) * x,
    lambda x: torch.eye(4, 6) + x,
    lambda x: torch.full_like(x, 3.0) + torch.zeros(6) + torch.ones(4, 1),
    lambda x: x.t().contiguous(),
    lambda x: x.t(),
    lambda x: (x, x + 1),
    lambda x: x[2:, 3:],
    lambda x: x.new_full((2, 3), 7.0),
    lambda x: x.reshape(2, 2, 3, 2).permute(2, 0, 3, 1) + 1,
    lambda x: (x.sin(), x.sin().t()),
    lambda x: x.view(24)[5],
    lambda x: x.to(torch.float16).t().contiguous(),
    lambda x: x[:0] + 1,
    lambda x: x[:0].sum(0),
    lambda x: x[:0].sum(1),
    lambda x: x.sum() + x[0, 0] * 2,
]


@pytest.mark.parametrize("number", range(len(VIEWS)))
@pytest.mark.parametrize("layout", ["rows", "columns", "strided"])
def test_views_and_copies(number: int, layout: str) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(number))
    x = {"rows": x, "columns": x.t().contiguous().t(), "strided": torch.stack([x, x], -1)[..., 0]}[layout]
    try:
        VIEWS[number](x)
    except RuntimeError:
        pytest.skip("eager refuses this view")
    same(VIEWS[number], x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int8, torch.bool])
@pytest.mark.parametrize("number", range(len(VIEWS)))
def test_views_and_copies_of_other_dtypes(number: int, dtype: torch.dtype) -> None:
    """What is only moved is right in each width: 16 bits are computed in no operation."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(number)).to(dtype)
    try:
        VIEWS[number](x)
    except RuntimeError:
        pytest.skip("eager refuses this dtype")
    same(VIEWS[number], x)


REDUCTIONS = [
    lambda x: x.sum(),
    lambda x: x.sum(1),
    lambda x: x.sum((0, 2), keepdim=True),
    lambda x: x.mean(),
    lambda x: x.mean((1, 2)),
    lambda x: x.amax(2),
    lambda x: x.amin((0, 1)),
    lambda x: x.max(1),
    lambda x: x.min(2, keepdim=True)[1],
    lambda x: x.max(),
    lambda x: x.argmax(0),
    lambda x: x.argmin(2),
    lambda x: x.var(1),
    lambda x: x.std((0, 2)),
    lambda x: torch.var_mean(x, 2, correction=0),
    lambda x: torch.std_mean(x, 2, correction=1.5),
    lambda x: x.prod(1),
    lambda x: x.logsumexp(1),
    lambda x: x.norm(),
    lambda x: x.norm(1, 2),
    lambda x: torch.linalg.vector_norm(x, math.inf, 1),
    lambda x: x.cumsum(1),
    lambda x: x.cumsum(2).exp(),
    lambda x: (x > 0).any(0),
    lambda x: (x > 0).all(),
    lambda x: x.softmax(-1),
    lambda x: x.softmax(1),
    lambda x: x.log_softmax(2),
    lambda x: F.layer_norm(x, (6,)),
    lambda x: F.layer_norm(x, (5, 6), x[0], x[1]),
    lambda x: x.softmax(0) @ x.transpose(1, 2),
    lambda x: F.rms_norm(x, (6,)),
    lambda x: F.group_norm(x.reshape(1, 4, 5, 6), 2, x[:, 0, 0], x[:, 0, 1]),
    lambda x: F.batch_norm(x, x[0, :, 0], x[0, :, 1].abs(), x[1, :, 0], x[1, :, 1]),
    lambda x: (x - x.mean(2, True)) / x.std(2, keepdim=True),
    lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    lambda x: x / x.sum((1, 2), keepdim=True),
    lambda x: F.normalize(x, dim=1),
    lambda x: x.mean((1, 2)).softmax(0),
    lambda x: x.transpose(0, 1).sum(2) + 1,
    lambda x: (x.sum(1), x.mean(1), x + 1),
    lambda x: F.cosine_similarity(x, x.flip(0), 1),
    lambda x: x.reshape(20, 6).softmax(1).reshape(4, 30),
    lambda x: F.gelu(F.layer_norm(x * 2 + x, (6,))),
]


@pytest.mark.parametrize("number", range(len(REDUCTIONS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_reductions(number: int, dtype: torch.dtype) -> None:
    x = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(number)).to(dtype)
    if dtype is torch.bfloat16 and "argm" in str(REDUCTIONS[number].__code__.co_names):
        x = x + torch.arange(120).reshape(4, 5, 6)  # no ties after rounding
    low = dtype is torch.bfloat16
    same(REDUCTIONS[number], x, rtol=6e-2 if low else 1e-4, atol=6e-2 if low else 1e-5)


IMAGES = [
    lambda x: F.max_pool2d(x, 3, 2, 1),
    lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    lambda x: F.max_pool2d(x, 2, ceil_mode=True),
    lambda x: F.max_pool2d(x, 2, 2, dilation=2),
    lambda x: F.avg_pool2d(x, 3, 2, 1),
    lambda x: F.avg_pool2d(x, (2, 3), 1, (1, 0), count_include_pad=False),
    lambda x: F.adaptive_avg_pool2d(x, 1),
    lambda x: F.adaptive_avg_pool2d(x, (4, 3)),
    lambda x: F.adaptive_avg_pool2d(x, (3, 5)),
    lambda x: F.interpolate(x, scale_factor=2),
    lambda x: F.interpolate(x, size=(5, 13)),
    lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear"),
    lambda x: F.interpolate(x, size=(5, 20), mode="bilinear", align_corners=True),
    lambda x: F.pixel_shuffle(x.repeat(1, 4, 1, 1), 2),
    lambda x: F.batch_norm(x, x[0, :, 0, 0], x[0, :, 0, 1].abs(), x[1, :, 0, 0], x[1, :, 0, 1]).relu(),
    lambda x: F.group_norm(x, 2),
    lambda x: x + x.mean((2, 3), keepdim=True),
    lambda x: x.permute(0, 2, 3, 1).softmax(-1),
    lambda x: x.flatten(1).relu(),
]


@pytest.mark.parametrize("number", range(len(IMAGES)))
@pytest.mark.parametrize("channels_last", [False, True])
def test_images(number: int, channels_last: bool) -> None:
    x = torch.randn(2, 4, 8, 9, generator=torch.Generator().manual_seed(number))
    same(IMAGES[number], x.to(memory_format=torch.channels_last) if channels_last else x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "fn",
    [
        lambda w, i: F.embedding(i, w) * 2,
        lambda w, i: w[i],
        lambda w, i: w[:, i.clamp(max=3)],
        lambda w, i: w[i, i.clamp(max=3)],
        lambda w, i: w[i[0]][:, 1],
        lambda w, i: w.gather(0, i),
        lambda w, i: w.index_select(0, i[0]),
        lambda w, i: w[-i],
        lambda w, i: torch.take_along_dim(w, i[:1, :4] % 4, 1),
    ],
    ids=written,
)
def test_indices_from_memory(fn) -> None:
    same(fn, torch.randn(9, 4), torch.tensor([[1, 2, 0, 3], [8, 7, 3, 5]]))


def test_an_index_out_of_range_raises() -> None:
    from graphs import aten, stages
    from interp import OutOfRange, run

    w = torch.randn(9, 4)
    for stage in stages(aten(lambda w, i: w[i] + 1, w, torch.tensor([1, 2]))):
        with pytest.raises(OutOfRange):
            run(stage, [w, torch.tensor([1, 9])])


def test_ops_without_a_row_run_through_torch() -> None:
    loops, _, plan = same(lambda x: torch.linalg.matrix_exp(x.sin()).relu(), torch.randn(4, 4))
    extern = [s.extern for s in plan.steps if hasattr(s, "extern")]
    assert [(e.target, e.reason) for e in extern] == [("aten.linalg_matrix_exp.default", "no row")]
