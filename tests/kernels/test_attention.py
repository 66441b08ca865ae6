"""Our own attention against torch's in double precision: shapes, strides, masks, what is not a number."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bytejit.common.options import Options
from bytejit.kernels import attention

pytestmark = [pytest.mark.cxx, pytest.mark.usefixtures("threads")]
INF, NAN = float("inf"), float("nan")


@pytest.fixture(scope="module")
def attend(tmp_path_factory):
    made = attention.OWN.register(Options(cache_dir=str(tmp_path_factory.mktemp("kernels"))))
    return made["bytejit.attention.default"]


def made(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def operands(b: int, h: int, rows: int, keys: int, d: int, e: int, g: int) -> tuple[torch.Tensor, ...]:
    """q as heads beside one another in a row, k cut out of a wider tensor, v row-major."""
    return made(b, rows, h, d).transpose(1, 2), made(b, keys, g, 2 * d + 3)[..., 3 : 3 + d].transpose(1, 2), made(b, g, keys, e)


def check(attend, q, k, v, mask=None, causal=False, scale=None) -> torch.Tensor:
    """Against float64, no further away than twice torch's own result; in both layouts."""
    grouped = q.shape[1] != k.shape[1]
    wide = None if mask is None else mask if mask.dtype is torch.bool else mask.double()
    want = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), wide, 0.0, causal, scale=scale, enable_gqa=grouped)
    eager = F.scaled_dot_product_attention(q, k, v, mask, 0.0, causal, scale=scale, enable_gqa=grouped)
    by = q.shape[-1] ** -0.5 if scale is None else scale
    aside, apart = (attend(q, k, v, mask, causal, by, a) for a in (True, False))
    assert aside.transpose(1, 2).is_contiguous() and apart.is_contiguous() and torch.equal(aside, apart)
    given = torch.full_like(aside, NAN)
    assert attend(q, k, v, mask, causal, by, True, out=given) is given and torch.equal(given, aside)
    far = 2 * (eager - want).abs().max().item() + 1e-6 * want.abs().max().item()
    assert (aside - want).abs().max().item() <= far
    return aside


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1, 1, 1, 1),
        (1, 12, 128, 128, 64, 64, 12),
        (1, 6, 197, 197, 64, 64, 6),
        (2, 3, 50, 900, 40, 40, 3),
        (2, 4, 7, 5, 13, 21, 2),
        (1, 1, 600, 500, 16, 16, 1),
        (1, 2, 255, 385, 8, 8, 2),
        (3, 8, 13, 17, 5, 3, 1),
        (2, 5, 4, 1, 33, 65, 5),
    ],
    ids=str,
)
def test_shapes(attend, shape, causal) -> None:
    check(attend, *operands(*shape), causal=causal)


@pytest.mark.parametrize(
    "mask",
    [
        lambda b, h, r, k: made(r, k),
        lambda b, h, r, k: made(b, 1, 1, k) > -0.5,
        lambda b, h, r, k: made(b, h, r, k),
        lambda b, h, r, k: made(b, 1, r, k) > 1.5,
        lambda b, h, r, k: made(r, 1).expand(r, k),
        lambda b, h, r, k: made(h, 1, k),
        lambda b, h, r, k: made(k, r).t(),
        lambda b, h, r, k: made(1, h, r, 2 * k)[..., ::2] > 0,
        lambda b, h, r, k: made(1, 1),
    ],
)
@pytest.mark.parametrize("shape", [(2, 3, 20, 70, 8, 8, 3), (2, 2, 14, 500, 8, 8, 2)], ids=["one_block", "two_blocks"])
def test_masks(attend, mask, shape) -> None:
    b, h, rows, keys = shape[:4]
    check(attend, *operands(*shape), mask=mask(b, h, rows, keys))
    check(attend, *operands(*shape), mask=mask(b, h, rows, keys), scale=-1.75)


@pytest.mark.parametrize("flags", [False, True], ids=["numbers", "bools"])
def test_rows_with_nothing_to_see_are_zero(attend, flags) -> None:
    q, k, v = operands(1, 2, 30, 800, 16, 16, 2)
    seen = torch.ones(30, 800, dtype=torch.bool)
    seen[3], seen[5, :400], seen[7, 400:] = False, False, False
    mask = seen if flags else torch.zeros(30, 800).masked_fill(~seen, -INF)
    got = check(attend, q, k, v, mask=mask)
    assert (got[:, :, 3] == 0).all() and (got[:, :, 5] != 0).any()


def test_what_is_not_a_number_reaches_what_it_reaches_in_torch(attend) -> None:
    for place, value in (("q", NAN), ("q", INF), ("k", NAN), ("k", -INF), ("v", NAN), ("v", INF)):
        given = dict(zip("qkv", (made(1, 2, 20, 16, seed=s) for s in range(3))))
        given[place][0, 1, 4, 3] = value
        for mask in (None, made(20, 20)):
            want = F.scaled_dot_product_attention(*given.values(), mask)
            got = attend(*given.values(), mask, False, 0.25, True)
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_a_row_of_not_a_number_that_sees_nothing_else(attend) -> None:
    q, k, v = operands(1, 1, 13, 20, 4, 4, 1)
    q, mask = q.clone(), torch.zeros(13, 20)
    q[0, 0, 2, 0] = NAN
    mask[2, :10] = -INF
    got = attend(q, k, v, mask, False, 0.5, True)
    assert got[0, 0, 2].isnan().all() and not got[0, 0, [0, 1, *range(3, 13)]].isnan().any()


def test_large_and_small_scores(attend) -> None:
    q, k, v = operands(1, 2, 24, 800, 8, 8, 2)
    check(attend, q * 30, k, v)
    check(attend, q, k, v, mask=torch.linspace(-3e4, 3e4, 800).expand(24, 800))
    check(attend, q, k, v, mask=torch.linspace(3e4, -3e4, 800).expand(24, 800))


def test_strides(attend) -> None:
    q, k, v = made(1, 20, 2, 8).permute(0, 2, 1, 3), made(1, 2, 8, 30).transpose(2, 3), made(1, 1, 30, 8).expand(1, 2, 30, 8)
    check(attend, q, k, v)
    check(attend, q[..., ::2], k[..., 1::2], v[..., 3:], causal=True)
    assert attend(q[:, :, :0], k, v, None, False, 1.0, True).shape == (1, 2, 0, 8)
    assert (attend(q, k[:, :, :0], v[:, :, :0], None, False, 1.0, True) == 0).all()
