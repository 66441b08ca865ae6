"""A loop for each range of an axis in which no mask changes. Checked against eager by `same`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs import same

import bytejit
from bytejit.codegen.loops.expr import walk
from bytejit.codegen.loops.plan import Call
from bytejit.codegen.loops.simplify import axes_below, kernel_roots, loads

A, B = torch.randn(6, 40), torch.randn(6, 24)
C = torch.randn(40, 12, 50)
MANY: dict[str, tuple[Callable, tuple, int]] = {
    "rows": (lambda a, b: torch.cat([a, a * 2, -a, a + 1, a]), (A, B), 5),
    "columns": (lambda a, b: torch.cat([a, b, -a, b], 1) * 2, (A, B), 4),
    "stacked": (lambda a, b: torch.stack([b, b + 1, b * 2, -b, b - 1, b]), (A, B), 6),
    "stacked inside": (lambda a, b: torch.stack([b, b + 1, b * 2, -b], 1), (A, B), 4),
    "of other dtypes": (lambda a, b: torch.cat([a, b.bfloat16(), a, b], 1), (A, B), 4),
    "few": (lambda a, b: torch.cat([a, b, a], 1), (A, B), 1),
    "few long ones": (lambda c: torch.cat([c + 1, c * 2]), (C,), 2),
    "few long ones, cut": (lambda c: torch.cat([c * 2, c[:20], -c]).transpose(1, 2)[:, 1:], (C,), 3),
    "a border": (lambda c: torch.nn.functional.pad(c.transpose(0, 1), (0, 0, 1, 1)) + 1, (torch.randn(40, 24, 50),), 1),
}


@pytest.mark.parametrize("name", MANY)
def test_each_part_has_its_own_loop(name: str) -> None:
    fn, args, parts = MANY[name]
    _, _, plan = same(fn, *args)
    found = [s.kernel for s in plan.steps if isinstance(s, Call)]
    assert len(found) == parts, found
    if parts > 1:
        assert not any(e.mask is not None for k in found for e in loads(kernel_roots(k)))
        assert not any(e.kind == "op" and e.name == "select" for k in found for e in walk(kernel_roots(k)))


LONG, SHORT = torch.randn(700, 45), torch.randn(45, 700)
IN_ROWS: dict[str, tuple[Callable, tuple, int]] = {
    "columns": (lambda a, b: torch.cat([a, b[:, :31], a], 1) * 2, (LONG, LONG + 1), 3),
    "channels": (lambda c, d: torch.cat([c + 1, d[:, :7] * 2], 1), (C, C + 1), 2),
    "channels last": (lambda c: torch.cat([c, c * 2], 3).permute(0, 3, 1, 2), (torch.randn(9, 8, 8, 40),), 2),
    "images around": (lambda c: torch.cat([c, c], 1), (torch.randn(20, 3, 30, 30),), 2),
    "stacked": (lambda a: torch.stack([a, -a, a + 1, a * 2], 1), (LONG,), 4),
    "turned": (lambda a, b: torch.cat([a, b.t()], 1), (LONG, SHORT), 0),
    "of short rows": (lambda a: torch.cat([a[:, :3], a[:, :5]], 1), (torch.randn(9000, 8),), 0),
    "of long rows": (lambda a: torch.cat([a, a], 1), (torch.randn(20, 9000),), 0),
    "of other dtypes": (lambda a: torch.cat([a, (a > 0).to(torch.uint8), a.to(torch.float64)], 1), (LONG,), 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("name", IN_ROWS)
def test_parts_of_short_rows_are_written_row_by_row(name: str, dtype: torch.dtype) -> None:
    fn, args, parts = IN_ROWS[name]
    _, _, plan = same(fn, *((a * 8).to(dtype) for a in args))
    found = [s.kernel for s in plan.steps if isinstance(s, Call)]
    if parts:
        assert len(found[-1].nests) >= parts, found
        assert not any(e.mask is not None or e.name == "select" for e in walk(kernel_roots(found[-1])))
    else:
        assert all(len(k.nests) == 1 for k in found), found


IMAGE = torch.randn(2, 3, 20, 40)
ROWS: dict[str, tuple[Callable, tuple, int]] = {
    "padded": (lambda x: F.pad(x, (2, 3, 1, 1)), (IMAGE,), 3),
    "padded with a number": (lambda x: F.pad(x, (2, 3, 1, 1), value=1.5) * 2, (IMAGE,), 3),
    "reflected": (lambda x: F.pad(x, (2, 3, 1, 1), mode="reflect"), (IMAGE,), 3),
    "repeated edges": (lambda x: F.pad(x, (2, 3, 1, 1), mode="replicate"), (IMAGE,), 3),
    "rolled": (lambda x: x.roll((3, 1), (3, 2)), (IMAGE,), 2),
    "shifted": (lambda x: x + F.pad(x[..., :-1], (1, 0)), (IMAGE,), 2),
    "two parts": (lambda x: torch.cat([x, x[..., ::2]], 3), (IMAGE,), 2),
    "an element of a range": (lambda x: F.pad(torch.where(torch.arange(40) == 7, x, -x), (2, 0)), (IMAGE,), 3),
    "an axis of channels": (lambda x: F.pad(x, (1, 1, 1, 1)), (IMAGE[:, :, :8].permute(0, 3, 1, 2),), 1),
    "short rows": (lambda x: F.pad(x, (1, 1)), (IMAGE[..., :8],), 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
@pytest.mark.parametrize("name", ROWS)
def test_an_innermost_loop_is_divided_where_masks_change(name: str, dtype: torch.dtype) -> None:
    fn, args, loops = ROWS[name]
    _, _, plan = same(fn, *(a.to(dtype) for a in args))
    [kernel] = [s.kernel for s in plan.steps if isinstance(s, Call)]
    assert len(kernel.nests) == loops
    inside = [
        e.mask for p in kernel.nests for e in p.loads if e.mask is not None and axes_below(e.mask) & {a.name for a in p.axes}
    ]
    assert not inside or loops == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_moved_elements_of_16_bits_keep_every_bit(dtype: torch.dtype) -> None:
    x = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(256, 256).view(dtype)  # every NaN, too
    for fn in (lambda x: x.flip(1), lambda x: F.pad(x, (1, 2, 1, 1)), lambda x: torch.cat([x, x.roll(5, 1)], 1), torch.t):
        expected, got = fn(x), bytejit.compile(lambda x, fn=fn: fn(x).clone(), fullgraph=True)(x)
        assert torch.equal(got.view(torch.int16), expected.contiguous().view(torch.int16))
