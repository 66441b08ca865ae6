"""The accuracy mode and `minify`, on faults that the tests plant: in a row of the op table, in a backend."""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path

import pytest
import torch

import bytejit
from bytejit.backends import plan_cache
from bytejit.codegen.ops.table import table
from bytejit.tools.compare import difference
from bytejit.tools.minify import reduced

HERE = __file__


@pytest.fixture
def wrong_sigmoid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels on the CPU compute a sigmoid that is 1% too large."""
    row = table().by_name["sigmoid"]
    bad = dataclasses.replace(row, cpp=f"({row.cpp}) * 1.01f")
    monkeypatch.setitem(table().by_name, "sigmoid", bad)
    for overload in row.aten:
        monkeypatch.setitem(table().by_aten, overload, bad)
    monkeypatch.setattr(plan_cache, "load", lambda *_: None)
    monkeypatch.setattr(plan_cache, "keep", lambda *_: None)


class Gated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x).relu()
        return (y * torch.sigmoid(y) + 1).softmax(-1)  # here


LINE = next(i for i, line in enumerate(Path(HERE).read_text().splitlines(), 1) if line.endswith("# here"))


def names(gm: torch.fx.GraphModule) -> set[str]:
    return {str(getattr(n.target, "__name__", n.target)).partition(".")[0] for n in gm.graph.nodes}


def wrong_where(*needed: str):
    """A backend whose graphs return too much where they hold all of these calls."""

    def backend(gm, inputs):
        if not set(needed) <= names(gm):
            return gm.forward
        return lambda *args: tuple(x + 0.5 if isinstance(x, torch.Tensor) and x.is_floating_point() else x for x in gm(*args))

    return backend


# ---- the accuracy mode -----------------------------------------------------------------------------------------------
def test_the_first_operation_that_is_off_is_named(wrong_sigmoid: None) -> None:
    with torch.no_grad(), pytest.raises(bytejit.exc.IncorrectResult) as found:
        bytejit.compile(Gated(), options={"check": True})(torch.randn(4, 16))
    text = str(found.value)
    assert f"first  sigmoid at tests/tools/test_accuracy.py:{LINE} in Gated.forward" in text.replace("\\", "/"), text
    assert "in Gated.forward: def forward" in text and "from float64" in text and "bytejit.minify" in text


def test_nothing_is_said_where_nothing_is_off() -> None:
    net, x = Gated(), torch.randn(4, 16)
    assert torch.allclose(bytejit.compile(net, options={"check": True}, backend="aot_eager")(x), net(x))

    def f(x):  # random numbers, a write, a comparison, a cast: float64 cannot be compared with in all of them
        x.add_(torch.rand_like(x).float())
        return x.view(torch.int32), (x > 0.5).half(), x.topk(2)[1]

    torch.manual_seed(0)
    a = torch.ones(5)
    wanted = f(a)
    torch.manual_seed(0)
    b = torch.ones(5)
    got = bytejit.compile(f, options={"check": True}, backend="aot_eager")(b)
    assert torch.equal(a, b) and all(map(torch.equal, got, wanted))


def test_a_fault_of_a_whole_graph_is_named_where_the_graph_is_cut() -> None:
    def f(x):
        return x.sin().exp().cos()

    with pytest.raises(bytejit.exc.IncorrectResult, match="first  (exp|sin) at"):
        bytejit.compile(f, backend=wrong_where("exp"), options={"check": True})(torch.randn(4))


def changes_its_graph(gm: torch.fx.GraphModule, inputs: list):
    for n in gm.graph.find_nodes(op="call_function", target=torch.sigmoid):
        n.target = torch.tanh
    gm.recompile()
    return gm.forward


def changes_its_graph_and_raises(gm: torch.fx.GraphModule, inputs: list):
    changes_its_graph(gm, inputs)
    raise LookupError("not this graph")


def test_a_backend_that_changes_its_graph_is_compared_with_the_graph_as_it_was() -> None:
    x = torch.randn(4, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x + 1) * 2

    with pytest.raises(bytejit.exc.IncorrectResult) as found:
        bytejit.compile(f, backend=changes_its_graph, options={"check": True})(x)
    assert "first  sigmoid at" in str(found.value)
    with pytest.raises(bytejit.exc.IncorrectResult):
        bytejit.compile(f, backend=changes_its_graph, options={"verify_correctness": True})(x)
    c = bytejit.compile(f, backend=changes_its_graph_and_raises, options={"raise_on_backend_error": False})
    assert torch.equal(c(x), f(x)) and bytejit.counters["fallbacks"]


def test_difference() -> None:
    one = torch.ones(3)
    nan = torch.tensor([1.0, float("nan"), float("inf")])
    assert difference(one, one) is None and difference(nan, nan.clone()) is None
    assert difference(one + 1e-6, one) is None and difference(one + 1e-6, one, tolerance=1e-9) is not None
    assert difference(one, nan).distance == float("inf")
    assert "float32[3]" in str(difference(one.double(), one))
    assert difference(one + 0.2, one, (one + 0.15).double()) is None  # nearer to float64 than eager
    assert difference(one + 0.2, one, one.double()).distance == pytest.approx(0.2)
    assert "1 of 2" in str(difference(torch.tensor([1, 2]), torch.tensor([1, 3]))) and difference(3, 3) is None
    assert difference(3, 4) is not None and difference(torch.empty(0), torch.empty(0)) is None


# ---- minify ----------------------------------------------------------------------------------------------------------
def test_minify_finds_the_kernel(wrong_sigmoid: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with torch.no_grad():
        found = bytejit.minify(Gated(), torch.randn(4, 16), file=tmp_path / "it.py", against="float64")
    assert found.ops == ("aten.sigmoid.default",) and "from float64" in found.failure
    assert f"test_accuracy.py:{LINE} " in found.text and "(1, 1)" in found.text
    assert len(found.text.splitlines()) < 30 and (tmp_path / "it.py").read_text() == found.text
    with pytest.raises(AssertionError, match="not close"):
        runpy.run_path(found.file, run_name="__main__")
    monkeypatch.undo()
    bytejit.reset()
    assert "it does not fail here" not in found.failure
    runpy.run_path(found.file, run_name="__main__")


@pytest.mark.parametrize("train", [False, True])
def test_minify_keeps_what_is_needed_together(train: bool) -> None:
    net = torch.nn.Sequential(
        *[torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.LayerNorm(8), torch.nn.ReLU(), torch.nn.Softmax(-1)]
    )
    needed = ("tanh_backward", "threshold_backward") if train else ("tanh", "relu")
    model = bytejit.compile(net, backend=wrong_where(*needed))
    with torch.set_grad_enabled(train):
        found = bytejit.minify(model, torch.randn(32, 8), file=None)
    assert {op.split(".")[1] for op in found.ops} >= set(needed) and len(found.ops) <= 3, found.ops
    assert found.file is None and "32" not in found.text


def test_minify_of_what_raises_and_of_sizes() -> None:
    def backend(gm, inputs):
        if "cumsum" in names(gm) and any(isinstance(x, torch.Tensor) and x.numel() > 5 for x in inputs):
            raise RuntimeError("no scan of so many")
        return gm.forward

    def f(x, y):
        z = (x + y).reshape(12, 7).sin()
        return z.cumsum(0).sum(1) + y.mean()

    found = bytejit.minify(bytejit.compile(f, backend=backend), torch.randn(84), torch.randn(84), file=None)
    assert found.ops == ("aten.cumsum.default",) and found.failure == "RuntimeError: no scan of so many"
    (shape,) = [line for line in found.text.splitlines() if "torch.randn(" in line]
    assert "(12, 1)" in shape or "(1, 7)" in shape or "(8, 1)" in shape, shape


def test_minify_says_that_nothing_fails(tmp_path: Path) -> None:
    file = tmp_path / "no.py"
    with pytest.raises(bytejit.exc.NothingFails, match="^the graph of this call does not fail by itself beside eager"):
        bytejit.minify(lambda x: x + 1, torch.ones(2), file=file)
    with pytest.raises(bytejit.exc.NothingFails, match="^this call has no graph"):
        bytejit.minify(lambda x: x, torch.ones(2), file=file)
    with pytest.raises(ValueError, match="tolerance is -1"):
        bytejit.minify(lambda x: x + 1, torch.ones(2), tolerance=-1, file=file)
    with pytest.raises(ValueError, match="against is 'it'"):
        bytejit.minify(lambda x: x + 1, torch.ones(2), against="it", file=file)
    with pytest.raises(ZeroDivisionError):
        bytejit.minify(lambda x: x + 1 / 0, torch.ones(2), file=file)
    with pytest.raises(OSError, match="no such folder"):
        bytejit.minify(lambda x: x + 1 / 0, torch.ones(2), file=tmp_path / "no such folder" / "it.py")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("needed", [{3}, {0, 9}, {2, 5, 6}, set(range(10))])
def test_delta_debugging_finds_what_is_needed(needed: set[int]) -> None:
    tried = []
    assert set(reduced(list(range(10)), lambda some: tried.append(some) or needed <= set(some))) == needed
    assert len(tried) < 80


@pytest.mark.cxx
def test_roundings_to_16_bits_within_a_graph_that_draws() -> None:
    """Float32 results of bfloat16 products, where no run in float64 says how far eager is itself."""
    torch.manual_seed(0)
    m = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2)
    )

    def f(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m(x).float().logsumexp(-1).mean() / 2

    with bytejit.config.patch(check=True):
        for _ in range(4):
            bytejit.compile(f)(torch.randn(4, 6))
            bytejit.reset()


@pytest.mark.cxx
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("option", ["check", "verify_correctness"])
def test_inputs_with_gaps_keep_their_strides(option: str, grad: bool) -> None:
    """Kernels are compiled for the strides of an input: a dense copy of it would be read past its end."""
    views = [lambda x: x[:, :1], lambda x: x[..., ::2], lambda x: x[0].expand(3, 5, 5), lambda x: x.as_strided((4, 4), (1, 1))]
    with bytejit.config.patch(**{option: True}):
        for view in views:
            bytejit.reset()
            x = view(torch.randn(5, 5, 5, requires_grad=grad))
            want = torch.softmax(x.sin(), -1)
            torch.testing.assert_close(bytejit.compile(lambda x: torch.softmax(x.sin(), -1))(x), want)
