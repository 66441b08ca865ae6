"""Library calls, layouts and frozen parameters: graphs made by make_fx, rewritten, and run node by node against eager."""

import random
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

from bytejit.codegen.libraries.freeze import freeze, watch
from bytejit.codegen.libraries.layout import is_nhwc
from bytejit.codegen.libraries.pass_list import CPU_PASSES, choose_libraries
from bytejit.common.spec import Spec
from bytejit.kernels import library
from bytejit.kernels.tune import Choice, Tuner

aten = torch.ops.aten


@dataclass(frozen=True)
class FakeAten:
    graph: fx.Graph
    mutations: tuple = ()
    constants: tuple = ()


class Prefers(Tuner):
    """Answers without timing: the first candidate is slowest, each later one faster, or by a given order of names."""

    def __init__(self, *order):
        super().__init__()
        self.order = order
        self.asked = []

    def choose(self, op, specs, candidates, cold=(), attrs="", **sample):
        names = [c.name for c in candidates]
        self.asked.append((op, names))
        rank = {n: (self.order.index(n) if n in self.order else 50 + i) for i, n in enumerate(names)}
        seconds = {n: 0.01 + 0.001 * r for n, r in rank.items()}
        return Choice(min(seconds, key=seconds.__getitem__), (), seconds, {})


class Record(fx.Interpreter):
    def run_node(self, n):
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            n.meta["spec"] = Spec.of(result)
        elif isinstance(result, tuple) and n.op != "output":
            n.meta["spec"] = tuple(Spec.of(r) for r in result)
        return result


class Run(fx.Interpreter):
    """Runs a rewritten graph as the plan would: our kernels write the strides that the spec says, and library calls must
    return with them."""

    def run_node(self, n):
        result = super().run_node(n)
        spec = n.meta.get("spec")
        if n.op != "call_function" or not isinstance(spec, Spec):
            return result
        assert tuple(result.shape) == spec.shape, n
        if torch.Tag.pointwise in getattr(n.target, "tags", ()) or n.target is aten.clone.default:
            return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype).copy_(result)
        assert tuple(result.stride()) == spec.stride, (n, n.args, result.stride(), spec)
        return result


def trace(module, *inputs):
    """The ATen graph of a module with its parameters and buffers as inputs after `inputs`;
    (aten, flat inputs, {index: tensor})."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    names = list(state)

    def f(*flat):
        args, values = flat[: len(inputs)], flat[len(inputs) :]
        out = torch.func.functional_call(module, dict(zip(names, values, strict=True)), args)
        return out if isinstance(out, tuple) else (out,)

    flat = [*inputs, *state.values()]
    with torch.no_grad():
        graph = make_fx(f, decomposition_table={aten.t.default: lambda x: aten.permute.default(x, [1, 0])})(*flat)
        graph.graph.eliminate_dead_code()
        Record(graph).run(*flat)
    return FakeAten(graph.graph), flat, {i + len(inputs): t for i, t in enumerate(state.values())}


def run(result, flat, constants=()):
    with torch.no_grad():
        return Run(fx.GraphModule({}, result.graph)).run(*flat, *constants)


def targets(result):
    return [str(n.target) for n in result.graph.nodes if n.op == "call_function"]


class Block(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b)
        self.conv2, self.bn2 = nn.Conv2d(b, b, 3, 1, 1, bias=False), nn.BatchNorm2d(b)
        self.down = nn.Sequential(nn.Conv2d(a, b, 1, stride, bias=False), nn.BatchNorm2d(b)) if a != b else None

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.down is None else self.down(x)))


class SmallNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.blocks = nn.Sequential(Block(8, 8, 1), Block(8, 16, 2))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn(self.stem(x))), 3, 2, 1)
        x = self.blocks(x)
        return x, self.head(x.mean((2, 3)))


def small_net():
    torch.manual_seed(0)
    net = SmallNet()
    for m in net.modules():
        if isinstance(m, nn.BatchNorm2d):
            m.running_mean.normal_()
            m.running_var.uniform_(0.5, 2)
            nn.init.normal_(m.weight)
            nn.init.normal_(m.bias)
    return net.eval()


def close(got, want):
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4)
        assert g.stride() == w.stride()


def test_channels_last_inside_and_the_users_strides_outside():
    net, x = small_net(), torch.randn(2, 3, 32, 32)
    graph, flat, _ = trace(net, x)
    result = choose_libraries(graph, CPU_PASSES, Prefers("conv_nhwc"), library)
    convs = [n for n in result.graph.nodes if n.target is aten.convolution.default]
    assert len(convs) == 6 and all(is_nhwc(n.meta["spec"]) for n in convs)
    assert targets(result).count("aten.clone.default") == 2  # the image in, the feature map out
    assert all(not is_nhwc(n.meta["spec"]) for n in graph.graph.nodes if n.target is aten.convolution.default)
    close(run(result, flat), net(x))


def test_row_major_where_that_is_faster():
    net, x = small_net(), torch.randn(2, 3, 32, 32)
    graph, flat, _ = trace(net, x)
    result = choose_libraries(graph, CPU_PASSES, Prefers("conv_nchw"), library)
    assert targets(result) == targets(graph)
    close(run(result, flat), net(x))


def test_a_model_that_is_channels_last_already_stays_so():
    net, x = small_net().to(memory_format=torch.channels_last), torch.randn(2, 3, 32, 32).to(memory_format=torch.channels_last)
    graph, flat, _ = trace(net, x)
    result = choose_libraries(graph, CPU_PASSES, Prefers("conv_nchw"), library)
    assert "aten.clone.default" not in targets(result)
    close(run(result, flat), net(x))


def test_a_relu_behind_a_convolution_is_fused():
    net, x = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3)), torch.randn(1, 4, 9, 9)
    graph, flat, _ = trace(net, x)
    result = choose_libraries(graph, CPU_PASSES, Prefers("conv_onednn_nhwc"), library)
    assert targets(result).count("mkldnn._convolution_pointwise.default") == 1 and "aten.relu.default" not in targets(result)
    close(run(result, flat), [net(x)])


@pytest.mark.parametrize("order", [("linear_onednn+gelu", "linear_onednn"), ("linear_onednn",), ("linear_torch",)])
def test_linear_calls_and_fused_gelu(order):
    net = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
    x = torch.randn(2, 64, 128)
    graph, flat, _ = trace(net, x)
    tuner = Prefers(*order)
    result = choose_libraries(graph, CPU_PASSES, tuner, library)
    found = targets(result)
    assert found.count("mkldnn._linear_pointwise.default") == (0 if order[0] == "linear_torch" else 2)
    assert ("aten.gelu.default" in found) == (order[0] != "linear_onednn+gelu")
    close(run(result, flat), [net(x)])


def test_a_weight_stored_the_other_way_round():
    class Conv1D(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.b = nn.Parameter(torch.randn(256, 96) * 0.1), nn.Parameter(torch.randn(96))

        def forward(self, x):
            return torch.addmm(self.b, x, self.w)

    net, x = Conv1D(), torch.randn(128, 256)
    graph, flat, params = trace(net, x)
    close(run(choose_libraries(graph, CPU_PASSES, Prefers("linear_onednn"), library), flat), [net(x)])
    result, constants, _ = freeze(graph, params, CPU_PASSES, Prefers("linear_onednn_packed"), library)
    assert "mkldnn._linear_pointwise.default" in targets(result)
    close(run(result, flat, constants), [net(x)])


@pytest.mark.parametrize("order", [("conv_onednn_packed", "linear_onednn_packed"), ("conv_nhwc",), ("conv_nchw",)])
def test_frozen_net_has_no_batch_norm_left(order):
    net, x = small_net(), torch.randn(2, 3, 32, 32)
    graph, flat, params = trace(net, x)
    result, constants, check = freeze(graph, params, CPU_PASSES, Prefers(*order), library)
    found = targets(result)
    assert not any("batch_norm" in t for t in found)
    if order[0] == "conv_onednn_packed":
        assert found.count("mkldnn._convolution_pointwise.default") + found.count("mkldnn._convolution_pointwise.binary") == 6
        assert "aten.relu.default" not in found and "aten.add.Tensor" not in found
    exact = small_net().double()
    want, eager = exact(x.double()), net(x)
    for got, w, e in zip(run(result, flat, constants), want, eager, strict=True):
        assert (got - w).abs().max() <= 2 * (e - w).abs().max() + 1e-6
    close(run(result, flat, constants), eager)
    assert check(flat)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_a_batch_norm_is_folded_whatever_the_dims(dims):
    net = nn.Sequential(getattr(nn, f"Conv{dims}d")(3, 8, 3), getattr(nn, f"BatchNorm{dims}d")(8)).eval()
    net[1].running_mean.uniform_(-1, 1)
    net[1].running_var.uniform_(0.5, 2)
    x = torch.randn(2, 3, *(7,) * dims)
    graph, flat, params = trace(net, x)
    result, constants, _ = freeze(graph, params, CPU_PASSES, Prefers(), library)
    assert not any("batch_norm" in t for t in targets(result))
    close(run(result, flat, constants), [net(x)])


def test_frozen_query_key_value_become_one_product():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            q, k, v = (f(x).view(1, 32, 4, 16).transpose(1, 2) for f in (self.q, self.k, self.v))
            return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, 32, 64)

    net, x = Attention(), torch.randn(1, 32, 64)
    graph, flat, params = trace(net, x)
    result, constants, _ = freeze(graph, params, CPU_PASSES, Prefers("linear_torch"), library)
    found = targets(result)
    assert found.count("aten.linear.default") == 1 and "aten.addmm.default" not in found
    assert [n.meta["spec"].stride[-2:] for n in result.graph.nodes if n.target is aten.slice.Tensor] == [(192, 1)] * 3
    assert len(constants) == 2 and all(a is b for a, b in zip(result.constants, constants, strict=True))
    (got,) = run(result, flat, constants)
    torch.testing.assert_close(got, net(x), rtol=1e-4, atol=1e-5)


def test_products_that_stand_side_by_side_become_one():
    """Nothing is placed before a node that has gone."""
    graph, tensors = fx.Graph(), [torch.randn(4, 8), *(torch.randn(8, 8) for _ in range(3))]
    x, *weights = (graph.placeholder(name) for name in "xqkv")
    for node, tensor in zip((x, *weights), tensors):
        node.meta["spec"] = Spec.of(tensor)
    q, k, v = (graph.call_function(aten.linear.default, (x, w)) for w in weights)
    y = graph.call_function(aten.mul.Tensor, (q, k))
    graph.output((graph.call_function(aten.add.Tensor, (y, v)),))
    for node in graph.nodes:
        if node.op == "call_function":
            node.meta["spec"] = Spec.of(torch.randn(4, 8))
    params = {i: t for i, t in enumerate(tensors) if i}
    result, constants, _ = freeze(FakeAten(graph), params, CPU_PASSES, Prefers("linear_torch"), library)
    assert targets(result).count("aten.linear.default") == 1
    (got,) = run(result, tensors, constants)
    a, b, c = (F.linear(tensors[0], w) for w in tensors[1:])
    torch.testing.assert_close(got, a * b + c)


def test_constant_subgraphs_are_evaluated_once():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.g = nn.Parameter(torch.randn(5, 7)), nn.Parameter(torch.randn(5, 1))

        def forward(self, x):
            return x @ (self.w * self.g / self.w.norm(dim=1, keepdim=True)).t()

    net, x = Scaled(), torch.randn(3, 7)
    graph, flat, params = trace(net, x)
    result, constants, _ = freeze(graph, params, CPU_PASSES, Tuner(enabled=False), library)
    assert targets(result) == ["aten.mm.default"] and len(constants) == 1
    close(run(result, flat, constants), [net(x)])


def test_writes_are_noticed():
    net = nn.Linear(4, 4)
    params = {1: net.weight, 2: net.bias}
    x = torch.randn(2, 4)

    def inputs():
        return [x, net.weight, net.bias]

    assert watch(params)(inputs())
    for change in (
        lambda: torch.optim.SGD(net.parameters(), 0.1).step(),
        lambda: net.load_state_dict(nn.Linear(4, 4).state_dict()),
        lambda: net.double(),
        lambda: setattr(net, "weight", nn.Parameter(torch.randn(4, 4))),
    ):
        check = watch({1: net.weight, 2: net.bias})
        assert check(inputs())
        net(x.to(net.weight.dtype)).sum().backward()
        assert check(inputs())
        change()
        assert not check(inputs())


@pytest.mark.timed
def test_timed_choices_on_a_real_net_compute_the_same():
    net, x = small_net(), torch.randn(2, 3, 32, 32)
    graph, flat, params = trace(net, x)
    draw, times = random.Random(0), [0.0]  # what a run takes is drawn by lot: the same in every run of the test

    def clock() -> float:
        times.append(times[-1] + draw.uniform(1e-3, 2e-3))
        return times[-1]

    tuner = Tuner(clock=clock)
    close(run(choose_libraries(graph, CPU_PASSES, tuner, library), flat), net(x))
    result, constants, _ = freeze(graph, params, CPU_PASSES, tuner, library)
    close(run(result, flat, constants), net(x))
    made = len(tuner.fresh)
    choose_libraries(graph, CPU_PASSES, tuner, library)
    assert made == len(tuner.fresh)
