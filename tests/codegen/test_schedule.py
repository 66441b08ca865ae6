"""Schedules: data that says how a kernel runs; the plan is checked and run by `same`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from graphs import same

from bytejit.codegen.loops.plan import Call


def calls(fn, *args, threads: int = 2) -> list[Call]:
    return [s for s in same(fn, *args, threads=threads)[2].steps if isinstance(s, Call)]


def test_contiguous_dims_collapse_into_one_loop() -> None:
    (call,) = calls(lambda x: x.exp() + 1, torch.randn(8, 16, 32, 33))
    assert call.kernel.axes == ()
    assert [a.size for a in call.kernel.nests[0].axes] == [8 * 16 * 32 * 33]
    assert call.schedule.parallel == ("j0",)
    assert call.schedule.nests[0].vector == "j0"


def test_little_work_runs_on_the_calling_thread() -> None:
    (call,) = calls(lambda x: x + 1, torch.randn(100))
    assert call.schedule.parallel == ()


def test_rows_are_cut_over_threads_and_reduced_in_lanes() -> None:
    (call,) = calls(lambda x: x.softmax(1), torch.randn(256, 512))
    assert call.schedule.parallel == ("i0",)
    assert [p.vector for p in call.schedule.nests] == ["j0"] * 3
    assert call.schedule.nests[0].accumulators > 1


def test_columns_are_reduced_in_blocks_with_the_kept_axis_in_lanes() -> None:
    (call,) = calls(lambda x: x.sum(0), torch.randn(300, 512))
    assert call.schedule.block == (call.kernel.axes[-1].name, 64)
    assert call.schedule.nests[0].vector == call.kernel.axes[-1].name


def test_one_long_row_is_split_over_threads() -> None:
    (call,) = calls(lambda x: (x * x).sum(), torch.randn(1 << 18))
    assert call.schedule.split == 2 and call.schedule.parallel == ()


def test_transposes_are_tiled() -> None:
    (call,) = calls(lambda x: x.t().contiguous(), torch.randn(128, 256))
    assert dict(call.schedule.nests[0].tile) == {"j0": 32, "j1": 32}


def test_channels_last_is_walked_along_channels() -> None:
    x = torch.randn(2, 64, 16, 16).to(memory_format=torch.channels_last)
    (call,) = calls(lambda x: x.relu() * 2, x)
    assert [a.size for a in call.kernel.nests[0].axes] == [x.numel()]
    found = calls(lambda x, w: x * w.view(1, -1, 1, 1), x, torch.randn(64))
    assert found[0].kernel.nests[0].axes[-1].size == 64


def test_equal_kernels_have_equal_bodies() -> None:
    first, second = calls(lambda x, w: F.gelu((F.gelu(x @ w) + 0) @ w) + 0, torch.randn(8, 64), torch.randn(64, 64) / 8)

    def bare(c: Call):
        names = {n: f"q{i}" for i, n in enumerate((*c.reads, *c.writes))}
        from bytejit.codegen.loops.text import text

        out = text(c.kernel)
        for n, m in names.items():
            out = out.replace(f"{n}[", f"{m}[")
        return out.replace(c.kernel.name, "k")

    assert bare(first) == bare(second)
    assert first.schedule == second.schedule


def test_lanes_follow_the_widest_dtype() -> None:
    (call,) = calls(lambda x: x.double() + 1, torch.randn(1000))
    assert call.schedule.nests[0].lanes == 4
    (call,) = calls(lambda x: x + 1, torch.randn(1000))
    assert call.schedule.nests[0].lanes == 8


def test_short_rows_are_in_lanes_too() -> None:
    """Of a row that a kernel keeps, shorter than a vector of this machine"""

    def spline(x: torch.Tensor, n: int) -> torch.Tensor:
        b = torch.sin(x[:, None] * torch.arange(1.0, 3 + n))
        b = b[:, :-1] * x[:, None] + b[:, 1:].exp()
        return b[:, :-1] / (1 + x[:, None] ** 2) - b[:, 1:]

    for n, lanes in ((5, 4), (7, 4), (9, 8)):
        (call,) = calls(lambda x, n=n: spline(x, n), torch.randn(4000))
        assert call.schedule.nests[-1].lanes == lanes, call.schedule
