"""Loads at computed places that are regular become loads of neighbours. Checked against eager by `same`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs import same
from test_emit_cpp import compiled

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.plan import Call, Plan
from bytejit.codegen.loops.simplify import axes_below

X = torch.randn(2, 3, 20, 40)


def resized(mode: str, **to: object) -> Callable:
    return lambda x: F.interpolate(x, mode=mode, **to)


REGULAR: dict[str, tuple[Callable, tuple]] = {
    "twice as large": (resized("bilinear", scale_factor=2), (X,)),
    "three times": (resized("bilinear", scale_factor=3), (X,)),
    "four times, and more": (lambda x: F.interpolate(x, scale_factor=4, mode="bilinear").relu() + 1, (X,)),
    "one and a half": (resized("bilinear", size=(30, 60)), (X,)),
    "half": (resized("bilinear", scale_factor=0.5), (X,)),
    "nearest": (resized("nearest-exact", size=(40, 80)), (X,)),
    "a line": (resized("linear", scale_factor=2), (X[0],)),
    "of 16 bits": (resized("bilinear", scale_factor=2), (X.bfloat16(),)),
    "of float64": (resized("bilinear", scale_factor=2), (X.double(),)),
    "beside another": (lambda x: torch.cat([F.interpolate(x, scale_factor=2, mode="bilinear"), x.repeat(1, 1, 2, 2)], 1), (X,)),
}
OTHERS: dict[str, tuple[Callable, tuple]] = {
    "corners": (lambda x: F.interpolate(x, size=(33, 90), mode="bilinear", align_corners=True), (X,)),
    "no period": (resized("bilinear", size=(31, 57)), (X,)),
    "short": (resized("bilinear", scale_factor=2), (X[..., :7],)),
    "checked": (lambda x: x[..., torch.arange(40.0).sub(1).long()] * 2, (X,)),
    "read from memory": (lambda x, i: x[..., i] * 2, (X, torch.arange(80) // 2)),
}


def computed_places(plan: Plan) -> int:
    """How many loads of long innermost loops are at places that depend on the loop."""
    found = 0
    for p in [p for s in plan.steps if isinstance(s, Call) for p in s.kernel.nests if p.axes and p.axes[-1].size > 12]:
        inner = p.axes[-1].name
        values = [v for e in p.loads for v in ix.values_in(e.attr)]
        found += sum(inner in axes_below(v) for v in values)
    return found


@pytest.mark.cxx
@pytest.mark.parametrize("name", [*REGULAR, *OTHERS])
def test_regular_places_are_neighbours(name: str) -> None:
    fn, args = (REGULAR | OTHERS)[name]
    _, _, plan = same(fn, *args)
    assert (computed_places(plan) == 0) == (name in REGULAR)
    expected = fn(*args)
    [got] = compiled(fn, args).call(*args)
    low = expected.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected, rtol=2e-2 if low else None, atol=2e-2 if low else None)
    assert got.stride() == expected.stride()
