"""Comparisons that hold for all numbers ask for nan as well: NVIDIA's assembler takes them for true."""

from __future__ import annotations

import torch
from graphs import aten

from bytejit.codegen.cuda.decided import decided, range_of
from bytejit.codegen.cuda.emit import emit_triton
from bytejit.codegen.cuda.schedule import schedule_cuda
from bytejit.codegen.loops.expr import Cons
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.passes.fuse import fuse
from bytejit.codegen.loops.plan import Machine


def test_texts() -> None:
    """Values with nan are compared on a GPU, in tests/cuda/test_gpu_numbers.py."""
    graph = aten(lambda x: (x * x > -0.75, -x.exp() <= 0, x.abs() < 2, x > -0.75), torch.ones(64))
    text = emit_triton(schedule_cuda(fuse(lower(graph), launches=True), Machine("cuda", 132, 16, 50 << 20))).text
    assert text.count("bj_no_nan(") == 2


def test_ranges() -> None:
    cons = Cons()
    x = cons.load("a", (0,), "f32")
    square, two = cons.op("mul", (x, x), "f32"), cons.const(2.0, "f32")
    assert range_of(cons.op("neg", (cons.op("mul", (square, two), "f32"),), "f32")) == (-float("inf"), 0)
    assert decided(cons.op("ge", (cons.op("add", (square, two), "f32"), two), "b8"))
    assert not decided(cons.op("gt", (square, two), "b8")) and not decided(cons.op("gt", (x, two), "b8"))
