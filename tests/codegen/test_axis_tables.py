"""What depends on one axis alone is computed once for each of its values, before all loops. Checked against eager."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs import aten as graph_of
from graphs import stages
from test_emit_cpp import compiled

from bytejit.codegen.cpu.emit import emit_cpp

X = torch.randn(2, 3, 20, 40)
LAST = torch.randn(2, 24, 20, 9).contiguous(memory_format=torch.channels_last)
aten = torch.ops.aten


def resized(mode: str, **to: object) -> Callable:
    return lambda x: F.interpolate(x, mode=mode, **to)


def gradient(name: str, *args: object) -> Callable:
    return lambda g: getattr(aten, name)(g, *args)


def buckets(x: torch.Tensor) -> torch.Tensor:
    far = torch.arange(40.0)
    return x + torch.where(far < 8, far, 8 + (far.clamp(min=1) / 8).log().mul(4).floor().clamp(max=7))


# name -> (function, arguments, how many tables its kernels have at least)
TABLED: dict[str, tuple[Callable, tuple, int]] = {
    "resized by an odd factor": (resized("bilinear", size=(33, 57)), (X,), 4),
    "channels last": (resized("bilinear", size=(33, 13)), (LAST,), 4),
    "of float64": (resized("bilinear", size=(33, 57)), (X.double(),), 4),
    "of bfloat16": (resized("bilinear", size=(33, 57)), (X.bfloat16(),), 4),
    "nearest": (resized("nearest", size=(33, 57)), (X,), 1),
    "cubic": (resized("bicubic", size=(33, 57)), (X,), 8),
    "gradient": (gradient("upsample_bilinear2d_backward", [33, 57], [2, 3, 20, 40], False), (torch.randn(2, 3, 33, 57),), 4),
    "gradient of a pool": (lambda g, x: aten._adaptive_avg_pool2d_backward(g, x), (torch.randn(2, 3, 7, 7), X), 2),
    "positions": (lambda x: x * torch.arange(40.0).div(7).sin(), (X,), 1),
    "far positions": (lambda x: x * torch.arange(40.0).mul(1e6).sin(), (X,), 1),
    "masks": (lambda x: x.masked_fill(torch.arange(40.0).div(7).sin() > 0, 0.0), (X,), 1),
    "buckets": (buckets, (X,), 1),
    "rounded": (lambda x: torch.arange(40.0).div(7).sin().half() + x.half(), (X,), 1),
    "a sum": (lambda x: (x * torch.arange(40.0).div(7).sin()).sum(-1), (X,), 1),
    "a table beside": (lambda x: (x * 2, torch.arange(40.0).div(7).sin().expand(9, 40).contiguous()), (X,), 0),
}
PLAIN: dict[str, tuple[Callable, tuple, int]] = {
    "cheap": (lambda x: x * torch.arange(40.0), (X,), 0),
    "of two axes": (lambda x: x * (torch.arange(40.0) / 7 + torch.arange(20.0)[:, None]).sin(), (X,), 0),
    "of the outermost axis": (lambda x: x * torch.arange(20.0).div(7).sin()[:, None], (X[0, 0],), 0),
    "of a value": (lambda x: (x / 7).sin(), (X,), 0),
    "long": (lambda x: x * torch.arange(4000.0).div(7).sin(), (torch.randn(5, 4000),), 0),
}


def tables(fn: Callable, args: tuple) -> int:
    """How many tables the kernels of a function fill."""
    plan = stages(graph_of(fn, *args), 2)[2]
    return len(re.findall(r"alignas\(64\) \w+ a\d+\[", "".join(emit_cpp(plan).units)))


@pytest.mark.cxx
@pytest.mark.parametrize("name", [*TABLED, *PLAIN])
def test_tables(name: str) -> None:
    fn, args, least = (TABLED | PLAIN)[name]
    made = tables(fn, args)
    assert made >= least and (made == 0 or name in TABLED)
    expected = fn(*args)
    got = compiled(fn, args).call(*args)
    for a, b in zip(got, expected if isinstance(expected, tuple) else [expected], strict=True):
        low = b.dtype in (torch.bfloat16, torch.float16)
        torch.testing.assert_close(a, b, rtol=2e-2 if low else None, atol=2e-2 if low else None)
        assert a.stride() == b.stride()


@pytest.mark.cxx
@pytest.mark.parametrize(
    "fn", [lambda x: F.avg_pool2d(x, 5, 1, 2), gradient("upsample_bilinear2d_backward", [20, 19], [2, 24, 9, 9], True)]
)
def test_parts_lie_as_the_result_does(fn: Callable) -> None:
    """Large windows are taken dim by dim: what is between has channels innermost, too."""
    x = torch.randn(2, 24, 20, 19).contiguous(memory_format=torch.channels_last)
    plan = stages(graph_of(fn, x), 2)[2]
    between = [b for b in plan.buffers.values() if b.kind in ("temp", "local")]
    assert between and all(b.stride[1] == 1 for b in between)
    torch.testing.assert_close(compiled(fn, (x,)).call(x)[0], fn(x))
