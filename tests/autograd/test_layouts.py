"""Layouts of convolutions in training: one choice for both passes, whatever the timing says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import bytejit
from bytejit.autograd.joint import make_joint
from bytejit.autograd.partition import Parts, partition
from bytejit.backends.inductor import laid_out
from bytejit.backends.surround import fakes_of
from bytejit.backends.target import Target
from bytejit.codegen.libraries.choices import Choices
from bytejit.codegen.libraries.layout import choose_convs
from bytejit.codegen.libraries.pass_list import JOINT_PASSES
from bytejit.common.graph_info import info_of
from bytejit.common.options import config
from bytejit.kernels import conv_grad, library
from bytejit.kernels.tune import Choice, Tuner

from .beside import beside, places


def favours(monkeypatch: pytest.MonkeyPatch, layout: str, tuner: type[Tuner] = Tuner) -> None:
    """Let timing find the convolutions of a layout faster, of both passes."""

    def choose(self, op, specs, candidates, *rest, **more):
        names = [c.name for c in candidates]
        seconds = {n: 1.0 if layout in n else 2.0 for n in names}
        return Choice(min(names, key=seconds.__getitem__), (), seconds, {})

    monkeypatch.setattr(tuner, "choose", choose)


def model() -> nn.Module:
    """What stands between convolutions: batch norm, relu, pooling, an addition; the last one has a bias."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.norm = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8)
            self.second, self.third, self.head = nn.Conv2d(8, 8, 3, 1, 1), nn.Conv2d(8, 8, 1), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.max_pool2d(torch.relu(self.norm(self.first(x))), 3, 2, 1)
            x = self.third(torch.relu(self.second(x)) + nn.functional.avg_pool2d(x, 1))
            return self.head(x.mean((2, 3)))

    torch.manual_seed(0)
    return Net().train()


def parts_of(net: nn.Module, x: torch.Tensor) -> Parts:
    """The two graphs of a model on the CPU, after the layouts were chosen."""
    found = []

    class Cpu(Target):
        joint_passes = JOINT_PASSES

        def tuner(self) -> Tuner:
            return Tuner()

    def backend(gm, examples):
        joint = make_joint(gm, fakes_of(gm))
        target = Cpu(torch.device("cpu"), info_of(gm).settings.options)
        found.append(partition(joint.changed(lambda aten: laid_out(aten, target))))
        return gm.forward

    bytejit.compile(net, backend=backend)(x)
    return found[0]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_what_is_saved_lies_as_both_passes_want_it(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No image is converted but the input, the gradient that comes from a mean, and gradients of weights at the end"""
    favours(monkeypatch, layout)
    parts = parts_of(model(), torch.randn(2, 3, 32, 32))
    images = [n for g in (parts.forward, parts.backward) for n in g.graph.nodes if n.op == "call_function"]
    turned = [n for n in images if n.target is torch.ops.aten.clone.default and "memory_format" in n.kwargs]
    made = [n for n in turned if n.kwargs["memory_format"] is torch.channels_last and n.meta["spec"].shape[1] != 3]
    assert [n.args[0].target for n in made] == ([torch.ops.aten.div.Scalar] if layout == "nhwc" else []), turned
    for n in parts.backward.graph.nodes:
        if n.target is torch.ops.aten.convolution_backward.default:
            inner = [i.meta["spec"].stride[1] == 1 for i in n.args[:2]]
            assert inner == [layout == "nhwc"] * 2, n


@pytest.mark.cxx
@pytest.mark.parametrize("layout", ["nchw", "nhwc", "apart"])
@pytest.mark.parametrize("inner", [False, True])
def test_steps_are_as_eager_in_any_layout(layout: str, inner: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients laid out as eager's, but for what a library says of dimensions of size 1; also for a model that has its
    weights with the channels innermost"""
    favours(monkeypatch, layout)

    def inputs() -> tuple:
        net, x = model(), torch.randn(2, 3, 32, 32, requires_grad=True)
        return (net.to(memory_format=torch.channels_last) if inner else net), x

    def drive(f, net, x):
        f(net, x).square().sum().backward()
        return [x.grad, *(p.grad for p in net.parameters()), *net.buffers()]

    beside("inductor", lambda net, x: net(x), inputs, drive, tol=1e-4, strides=places)


@pytest.mark.cxx
def test_the_gradient_of_a_weight_is_made_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that have the channels for it, where timing says so; that of a bias is a sum in a kernel."""
    favours(monkeypatch, "apart")
    own = conv_grad.OWN.register(config.current) and torch.ops.bytejit.conv_weight_grad.default
    graph = parts_of(model(), torch.randn(2, 3, 32, 32)).backward.graph
    choose_convs(graph, Choices(Tuner(), library))
    calls = [n for n in graph.nodes if n.op == "call_function"]
    assert [n.args[2] for n in calls if n.target is own] == [[1, 1], [3, 3]]
    masks = [tuple(n.args[10]) for n in calls if n.target is torch.ops.aten.convolution_backward.default]
    assert masks == [(True, False, False), (True, False, False), (False, True, False)]
    assert all(n.meta["spec"].stride[1] != 1 for n in calls if n.target is own and n.args[2] == [3, 3])


@pytest.mark.cxx
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_results_of_ops_that_keep_their_layouts(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Group norm of images with the channels innermost, saved for the backward pass: as it lies, whatever is chosen"""
    favours(monkeypatch, layout)

    def inputs() -> tuple:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.SiLU(), nn.Conv2d(4, 2, 1))
        return net.to(memory_format=torch.channels_last), torch.randn(2, 3, 8, 8)

    def drive(f, net, x):
        f(net, x).square().sum().backward()
        return [p.grad for p in net.parameters()]

    beside("inductor", lambda net, x: net(x), inputs, drive, tol=1e-4)


class Pieces(nn.Module):
    """Gated parts, borders, joined images."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.last = nn.Conv2d(3, 16, 3), nn.Conv2d(8, 8, 3), nn.Conv2d(16, 6, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.one(nn.functional.pad(x, (1, 1, 1, 1), mode="replicate")).chunk(2, 1)
        c = self.two(nn.functional.pad(b.sigmoid() * a, (1, 1, 2, 0)))
        d = self.last(torch.cat([nn.functional.pad(c, (1, 1, 1, 1), mode="reflect")[:, :, 1:-1, 1:-1], a], 1))
        return nn.functional.pixel_shuffle(d[:, :4], 2) + d[:, 4:5].repeat_interleave(2, 2).repeat_interleave(2, 3)


WALKED = {
    "parts": Pieces,
    "prelu": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.PReLU(8), nn.Conv2d(8, 8, 3), nn.PReLU(), nn.Conv2d(8, 4, 1)),
    "gates": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.GLU(1), nn.Conv2d(4, 8, 3), nn.LogSigmoid(), nn.Conv2d(8, 4, 1)),
    "shuffled": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 1), nn.ChannelShuffle(2), nn.Conv2d(8, 8, 3), nn.Softmax(1), nn.Conv2d(8, 2, 1)
    ),
    "norms": lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(2, 8), nn.RReLU(0.2, 0.2), nn.Conv2d(8, 8, 3), nn.ELU()),
}


@pytest.mark.cxx
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("name", WALKED)
def test_steps_of_networks_that_take_images_apart(name: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    favours(monkeypatch, layout)

    def inputs() -> tuple:
        torch.manual_seed(0)
        return WALKED[name](), torch.randn(2, 3, 8, 8, requires_grad=True)

    def drive(f, net, x):
        y = f(net, x)
        y.square().sum().backward()
        with torch.no_grad():
            seen = f(net, x.detach() * 2)
        return [y.detach(), seen, x.grad, *(p.grad for p in net.parameters())]

    beside("inductor", lambda net, x: net(x), inputs, drive, tol=1e-4, strides=places)


# transposed convolutions: strides, groups, what is added to their size, depthwise, dilation, kernels of odd and even sizes
TRANSPOSED = {
    "doubled": lambda: nn.ConvTranspose2d(8, 6, 4, 2, 1, bias=False),
    "bias": lambda: nn.ConvTranspose2d(8, 6, 3),
    "groups": lambda: nn.ConvTranspose2d(8, 6, 3, 2, 1, 1, groups=2),
    "depthwise": lambda: nn.ConvTranspose2d(8, 8, 3, 2, 1, 1, groups=8),
    "dilated": lambda: nn.ConvTranspose2d(8, 6, (3, 2), (1, 2), dilation=(2, 1)),
    "one": lambda: nn.ConvTranspose2d(8, 6, 1),
}


def upwards(kind: str, inner: bool) -> nn.Module:
    torch.manual_seed(0)
    made = TRANSPOSED[kind]()
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), made, nn.BatchNorm2d(made.out_channels), nn.ReLU())
    return net.to(memory_format=torch.channels_last) if inner else net


@pytest.mark.pairs
@pytest.mark.cxx
@pytest.mark.parametrize(("inner", "layout"), [(False, "nchw"), (False, "nhwc"), (True, "nchw")])
@pytest.mark.parametrize("kind", TRANSPOSED)
def test_transposed_convolutions(kind: str, inner: bool, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are as eager's, and a chosen layout reaches the batch norm behind the convolution"""
    favours(monkeypatch, layout)

    def drive(f, net, x):
        y = f(net, x)
        y.square().mean().backward()
        return [y.detach(), x.grad, *(p.grad for p in net.parameters()), *net.buffers()]

    def inputs() -> tuple:
        return upwards(kind, inner), torch.randn(2, 3, 7, 6, requires_grad=True)

    beside("inductor", lambda net, x: net(x), inputs, drive, tol=1e-4, strides=places)
    if not inner:
        graph = parts_of(upwards(kind, inner).train(), torch.randn(2, 3, 7, 6)).forward.graph
        images = [n for n in graph.nodes if n.target is torch.ops.aten.convolution.default]
        assert [n.meta["spec"].stride[1] == 1 for n in images] == [layout == "nhwc"] * 2


@pytest.mark.pairs
@pytest.mark.cxx
@pytest.mark.parametrize(("freeze", "layout"), [(False, "nchw"), (True, "nhwc")])
@pytest.mark.parametrize("kind", TRANSPOSED)
def test_transposed_convolutions_in_evaluation(kind: str, freeze: bool, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights may be prepacked for plain convolutions only"""
    favours(monkeypatch, layout)
    net, x = upwards(kind, False).eval(), torch.randn(2, 3, 7, 6)
    with torch.no_grad():
        expected = net(x)
        compiled = bytejit.compile(net, options={"freeze": freeze})
        for _ in range(2):
            torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-5)
    assert compiled(x).stride() == expected.stride()
    assert not bytejit.counters["fallbacks"], bytejit.counters


@pytest.mark.cxx
@pytest.mark.parametrize("fn", [lambda x: x[0].expand_as(x) * x, lambda x: x * x[:, 1:2]])
def test_strides_that_are_symbols_reach_the_backward_pass(fn: Callable) -> None:
    """Inputs with gaps of sizes that change, read again by the backward pass"""
    compiled = bytejit.compile(fn)
    given = torch.randn(8, 6, 4).permute(2, 1, 0), torch.randn(9, 7, 5).permute(2, 1, 0)
    gaps = torch.randn(4, 7, 5)[::2].permute(0, 2, 1), torch.randn(9, 5, 6)[::3].permute(0, 2, 1)
    for t in (*given, *gaps):
        x, y = t.detach().requires_grad_(), t.detach().requires_grad_()
        fn(x).square().sum().backward()
        compiled(y).square().sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
        assert y.grad is not None and x.grad is not None and y.grad.stride() == x.grad.stride()
    assert not bytejit.counters["fallbacks"]


OF_PARTS: dict[str, Callable] = {
    "all channels": lambda y: nn.functional.max_pool2d(y.relu(), 3, 2, 1),
    "some channels": lambda y: nn.functional.max_pool2d(y[:, :4], 2, 2),
    "some of the last dim": lambda y: nn.functional.max_pool2d(y.movedim(1, 3)[..., :4].movedim(3, 1), 2, 2),
    "a mean of some": lambda y: nn.functional.avg_pool2d(y.movedim(1, 3)[..., :4].movedim(3, 1), 2, 2),
    "some, resized": lambda y: nn.functional.interpolate(y[:, 2:6], scale_factor=2),
    "a large window": lambda y: nn.functional.max_pool2d(y[:, :4], 9, 2, 4),
}


@pytest.mark.pairs
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("kind", OF_PARTS)
def test_pools_of_parts_of_images(kind: str, inner: bool, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part with gaps between its pixels has neither layout; what the forward pass saves lies as the backward pass reads it"""
    favours(monkeypatch, layout)
    torch.manual_seed(0)
    conv, x = nn.Conv2d(3, 8, 3, 1, 1), torch.randn(2, 3, 16, 16)
    if inner:
        conv, x = conv.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return OF_PARTS[kind](conv(x))

    found = []
    for call in (fn, bytejit.compile(fn, fullgraph=True)):
        y = call(x)
        found.append((y, y.stride(), torch.autograd.grad(y, conv.weight, torch.linspace(-1, 1, y.numel()).view(y.shape))))
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][2], found[0][2], rtol=1e-4, atol=1e-4)
    assert found[1][1] == found[0][1]
