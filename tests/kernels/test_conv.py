"""Our own convolution against torch's in double precision: shapes, strides, edges, what it does on the way out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bytejit.common.options import Options
from bytejit.kernels import conv

pytestmark = pytest.mark.cxx
LAST = torch.channels_last


@pytest.fixture(scope="module")
def ops(tmp_path_factory):
    return conv.OWN.register(Options(cache_dir=str(tmp_path_factory.mktemp("kernels"))))


def made(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return ((got - want).abs().max() / want.abs().max().clamp_min(1e-30)).item()


def kernel_is_3x3(w, stride, dilation, groups) -> bool:
    return tuple(w.shape[2:]) == (3, 3) and {*stride, *dilation, groups} == {1}


def check(ops, x, w, b=None, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1) -> torch.Tensor:
    """All forms against float64; returns the result."""
    want = F.conv2d(x.double(), w.double(), None if b is None else b.double(), stride, padding, dilation, groups)
    geometry = (list(stride), list(padding), list(dilation), groups)
    plain = ops["bytejit.conv.default"](x, w, b, *geometry)
    packed = ops["bytejit.conv_packed.default"](x, ops["conv_pack"](w, groups), w.shape[0], b, *geometry)
    results = [plain, packed]
    if kernel_is_3x3(w, stride, dilation, groups):
        results += [
            ops["bytejit.conv.default"](x, w, b, *geometry, winograd=True),
            ops["bytejit.conv_packed.default"](x, ops["conv_pack"](w, 1, True), w.shape[0], b, *geometry, winograd=True),
        ]
    for got in results:
        assert got.shape == want.shape and got.is_contiguous(memory_format=LAST)
        eager = error(F.conv2d(x, w, b, stride, padding, dilation, groups), want)
        assert error(got, want) <= max(2 * eager, 1e-6)
    return plain


# batch, channels, height, width, outputs, kernel, stride, padding, dilation, groups
SHAPES = [
    (2, 16, 9, 11, 32, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (1, 3, 17, 19, 20, (7, 7), (2, 2), (3, 3), (1, 1), 1),
    (3, 5, 6, 7, 13, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (2, 7, 8, 8, 9, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (2, 24, 8, 9, 40, (1, 1), (2, 2), (0, 0), (1, 1), 1),
    (1, 24, 5, 5, 17, (1, 1), (1, 1), (1, 2), (1, 1), 1),
    (1, 130, 7, 7, 33, (3, 3), (2, 2), (1, 1), (1, 1), 1),
    (2, 12, 12, 10, 8, (5, 5), (1, 2), (2, 0), (1, 1), 1),
    (1, 10, 15, 14, 11, (3, 3), (2, 1), (2, 3), (2, 3), 1),
    (1, 9, 13, 30, 16, (1, 5), (1, 1), (0, 2), (1, 2), 1),
    (1, 9, 31, 3, 16, (4, 2), (3, 1), (1, 1), (1, 1), 1),
    (2, 32, 6, 6, 48, (3, 3), (1, 1), (1, 1), (1, 1), 4),
    (1, 12, 9, 9, 30, (3, 3), (2, 2), (1, 1), (2, 2), 3),
    (2, 6, 7, 7, 6, (3, 3), (1, 1), (1, 1), (1, 1), 6),
    (1, 8, 2, 600, 24, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (1, 600, 4, 4, 16, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (5, 8, 1, 1, 8, (1, 1), (1, 1), (0, 0), (1, 1), 1),
    (4, 3, 1, 2, 4, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (1, 64, 3, 3, 16, (11, 11), (1, 1), (5, 5), (1, 1), 1),
    (2, 24, 13, 12, 40, (3, 3), (1, 1), (0, 2), (1, 1), 1),
    (3, 140, 5, 8, 35, (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (1, 300, 7, 7, 150, (3, 3), (1, 1), (1, 1), (1, 1), 1),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s[:5])) + f"k{s[5][0]}{s[5][1]}")
def test_shapes(ops, threads, shape) -> None:
    batch, c, h, wide, o, kernel, stride, padding, dilation, groups = shape
    x, w, b = made(batch, c, h, wide), made(o, c // groups, *kernel, seed=1), made(o, seed=2)
    for bias in (None, b):
        for image in (x, x.contiguous(memory_format=LAST)):
            for weight in (w, w.contiguous(memory_format=LAST)):
                check(ops, image, weight, bias, stride, padding, dilation, groups)


def test_operands_of_odd_strides(ops) -> None:
    """Cut out of larger tensors, turned, broadcast."""
    big = made(2, 40, 20, 20)
    for x in (
        big[:, 3:19, 1:12, 2:15],
        big[:, 3:19:2, ::2, ::3],
        big[:, :16].transpose(2, 3),
        big.contiguous(memory_format=LAST)[:, 5:21, 2:9],
        big[:1, :16].expand(3, -1, -1, -1),
        big[:, :1].expand(-1, 16, -1, -1),
    ):
        for kernel in (1, 3):
            c = x.shape[1]
            w = made(30, 20, 5, 5)[2:26, :c, :kernel, 1 : 1 + kernel] if c <= 20 else None
            check(ops, x, w, padding=(kernel // 2, kernel // 2))
            check(ops, x, w.transpose(2, 3), padding=(kernel // 2, kernel // 2))


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("affine", ["", "scale", "shift", "both"])
def test_what_follows(ops, threads, affine, other, relu) -> None:
    for o in (16, 21):
        x, w, b = made(2, 24, 7, 9), made(o, 24, 3, 3, seed=1), made(o, seed=2)
        scale = made(o, 1, 1, seed=3) if affine in ("scale", "both") else None
        shift = made(o, 1, 1, seed=4) if affine in ("shift", "both") else None
        add = made(2, o, 7, 9, seed=7).contiguous(memory_format=LAST) if other else None
        want = F.conv2d(x.double(), w.double(), b.double(), 1, 1)
        want = want if scale is None else want * scale.double()
        want = want if shift is None else want + shift.double()
        want = want + add.double() if other else want
        want = want.relu() if relu else want
        geometry = ([1, 1], [1, 1], [1, 1], 1)
        for windows in (False, True):
            rest = (b, *geometry, scale, shift, add, relu, windows)
            for got in (
                ops["bytejit.conv.default"](x, w, *rest),
                ops["bytejit.conv_packed.default"](x, ops["conv_pack"](w, 1, windows), o, *rest),
            ):
                assert error(got, want) < 2e-6


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("windows", [False, True])
@pytest.mark.parametrize("c,o", [(16, 16), (300, 21)])
def test_what_is_not_finite_stays_where_it_is(ops, c, o, windows, packed) -> None:
    """NaN, infinities and values near the largest: those results that see them, and no others."""
    x, w = made(2, c, 9, 11), made(o, c, 3, 3)
    x[0, 3, 2, 2], x[0, 5, 6, 6], x[0, 5, 6, 9], x[1, c - 1, 8, 10] = float("nan"), float("inf"), -float("inf"), 3e38
    x[1, 0, 0, :2] = torch.tensor([3e38, -3e38])
    w[1, 7] = 0
    w[:, 0] *= 0.1
    after = ([1, 1], [1, 1], [1, 1], 1, None, None, None, False, windows)
    got = (
        ops["bytejit.conv_packed.default"](x, ops["conv_pack"](w, 1, windows), o, None, *after)
        if packed
        else ops["bytejit.conv.default"](x, w, None, *after)
    )
    want = F.conv2d(x, w, None, 1, 1)
    assert want.isnan().any() and want.isinf().any() and want.isfinite().any()
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_no_images(ops) -> None:
    got = ops["bytejit.conv.default"](torch.empty(0, 4, 5, 5), made(6, 4, 3, 3), None, [1, 1], [1, 1], [1, 1], 1)
    assert got.shape == (0, 6, 5, 5)


def test_a_result_goes_into_given_memory(ops) -> None:
    x, w = made(2, 8, 6, 6), made(16, 8, 3, 3)
    out = torch.full((2, 16, 6, 6), float("nan")).contiguous(memory_format=LAST)
    assert ops["bytejit.conv.default"](x, w, None, [1, 1], [1, 1], [1, 1], 1, out=out) is out
    torch.testing.assert_close(out, F.conv2d(x, w, None, 1, 1), rtol=1e-4, atol=1e-5)


def test_threads_change_no_bit(ops) -> None:
    x, w = made(4, 40, 13, 13), made(50, 40, 3, 3)
    before, seen = torch.get_num_threads(), []
    for n in (1, 2, 3):
        torch.set_num_threads(n)
        seen.append(ops["bytejit.conv.default"](x, w, None, [1, 1], [1, 1], [1, 1], 1))
    torch.set_num_threads(before)
    assert all(torch.equal(s, seen[0]) for s in seen)
