"""Autocast of ops that torch's Python decompositions take over where sizes are symbols. On a GPU autocast resizes in float32, on
a CPU as it comes: the CPU is told to do as the GPU does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import bytejit
from bytejit.common.autocast import cast_resized

KINDS = ("nearest", "bilinear", "bicubic", "nearest-exact", "area")
OPS = ("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "_upsample_nearest_exact2d")


@pytest.fixture
def resizing_in_float32() -> Iterator[None]:
    library, key = torch.library.Library("aten", "IMPL", "AutocastCPU"), torch._C.DispatchKey.AutocastCPU
    for name in OPS:

        def cast(x: torch.Tensor, *args: Any, op: Any = getattr(torch.ops.aten, name).default, **kwargs: Any) -> torch.Tensor:
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
                return op(x.float(), *args, **kwargs)

        library.impl(name, cast)
    yield
    library._destroy()


@pytest.mark.pairs
@pytest.mark.usefixtures("resizing_in_float32")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mode", KINDS)
def test_resizing(mode: str, train: bool, backend: str) -> None:
    how: dict = {"size": (9, 9)} if train else {"scale_factor": 2}
    weight, kinds = torch.randn(4, 3, 1, 1, requires_grad=True), []

    def resized(x: torch.Tensor) -> torch.Tensor:
        x = F.interpolate(F.conv2d(x, weight), mode=mode, **how)
        kinds.append(x.dtype)
        return x * 2

    compiled = bytejit.compile(resized, backend=backend)
    for batch in (2, 3, 5):
        x = torch.randn(batch, 3, 4, 4)
        results = []
        for f in (resized, compiled):
            with torch.set_grad_enabled(train), torch.autocast("cpu", torch.bfloat16):
                results.append([f(x)])
            if train:
                results[-1] += torch.autograd.grad(results[-1][0].float().square().mean(), weight)
        assert results[0][0].dtype == (torch.bfloat16 if mode == "area" else torch.float32)
        torch.testing.assert_close(results[1], results[0], rtol=2e-2, atol=1e-1)
    assert len(set(kinds)) == 1 and bytejit.counters.total("recompiles") == 1


@pytest.mark.usefixtures("resizing_in_float32")
def test_only_torchs_own_functions_are_cast() -> None:
    def upsample(x: torch.Tensor) -> torch.Tensor:
        return x

    x = torch.ones(1, 1, 2, 2, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        kinds = {f: cast_resized(f, (x,), {})[0][0].dtype for f in (upsample, F.interpolate, torch._C._nn.upsample_nearest2d)}
        aten = cast_resized(torch.ops.aten.upsample_nearest2d.vec, (x,), {})[0][0].dtype
    assert [*kinds.values(), aten] == [torch.bfloat16, torch.float32, torch.float32, torch.float32]
