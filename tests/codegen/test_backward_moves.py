"""Gradients of ops that move elements (parts, windows, pads, pools, embeddings) as kernels of both printers against eager's."""

from __future__ import annotations

from collections.abc import Callable

import interp
import pytest
import torch
import torch.nn.functional as F
from backward import aten, check, check_sizes
from graphs import aten as traced
from graphs import on_gpu

from bytejit.codegen.loops.ir import Kernel
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.passes.fuse import fuse

pytestmark = pytest.mark.cxx
r = torch.randn
LAST = torch.channels_last
IMAGE = r(2, 3, 7, 9)
TIES = torch.randint(0, 3, (2, 3, 8, 8)).float()
AVG, MAX = aten.avg_pool2d_backward.default, aten.max_pool2d_with_indices_backward.default
ADAPTIVE, ADAPTIVE_MAX = aten._adaptive_avg_pool2d_backward.default, aten.adaptive_max_pool2d_backward.default
EMBEDDING = aten.embedding_dense_backward.default
TOKENS = torch.tensor([[1, 3, 3, 0], [2, 3, 6, 0]])
CASES: dict[str, tuple[Callable, Callable, tuple]] = {
    "slice": (aten.slice_backward.default, lambda x: x[:, 1:4], (r(3, 6),)),
    "slice_step": (aten.slice_backward.default, lambda x: x[:, 1:-1:3], (r(3, 9, 2),)),
    "slice_none": (aten.slice_backward.default, lambda x: x[5:3], (r(6, 3),)),
    "select": (aten.select_backward.default, lambda x: x.select(1, -2), (r(3, 4, 5),)),
    "select_one": (aten.select_backward.default, lambda x: x[0], (r(1, 5),)),
    "diagonal": (aten.diagonal_backward.default, lambda x: x.diagonal(1), (r(4, 6),)),
    "diagonal_low": (aten.diagonal_backward.default, lambda x: x.diagonal(-2, 2, 0), (r(4, 3, 6),)),
    "unfold": (aten.unfold_backward.default, lambda x: x.unfold(1, 3, 2), (r(2, 9, 3),)),
    "unfold_apart": (aten.unfold_backward.default, lambda x: x.unfold(0, 2, 5), (r(13),)),
    "reflect1": (aten.reflection_pad1d_backward.default, lambda x: F.pad(x, (2, 3), "reflect"), (r(2, 3, 5),)),
    "reflect2": (aten.reflection_pad2d_backward.default, lambda x: F.pad(x, (2, 1, 0, 3), "reflect"), (IMAGE,)),
    "replicate1": (aten.replication_pad1d_backward.default, lambda x: F.pad(x, (2, 3), "replicate"), (r(2, 3, 5),)),
    "replicate2": (aten.replication_pad2d_backward.default, lambda x: F.pad(x, (1, 2, 0, 3), "replicate"), (IMAGE,)),
    "avg": (AVG, lambda x: F.avg_pool2d(x, 3, 2, 1), (IMAGE,)),
    "avg_ceil": (AVG, lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), (IMAGE,)),
    "avg_apart": (AVG, lambda x: F.avg_pool2d(x, 2, 3), (IMAGE,)),
    "avg_inside": (AVG, lambda x: F.avg_pool2d(x, (3, 2), 2, 1, count_include_pad=False), (IMAGE,)),
    "avg_divisor": (AVG, lambda x: F.avg_pool2d(x, 2, divisor_override=3), (IMAGE,)),
    "avg_large": (AVG, lambda x: F.avg_pool2d(x, 7, 1, 3), (IMAGE,)),
    "avg_wide": (AVG, lambda x: F.avg_pool1d(x, 25, 1, 12), (r(2, 3, 40),)),
    "avg3": (aten.avg_pool3d_backward.default, lambda x: F.avg_pool3d(x, 2, 1), (r(1, 2, 4, 4, 5),)),
    "adaptive": (ADAPTIVE, lambda x: F.adaptive_avg_pool2d(x, (2, 4)), (r(2, 3, 6, 8),)),
    "adaptive_uneven": (ADAPTIVE, lambda x: F.adaptive_avg_pool2d(x, (3, 5)), (IMAGE,)),
    "adaptive_more": (ADAPTIVE, lambda x: F.adaptive_avg_pool2d(x, (10, 12)), (IMAGE,)),
    "max": (MAX, lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE,)),
    "max_ties": (MAX, lambda x: F.max_pool2d(x, 2, 1), (TIES,)),
    "max_nan": (MAX, lambda x: F.max_pool2d(x, 2), (torch.where(TIES == 1, torch.nan, TIES),)),
    "max_dilated": (MAX, lambda x: F.max_pool2d(x, 2, 2, 1, 2), (IMAGE,)),
    "max_ceil": (MAX, lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (IMAGE,)),
    "max_last": (MAX, lambda x: F.max_pool2d(x, 3, 2, 1), (IMAGE.contiguous(memory_format=LAST),)),
    "max3": (aten.max_pool3d_with_indices_backward.default, lambda x: F.max_pool3d(x, 2), (r(1, 2, 4, 4, 5),)),
    "adaptive_max": (ADAPTIVE_MAX, lambda x: F.adaptive_max_pool2d(x, (3, 5)), (IMAGE,)),
    "embedding": (EMBEDDING, lambda w: F.embedding(TOKENS, w), (r(7, 5),)),
    "embedding_padding": (EMBEDDING, lambda w: F.embedding(TOKENS, w, 3), (r(7, 5),)),
    "embedding_i32": (EMBEDDING, lambda w: F.embedding(TOKENS[0].int(), w), (r(7, 5),)),
    "max_unpool": (MAX, lambda x: F.max_pool2d(x[..., :8], 4), (IMAGE,)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_gradient(name: str, dtype: torch.dtype) -> None:
    op, fn, args = CASES[name]
    low = dtype is torch.bfloat16
    if low and name == "avg3":
        pytest.skip("eager has no such dtype")
    tol = {"rtol": 3e-2, "atol": 3e-2} if low else {}
    check(op, fn, *(a.to(dtype) for a in args), triton=dtype is torch.float32, exact=low, **tol)


@pytest.mark.parametrize("tokens", [(), (5,), (4, 6)])
@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_table_of_few_rows_on_a_gpu(tokens: tuple, padding: int, dtype: torch.dtype) -> None:
    """Its loops, as if on a GPU, run by what they mean"""
    at, g = torch.randint(0, 3, tokens), torch.randn(*tokens, 5).to(dtype)

    def fn(g: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return EMBEDDING(g, at, 3, padding, False)

    graph = traced(fn, g, at)
    on_gpu(graph.graph)
    loops = fuse(lower(graph), launches=True)
    assert all(isinstance(s, Kernel) for s in loops.steps)
    (made,) = interp.run(loops, [g, at])
    torch.testing.assert_close(made, fn(g.float(), at).to(dtype))


def test_sizes_that_change() -> None:
    def fn(g: torch.Tensor, x: torch.Tensor) -> tuple:
        n, m = x.shape[-2:]
        return (
            aten.slice_backward(g[:, :, 1:], x.shape, 2, 1, n, 1),
            aten.select_backward(g[:, :, 0], x.shape, 2, 0),
            aten.avg_pool2d_backward(g, x, [3, 3], [1, 1], [1, 1], False, True, None),
        )

    check_sizes(fn, lambda n, m: (r(2, 3, n, m), r(2, 3, n, m)), [(4, 6), (5, 9), (8, 7)])
