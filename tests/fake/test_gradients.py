"""Fakes of gradients against eager: their strides, where the operands are laid out in different ways."""

import itertools
from collections.abc import Callable

import pytest
import torch

from bytejit.fake.tensor import FakeMode, fake_like

aten = torch.ops.aten
RESIZED = [3, 5], [2, 4, 3, 5]
PLAIN = (1, 1), (1, 1), (0, 0)

# of (gradient of the result, input), both of four dims of the same sizes, the channels innermost or not
CALLS: dict[str, Callable] = {
    "elu": lambda g, x: aten.elu_backward(g, 1.0, 1.0, 1.0, False, x),
    "elu_of_result": lambda g, x: aten.elu_backward(g, 1.0, 1.0, 1.0, True, x),
    "hardtanh": lambda g, x: aten.hardtanh_backward(g, x, -1.0, 1.0),
    "hardswish": aten.hardswish_backward,
    "hardsigmoid": aten.hardsigmoid_backward,
    "silu": aten.silu_backward,
    "gelu": aten.gelu_backward,
    "mish": aten.mish_backward,
    "tanh": aten.tanh_backward,
    "sigmoid": aten.sigmoid_backward,
    "threshold": lambda g, x: aten.threshold_backward(g, x, 0),
    "leaky_relu": lambda g, x: aten.leaky_relu_backward(g, x, 0.1, False),
    "softplus": lambda g, x: aten.softplus_backward(g, x, 1.0, 20.0),
    "softshrink": lambda g, x: aten.softshrink_backward(g, x, 0.5),
    "hardshrink": lambda g, x: aten.hardshrink_backward(g, x, 0.5),
    "logit": lambda g, x: aten.logit_backward(g, x, 0.1),
    "rrelu": lambda g, x: aten.rrelu_with_noise_backward(g, x, x, 0.1, 0.3, True, False),
    "rrelu_in_evaluation": lambda g, x: aten.rrelu_with_noise_backward(g, x, x, 0.1, 0.3, False, False),
    "mse": lambda g, x: aten.mse_loss_backward(g, x, x.contiguous(), 0),
    "mse_mean": lambda g, x: aten.mse_loss_backward(g.sum(), x, x.contiguous(), 1),
    "smooth_l1": lambda g, x: aten.smooth_l1_loss_backward(g, x, x.contiguous(), 0, 1.0),
    "huber": lambda g, x: aten.huber_loss_backward(g, x, x.contiguous(), 0, 1.0),
    "bce": lambda g, x: aten.binary_cross_entropy_backward(g, x, x.contiguous(), None, 0),
    "soft_margin": lambda g, x: aten.soft_margin_loss_backward(g, x, x.contiguous(), 0),
    "softmax": lambda g, x: aten._softmax_backward_data(g, x, 1, torch.float32),
    "log_softmax": lambda g, x: aten._log_softmax_backward_data(g, x, 1, torch.float32),
    "nearest": lambda g, x: aten.upsample_nearest2d_backward(g, *RESIZED),
    "bilinear": lambda g, x: aten.upsample_bilinear2d_backward(g, *RESIZED, False),
    "bicubic": lambda g, x: aten.upsample_bicubic2d_backward(g, *RESIZED, False),
    "avg_pool": lambda g, x: aten.avg_pool2d_backward(g, x, *PLAIN, False, True, None),
    "adaptive_avg_pool": aten._adaptive_avg_pool2d_backward,
    "max_pool": lambda g, x: aten.max_pool2d_with_indices_backward(
        g, x, *PLAIN, (1, 1), False, torch.zeros(2, 4, 3, 5, dtype=torch.long)
    ),
    "reflection_pad": lambda g, x: aten.reflection_pad2d_backward(g, x[..., 1:-1], [1, 1, 0, 0]),
    "group_norm": lambda g, x: aten.native_group_norm_backward(
        g, x, torch.ones(2, 2), torch.ones(2, 2), torch.ones(4), 2, 4, 15, 2, [True, True, True]
    ),
    "gamma": lambda g, x: aten._standard_gamma_grad(x, g),
    "dirichlet": lambda g, x: aten._dirichlet_grad(x, g, g),
    "fractional_max_pool": lambda g, x: aten.fractional_max_pool3d_backward(
        g, x, [1, 1, 1], list(g.shape[1:]), torch.zeros(g.shape, dtype=torch.long)
    ),
    "convolution": lambda g, x: aten.convolution_backward(
        g, x, torch.ones(4, 4, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_gradients_are_laid_out_as_eager_does(name: str) -> None:
    """Row-major, the channels innermost, every image the same memory"""
    g, x = torch.rand(2, 4, 3, 5), torch.rand(2, 4, 3, 5)
    inner = torch.channels_last
    grads = (g, g.contiguous(memory_format=inner), g[:1].expand(2, 4, 3, 5))
    for grad, own in itertools.product(grads, (x, x.contiguous(memory_format=inner))):
        want = CALLS[name](grad, own)
        with FakeMode():
            got = CALLS[name](fake_like(grad), fake_like(own))
        for w, f in zip(*((t,) if isinstance(t, torch.Tensor) else t for t in (want, got)), strict=True):
            assert (w is None) == (f is None)
            assert w is None or (w.shape, w.dtype, w.stride()) == (f.shape, f.dtype, f.stride()), (grad.stride(), own.stride())


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_gradients_of_a_convolution_are_laid_out_as_eager_does(dims: int, groups: int, transposed: bool) -> None:
    """Over a line, an image, a volume; the channels of any operand innermost or not"""
    how = [1] * dims, [1] * dims, [1] * dims, transposed, [0] * dims, groups
    x, w = torch.rand(2, 4, *(6, 5, 7)[:dims]), torch.rand(4, 4 // groups, *[3] * dims)
    result = aten.convolution(x, w, None, *how)
    shape = [result.shape[1]]
    for given in itertools.product(*((t, t.movedim(1, -1).contiguous().movedim(-1, 1)) for t in (result, x, w))):
        want = aten.convolution_backward(*given, shape, *how, [True, True, True])
        with FakeMode():
            got = aten.convolution_backward(*map(fake_like, given), shape, *how, [True, True, True])
        assert [(t.shape, t.stride()) for t in got] == [(t.shape, t.stride()) for t in want], [t.stride() for t in given]
