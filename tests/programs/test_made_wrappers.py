"""Tensors without memory of their own, whose class runs operations itself, made in a region"""

import torch
import torch.nn.functional as Fn
from torch import nn

from .harness import F, case, program


class Rounded(torch.Tensor):
    """Whole numbers and a scale for each row."""

    def __new__(cls, whole, scale):
        return torch.Tensor._make_wrapper_subclass(cls, whole.shape, dtype=scale.dtype, device=whole.device, requires_grad=False)

    def __init__(self, whole, scale):
        super().__init__()
        self.whole, self.scale = whole, scale

    @classmethod
    def of(cls, x):
        scale = x.detach().abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
        return cls((x.detach() / scale).round().to(torch.int8), scale)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is Fn.linear:
            x, w = (a if isinstance(a, Rounded) else Rounded.of(a) for a in args[:2])
            made = (x.whole.int() @ w.whole.int().t()) * x.scale * w.scale.t()
            return made if args[2] is None else made + args[2]
        if func is torch.Tensor.mul:
            return Rounded(args[0].whole, args[0].scale * args[1])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(str(func))


class Strided(torch.Tensor):
    """Says its strides, has no `__init__`; gets its part from whoever makes it."""

    @staticmethod
    def __new__(cls, part):
        made = torch.Tensor._make_wrapper_subclass(
            cls, part.size(), strides=part.stride(), dtype=part.dtype, layout=part.layout, device=part.device
        )
        made.part = part
        return made

    __torch_function__ = Rounded.__dict__["__torch_function__"]
    __torch_dispatch__ = Rounded.__dict__["__torch_dispatch__"]


class OnlyDispatches(torch.Tensor):
    """Overrides no function of torch: each operation is told to `__torch_dispatch__`."""

    @staticmethod
    def __new__(cls, part):
        made = torch.Tensor._make_wrapper_subclass(cls, part.shape, dtype=part.dtype)
        made.part = part
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(a.part if isinstance(a, cls) else a for a in args), **(kwargs or {}))


@program(F(3, 8), graphs=1)
def test_activations_rounded_in_the_call():
    """Quantised weights, and activations that are quantised in the call: objects of a class that overrides `linear`"""
    g = torch.Generator().manual_seed(0)
    layer = nn.Linear(8, 4)
    with torch.no_grad():
        layer.bias.copy_(torch.randn(4, generator=g))
    layer.weight = nn.Parameter(Rounded.of(torch.randn(4, 8, generator=g)), requires_grad=False)
    return lambda x: Fn.relu(layer(x)) + 1


@case(F(3, 8), graphs=1)
def test_what_a_wrapper_says_of_itself(x):
    """A tensor without memory, made inside: its shape, dtype, strides, attributes and methods"""
    a, b = Rounded.of(x * 2), Strided(x.t())
    said = a.shape, a.dtype, a.dim(), a.numel(), b.stride(), b.is_contiguous(), a.requires_grad, a.device.type
    return said, type(a) is Rounded, isinstance(b, torch.Tensor), (a * 3).scale, b.part + 1, a.whole.sum()


def inspected(f, x):
    (a, again), y = f(x)
    (b,) = KEPT
    KEPT.clear()
    said = [(type(m), m.shape, m.stride(), m.dtype, m.requires_grad, sorted(m.__dict__)) for m in (a, b)]
    return a is again, said, a.whole, a.scale, a.note, b.whole, b.scale, y


KEPT: list = []


@case(F(3, 8), graphs=1, drive=inspected)
def test_wrapper_that_leaves(x):
    """A tensor without memory that leaves: twice in a list, into a list outside, with an attribute set later"""
    a = Rounded.of(x)
    a.note = "n"
    KEPT.append(a * 2)
    return [a, a], x + 1


@case(F(3, 8), breaks=True)
def test_wrapper_that_overrides_no_function(x):
    """A tensor without memory whose class has only `__torch_dispatch__` breaks the graph"""
    return (OnlyDispatches(x * 2) + 1) * 3 + x
