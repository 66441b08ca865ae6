"""Views of memory that a tensor does not have are refused as eager refuses them, also where nothing reads them"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit


def _unread(x: torch.Tensor) -> torch.Tensor:
    x.as_strided((100,), (1,))
    return x + 1


def _unread_of_made(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y.as_strided((3, 3), (2, 2), 2)
    return y * 2


def _caught(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    try:
        y.as_strided((2,), (x.shape[0],))
    except RuntimeError:
        return y * 3
    return y


CALLS: dict[str, Callable] = {
    "unread": _unread,
    "unread, of what was made": _unread_of_made,
    "caught": _caught,
    "read": lambda x: (x + 1).as_strided((100,), (1,)).sum(),
    "from an offset": lambda x: x.as_strided((3,), (1,), 8).sum(),
    "written": lambda x: (x + 1).as_strided((10,), (2,)).add_(1),
    "in place": lambda x: (x + 1).as_strided_((10,), (2,)),
    "copied": lambda x: torch.as_strided_copy(x + 1, (100,), (1,)),
    "scattered": lambda x: torch.as_strided_scatter(x + 1, x, (10,), (2,)),
    "scattered, unread": lambda x: (torch.as_strided_scatter(x + 1, x, (10,), (2,)), x + 2)[1],
    "another shape scattered": lambda x: torch.as_strided_scatter(x + 1, x[:3], (4,), (2,), 1),
    "a stride below 0": lambda x: (x.as_strided((3,), (-1,)), x.sum())[1],
    "a size below 0": lambda x: (x.as_strided((-3,), (1,)), x.sum())[1],
    "an offset below 0": lambda x: (x.as_strided((3,), (1,), -1), x.sum())[1],
    "more strides than sizes": lambda x: (x.as_strided((3,), (1, 1)), x.sum())[1],
    # taken
    "windows": lambda x: (x + 1).as_strided((x.shape[0] - 3, 4), (1, 1)).sum(1),
    "no elements": lambda x: x.as_strided((0, 5), (100, 1)) + 1,
    "a whole window scattered": lambda x: torch.as_strided_scatter(x + 1, x[:4], (4,), (2,), 1),
}
GIVEN: dict[str, Callable[[int], torch.Tensor]] = {
    "whole": lambda n: torch.arange(1.0, n + 1),
    "a part": lambda n: torch.arange(1.0, 4 * n + 1)[:n],  # its storage holds more
}


def outcome(call: Callable, x: torch.Tensor) -> tuple[type | None, str, torch.Tensor | None]:
    """(type of the error, its words, None), or (None, "", what it returns)"""
    try:
        return None, "", call(x)
    except Exception as error:
        return type(error), str(error), None


@pytest.mark.cxx
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("name", CALLS)
def test_memory_outside_is_refused(name: str, given: str, backend: str) -> None:
    bytejit.reset()
    compiled = bytejit.compile(CALLS[name], backend=backend)
    for n in (10, 12, 15):
        want, got = outcome(CALLS[name], GIVEN[given](n)), outcome(compiled, GIVEN[given](n))
        assert got[:2] == want[:2]
        if want[2] is not None and got[2] is not None:
            torch.testing.assert_close(got[2], want[2])
            assert got[2].stride() == want[2].stride()
    assert not bytejit.counters["faults"]


def test_windows_of_a_symbolic_size_are_one_kernel() -> None:
    """That they stay within is known, and needs no further compile"""
    bytejit.reset()
    windows = bytejit.compile(lambda x: (x + 1).as_strided((x.shape[0] - 3, 4), (1, 1)).sum(1), dynamic=True, fullgraph=True)
    for n in (9, 30, 7):
        x = torch.rand(n)
        torch.testing.assert_close(windows(x), (x + 1).unfold(0, 4, 1).sum(1))
    assert not bytejit.counters["recompiles"] and not bytejit.counters["fallbacks"]
