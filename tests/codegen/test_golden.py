"""Loops, fused loops and plans of a few programs, as text, against stored files."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from graphs import aten, stages

from bytejit.codegen.loops.text import text

PROGRAMS = {
    "sin_cos": (lambda x, y: torch.sin(x) + torch.cos(y), ((10000,), (10000,))),
    "softmax": (lambda x: x.softmax(-1), ((64, 128),)),
    "norm_gelu": (lambda x, w, b: F.gelu(F.layer_norm(x + x.sin(), (128,), w, b)), ((64, 128), (128,), (128,))),
    "column_sum": (lambda x: (x * x).sum(0), ((300, 512),)),
    "matmul_relu": (lambda x, w: (x @ w.t()).relu().sum(1), ((32, 16), (8, 16))),
    "batch_norm_relu": (lambda x, m, v: F.batch_norm(x, m, v).relu(), ((2, 8, 5, 5), (8,), (8,))),
    "pad_cat": (lambda x: torch.cat([F.pad(x, (1, 1)), x.flip(1)[:, :2]], 1), ((4, 6),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_stages(name: str, golden) -> None:
    fn, shapes = PROGRAMS[name]
    loops, fused, plan = stages(aten(fn, *(torch.ones(s) for s in shapes)))
    golden(f"{name}/3_loops.txt", text(loops))
    golden(f"{name}/4_fused.txt", text(fused))
    golden(f"{name}/5_plan.txt", text(plan))
