"""Every pointwise row as Triton against its torch reference: dtypes, nan, infinities, signed zeros."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton", reason="the Triton kernels need triton")
from test_rows_cpp import IR_ONLY, N, Op, check, ends, operands, plan_of, rows, table  # noqa: E402
from triton_run import DEVICE, run  # noqa: E402

from bytejit.codegen.cuda.emit import emit_triton  # noqa: E402
from bytejit.codegen.cuda.schedule import CudaSchedule
from bytejit.codegen.cuda.tiles import Tile
from bytejit.codegen.loops.plan import Plan
from bytejit.common.dtypes import FLOATS, INTS

pytestmark = pytest.mark.triton


def for_cuda(plan: Plan) -> Plan:
    """The plan with each kernel as one stretch."""
    schedule = CudaSchedule("points", (Tile((("X", 256),), 4),))
    return replace(plan, steps=tuple(replace(s, schedule=schedule) for s in plan.steps))


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16", "i64", "i32", "i16", "i8", "u8", "b8"])
def test_rows(dtype: str) -> None:
    made = [(row, dtype, operands(row, dtype)) for row in rows() if dtype in row.dtypes]
    if dtype == "u8":
        made = [m for m in made if m[0].name not in ("neg",)]
    plan = for_cuda(plan_of(made))
    results, _ = run(plan, emit_triton(plan), [a.to(DEVICE) for _, _, args in made for a in args])
    faults = []
    for (row, _, args), got in zip(made, results, strict=True):
        got = got.cpu()
        if DEVICE == "cuda" and row.name in ("maximum", "minimum"):  # there +0.0 is greater than -0.0, in eager too
            expected = row.ref(*args)
            got = torch.where((got == 0) & (expected == 0), expected, got)
        try:
            check(row, dtype, args, got)
        except (AssertionError, RuntimeError) as e:
            faults.append(f"{row.name}: {e}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("dtype", ["i64", "i32", "i16", "i8", "u8"])
def test_integers_at_their_ends(dtype: str) -> None:
    made = [(row, dtype, ends(row, dtype)) for row in rows() if dtype in row.dtypes and row.dtype != "float"]
    plan = for_cuda(plan_of(made))
    results, _ = run(plan, emit_triton(plan), [a.to(DEVICE) for _, _, args in made for a in args])
    wrong = [row.name for (row, _, args), got in zip(made, results) if not torch.equal(got.cpu(), row.ref(*args).to(got.dtype))]
    assert len(made) > 20 and not wrong


def test_every_row_has_a_triton_text() -> None:
    every = [r for r in table().by_name.values() if r.kind == "pointwise"]
    assert {r.name for r in every} >= IR_ONLY and N % 4
    for r in every:
        for dtype in sorted(r.dtypes & (FLOATS | INTS | {"b8"}) - {"f16", "bf16"}):
            assert isinstance(r, Op) and r.text("triton", dtype)
