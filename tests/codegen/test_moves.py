"""Ops that put elements elsewhere (rows/moves.py and rows/view.py in codegen/ops) as kernels of both printers against eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from both import both, both_raise
from dynamic import agree

import bytejit

pytestmark = pytest.mark.cxx
r = torch.randn


def pad(*sides: int, mode: str) -> Callable:
    return lambda x: F.pad(x.sin(), sides, mode=mode) * 2


def written_diagonal(x: torch.Tensor) -> torch.Tensor:
    x.diagonal().mul_(2)
    return x.fill_diagonal_(3) if x.is_contiguous() else x


CASES: dict[str, tuple[Callable, tuple[Any, ...]]] = {
    **{
        f"{mode}{n}": (pad(*sides, mode=mode), (r(2, 3, *(5, 6, 7)[:n]),))
        for mode in ("reflect", "replicate", "circular")
        for n, sides in ((1, (2, 3)), (2, (1, 2, 0, 3)), (3, (1, 1, 0, 2, 2, 1)))
    },
    "reflect_unbatched": (pad(4, 4, mode="reflect"), (r(3, 5),)),
    "reflect_cropped": (pad(-1, 2, mode="reflect"), (r(3, 5),)),
    "replicate_cropped": (pad(-2, 3, 1, -1, mode="replicate"), (r(3, 5, 6),)),
    "replicate_far": (pad(7, 9, mode="replicate"), (r(3, 1, 2),)),
    "reflect_int": (lambda x: F.pad(x, (2, 2), mode="reflect"), (torch.arange(10).view(1, 2, 5),)),
    "reflect_strided": (pad(2, 2, mode="reflect"), (r(2, 7, 3).transpose(1, 2),)),
    "reflect_channels_last": (pad(2, 2, 1, 1, mode="reflect"), (r(2, 3, 6, 7).contiguous(memory_format=torch.channels_last),)),
    "reflect_bf16": (pad(2, 2, 1, 1, mode="reflect"), (r(2, 3, 6, 7).bfloat16(),)),
    "reflect_nothing": (pad(1, 1, mode="reflect"), (r(0, 3, 5),)),
    "shuffle": (lambda x: F.pixel_shuffle(x.cos(), 3), (r(2, 18, 4, 5),)),
    "shuffle_channels_last": (lambda x: F.pixel_shuffle(x, 2), (r(2, 8, 4, 5).contiguous(memory_format=torch.channels_last),)),
    "shuffle_many_dims": (lambda x: F.pixel_shuffle(x, 2), (r(2, 1, 8, 4, 5),)),
    "unshuffle": (lambda x: F.pixel_unshuffle(x, 2) + 1, (r(2, 3, 4, 6),)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x.relu(), 3), (r(2, 12, 4, 5),)),
    "diag_embed": (lambda x: (x.diag_embed(), x.diag_embed(2), x.diag_embed(-1, 0, 2)), (r(3, 4),)),
    "diag": (lambda x, y: (x.diag(), y.diag(1), y.diag(-9)), (r(4), r(4, 5))),
    "diag_embed_bool": (lambda x: (x > 0).diag_embed(), (r(3, 4),)),
    "diagonal_scatter": (lambda x, y: x.exp().diagonal_scatter(y, 1), (r(4, 6), r(4))),
    "diagonal_scatter_dims": (lambda x, y: x.diagonal_scatter(y, -1, 2, 0), (r(4, 6, 5), r(6, 4))),
    "diagonal_written": (written_diagonal, (r(4, 6),)),
    "trace": (lambda x, y: (x.trace(), y.trace()), (r(4, 6), torch.arange(9, dtype=torch.int32).view(3, 3))),
    "rot90": (lambda x: (x.rot90(), x.rot90(2), x.rot90(3, (1, 2)), x.rot90(0)), (r(3, 4, 5),)),
    "roll_flat": (lambda x: (x.roll(3), x.roll(-30), x.t().roll(1)), (r(4, 5),)),
    "roll_last": (lambda x: (x.roll((1, -2), (0, 2)), x.roll(5, -1), x.roll(7, -1)), (r(3, 4, 5),)),
    "circular_whole": (pad(3, 0, 4, 4, mode="circular"), (r(2, 3, 4, 3),)),
    "circular_cropped": (pad(-1, 2, mode="circular"), (r(2, 3, 4),)),
    "reflect_low": (pad(2, 0, mode="reflect"), (r(2, 3, 4),)),
    "replicate_high": (pad(0, 2, mode="replicate"), (r(2, 3, 4),)),
    "roll_flat_one": (lambda x: x.roll(3), (r(1, 1),)),
    "im2col": (lambda x: F.unfold(x.sin(), 3, padding=1), (r(2, 3, 6, 7),)),
    "im2col_stepped": (lambda x: F.unfold(x, (2, 3), 2, (1, 0), (3, 1)), (r(3, 8, 9),)),
    "col2im": (lambda x: F.fold(x.sin(), (6, 7), 3, padding=1), (r(2, 27, 42),)),
    "col2im_stepped": (lambda x: F.fold(x, (8, 9), (2, 3), 2, (1, 0), (3, 1)), (r(18, 3 * 5),)),
    "col2im_apart": (lambda x: F.fold(x, (8, 9), (2, 3), 1, 0, (2, 3)), (r(12, 12),)),
    "col2im_wide_windows": (lambda x: F.fold(x, (7, 9), (5, 3), 1, (2, 0), (2, 2)), (r(30, 16),)),
    "take": (lambda x, i: (x.take(i), x.t().take(i[0])), (r(4, 5), torch.tensor([[0, -1, 19], [-20, 7, 7]]))),
    "empty": (lambda x: torch.empty_like(x).copy_(x.sin()), (r(4, 5),)),
    "strided_scatter": (
        lambda x, y: (x.as_strided_scatter(y, (4,), (7,), 2), x.as_strided_scatter(y, (4,), (1,))),
        (r(6, 6), r(4)),
    ),
    "strided_scatter_windows": (
        lambda x, y, z: (
            x.as_strided_scatter(y, (3, 4), (12, 2), 1),
            x.as_strided_scatter(y, (3, 4), (1, 7)),
            x.as_strided_scatter(y.view(3, 1, 4), (3, 1, 4), (4, 60, 1), 5),
            x.as_strided_scatter(z, (6, 10), (10, 1)),
            x.as_strided_scatter(z[0, 0], (), ()),
        ),
        (r(60), r(3, 4), r(6, 10)),
    ),
    "linspace": (
        lambda x: (
            x + torch.linspace(-1, 1, 9, device=x.device),
            torch.linspace(3, 0.5, 9, dtype=torch.float64, device=x.device) * x,
        ),
        (r(4, 9),),
    ),
    "empty_in_parts": (lambda x: torch.stack([x, x + 1]).select(0, 1) * torch.vander(x), (r(4),)),
}


@pytest.mark.parametrize("name", CASES)
def test_against_eager(name: str) -> None:
    fn, args = CASES[name]
    tol = {"rtol": 2e-2, "atol": 2e-2} if "bf16" in name else {}
    both(fn, *args, **tol)


@pytest.mark.parametrize("i", [20, -21])
def test_take_out_of_range(i: int) -> None:
    both_raise(lambda x, i: x.take(i) + 1, r(4, 5), torch.tensor([0, i]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("steps", [1, 9, 101, 40000])
def test_lines_are_bit_for_bit_eagers(steps: int, dtype: torch.dtype) -> None:
    """Eager computes blocks of the CPU's vectors in the result's dtype. A caller may write the line."""

    def lines():
        return torch.linspace(-1, 1, steps, dtype=dtype) * 1, torch.linspace(0.1, 0.7, steps, dtype=dtype)

    compiled, want = bytejit.compile(lines, fullgraph=True), lines()
    for _ in range(2):
        found = compiled()
        assert all(map(torch.equal, found, want))
        found[1].zero_()


def test_empty_memory_is_not_written() -> None:
    both(lambda x: torch.empty_like(x).shape[0] * x, r(3, 4))


def args_of(n: int, m: int) -> tuple[torch.Tensor, ...]:
    return (torch.arange(3.0 * n * m).view(3, n, m).cos(),)


SIZES = [(6, 7), (9, 4), (5, 12), (31, 8)]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: F.pad(x, (2, 1), mode="reflect") + 1,
        lambda x: F.pad(x, (2, 1, 3, 0), mode="replicate") + 1,
        lambda x: F.pixel_shuffle(
            x.view(3, x.shape[1], x.shape[2])[None].expand(4, 3, x.shape[1], x.shape[2]).transpose(0, 1), 2
        ),
        lambda x: F.pad(x, (2, 1), mode="circular"),
        lambda x: x.roll((1, 2), (1, 2)),
        lambda x: x.roll(2),
        lambda x: x.rot90(1, (1, 2)),
        lambda x: x.diag_embed(),
        lambda x: F.unfold(x, 3, padding=1),
    ],
)
def test_sizes_that_change(fn: Callable) -> None:
    agree(fn, args_of, ((None, "s0", "s1"),), SIZES)


def test_results_of_a_library_that_nobody_reads() -> None:
    """torch's own inference of their shapes may be wrong."""
    both(
        lambda x, i, o: F.embedding_bag(i, x, o).relu(),
        r(8, 9),
        torch.tensor([1, 3, 0, 7, 7]),
        torch.tensor([0, 2]),
        externs=("aten._embedding_bag_forward_only.default",),
    )


@pytest.mark.parametrize("pieces", [16, 17])
def test_many_pieces_are_copied_one_after_another(pieces: int) -> None:
    """A kernel of many would ask each of them for each element"""

    def joined(x):
        return torch.cat([x[i].sin() for i in range(pieces)], -1) * 2, torch.stack([x[i] + i for i in range(pieces)], 1) * 2

    x = r(pieces, 3, 4)
    for a, b in zip(bytejit.compile(joined, fullgraph=True)(x), joined(x), strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
    assert sum(bytejit.counters["externs"].values()) == (2 if pieces > 16 else 0)


@pytest.mark.cxx
@pytest.mark.parametrize("size", [(1,), (3,), ()])
def test_copies_of_views_that_torch_makes_are_copies(size: tuple) -> None:
    """`as_strided` of an input is torch's own call: its result lies in the input's memory"""
    x = torch.arange(3.0).expand(2, 3)
    stride = tuple(1 for _ in size)
    for fn in (
        lambda x: torch.as_strided_copy(x, size, stride),
        lambda x: torch.as_strided(x, size, stride).clone(),
        lambda x: torch.as_strided(x, size, stride).contiguous().clone().add_(0),
        lambda x: torch.as_strided(x, size, stride).to(torch.float32, copy=True),
    ):
        bytejit.reset()
        y = bytejit.compile(fn)(x)
        assert torch.equal(y, fn(x)) and y._base is None
        y.add_(1)
        assert x[0].tolist() == [0, 1, 2]
