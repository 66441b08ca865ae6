"""Every library call and layout that timing may choose on some machine, forced in turn: each gives what eager gives."""

from __future__ import annotations

import operator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import bytejit
from bytejit.backends import cpu
from bytejit.codegen.libraries import attention, layout, linear, pass_list, products
from bytejit.codegen.libraries.choices import on_graph
from bytejit.codegen.ops.table import table
from bytejit.common import registry
from bytejit.kernels import library
from bytejit.kernels.own_library import OwnLibrary
from bytejit.kernels.tune import Choice, Tuner

pytestmark = pytest.mark.cxx


class Forced(Tuner):
    """A tuner that times nothing: `prefer` ranks the candidates of each operation, its `asked`-th."""

    def __init__(self, prefer) -> None:
        super().__init__()
        self.prefer, self.asked = prefer, 0

    def choose(self, op, specs, candidates, cold=(), attrs="", **sample):
        names = [c.name for c in candidates]
        order = sorted(names, key=lambda n: self.prefer(self.asked, n))
        self.asked += 1
        seconds = {n: 1e-3 * (1 + 9 * i) for i, n in enumerate(order)}  # conversions cost less than a wrong call
        return Choice(order[0], (), seconds, {})


class Pixels(nn.Module):
    """Convolutions of all kinds, norms, pooling, resizing, concatenation, what follows a layout and what does not."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.one, self.norm = nn.Conv2d(8, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8)
        self.deep, self.group = nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.GroupNorm(2, 8)
        self.narrow = nn.Conv2d(16, 4, 1)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = self.stem(x).relu()
        y = (x + self.norm(self.one(x))).relu()
        z = F.gelu(self.group(self.deep(y)))
        y = F.interpolate(F.max_pool2d(y, 2), scale_factor=2.0)
        out = self.narrow(torch.cat([y, z], 1)) * 2
        return out, out.permute(0, 2, 3, 1).softmax(-1), self.head(out.mean((2, 3)))


class Next(nn.Module):
    """A ConvNeXt block: depthwise, layer norm over channels, two linears, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 7, 1, 3, groups=8), nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.last = nn.Conv2d(8, 6, 2, 2)

    def forward(self, x):
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)
        return self.last(y), y


class Tokens(nn.Module):
    """Attention and a perceptron, with each activation that a library may take along."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down, self.norm = nn.Linear(16, 64), nn.Linear(64, 16, bias=False), nn.LayerNorm(16)
        self.gate = nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        y = self.down(F.gelu(self.up(x), approximate="tanh")) + self.gate(x).relu()
        return x + y, torch.addmm(x[0, 0], x[:, 0], y[0, :16].t() if y.shape[1] >= 16 else self.gate.weight)


MODELS = {"pixels": (Pixels, (2, 3, 16, 16)), "next": (Next, (2, 8, 8, 8)), "tokens": (Tokens, (3, 5, 16))}


def first(*names: str):
    """Prefers candidates whose name begins with the earliest of `names`."""
    return lambda i, n: next((k for k, p in enumerate(names) if n.startswith(p)), len(names))


CONVS = {
    "nchw": first("conv_nchw"),
    "nhwc": first("conv_nhwc"),
    "onednn": first("conv_onednn"),
    "own": first("conv_own"),
    "winograd": first("conv_own_winograd", "conv_own"),
    "own_mixed": lambda i, n: (n.startswith("conv_own")) == bool(i % 2),
    "mixed": lambda i, n: (n == "conv_nchw") == bool(i % 2),
    "mixed_other": lambda i, n: (n == "conv_nchw") != bool(i % 2),
}
LINEARS = {name: first(name) for name in ("linear_torch", "linear_onednn", "linear_own", "attention_own")} | {
    "fused": lambda i, n: "+" not in n,
    "last": lambda i, n: -len(n),
    # as answers do that are not sure: each question is timed again
    "in_turn": lambda i, n: n.endswith("_own") == bool(i % 2),
    "in_turn_other": lambda i, n: n.endswith("_own") != bool(i % 2),
}


def agrees(monkeypatch: pytest.MonkeyPatch, name: str, prefer, freeze: bool, dynamic: bool = False) -> None:
    """Compiles a model with forced choices and compares it with eager, strides included."""
    made: list[Forced] = []
    monkeypatch.setattr(cpu.CpuTarget, "tuner", lambda self: made.append(Forced(prefer)) or made[-1])
    monkeypatch.setattr(linear, "LEAST_WORK", 0)
    monkeypatch.setattr(attention, "LEAST_WORK", 0)
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model = make().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.rand_like(p) * 0.1)
        f = bytejit.compile(model, options={"freeze": freeze}, dynamic=dynamic)
        shapes = [shape, *(((shape[0] + 2, *shape[1:]),) if dynamic else ())]
        for x in [torch.randn(s) for s in (*shapes, shape)]:
            for a, b in zip(f(x), model(x), strict=True):
                torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
                assert a.stride() == b.stride()
    assert made and made[0].asked
    assert not [w for w in registry.counters["externs"] if "other strides" in w]
    assert not registry.counters["fallbacks"]


@pytest.fixture(autouse=True)
def fresh():
    bytejit.reset()
    yield
    bytejit.reset()


@pytest.mark.parametrize("choice", CONVS)
def test_each_convolution_and_layout(monkeypatch, choice) -> None:
    agrees(monkeypatch, "pixels", CONVS[choice], False)


@pytest.mark.parametrize("choice", ["onednn", "own", "own_mixed", "winograd", "mixed"])
def test_prepacked_convolutions(monkeypatch, choice) -> None:
    agrees(monkeypatch, "pixels", CONVS[choice], True)


@pytest.mark.parametrize("choice", ["nchw", "onednn", "own", "mixed"])
def test_layouts_around_a_norm_over_channels(monkeypatch, choice) -> None:
    agrees(monkeypatch, "next", CONVS[choice], False)


@pytest.mark.parametrize("freeze", [False, True], ids=["plain", "frozen"])
@pytest.mark.parametrize("choice", LINEARS)
def test_each_product(monkeypatch, choice, freeze) -> None:
    agrees(monkeypatch, "tokens", LINEARS[choice], freeze)


@pytest.mark.parametrize(
    "name,choice",
    [("pixels", "mixed"), ("pixels", "own"), ("tokens", "linear_own"), ("tokens", "attention_own"), ("tokens", "last")],
)
def test_choices_with_symbolic_sizes(monkeypatch, name, choice) -> None:
    agrees(monkeypatch, name, (CONVS | LINEARS)[choice], False, dynamic=True)


def test_the_table_has_no_row_that_is_never_forced() -> None:
    named = {
        n
        for n in library.ROWS
        if n.startswith(
            ("conv_nchw", "conv_nhwc", "conv_onednn", "conv_own", "linear_torch", "linear_onednn", "linear_own", "attention_")
        )
    }
    assert named == set(library.ROWS)


class Heads(nn.Module):
    """Products of one operand: seen through a view, without a bias, with a epilogue, one that has to wait for another."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(96, 192), nn.Linear(96, 192, bias=False), nn.Linear(96, 64)
        self.o = nn.Linear(192, 192)

    def forward(self, x):
        q, k, v = self.q(x), self.k(x.reshape(-1, 96)).reshape(4, 64, 192), self.v(x)
        late = F.linear(x, self.v.weight * q.mean())
        return self.o(F.gelu(q) * k.relu()), v, self.o(q), late


def test_products_of_one_operand_are_one_call(monkeypatch) -> None:
    if "linear_own" not in library.available():
        pytest.skip("no C++ compiler")
    found = []
    real = linear.join_products

    def look(graph, most):
        real(graph, most)
        found.append([len(n.args[1]) for n in graph.nodes if str(n.target) == "bytejit.linears.default"])

    monkeypatch.setattr(linear, "join_products", look)
    monkeypatch.setattr(linear, "LEAST_WORK", 0)
    monkeypatch.setattr(cpu.CpuTarget, "tuner", lambda self: Forced(lambda i, n: n != "linear_own"))
    model, x = Heads().eval(), torch.randn(4, 64, 96)
    with torch.no_grad():
        for got, want in zip(bytejit.compile(model)(x), model(x)):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert found in ([[2]], [[3]]), "query, key and value share an operand"


class Residual(nn.Module):
    """What follows a convolution in a network, all that our own takes along, and what it must not."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Conv2d(8, 8, 3, 1, 1, bias=i > 1) for i in range(4))
        self.na, self.nb, self.nc, self.nd = (nn.BatchNorm2d(8, affine=i != 2) for i in range(4))

    def forward(self, x):
        y = self.na(self.a(x)).relu()
        y = (self.nb(self.b(y)) + x).relu()
        z = self.nc(self.c(y))
        twice = z + z
        kept = self.d(z)
        return (self.nd(kept) + twice).relu(), kept, twice * z


@pytest.mark.timed
@pytest.mark.parametrize("allowed", [True, False])
def test_winograd_can_be_turned_off(monkeypatch, allowed) -> None:
    offered = []

    def last(self, specs, candidates, *rest):
        offered.extend(c.name for c in candidates)
        return Choice(candidates[-1].name, (), {c.name: 1.0 / (i + 1) for i, c in enumerate(candidates)}, {})

    monkeypatch.setattr(Tuner, "_time", last)
    monkeypatch.setattr(Tuner, "_recall", lambda self, key, candidates: None)
    monkeypatch.setattr(Tuner, "save", lambda self: None)
    conv, x = nn.Conv2d(8, 8, 3, 1, 1), torch.randn(1, 8, 6, 6)
    with torch.no_grad():
        got = bytejit.compile(lambda x: conv(x).relu(), options={"winograd": allowed})(x)
        torch.testing.assert_close(got, conv(x).relu(), rtol=1e-4, atol=1e-5)
    assert ("conv_own_winograd" in offered) == allowed and "conv_own" in offered


@pytest.mark.parametrize("choice", ["own", "winograd"])
def test_what_follows_a_convolution_is_fused(monkeypatch, choice) -> None:
    found = []

    def look(graph, choices):
        layout.drop_dead(graph)
        found.append([str(n.target).split(".")[1] for n in graph.nodes if n.op == "call_function"])

    monkeypatch.setattr(cpu.CpuTarget, "aten_passes", (*pass_list.CPU_PASSES, on_graph(look)))
    monkeypatch.setattr(cpu.CpuTarget, "tuner", lambda self: Forced(CONVS[choice]))
    torch.manual_seed(0)
    model, x = Residual().eval(), torch.randn(2, 8, 9, 7)
    with torch.no_grad():
        for norm in (model.na, model.nb, model.nc, model.nd):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
        for got, want in zip(bytejit.compile(model)(x), model(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
            assert got.stride() == want.stride()
    names = found[0]
    assert names.count("conv") == 4
    assert names.count("relu") == 1, "the one behind a value that is read elsewhere"
    # four of the norms' epsilons, z + z, and the shift and the sum behind what is read elsewhere
    assert names.count("add") == 4 + 1 + 2


# names that hold "mm" or "linear" and are no products; the library for them is none
NO_PRODUCTS = {
    "lgamma": lambda x: x.abs().lgamma(),
    "digamma": lambda x: (x.abs() + 1).digamma(),
    "cummax": lambda x: x.cummax(-1)[0],
    "cummin": lambda x: x.cummin(-1)[1],
    "upsample_bilinear2d": lambda x: nn.functional.interpolate(x[None], scale_factor=2, mode="bilinear"),
    "trilinear": lambda x: nn.functional.interpolate(x[None, None], scale_factor=2, mode="trilinear"),
    "softmax": lambda x: x.softmax(-1),
}


@pytest.mark.parametrize("name", NO_PRODUCTS)
def test_a_product_is_known_by_its_op_not_by_its_name(monkeypatch, name: str) -> None:
    def register(*args):
        raise AssertionError("a library is prepared for a graph without a product")

    monkeypatch.setattr(OwnLibrary, "register", register)
    x, f = torch.randn(2, 4, 6), NO_PRODUCTS[name]
    torch.testing.assert_close(bytejit.compile(f, fullgraph=True)(x), f(x), rtol=1e-5, atol=1e-5)


def test_no_other_row_is_a_product() -> None:
    """Rows of the op table whose names hold "mm" or "linear", as calls in a graph"""
    named = [name for name in table().by_aten if name.startswith("aten.") and ("mm" in name or "linear" in name)]
    found = set()
    for name in named:
        graph = torch.fx.Graph()
        target = operator.attrgetter(name)(torch.ops)
        node = graph.call_function(target, tuple(graph.placeholder(f"p{i}") for i in range(2)))
        found |= {target} if products.match_product(node) else set()
    assert len(named) > 8 and found == products.PRODUCTS - {torch.ops.aten.addmm.default}  # that takes three


@pytest.mark.parametrize("f", [lambda x: x @ x.t(), lambda x: nn.functional.linear(x, x), lambda x: torch.addmm(x[0], x, x)])
def test_a_product_prepares_its_library(monkeypatch, f) -> None:
    seen = []
    monkeypatch.setattr(OwnLibrary, "register", lambda library, options: seen.append(library))
    x = torch.randn(6, 6)
    torch.testing.assert_close(bytejit.compile(f, fullgraph=True)(x), f(x), rtol=1e-5, atol=1e-5)
    assert seen == [cpu.gemm.OWN]


def test_an_operand_that_lies_transposed_is_timed_so(monkeypatch) -> None:
    """The gradient of a weight multiplies a transposed gradient: a library that copies it first must not look faster."""
    asked: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    class Listening(Forced):
        def choose(self, op, specs, candidates, cold=(), attrs="", **sample):
            asked.append((specs[0].shape, specs[0].stride))
            return super().choose(op, specs, candidates, cold, attrs, **sample)

    monkeypatch.setattr(cpu.CpuTarget, "tuner", lambda self: Listening(first("linear_onednn", "linear_torch")))
    x, g = torch.randn(300, 128), torch.randn(300, 96)
    f = bytejit.compile(lambda x, g: (g.t() @ x, x.view(3, 100, 128) @ torch.ones(128, 96)))
    for got, want in zip(f(x, g), (g.t() @ x, x.view(3, 100, 128) @ torch.ones(128, 96)), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert asked == [((96, 300), (1, 96)), ((300, 128), (128, 1))]


def test_distances_are_measured_on_few_rows(monkeypatch) -> None:
    """Of large images; results of all rows are timed as they are."""
    found = {}

    class Listening(Forced):
        def choose(self, op, specs, candidates, cold=(), attrs="", **how):
            if op == "conv":
                found[specs[0].shape] = how["measured"][0].shape
            return super().choose(op, specs, candidates, cold, attrs)

    monkeypatch.setattr(cpu.CpuTarget, "tuner", lambda self: Listening(first("conv_nchw")))
    net = nn.Sequential(
        nn.Conv2d(8, 64, 3, 2, 1), nn.Conv2d(64, 128, (7, 1), dilation=(2, 1), groups=2), nn.Conv2d(128, 8, 1)
    ).eval()
    with torch.no_grad():
        bytejit.compile(net)(torch.randn(2, 8, 256, 256))
    assert found == {
        (2, 8, 256, 256): (1, 8, 18, 256),
        (2, 64, 128, 128): (1, 64, 13, 128),
        (2, 128, 116, 128): (1, 128, 77, 128),
    }
