"""Losses as kernels: every reduction, weights, ignored targets, targets out of range; a log_softmax in front is never stored."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from graphs import aten

import bytejit
from bytejit.codegen.loops.ir import Kernel
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.passes.fuse import fuse

TARGET = torch.tensor([0, 3, 2, 3, 6, 1, 0, 5, 3])


@pytest.mark.cxx
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy(dtype: torch.dtype, reduction: str) -> None:
    x, weight = torch.randn(9, 7).to(dtype), torch.rand(7).to(dtype)

    def every(x, t, w):
        return tuple(
            F.cross_entropy(x, t, v, ignore_index=i, reduction=reduction, label_smoothing=s)
            for v, i, s in itertools.product((None, w), (-100, 3), (0.0, 0.1))
        )

    got = bytejit.compile(every, fullgraph=True)(x, TARGET, weight)
    for a, b in zip(got, every(x, TARGET, weight), strict=True):
        torch.testing.assert_close(a, b)
    assert not bytejit.counters["externs"] and not bytejit.counters["fallbacks"]


@pytest.mark.cxx
def test_all_ignored_and_out_of_range() -> None:
    compiled, x = bytejit.compile(lambda x, t: F.nll_loss(x, t)), torch.randn(3, 5)
    assert compiled(x, torch.full((3,), -100)).isnan()
    for bad in (5, -1):
        with pytest.raises(IndexError, match=f"Target {bad} is out of bounds"):
            compiled(x, torch.tensor([0, 4, bad]))
    torch.testing.assert_close(compiled(x, torch.tensor([0, 4, 1])), F.nll_loss(x, torch.tensor([0, 4, 1])))


@pytest.mark.cxx
def test_rows_of_a_size_that_changes() -> None:
    compiled = bytejit.compile(lambda x, t: F.cross_entropy(x, t), dynamic=True, fullgraph=True)
    for n in (9, 4, 1):
        x = torch.randn(n, 7)
        torch.testing.assert_close(compiled(x, TARGET[:n]), F.cross_entropy(x, TARGET[:n]))


def test_a_row_of_logits_is_not_stored() -> None:
    loops = fuse(lower(aten(lambda x, t: F.cross_entropy(x, t), torch.randn(9, 7), TARGET)))
    stored = {s.buffer for k in loops.steps for p in k.nests for s in p.stores}
    assert all(isinstance(k, Kernel) for k in loops.steps) and not any(loops.buffers[b].shape == (9, 7) for b in stored)
