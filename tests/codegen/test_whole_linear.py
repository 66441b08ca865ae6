"""Sizes and strides of a linear that stays one op, also of inputs of which torch 2.11's own code takes no symbols."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from bytejit.codegen.aten.whole_functions import linear_spec
from bytejit.common.spec import Spec
from bytejit.fake.tensor import fake_of_spec, spec_of
from bytejit.shapes.environment import Env

INPUTS: dict[str, Callable] = {
    "rows": lambda n: torch.randn(n, 16),
    "images": lambda n: torch.randn(n, 16, 8, 6).permute(0, 2, 3, 1),
    "first token": lambda n: torch.randn(n, 17, 16)[:, :1],
    "swapped": lambda n: torch.randn(7, n, 16).transpose(0, 1),
    "expanded": lambda n: torch.randn(n, 1, 16).expand(n, 5, 16),
    "vector": lambda n: torch.randn(16),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", INPUTS)
def test_as_eager(name: str, bias: bool) -> None:
    x, weight, b = INPUTS[name](3), torch.randn(5, 16), torch.randn(5) if bias else None
    got = linear_spec(*(None if t is None else fake_of_spec(Spec.of(t)) for t in (x, weight, b)))
    assert got == Spec.of(F.linear(x, weight, b))


def test_a_symbolic_batch_stays_one() -> None:
    batch = Env().symbol("s0", 3)
    x = fake_of_spec(Spec((batch, 8, 6, 16), (768, 6, 1, 48), torch.float32, torch.device("cpu")))
    made = linear_spec(x, fake_of_spec(Spec.of(torch.randn(5, 16))))
    assert made is not None and made.shape[0] is batch and made.stride == (240, 30, 5, 1)


@pytest.mark.parametrize("shapes", [((3, 4), (5, 16), (5,)), ((3, 16), (5, 16), (4,)), ((3, 16), (16,), None)])
def test_what_eager_may_refuse_is_left_to_it(shapes: tuple) -> None:
    given = [None if s is None else fake_of_spec(Spec.of(torch.randn(s))) for s in shapes]
    assert linear_spec(*given) is None
    assert spec_of(given[0]).shape == shapes[0]
