"""Loops over long rows that begin between two multiples of 16 bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="the Triton kernels need triton")
from test_triton_ways import planned  # noqa: E402
from triton_run import DEVICE, run  # noqa: E402

from bytejit.codegen.cuda.emit import emit_triton

pytestmark = pytest.mark.triton

SMALL = 64  # bytes of a row that a program can hold: all rows here are longer
HINT = "tl.multiple_of("


def rows(n: int, columns: int) -> torch.Tensor:
    return torch.randn(n, columns, generator=torch.Generator().manual_seed(columns))


PROGRAMS: dict[str, tuple[Callable, tuple[torch.Tensor, ...], bool]] = {
    "log_softmax": (lambda x: F.log_softmax(x, -1), (rows(9, 4099),), True),
    "log_softmax, bf16": (lambda x: F.log_softmax(x, -1), (rows(9, 4099).bfloat16(),), True),
    "a sum and its argmax": (lambda x: (x.sum(1), x.argmax(1)), (rows(9, 4101),), True),
    "a running sum": (lambda x: x.cumsum(1), (rows(5, 4103),), True),
    "two operands": (lambda x, y: (x * y).softmax(1), (rows(5, 4097), rows(5, 4097)), True),
    "a shared row": (lambda x, y: (x * y).softmax(1), (rows(5, 4097), rows(1, 4097)[0]), True),
    "a part of each row": (lambda x: x[:, 1:].softmax(1), (rows(5, 4097),), True),
    "several axes in a row": (lambda x: x.softmax(-1).sum((1, 2)), (rows(15, 4097).view(5, 3, 4097),), True),
    "aligned rows": (lambda x: x.softmax(1), (rows(5, 4104),), False),
    "every second element": (lambda x: x[:, ::2].sum(1), (rows(5, 8195),), False),
    "a layer norm": (lambda x: F.layer_norm(x, (4097,)), (rows(5, 4097),), True),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_eagers(name: str) -> None:
    fn, args, hinted = PROGRAMS[name]
    args = tuple(a.to(DEVICE) for a in args)
    plan = planned(fn, args, sms=1, room=SMALL)
    source = emit_triton(plan)
    assert (HINT in source.text) == hinted
    got, fault = run(plan, source, args)
    expected = fn(*args)
    bound = {"rtol": 2e-2, "atol": 2e-2} if args[0].dtype is torch.bfloat16 else {"rtol": 1e-4, "atol": 5e-5}
    for a, b in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(a, b, **bound)
    assert fault == 0
