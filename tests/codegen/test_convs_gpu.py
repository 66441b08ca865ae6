"""What cuDNN takes along behind a convolution: graphs as if on a GPU, rewritten, and run on the CPU against eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from graphs import aten as traced
from torch import fx, nn

from bytejit.codegen.aten.rewrite import copy_graph, drop_dead
from bytejit.codegen.libraries.biases import split_bias_gradients
from bytejit.codegen.libraries.choices import Choices
from bytejit.codegen.libraries.convolution_cuda import TOGETHER, fuse_convs
from bytejit.common.spec import Spec
from bytejit.kernels.tune import Candidate, Choice

aten = torch.ops.aten
RELU, ADD_RELU = aten.cudnn_convolution_relu.default, aten.cudnn_convolution_add_relu.default


class Tune:
    """A tuner that knows what each way costs."""

    def __init__(self, fused: float = 0.5) -> None:
        self.fused, self.asked, self.candidate = fused, [], Candidate

    def choose(self, op: str, specs: list, made: list, cold: tuple = (), attrs: str = "", **sample: object) -> Choice:
        self.asked.append(attrs)
        return Choice("plain", (), {"plain": 1.0, "fused": self.fused}, {})


class OnCpu(fx.Interpreter):
    """Runs a graph with cuDNN's calls through torch's plain ones."""

    def call_function(self, target: Callable, args: tuple, kwargs: dict) -> object:
        if target is RELU:
            x, w, b, *geometry, groups = args
            return F.conv2d(x, w, b, *geometry, groups).relu()
        if target is ADD_RELU:
            x, w, z, alpha, b, *geometry, groups = args
            return (F.conv2d(x, w, b, *geometry, groups) + alpha * z).relu()
        return super().call_function(target, args, kwargs)


def rewritten(fn: Callable, *args: torch.Tensor, tune: Tune | None = None) -> fx.Graph:
    """The graph of a function as if on a GPU, after the choice; checked to return the same."""
    graph = copy_graph(traced(fn, *args).graph)
    for n in graph.nodes:
        s = n.meta.get("spec")
        if isinstance(s, Spec):
            n.meta["spec"] = Spec(s.shape, s.stride, s.dtype, torch.device("cuda", 0))
    fuse_convs(graph, Choices(tune or Tune(), None))
    graph.lint()
    got = OnCpu(fx.GraphModule({}, graph)).run(*args)[0]
    torch.testing.assert_close(got, fn(*args), rtol=1e-4, atol=1e-4)
    return graph


def targets(graph: fx.Graph) -> list:
    return [n.target for n in graph.nodes if n.op == "call_function"]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def inner(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def norm(y: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """A batch norm in evaluation as the graph has it."""
    scale = torch.rsqrt(var + 1e-5) * weight
    return y * scale.view(1, -1, 1, 1) + (bias - mean * scale).view(1, -1, 1, 1)


def numbers(channels: int, seed: int = 0) -> list[torch.Tensor]:
    """Mean, variance, weight and bias of a batch norm."""
    mean, var, weight, bias = (random(channels, seed=seed + i) for i in range(4))
    return [mean, var.abs() + 0.1, weight, bias]


X = inner(random(2, 8, 6, 6))


@pytest.mark.parametrize("kernel", [1, 3])
@pytest.mark.parametrize("turned", [True, False])
def test_norm_and_relu(kernel: int, turned: bool) -> None:
    w = random(16, 8, kernel, kernel)
    w = w if turned else inner(w)

    def f(x, w, *n):
        w = w.clone(memory_format=torch.channels_last) if turned else w
        return F.relu(norm(F.conv2d(x, w, padding=kernel // 2), *n))

    graph = rewritten(f, X, w, *numbers(16), tune=(tune := Tune()))
    call = next(n for n in graph.nodes if n.target is RELU)
    assert aten.convolution.default not in targets(graph) and aten.clone.default not in targets(graph)
    assert kernel == 1 or call.args[1].meta["spec"].stride == (72, 1, 24, 8)
    assert call.args[1].target is aten.mul.Tensor and call.args[2].meta["spec"].shape == (16,)
    assert tune.asked[0].endswith("relu False" if turned else "relu True")  # a weight that is turned is scaled for nothing


def test_residual_blocks_share_the_kernel_of_their_numbers() -> None:
    blocks = TOGETHER + 3
    ws = [inner(random(8, 8, 3, 3, seed=i)) / 8 for i in range(blocks)]
    ns = [n for i in range(blocks) for n in numbers(8, seed=i)]

    def f(x, *rest):
        ws, ns = rest[:blocks], rest[blocks:]
        for i in range(blocks):
            y = norm(F.conv2d(x, ws[i], padding=1), *ns[4 * i : 4 * i + 4])
            x = F.relu(y + x if i % 2 else y)
        return x

    found = targets(rewritten(f, X, *ws, *ns))
    assert found.count(RELU) == (blocks + 1) // 2 and found.count(ADD_RELU) == blocks // 2
    assert found.count(aten.rsqrt.default) == 2  # of TOGETHER norms and of the other three
    assert aten.convolution.default not in found


@pytest.mark.parametrize("channels", [6, 8, 13, 12])
def test_what_cudnn_reads_begins_at_a_vector(channels: int) -> None:
    """26 channels a group, as Res2Net has them, end at a half of one."""
    ws = [inner(random(channels, channels, 3, 3, seed=i)) / 8 for i in range(3)]
    ns = [n for i in range(3) for n in numbers(channels, seed=i)]

    def f(x, *rest):
        for i in range(3):
            x = F.relu(norm(F.conv2d(x, rest[i], padding=1), *rest[3 + 4 * i : 7 + 4 * i]))
        return x

    graph = rewritten(f, inner(random(2, channels, 6, 6)), *ws, *ns)
    assert targets(graph).count(RELU) == 3
    starts = [n.args[2] for n in graph.nodes if n.target is aten.slice.Tensor]
    assert not any(4 * start % 16 for start in starts)
    assert bool(starts) == (channels % 4 == 0)


@pytest.mark.parametrize("swapped", [False, True])
def test_two_convolutions_that_are_added(swapped: bool) -> None:
    """The first block of a residual network's stage: the addition and the relu go with one of them, nothing with the other."""
    ws, ns = [inner(random(8, 8, 3, 3, seed=i)) / 8 for i in range(2)], [n for i in range(2) for n in numbers(8, seed=i)]

    def f(x, v, w, *ns):
        y, z = norm(F.conv2d(x, v, padding=1), *ns[:4]), norm(F.conv2d(x, w, padding=1), *ns[4:])
        return F.relu(z + y if swapped else y + z)

    found = targets(rewritten(f, X, *ws, *ns))
    assert found.count(ADD_RELU) == found.count(aten.convolution.default) == 1 and RELU not in found


@pytest.mark.parametrize("name", ["no relu", "read twice", "row-major", "bias read by others", "slower"])
def test_what_is_left(name: str) -> None:
    w, n = inner(random(8, 8, 3, 3)), numbers(8)
    x = random(2, 8, 6, 6) if name == "row-major" else X

    def f(x, w, *n):
        y = F.conv2d(x, w, padding=1)
        out = norm(y, *n)
        if name == "no relu":
            return out + x
        return F.relu(out) + (y if name == "read twice" else 0) + (out.sum() if name == "bias read by others" else 0)

    found = targets(rewritten(f, x, w, *n, tune=Tune(1.0 if name == "slower" else 0.5)))
    assert RELU not in found and ADD_RELU not in found and aten.convolution.default in found


def test_groups_strides_and_a_bare_relu() -> None:
    w = inner(random(16, 2, 3, 3))
    graph = rewritten(lambda x, w: F.relu(F.conv2d(x, w, None, 2, 1, 1, 4)), X, w)
    call = next(n for n in graph.nodes if n.target is RELU)
    assert call.args[2:] == (None, [2, 2], [1, 1], [1, 1], 4)


def test_a_real_net() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1), nn.ReLU()).eval()
    ws = [inner(p.detach()) for p in (net[0].weight, net[2].weight)]

    def f(x, w, b, v, c):
        y = F.relu(F.conv2d(x, w, None, 1, 1) + b.view(-1, 1, 1))
        return F.relu(F.conv2d(y, v) + c.view(-1, 1, 1))

    found = targets(rewritten(f, X, ws[0], net[0].bias.detach(), ws[1], net[2].bias.detach()))
    assert found.count(RELU) == 2


def backward(mask: list[bool], transposed: bool = False, dims: int = 2) -> Callable:
    """A convolution's backward pass as one call."""

    def fn(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple:
        sizes = [w.shape[1 if transposed else 0]]
        geometry = [1] * dims, [1] * dims, [1] * dims, transposed, [0] * dims, 1
        made = aten.convolution_backward(g, x, w, sizes, *geometry, mask)
        return tuple(m for m, wanted in zip(made, mask) if wanted)

    return fn


@pytest.mark.parametrize("mask", [[True, True, True], [False, True, True], [False, False, True], [True, True, False]])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dims", [1, 2])
def test_gradients_of_biases_are_sums(mask: list[bool], transposed: bool, dims: int) -> None:
    x, w = torch.randn(2, 4, *[7] * dims), torch.randn(*((4, 5) if transposed else (5, 4)), *[3] * dims)
    g, fn = torch.randn(2, 5, *[7] * dims), backward(mask, transposed, dims)
    graph = copy_graph(traced(fn, g, x, w).graph)
    split_bias_gradients(graph, Choices(Tune(), None))
    drop_dead(graph)
    graph.lint()
    targets = [n.target for n in graph.nodes if n.op == "call_function"]
    assert targets.count(aten.sum.dim_IntList) == mask[2] and targets.count(aten.convolution_backward.default) == any(mask[:2])
    assert all(not n.args[-1][2] for n in graph.nodes if n.target is aten.convolution_backward.default)
    got = fx.Interpreter(fx.GraphModule({}, graph)).run(g, x, w)
    torch.testing.assert_close(got, fn(g, x, w), rtol=1e-4, atol=1e-4)
