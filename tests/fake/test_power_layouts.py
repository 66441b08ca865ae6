"""Powers of a number are row-major, and so is what is multiplied by them, where the other operand does not lead: `ldexp`."""

from __future__ import annotations

import itertools

import pytest
import torch

import bytejit

OPERANDS = {
    "number": torch.randn(()),
    "rows": torch.randn(8, 17),
    "columns": torch.randn(17, 8).t(),
    "row": torch.randn(17),
    "column": torch.randn(8, 1),
    "every second": torch.randn(8, 34)[:, ::2],
    "expanded": torch.randn(17, 8).t()[:1].expand(8, 17),
    "three dims": torch.randn(1, 17, 8).transpose(1, 2),
}


@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("pair", itertools.product(OPERANDS, OPERANDS), ids=" and ".join)
def test_strides_are_eagers(pair: tuple[str, str], dynamic: bool | None) -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> tuple:
        return torch.ldexp(a, b), (a - a).amax()

    a, b = (OPERANDS[name] for name in pair)
    got, want = bytejit.compile(program, dynamic=dynamic)(a, b)[0], program(a, b)[0]
    assert torch.equal(got, want)
    assert [s for s, n in zip(got.stride(), got.shape) if n > 1] == [s for s, n in zip(want.stride(), want.shape) if n > 1]
