"""`export`: one graph that takes and returns what the function does, for what TorchDynamo's export takes."""

from __future__ import annotations

import pickle
from collections import namedtuple

import pytest
import torch

import bytejit
from bytejit import assume_constant_result

X = torch.arange(6.0).reshape(3, 2)


def equal(a: object, b: object) -> bool:
    """Strictly: types, tensors, containers."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(equal, a, b))
    if isinstance(a, dict):
        return type(a) is type(b) and [*a] == [*b] and all(equal(a[k], b[k]) for k in a)
    return type(a) is type(b) and a == b


def exported(f, *args, again: tuple = (), **settings) -> torch.fx.GraphModule:
    """The graph of f(*args), which gives what f gives, for `again` too."""
    wanted = f(*args)
    gm, _ = bytejit.export(f, *args, **settings)
    assert equal(gm(*args), wanted), gm.code
    for other in again:
        assert equal(gm(*other), f(*other)), gm.code
    return gm


# ---- what comes in and goes out --------------------------------------------------------------------------------------
Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize("aten_graph", [False, True])
def test_outputs(aten_graph):
    for f in (
        lambda x: x,
        lambda x: ([x, x], (x + 1,)),
        lambda x: {"a": [x * 2, {"b": (x, 3, None, "s")}]},
        lambda x: Pair(x, x + 1),
        lambda x: 5,
        lambda x: None,
        lambda x: x.dtype,
        lambda x: x.device,
        lambda x: (x[1], x[1]),
        lambda x, y=torch.ones(2) * 3: x + y,
        lambda x: x.shape,
        lambda x: {"n": (x.shape[0], x.size())},
    ):
        exported(f, X, aten_graph=aten_graph)


def test_inputs():
    exported(lambda x, y: x + y, X, X)
    exported(lambda x, y: {"a": x.sum() + sum(y).sum()}, X, [X, X * 2])
    exported(lambda *xs, k=2: xs[0] * xs[1] + k, X, X + 1)
    gm, _ = bytejit.export(lambda x, *, y, z=2: x + y * z, X, y=X)
    assert equal(gm(X, y=X), X * 3)


def test_an_export_is_exported_again_and_pickled():
    def f(x, y):
        return {"o": x["a"] + y[0], "p": [x["b"]]}

    args = ({"a": X, "b": X + 1}, [X])
    again = exported(exported(f, *args), *args)
    assert equal(pickle.loads(pickle.dumps(again))(*args), f(*args))


def test_control_flow_on_constants_is_guarded():
    def f(x, flag):
        return x + 1 if flag and x.shape[0] < 10 else x - 1

    exported(f, X, True)
    exported(f, X, False)
    assert any("shape" in g or "f32[3,2]" in g for g in bytejit.export(f, X, True)[1])


# ---- sizes -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "f",
    [
        lambda x: (x.shape[0], x + 1),
        lambda x: (x.shape[0] * 2 + 1, x.sum(), x.numel()),
        lambda x: x.shape,
        lambda x: x.shape[0] // 2 + 1,
        lambda x: {"n": [x.size(0)], "x": x},
        lambda x: x.reshape(-1) * x.shape[0],
        lambda x: (torch.zeros(x.shape[0] * 2), torch.cat([x, x]).shape),
    ],
)
@pytest.mark.parametrize("settings", [{"dynamic": True}, {"aten_graph": True, "tracing_mode": "symbolic"}])
def test_returned_sizes(f, settings):
    exported(f, X, again=[(torch.rand(5, 7),), (torch.rand(40, 2),)], **settings)


def test_returned_sizes_of_nested_inputs_and_numbers():
    exported(
        lambda xs, n: (xs["k"][1].shape[0] + n, n * 2, xs["k"][0] + n),
        {"k": [X, torch.ones(4)]},
        5,
        again=[({"k": [X, torch.ones(9)]}, 7)],
        dynamic=True,
    )


def test_a_size_that_only_the_run_knows_is_not_returned():
    with pytest.raises(bytejit.exc.Unsupported, match="known only when the graph runs"):
        bytejit.export(lambda x: x[x > 1].shape[0], X)


# ---- constants -------------------------------------------------------------------------------------------------------
class Held:
    """An object that a constant function makes."""

    def __init__(self):
        self.k, self.t = 3, torch.ones(2)


def test_constant_results_of_functions():
    @assume_constant_result
    def places(x):
        return [torch.nonzero(x), (torch.nonzero(x), 2)]

    @assume_constant_result
    def held():
        return Held()

    def f(x):
        y = torch.tensor([0.5])
        first, (second, n) = places(x)
        return [y * first, second * n]

    exported(f, X)
    exported(lambda x: places((x > 1) * x)[0] * 2, X)  # of what the graph computes
    exported(lambda x: x * held().k + held().t, X)
    gm = exported(lambda x: places(x)[0], X)
    assert equal(gm(X * 0), torch.nonzero(X))  # that is what it promises


def test_constant_results_of_methods():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.kind, self.weight = "A", torch.nn.Parameter(torch.rand(2))

        @assume_constant_result
        def table(self, x):
            return {"x": x, "x^2": x * x}

        @assume_constant_result
        def positive(self, x):
            return None if x.item() < 0 else x

        @assume_constant_result
        def which(self, x):
            return self.kind

        def forward(self, x):
            t = self.table(x)
            y = self.positive(x.sum())
            z = t["x"] * t["x^2"] * self.weight
            return (z if y is None else z * y) if self.which(x) == "A" else x + x

    net = Net()
    exported(net, X), exported(net, -X)
    net.kind = "B"
    exported(net, X)


def test_an_exception_of_a_constant_function_is_the_programs():
    @assume_constant_result
    def fails(x):
        raise KeyError("mine")

    def f(x):
        try:
            fails(x)
        except KeyError:
            return x + 1

    exported(f, X)


# ---- changes ---------------------------------------------------------------------------------------------------------
def test_changes_of_python_objects_are_made_once_and_said():
    n, total = 0, torch.zeros(3, 2)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            nonlocal n, total
            n, total = n + 1, total + x
            self.calls += 1
            return total * 2

    net = Net()
    with pytest.warns(RuntimeWarning, match=r"will not change .*forward.__closure__\[0\]"):
        gm, _ = bytejit.export(net, X)
    assert (n, net.calls) == (1, 1) and torch.equal(total, X)
    gm(X)
    assert (n, net.calls) == (1, 1)


def test_writes_into_inputs_are_in_the_graph():
    def f(x):
        x.add_(1)
        return x * 2

    for aten_graph in (False, True):
        gm, _ = bytejit.export(f, X.clone(), aten_graph=aten_graph)
        a, b = X.clone(), X.clone()
        assert equal(gm(a), f(b)) and torch.equal(a, b)


# ---- ATen ------------------------------------------------------------------------------------------------------------
def test_decomposition_table():
    from torch._decomp import get_decompositions

    silu = torch.ops.aten.silu.default

    def f(x):
        return torch.nn.functional.silu(x).t()

    def targets(**settings):
        gm, _ = bytejit.export(f, X, aten_graph=True, **settings)
        torch.testing.assert_close(gm(X + 1), f(X + 1))
        return [n.target for n in gm.graph.nodes]

    assert silu in targets() and silu not in targets(decomposition_table=get_decompositions([silu]))
    assert torch.ops.aten.sigmoid.default in targets(decomposition_table={silu: lambda x: x * torch.sigmoid(x)})
    for wrong in ({"decomposition_table": {}}, {"tracing_mode": "symbolic"}):
        with pytest.raises(AssertionError, match="aten_graph"):
            bytejit.export(f, X, **wrong)
    with pytest.raises(ValueError, match="did you mean 'symbolic'"):
        bytejit.export(f, X, aten_graph=True, tracing_mode="symbolik")


@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_tracing_mode(mode):
    again = [(torch.rand(9, 4),)] if mode == "symbolic" else []
    exported(lambda x: torch.sin(x).sum(0) / x.shape[0], X, again=again, aten_graph=True, tracing_mode=mode)


def test_views_of_inputs_that_begin_later():
    base = torch.arange(12.0)
    for f in (lambda x: x[1:], lambda x: x.as_strided((2,), (2,)) + 1, lambda x: x.view(2, 4).t()):
        exported(f, base[4:], again=[(base[:8],), (base[2:10],)], aten_graph=True)


@pytest.mark.parametrize("aten_graph", [False, True])
def test_stack_traces_name_the_users_line(aten_graph):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = torch.nn.Linear(2, 2)

        def forward(self, x):
            y = self.lin(x)  # line a
            return torch.relu(y)  # line b

    gm = exported(Net(), X, aten_graph=aten_graph)
    traces = {n.stack_trace for n in gm.graph.nodes if n.op.startswith("call")}
    assert all("test_export.py" in t and "in " in t for t in traces)
    assert any("# line b" in t for t in traces) and any("# line a" in t for t in traces)


# ---- Python that TorchDynamo takes -----------------------------------------------------------------------------------
def test_subclasses():
    class A:
        pass

    class B(A):
        pass

    c = bytejit.compile(
        lambda x: (x + len(A.__subclasses__()), [k.__name__ for k in type.__subclasses__(A)]), fullgraph=True, backend="eager"
    )
    assert equal(c(X), (X + 1, ["B"]))

    class C(A):
        pass

    assert equal(c(X), (X + 2, ["B", "C"])) and B and C


def test_questions_of_fx():
    from torch.fx._symbolic_trace import is_fx_symbolic_tracing, is_fx_tracing

    exported(lambda x: x + 1 if is_fx_tracing() or is_fx_symbolic_tracing() else x * 2, X)


@pytest.mark.parametrize("scale", [(1, 2), (-1, 0.5), (0.1, 0.05), (-3, -4), (float("nan"), 1)])
def test_min_and_max_of_tensors(scale):
    def f(a, b):
        c, a, b = a + b, a.sum(), b.sum()
        a, b = min(max(a, 0), 1), max(0, min(1, b))
        return max(a, b) - min(a, b) + c

    a, b = torch.ones(3) * scale[0], torch.ones(3) * scale[1]
    gm, _ = bytejit.export(f, torch.ones(3), torch.ones(3))
    torch.testing.assert_close(gm(a, b), f(a, b), equal_nan=True)
    gm, _ = bytejit.export(lambda a, b: min([a.sum(), b.sum(), a.prod()]) * 2, a, b)
    torch.testing.assert_close(gm(b, a), min([b.sum(), a.sum(), b.prod()]) * 2, equal_nan=True)


def test_locals():
    def f(x):
        y = x + 1
        d = locals()
        z = y * 2
        assert "z" not in d

        def inner(a, b=2):
            return locals()["a"] * locals()["b"] + len(locals()) + z

        return d["y"] * d["x"], sorted(d), inner(x)

    exported(f, X)


def test_run_as_manager_and_decorator():
    made = []

    def backend(gm, example_inputs):
        made.append(gm)
        return gm.forward

    f = bytejit.compile(lambda x: x + 1, backend=backend)
    with bytejit.run():
        f(X)
    assert not made
    f(X)
    with bytejit.run() as outer:
        f(X), f(torch.ones(5))
        with outer:
            f(torch.ones(6))
        f(torch.ones(7))

    @bytejit.run()
    def g(x):
        return f(x)

    @bytejit.run
    def h(x):
        return f(x)

    assert equal(g(torch.ones(2)), h(torch.ones(2))) and len(made) == 1
    f(torch.ones(5))
    assert len(made) == 2
    with pytest.raises(TypeError, match="run takes a callable"):
        bytejit.run(3)


# ---- settings of backends --------------------------------------------------------------------------------------------
def test_raise_on_backend_error():
    def fails(gm, example_inputs):
        raise ValueError("the backend's")

    with bytejit.config.patch(raise_on_backend_error=False):
        assert equal(bytejit.compile(lambda x: x + 1, backend=fails)(X), X + 1)
    assert any("raised ValueError" in what for what in bytejit.counters["fallbacks"])
    with pytest.raises(ValueError, match="the backend's"):
        bytejit.compile(lambda x: x + 1, backend=fails)(X)


def test_verify_correctness():
    def off(gm, example_inputs):
        return lambda *a: tuple(o + 1 for o in gm.forward(*a))

    def short(gm, example_inputs):
        return lambda *a: gm.forward(*a)[:-1]

    def f(x):
        x.mul_(2)
        return x + torch.rand(2), torch.sin(x)

    with bytejit.config.patch(verify_correctness=True):
        for right in ("eager", lambda gm, a: gm.forward):
            torch.manual_seed(3)
            a, wanted = X.clone(), X.clone()
            got = bytejit.compile(f, backend=right)(a)
            torch.manual_seed(3)
            assert equal(got, f(wanted)) and torch.equal(a, wanted)  # neither numbers nor inputs are used up
        for wrong in (off, short):
            with pytest.raises(bytejit.exc.IncorrectResult, match="backend"):
                bytejit.compile(lambda x: (x + 1, x), backend=wrong)(X)
    bytejit.compile(lambda x: x + 1, backend=off)(X)


@pytest.mark.cxx
def test_verify_correctness_of_kernels():
    with bytejit.config.patch(verify_correctness=True):
        net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).eval()
        with torch.no_grad():
            torch.testing.assert_close(bytejit.compile(net)(X), net(X))
