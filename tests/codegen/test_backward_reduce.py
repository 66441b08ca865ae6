"""Gradients of softmax, cross entropy and the norms as kernels of both printers against eager's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from backward import aten, check, check_sizes
from both import both
from graphs import aten as graph_of

import bytejit
from bytejit.codegen.loops.ir import Kernel
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.passes.fuse import fuse
from bytejit.common.spec import Spec
from bytejit.fake.tensor import fake_of_spec, infer

pytestmark = pytest.mark.cxx
r = torch.randn
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
LAST = torch.channels_last
CUDA = torch.device("cuda", 0)


def channels_last(*shape: int) -> torch.Tensor:
    return r(*shape).contiguous(memory_format=LAST)


def batch_norm(train: bool, shape: tuple = (4,)) -> Callable:
    mean, var = r(shape), torch.rand(shape) + 0.5
    return lambda x, w, b: F.batch_norm(x, mean.to(w.dtype), var.to(w.dtype), w, b, training=train)


W4 = (torch.rand(4), r(4))
BATCH = aten.native_batch_norm_backward.default
CASES: dict[str, tuple[Callable, Callable, tuple]] = {
    "softmax": (aten._softmax_backward_data.default, lambda x: x.softmax(-1), (r(3, 5, 9),)),
    "softmax_0": (aten._softmax_backward_data.default, lambda x: x.softmax(0), (r(7, 6),)),
    "softmax_inf": (aten._softmax_backward_data.default, lambda x: x.softmax(1), (r(2, 6).log(),)),
    "log_softmax": (aten._log_softmax_backward_data.default, lambda x: x.log_softmax(-1), (r(3, 5, 9),)),
    "log_softmax_1": (aten._log_softmax_backward_data.default, lambda x: x.log_softmax(1), (r(3, 5, 9),)),
    "layer_norm": (
        aten.native_layer_norm_backward.default,
        lambda x, w, b: F.layer_norm(x, (6,), w, b),
        (r(4, 5, 6), r(6), r(6)),
    ),
    "layer_norm_2": (aten.native_layer_norm_backward.default, lambda x: F.layer_norm(x, (5, 6)), (r(4, 5, 6) + 30,)),
    "layer_norm_w": (aten.native_layer_norm_backward.default, lambda x, w: F.layer_norm(x, (6,), w), (r(40, 6), r(6))),
    "group_norm": (aten.native_group_norm_backward.default, lambda x, w, b: F.group_norm(x, 2, w, b), (r(3, 4, 5, 2), *W4)),
    "group_norm_flat": (aten.native_group_norm_backward.default, lambda x: F.group_norm(x, 2), (r(3, 12) + 2,)),
    "group_norm_last": (
        aten.native_group_norm_backward.default,
        lambda x, w, b: F.group_norm(x, 4, w, b),
        (channels_last(3, 4, 5, 2), *W4),
    ),
    "batch_norm": (BATCH, batch_norm(True), (r(3, 4, 5, 6), *W4)),
    "batch_norm_eval": (BATCH, batch_norm(False), (r(3, 4, 5, 6), *W4)),
    "batch_norm_last": (BATCH, batch_norm(True), (channels_last(3, 4, 5, 6), *W4)),
    "batch_norm_eval_last": (BATCH, batch_norm(False), (channels_last(3, 4, 5, 6), *W4)),
    "batch_norm_rows": (BATCH, batch_norm(True), (r(9, 4) + 20, *W4)),
    "batch_norm_plain": (BATCH, lambda x: F.batch_norm(x, None, None, training=True), (r(5, 4, 7),)),
    "instance_norm": (BATCH, lambda x, w, b: F.instance_norm(x, None, None, w, b), (r(3, 4, 5), *W4)),
}
# on a GPU torch hands group norm's backward pass row-major copies: its kernel takes no others
ON_CPU = {"group_norm_last"}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CASES)
def test_gradient(name: str, dtype: torch.dtype) -> None:
    op, fn, args = CASES[name]
    tol = {"rtol": 5e-2, "atol": 5e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-4}
    options = {"triton": dtype is torch.float32, "gpu": name not in ON_CPU, "exact": dtype is not torch.float64}
    check(op, fn, *(a.to(dtype) for a in args), **options, **tol)


def test_layout_on_a_gpu() -> None:
    """Batch norm's gradient in evaluation is row-major there, also of an input that is channels-last"""
    x, one = (
        fake_of_spec(Spec((3, 4, 5, 6), (120, 1, 24, 4), torch.float32, CUDA)),
        fake_of_spec(Spec((4,), (1,), torch.float32, CUDA)),
    )
    made = infer(BATCH, (x, x, one, one, one, None, None, False, 1e-5, [True, True, True]), {})
    assert [t.stride() for t in made] == [(120, 30, 6, 1), (1,), (1,)]


@pytest.mark.parametrize("mask", [(True, False, True), (False, True, True), (True, False, False)])
def test_masks(mask: tuple) -> None:
    g, x, w, one = r(3, 4, 5), r(3, 4, 5), torch.rand(4), torch.rand(4)
    both(lambda g, x: BATCH(g, x, w, None, None, one, one, True, 1e-5, mask), g, x, triton=False)
    rows = x.mean(2, keepdim=True), x.std(2, keepdim=True)
    both(
        lambda g, x: aten.native_layer_norm_backward(g, x, [5], *rows, one.new_ones(5), one.new_ones(5), mask), g, x, triton=False
    )


def test_rms_norm() -> None:
    """Against autograd on the formula: the CPU has no kernel of it."""
    g, x, w = r(6, 8), r(6, 8), r(8)
    rstd = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    own = (x.clone().requires_grad_(), w.clone().requires_grad_())
    normal = own[0] * torch.rsqrt(own[0].pow(2).mean(-1, keepdim=True) + 1e-5)
    expected = torch.autograd.grad(normal * own[1], own, g)
    compiled = bytejit.compile(
        lambda *a: aten._fused_rms_norm_backward(a[0], a[1], [8], a[2], a[3], [True, True]), fullgraph=True
    )
    for a, b in zip(compiled(g, x, rstd, w), expected, strict=True):
        torch.testing.assert_close(a, b)


TARGET = torch.tensor([0, 3, 2, 3, 6, 1, 0, 5, 3])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_nll_loss(dtype: torch.dtype, reduction: str) -> None:
    x, w, image = r(9, 7).to(dtype), torch.rand(7).to(dtype), r(2, 7, 3, 3).to(dtype)
    one, two = aten.nll_loss_backward.default, aten.nll_loss2d_backward.default
    triton = dtype is torch.float32
    check(one, lambda x: F.nll_loss(x, TARGET, w, ignore_index=3, reduction=reduction), x, triton=triton)
    check(one, lambda x: F.nll_loss(x, TARGET, reduction=reduction), x, triton=False)
    pixels = TARGET.view(1, 3, 3).expand(2, 3, 3).contiguous()
    check(two, lambda x: F.nll_loss(x, pixels, w, ignore_index=3, reduction=reduction), image, triton=triton)
    both(lambda x: F.cross_entropy(x, pixels, w, reduction=reduction), image, triton=False)


def cross_entropy_backward(x: torch.Tensor, t: torch.Tensor, one: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
    y = aten._log_softmax(x, 1, False)
    g = aten.nll_loss_backward(one, y, t, None, 1, -100, total)
    return aten._log_softmax_backward_data(g, y, 1, x.dtype)


def test_cross_entropy_stores_no_row_but_its_gradient() -> None:
    args = (r(9, 7), TARGET, torch.tensor(1.0), torch.tensor(9.0))
    both(cross_entropy_backward, *args)
    loops = fuse(lower(graph_of(cross_entropy_backward, *args)))
    assert all(isinstance(k, Kernel) for k in loops.steps)
    outputs = {o.view.buffer for o in loops.outputs}
    assert not [b for b in loops.buffers.values() if b.shape == (9, 7) and b.kind == "temp" and b.name not in outputs]


def test_scale_and_shift_are_summed_in_one_sweep() -> None:
    """The rows of a layer norm are read once for both."""
    args = r(64, 32), r(64, 32), r(64, 1), torch.rand(64, 1), r(32), r(32)
    loops = fuse(
        lower(
            graph_of(
                lambda g, x, m, s, w, b: aten.native_layer_norm_backward(g, x, [32], m, s, w, b, [False, True, True])[1:], *args
            )
        )
    )
    assert len(loops.steps) == 1, loops.steps


def test_sizes_that_change() -> None:
    def fn(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple:
        mean, rstd = x.mean(-1, keepdim=True), x.std(-1, keepdim=True).reciprocal()
        channels = x.mean(0), x.var(0).rsqrt()
        return (
            *aten.native_layer_norm_backward(g, x, [5], mean, rstd, w, w, [True, True, True]),
            *aten.native_batch_norm_backward(g, x, w, None, None, *channels, True, 1e-5, [True, True, True]),
            aten._softmax_backward_data(g, x.softmax(1), 1, x.dtype),
        )

    check_sizes(fn, lambda n: (r(n, 5), r(n, 5), r(5)), [(6,), (9,), (23,)])
