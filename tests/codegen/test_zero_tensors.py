"""What torch's forward derivatives know to be zero stays zero in products, and adds nothing to sums."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit

SECOND: dict[str, Callable] = {
    "-0.0 is left": lambda x: x.sin().sum(),
    "by infinity": lambda x: (x * 1e38).exp().sum(),
    "a sum of both": lambda x: (x.log() * x.log()).sum(),
    "quotients": lambda x: (x / (x * x + 1)).sum(),
    "products of rows": lambda x: (x[:, None] @ x[None]).exp().sum(),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name: str, backend: str) -> None:
    x = torch.tensor([0.0, 1.0, 2.0])
    want = torch.func.hessian(SECOND[name])(x)
    found = bytejit.compile(torch.func.hessian(SECOND[name]), backend=backend, fullgraph=True)(x)
    torch.testing.assert_close(found, want, equal_nan=True)
    if name == "-0.0 is left":
        assert torch.equal(found.signbit(), want.signbit())
