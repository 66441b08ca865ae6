"""Approximations of a GPU only where all that depends on them is rounded to 16 bits, by way of what cannot jump."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs import aten

from bytejit.codegen.cuda.emit import emit_triton
from bytejit.codegen.cuda.schedule import schedule_cuda
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.passes.fuse import fuse
from bytejit.codegen.loops.plan import Machine

BF16 = torch.ones(64, 128, dtype=torch.bfloat16)


def text(fn: Callable, *args: torch.Tensor) -> str:
    """The Triton text of a function's kernels, without its imports."""
    loops = fuse(lower(aten(fn, *args)), launches=True)
    return emit_triton(schedule_cuda(loops, Machine("cuda", 132, 16, 50 << 20))).text.partition("@triton.jit")[2]


@pytest.mark.parametrize(
    "fn",
    [
        F.silu,
        lambda x: x.softmax(-1),
        lambda x: torch.where(x > 0, x.exp(), x / 3),
        lambda x: F.silu(x).float().mean(-1).to(torch.float16),
        lambda x: (x.float().exp().to(torch.bfloat16), (x > 0).float()),
    ],
)
def test_what_ends_in_16_bits(fn: Callable) -> None:
    found = text(fn, BF16)
    assert ("tl.exp(" in found or " / " in found) and "libdevice.exp(" not in found and "bj_div(" not in found


@pytest.mark.parametrize(
    "fn, x",
    [
        (F.silu, BF16.float()),
        (lambda x: x.float().sigmoid(), BF16),
        (lambda x: x.sigmoid() > 0.5, BF16),
        (lambda x: torch.where(x.sigmoid() > 0.5, x, 0), BF16),
        (lambda x: (x.exp() * 4).round(), BF16),
        (lambda x: x.exp().to(torch.int32).to(torch.bfloat16), BF16),
        (lambda x: x.softmax(-1).argmax(-1), BF16),
        (lambda x: (F.silu(x), F.silu(x).float().sum(-1)), BF16),
        (lambda x: x[0][(x[1].sigmoid() * 9).long()], BF16),
    ],
)
def test_what_is_exact(fn: Callable, x: torch.Tensor) -> None:
    found = text(fn, x)
    assert "tl.exp(" not in found and "1.0 / " not in found
    assert "libdevice.exp(" in found or "bj_sigmoid(" in found
