"""Loads at computed places that are regular become loads of neighbours. Checked against eager by `same`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs import same
from test_emit_cpp import compiled

from bytejit.codegen.cpu.phases import own_values
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.plan import Call, Plan
from bytejit.codegen.loops.simplify import axes_below, points

X, Z = torch.randn(2, 3, 20, 40), torch.randn(2, 3, 40, 80)
aten = torch.ops.aten


def resized(mode: str, **to: object) -> Callable:
    return lambda x: F.interpolate(x, mode=mode, **to)


def greatest(x: torch.Tensor, g: torch.Tensor, k: int, stride: int, padding: int) -> torch.Tensor:
    _, chosen = F.max_pool2d(x, k, stride, padding, return_indices=True)
    return aten.max_pool2d_with_indices_backward(g, x, [k, k], [stride] * 2, [padding] * 2, [1, 1], False, chosen)


def means(x: torch.Tensor, g: torch.Tensor, k: int, stride: int, padding: int, borders: bool = True) -> torch.Tensor:
    return aten.avg_pool2d_backward(g, x, [k, k], [stride] * 2, [padding] * 2, False, borders, None)


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
    "gradient of a resized image": (lambda g: aten.upsample_bilinear2d_backward(g, [40, 80], [2, 3, 20, 40], False, None), (Z,)),
    "of a cubic one": (lambda g: aten.upsample_bicubic2d_backward(g, [40, 80], [2, 3, 20, 40], False, None), (Z,)),
    "of neighbours": (lambda g: aten.upsample_nearest2d_backward(g, [40, 80], [2, 3, 20, 40], None), (Z,)),
    "of the greatest": (lambda x, g: greatest(x, g, 3, 2, 1), (X, X[..., ::2, ::2])),
    "of the greatest, of gaps": (lambda x, g: greatest(x, g, 2, 3, 0), (X, X[..., :7, :13])),
    "of a mean": (lambda x, g: means(x, g, 3, 2, 1), (X, X[..., ::2, ::2])),
    "of a mean of what counts": (lambda x, g: means(x, g, 3, 2, 1, False), (X, X[..., ::2, ::2])),
    "the greatest": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (X,)),
    "rows of two": (lambda x: x.repeat_interleave(2, -1)[..., 1:] + x[..., :1], (X,)),
    "pairs in turn": (lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2) * 2 + x, (X,)),
    "beside another": (lambda x: torch.cat([F.interpolate(x, scale_factor=2, mode="bilinear"), x.repeat(1, 1, 2, 2)], 1), (X,)),
}
OTHERS: dict[str, tuple[Callable, tuple]] = {
    "parts of a row": (lambda x: F.unfold(x, 3, 1, 1, 2), (X,)),
    "corners": (lambda x: F.interpolate(x, size=(33, 90), mode="bilinear", align_corners=True), (X,)),
    "no period": (resized("bilinear", size=(31, 57)), (X,)),
    "short": (resized("bilinear", scale_factor=2), (X[..., :7],)),
    "checked": (lambda x: x[..., torch.arange(40.0).sub(1).long()] * 2, (X,)),
    "read from memory": (lambda x, i: x[..., i] * 2, (X, torch.arange(80) // 2)),
}


def computed_places(plan: Plan) -> int:
    """How many loads of long innermost loops are at places that are computed for each of their values, or under masks that
    are."""
    found = 0
    for p in [p for s in plan.steps if isinstance(s, Call) for p in s.kernel.nests if p.axes and p.axes[-1].size > 12]:
        inner = p.axes[-1].name
        values = [v for e in p.loads for v in (*ix.values_in(e.attr), *([] if e.mask is None else [e.mask]))]
        found += sum(inner in axes_below(v) for v in values)
        divided = [a for e in p.loads for at in e.attr for a in ix.atoms(at) if type(a) in (ix.Div, ix.Mod)]
        found += sum(inner in ix.variables(a.parts[0]) for a in divided)
    return found


@pytest.mark.cxx
@pytest.mark.parametrize("name", [*REGULAR, *OTHERS])
def test_regular_places_are_neighbours(name: str) -> None:
    fn, args = (REGULAR | OTHERS)[name]
    _, _, plan = same(fn, *args)
    assert (computed_places(plan) == 0) == (name in REGULAR)
    expected = fn(*args)
    got = compiled(fn, args).call(*args)
    for a, b in zip(got, expected if isinstance(expected, tuple) else [expected], strict=True):
        low = b.dtype == torch.bfloat16
        torch.testing.assert_close(a, b, rtol=2e-2 if low else None, atol=2e-2 if low else None)
        assert a.stride() == b.stride()


WEIGHTS: dict[str, tuple[Callable, tuple, bool]] = {
    "equal": (lambda g: aten.upsample_bilinear2d_backward(g, [40, 80], [2, 3, 20, 40], False, None), (Z,), True),
    "of two phases": (resized("bilinear", scale_factor=2), (X,), True),
    "growing": (lambda x: x * torch.arange(40.0).sin(), (X,), False),
    "equal to begin with": (lambda x: x * torch.arange(40.0).clamp(max=20).mul(0.1), (X,), False),
    "equal but for a few": (lambda x: x * torch.arange(40.0).clamp(2, 37).sign().mul(0.1), (X,), True),
}


@pytest.mark.cxx
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_stay_are_constants(name: str) -> None:
    fn, args, constant = WEIGHTS[name]
    plan = same(fn, *args)[2]
    longest = max((p for s in plan.steps if isinstance(s, Call) for p in s.kernel.nests), key=lambda p: points(p.axes))
    assert (not list(own_values(longest, longest.axes[-1].name))) == constant
    torch.testing.assert_close(compiled(fn, args).call(*args)[0], fn(*args))
