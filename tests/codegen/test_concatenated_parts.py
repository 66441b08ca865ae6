"""Kernels of many parts: a loop for each, no masks. Checked against eager by `same`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graphs import same

from bytejit.codegen.loops.expr import walk
from bytejit.codegen.loops.plan import Call
from bytejit.codegen.loops.simplify import kernel_roots, loads

A, B = torch.randn(6, 40), torch.randn(6, 24)
C = torch.randn(40, 12, 50)
MANY: dict[str, tuple[Callable, tuple, int]] = {
    "rows": (lambda a, b: torch.cat([a, a * 2, -a, a + 1, a]), (A, B), 5),
    "columns": (lambda a, b: torch.cat([a, b, -a, b], 1) * 2, (A, B), 4),
    "stacked": (lambda a, b: torch.stack([b, b + 1, b * 2, -b, b - 1, b]), (A, B), 6),
    "stacked inside": (lambda a, b: torch.stack([b, b + 1, b * 2, -b], 1), (A, B), 4),
    "of other dtypes": (lambda a, b: torch.cat([a, b.bfloat16(), a, b], 1), (A, B), 4),
    "few": (lambda a, b: torch.cat([a, b, a], 1), (A, B), 1),
    "few long ones": (lambda c: torch.cat([c + 1, c * 2], 1), (C,), 2),
    "few long ones, cut": (lambda c: torch.cat([c * 2, c[:, :6], -c], 1).transpose(1, 2)[:, 1:], (C,), 3),
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
