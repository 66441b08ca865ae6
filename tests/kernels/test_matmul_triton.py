"""Our own matrix product on a GPU: the kernel in Triton's interpreter, and where the graph takes it."""
from __future__ import annotations

import itertools
import os
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "codegen"))
from graphs import aten  # noqa: E402

from bytejit.codegen.linears_gpu import choose_gpu_linears  # noqa: E402
from bytejit.codegen.rewrite import copy_graph  # noqa: E402
from bytejit.kernels import matmul_triton as mt  # noqa: E402
from bytejit.kernels.build_triton import parameters, triton_version  # noqa: E402
from bytejit.kernels.tune import Candidate, Choice  # noqa: E402
from bytejit.spec import Spec  # noqa: E402

interpreted = pytest.mark.skipif(not triton_version() or os.environ.get("TRITON_INTERPRET") != "1",
                                 reason="needs triton and TRITON_INTERPRET=1 (set where there is no GPU)")


def interpret(x, w, b=None, other=None, post="", way=mt.Way(16, 16, 16, 1, 1)) -> torch.Tensor:
    """`gpu_linear` in the interpreter."""
    from bytejit.kernels.prelude.triton_matmul import matmul
    p = mt.problem_of(x, w, b, other, post)
    out = torch.full((p.m, p.n), 7.0, dtype=x.dtype)
    matmul[(mt.grid(p, way),)](x, w, x if b is None else b, x if other is None else other, out, **dict(mt.constants(p, way)))
    return out


@interpreted
@pytest.mark.triton
@pytest.mark.parametrize("post, bias, other", [("", False, False), ("relu", True, False), ("gelu", True, True),
                                               ("gelu_tanh", False, True), ("silu", True, False)])
@pytest.mark.parametrize("m, n, k", [(5, 16, 16), (33, 40, 24)])
def test_the_kernel_against_torch(post: str, bias: bool, other: bool, m: int, n: int, k: int) -> None:
    x, w, b, o = (torch.randn(*s).to(torch.float16) for s in ((m, k), (n, k), (n,), (m, n)))
    given = x, w.t(), b if bias else None, o if other else None
    want = mt.plain(*(None if g is None else g.double() for g in given), post)
    torch.testing.assert_close(interpret(*given, post).double(), want, rtol=2e-3, atol=2e-3)


@interpreted
@pytest.mark.triton
def test_the_order_of_tiles_and_strides() -> None:
    x, w = torch.randn(150, 64).half()[:, :16], torch.randn(16, 20).half()      # ten rows of tiles: more than a group
    got = interpret(x, w, way=mt.Way(16, 16, 16, 1, 1))
    torch.testing.assert_close(got.double(), x.double() @ w.double(), rtol=2e-3, atol=2e-3)


def test_constants_and_parameters_are_the_kernels() -> None:
    p = mt.problem_of(torch.ones(4, 8), torch.ones(3, 8).t(), None, None, "gelu")
    assert (p.row, p.wk, p.wn) == (8, 1, 8)
    names = [n for n, _ in mt.constants(p, mt.LARGE[0])]
    text = (mt.PRELUDE / "triton_matmul.py").read_text()
    assert parameters(text, "matmul") == ["x", "w", "b", "other", "out", *names]
    for m, n, k in itertools.product((1, 16, 100, 4000), (64, 1000), (64, 1024)):
        assert all(min(w.rows, w.columns, w.depth) >= 16 and len({w.name for w in mt.ways(m, n, k)}) >= 4
                   for w in mt.ways(m, n, k))


# ---- where a graph takes it ---------------------------------------------------------------------------------------------
class Tune:
    """A tuner that knows how long each candidate takes."""

    def __init__(self, library: float, ours: float) -> None:
        self.library, self.ours, self.asked = library, ours, []
        self.products = types.SimpleNamespace(Problem=mt.Problem, ways=mt.ways, plain=mt.plain, gpu_linear=mt.gpu_linear,
                                              prepare=lambda problem, ways, device: self.asked.append(problem) or list(ways))
        self.candidate = Candidate

    def choose(self, op, specs, made, cold=(), attrs=""):
        if op != "gpu product":
            return None
        names = [c.name for c in made]
        seconds = {n: self.library if n == "library" else self.ours + i * 1e-6 for i, n in enumerate(names)}
        return Choice(names[0], (), seconds, {})


class OnCpu(torch.fx.Interpreter):
    """Runs a graph with our product through torch."""

    def call_function(self, target, args, kwargs):
        if target is torch.ops.bytejit.gpu_linear.default:
            x, w, b, other, post, _ = args
            return mt.plain(x, w, b, other, post)
        return super().call_function(target, args, kwargs)


def rewritten(fn, args: tuple, tune: Tune) -> torch.fx.Graph:
    """The graph of a function as if on a GPU, after the choice; checked to answer the same."""
    graph = copy_graph(aten(fn, *args).graph)
    for n in graph.nodes:
        s = n.meta.get("spec")
        if isinstance(s, Spec):
            n.meta["spec"] = Spec(s.shape, s.stride, s.dtype, torch.device("cuda", 0))
    choose_gpu_linears(graph, tune)
    graph.lint()
    got = OnCpu(torch.fx.GraphModule({}, graph)).run(*args)[0]
    torch.testing.assert_close(got.float(), fn(*args).float(), rtol=2e-2, atol=2e-2)
    return graph


def ours(graph: torch.fx.Graph) -> list[tuple]:
    """(post, has bias, has residual) of each product of ours."""
    return [(n.args[4], n.args[2] is not None, n.args[3] is not None) for n in graph.nodes
            if n.target is torch.ops.bytejit.gpu_linear.default]


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).half() / 8


X, W, B, W2 = half(4, 32, 128), half(256, 128), half(256), half(128, 256)
CASES = {
    "mlp": (lambda x, w, b, v: F.linear(F.gelu(F.linear(x, w, b)), v), [("gelu", True, False), ("", False, False)]),
    "tanh": (lambda x, w, b, v: F.linear(F.gelu(F.linear(x, w), approximate="tanh"), v), [("gelu_tanh", False, False),
                                                                                       ("", False, False)]),
    "residual": (lambda x, w, b, v: F.linear(F.linear(F.relu(F.linear(x, w, b)), v) + x, w), [
        ("relu", True, False), ("", False, True), ("", False, False)]),
    "read by a norm": (lambda x, w, b, v: F.layer_norm(F.gelu(F.linear(x, w, b)), (256,)), [("", True, False)]),
    "read twice": (lambda x, w, b, v: F.linear((y := F.linear(x, w, b)).relu(), v) + y.sum(), [("", True, False),
                                                                                            ("", False, False)]),
    "flat": (lambda x, w, b, v: torch.mm(F.silu(torch.addmm(b, x.view(128, 128), w.t())), w), [("silu", True, False),
                                                                                             ("", False, False)]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_follows_is_taken_along(name: str) -> None:
    fn, found = CASES[name]
    assert ours(rewritten(fn, (X, W, B, W2), Tune(1.0, 1e-3))) == found


@pytest.mark.parametrize("library, own, found", [(10e-6, 12e-6, [("gelu", True, False)]), (10e-6, 13.5e-6, []),
                                                 (20e-6, 10e-6, [("gelu", True, False), ("", False, False)])])
def test_only_where_it_is_faster(library: float, own: float, found: list) -> None:
    graph = rewritten(CASES["mlp"][0], (X, W, B, W2), Tune(library, own - 1e-6))      # a kernel of its own: 2.5 us and more
    assert ours(graph) == found


@pytest.mark.parametrize("args", [
    (X.float(), W.float(), B.float(), W2.float()), (half(1, 2, 8), half(16, 8), half(16), half(8, 16))], ids=["f32", "small"])
def test_what_is_left_to_the_library(args: tuple) -> None:
    tune = Tune(1.0, 1e-3)
    assert not ours(rewritten(CASES["mlp"][0], args, tune)) and not tune.asked
