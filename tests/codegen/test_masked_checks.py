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
