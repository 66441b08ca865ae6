"""Values with a check (of an index, of a divisor) computed in a kernel that has points at which eager does not compute them: no
check fails there, and none that eager makes is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from both import both, both_raise
from dynamic import agree
from graphs import same

from bytejit.codegen.loops.ir import Kernel

pytestmark = pytest.mark.cxx

N = 600  # elements of a side: so many that padding a quotient is one kernel
X = torch.arange(N * N).view(N, N) % 7 + 1
I = torch.arange(N * N).view(N, N) % 11 + 1


def gathered(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return torch.gather(x, 1, i - 1)


def quotient(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x // i


def rest(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return x % (i + 1 - 1)


def rows(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    return F.embedding(i[:, 0] - 1, x) + x[(N - torch.arange(N, device=x.device)) % N]


PARTS: dict[str, Callable] = {
    "pad": lambda v: F.pad(v, (1, 1, 2, 1)),
    "crop": lambda v: F.pad(v, (-1, 2, 0, -2)),
    "cat": lambda v: torch.cat([v[:2] * 3, v]),
    "stack": lambda v: torch.stack([v + 1, v]),
    "slice_scatter": lambda v: v.slice_scatter(v[:10] * 2, 0, 50, 60),
    "select_scatter": lambda v: v.select_scatter(v[0], 0, N // 2),
    "diagonal_scatter": lambda v: v.diagonal_scatter(v[0]),
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("value", [gathered, quotient, rest, rows])
def test_no_check_fails_where_nothing_is_computed(value: Callable, part: str) -> None:
    both(lambda x, i: PARTS[part](value(x, i)), X, I, triton=False)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("value", [gathered, quotient, rest, rows])
def test_no_check_is_lost(value: Callable, part: str) -> None:
    """Also of a value that another takes the place of"""
    bad = I.clone()
    bad[N // 2] = 0
    both_raise(lambda x, i: PARTS[part](value(x, i)), X, bad)


@pytest.mark.parametrize("value", [gathered, quotient])
def test_padding_stays_in_the_kernel(value: Callable) -> None:
    steps = same(lambda x, i: F.pad(value(x, i), (1, 1, 2, 1)), X, I)[1].steps
    assert len(steps) == 1 and isinstance(steps[0], Kernel), steps


@pytest.mark.parametrize("value", [gathered, quotient])
def test_sizes_that_change(value: Callable) -> None:
    def args_of(n: int, m: int) -> tuple[torch.Tensor, ...]:
        return torch.arange(n * m).view(n, m), torch.arange(n * m).view(n, m) % m + 1

    def padded(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return F.pad(value(x, i), (1, 1, 2, 1))

    agree(padded, args_of, (("s0", "s1"), ("s0", "s1")), [(600, 700), (9, 4), (50, 80)])


def following(i: torch.Tensor, pad: int) -> torch.Tensor:
    return F.pad(i, (0, 1), value=pad)[1:]


NEXT: dict[str, Callable] = {
    "loss of the next tokens": lambda x, i: F.cross_entropy(x, following(i, -100), ignore_index=-100),
    "smoothed": lambda x, i: F.cross_entropy(x, following(i, -100), ignore_index=-100, label_smoothing=0.1),
    "sum": lambda x, i: torch.where(following(i, 0) == 0, 0.0, x[0][following(i, 0)]).sum(),
    "largest": lambda x, i: torch.where(following(i, 0) == 0, -9.0, x[0][following(i, 0)]).max(),
    "product": lambda x, i: torch.where(following(i, 0) == 0, 1.0, x[0][following(i, 0)]).prod(),
    "from the end": lambda x, i: torch.where(following(i, 0) == 0, 0.0, x[0][following(i, 0) - 9]).sum(),
    "concatenated": lambda x, i: (lambda j: torch.where(j == 0, 0.0, x[0][j]).sum())(torch.cat([i[1:], i.new_zeros(1)])),
    "previous": lambda x, i: (lambda j: torch.where(j < 0, 0.0, x[0][j.clamp(min=0)]).sum())(F.pad(i, (2, 0), value=-1)[:-2]),
    "quotient": lambda x, i: (lambda j: torch.where(j == 0, 0, 100 // torch.where(j == 0, 1, j)).sum())(following(i, 0)),
}


@pytest.mark.pairs
@pytest.mark.parametrize("n", [64, 128, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32])
@pytest.mark.parametrize("name", NEXT)
def test_padded_indices_in_lanes(name: str, kind: torch.dtype, dtype: torch.dtype, n: int) -> None:
    """Sums in lanes over rows at padded indices, whose pads are left out: no check fails that no element fails"""
    if "loss" in name or name == "smoothed":
        kind = torch.int64
    x, i = (torch.arange(n * 9).view(n, 9) % 23).to(dtype).sin(), (torch.arange(n) * 7 % 9).to(kind)
    both(NEXT[name], x, i, triton=False)
