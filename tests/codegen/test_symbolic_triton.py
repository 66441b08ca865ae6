"""Triton kernels for sizes that are known at the call only: one text, right at every size."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="the Triton kernels need triton")
from dynamic import traced  # noqa: E402
from test_symbolic import ROWS  # noqa: E402
from triton_run import DEVICE, run  # noqa: E402

from bytejit.codegen.aten.normalise import normalise  # noqa: E402
from bytejit.codegen.cuda.emit import emit_triton  # noqa: E402
from bytejit.codegen.cuda.schedule import schedule_cuda  # noqa: E402
from bytejit.codegen.loops.check import check_plan
from bytejit.codegen.loops.lower import lower  # noqa: E402
from bytejit.codegen.loops.passes.fuse import fuse  # noqa: E402
from bytejit.codegen.loops.plan import ExternCall, Machine, Plan

pytestmark = pytest.mark.triton
KERNELS_ONLY = [
    "add",
    "outer",
    "moments",
    "all",
    "softmax",
    "log_softmax",
    "norm_gelu",
    "norm_symbolic",
    "group_norm",
    "flat",
    "flat_tail",
    "cut",
    "heads",
    "unheads",
    "transpose",
    "turned",
    "pool",
    "pool_all",
    "arg",
    "embedding",
    "gather",
    "index",
    "cat",
    "cat_both",
    "stack",
    "pad",
    "shifted",
    "half",
    "repeat",
    "expand",
    "choice",
    "scan",
]


def planned(name: str) -> tuple[Plan, tuple[str, ...]]:
    """The plan of a row, made at one size, and the symbols of its int inputs in order."""
    fn, make, dims = ROWS[name]
    gm, fakes, _ = traced(fn, make(6, 9), dims)
    plan = check_plan(schedule_cuda(fuse(lower(normalise(gm, fakes))), Machine("cuda", 4, 16, 50 << 20)))
    return plan, tuple(dict.fromkeys(n for names in dims for n in names if n))


@pytest.mark.parametrize("name", KERNELS_ONLY)
def test_one_text_for_every_size(name: str) -> None:
    fn, make, dims = ROWS[name]
    plan, names = planned(name)
    assert not any(isinstance(s, ExternCall) for s in plan.steps)
    source = emit_triton(plan)
    for a, b in ((7, 11), (2, 3), (3, 40)):
        args = [t.to(DEVICE) for t in make(a, b)]
        found = {n: t.shape[d] for t, own in zip(args, dims) for d, n in enumerate(own) if n}
        inputs = [found[n] for n in names] + args
        got, fault = run(plan, source, inputs, found)
        expected = fn(*args)
        for x, y in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
            torch.testing.assert_close(x.view(y.shape), y, rtol=2e-4, atol=2e-4)  # views are made by the caller
        assert fault == 0
