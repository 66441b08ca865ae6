"""Our own gradient of a convolution's weight against torch's in double precision."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from bytejit.common.options import Options
from bytejit.kernels import conv_grad

pytestmark = pytest.mark.cxx
LAST = torch.channels_last


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Callable:
    return conv_grad.OWN.register(Options(cache_dir=str(tmp_path_factory.mktemp("kernels"))))["bytejit.conv_weight_grad.default"]


def made(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def check(own: Callable, x: torch.Tensor, o: int, kernel: tuple, *geometry: tuple) -> None:
    """Against float64, not farther from it than torch is; for gradients in both layouts."""
    sizes = [list(pair) for pair in geometry]
    shape = torch.nn.functional.conv2d(x[:1], torch.zeros(o, x.shape[1], *kernel), None, *geometry).shape[1:]
    g = made(x.shape[0], *shape)

    def wanted(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        w = torch.zeros(o, x.shape[1], *kernel, dtype=x.dtype)
        where = (*sizes, False, [0, 0], 1, [False, True, False])
        return torch.ops.aten.convolution_backward(g, x, w, None, *where)[1]

    want = wanted(g.double(), x.double())
    eager = (wanted(g, x) - want).abs().max()
    for laid in (g, g.contiguous(memory_format=LAST), made(*g.shape[:2], g.shape[3], g.shape[2]).copy_(g.transpose(2, 3)).mT):
        got = own(laid, x, list(kernel), *sizes)
        assert got.is_contiguous() and got.shape == want.shape
        assert (got - want).abs().max() <= max(2 * eager, 1e-6 * want.abs().max())


# batch, channels, height, width, outputs, kernel, stride, padding, dilation
SHAPES = [
    (2, 16, 9, 11, 32, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 3, 17, 19, 20, (7, 7), (2, 2), (3, 3), (1, 1)),
    (3, 5, 6, 7, 13, (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 24, 8, 9, 40, (1, 1), (2, 2), (0, 0), (1, 1)),
    (2, 12, 12, 10, 8, (5, 5), (1, 2), (2, 0), (1, 1)),
    (1, 10, 15, 14, 11, (3, 3), (2, 1), (2, 3), (2, 3)),
    (1, 9, 31, 3, 16, (4, 2), (3, 1), (1, 1), (1, 1)),
    (1, 8, 2, 600, 24, (3, 3), (1, 1), (1, 1), (1, 1)),
    (5, 8, 1, 1, 1, (1, 1), (1, 1), (0, 0), (1, 1)),
    (4, 3, 1, 2, 4, (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 64, 3, 3, 16, (11, 11), (1, 1), (5, 5), (1, 1)),
    (9, 140, 20, 20, 35, (3, 3), (1, 1), (1, 1), (1, 1)),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: "x".join(map(str, s[:5])) + f"k{s[5][0]}{s[5][1]}")
@pytest.mark.parametrize("count", [1, 2, 5])
def test_shapes(own: Callable, shape: tuple, count: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        x = made(*shape[:4])
        for image in (x, x.contiguous(memory_format=LAST)):
            check(own, image, *shape[4:])
    finally:
        torch.set_num_threads(before)


def test_images_of_odd_strides(own: Callable) -> None:
    big = made(2, 40, 20, 20)
    for x in (big[:, 3:19:2, ::2, ::3], big[:, :16].mT, big[:1, :16].expand(3, -1, -1, -1), big[:, :1].expand(-1, 16, -1, -1)):
        check(own, x, 7, (3, 3), (1, 1), (1, 1), (1, 1))


def test_what_is_not_finite(own: Callable) -> None:
    """A NaN reaches the weights that met it, and no others."""
    x, g = made(1, 16, 6, 6), made(1, 4, 6, 6)
    x[0, 3, 2, 2] = float("nan")
    got = own(g, x, [1, 1], [1, 1], [0, 0], [1, 1])
    assert got[:, 3].isnan().all() and got.isnan().sum() == 4
