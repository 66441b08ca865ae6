"""Views of memory in another dtype, and views of those that count from the begin of the memory"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit

I32, U8 = torch.int32, torch.uint8


def _written(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    x = x.clone()
    x.view(dtype).as_strided((4,), (2,)).add_(1)
    return x


VIEWS: dict[str, Callable] = {  # of float32
    "elements of that size": lambda x: x[2:].view(I32).as_strided((4,), (1,)) + 1,
    "its begin": lambda x: x.view(I32)[3:].as_strided((4,), (1,), x.storage_offset()) + 1,
    "all of it": lambda x: x.view(I32)[3:].as_strided(x.shape, (1,), x.storage_offset()) + 1,
    "written": lambda x: _written(x, I32),
    "smaller elements": lambda x: x.view(U8)[2:].as_strided((4,), (2,)) + 1,
    "smaller elements, written": lambda x: _written(x, U8),
    "pairs": lambda x: torch.view_as_complex(x.view(-1, 2)).as_strided((4,), (2,)) * 2j,
    "a part": lambda x: torch.view_as_complex(x.view(-1, 2)).conj().imag.as_strided((4,), (3,)) + 1,
    "its offset": lambda x: x.new_zeros(x[2:].view(U8).storage_offset(), x.view(torch.float64)[1:].storage_offset()),
}


@pytest.mark.cxx
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", VIEWS)
def test_views_in_another_dtype(name: str, backend: str) -> None:
    fn, whole = VIEWS[name], torch.arange(24.0)
    ours = bytejit.compile(fn, backend=backend)
    for x in (whole, whole[8:]):
        want, got = fn(x), ours(x)
        assert (got.dtype, got.shape, got.storage_offset()) == (want.dtype, want.shape, want.storage_offset())
        assert torch.equal(got, want), (got, want)
