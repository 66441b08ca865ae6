"""Our own matrix product on a GPU: the kernel in Triton's interpreter, and where the graph takes it."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "codegen"))
from graphs import aten  # noqa: E402

from bytejit.codegen.aten.rewrite import copy_graph  # noqa: E402
from bytejit.codegen.libraries.choices import Choices
from bytejit.codegen.libraries.linear_cuda import choose_gpu_linears  # noqa: E402
from bytejit.common.spec import Spec  # noqa: E402
from bytejit.kernels import matmul_triton as mt  # noqa: E402
from bytejit.kernels.build_triton import parameters, triton_version  # noqa: E402
from bytejit.kernels.tune import Candidate, Choice  # noqa: E402

interpreted = pytest.mark.skipif(
    not triton_version() or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs triton and TRITON_INTERPRET=1 (set where there is no GPU)",
)


def interpret(x, w, b=None, other=None, epilogue="", y=None, prologue="", way=mt.Way(16, 16, 16, 1, 1)) -> torch.Tensor:
    """`gpu_linear` in the interpreter."""
    from bytejit.kernels.prelude.triton_matmul import matmul

    p = mt.problem_of(Spec.of(x), Spec.of(w), b, other, epilogue, None if y is None else Spec.of(y), prologue)
    out = torch.full((*x.shape[:-1], p.n), 7.0, dtype=w.dtype)
    given = [x if t is None else t for t in (y, w, b, other)]
    matmul[mt.grid(p, way)](x, *given, out, **dict(mt.constants(p, way, 80)))
    return out


@interpreted
@pytest.mark.triton
@pytest.mark.parametrize(
    "epilogue, bias, other",
    [("", False, False), ("relu", True, False), ("gelu", True, True), ("gelu_tanh", False, True), ("silu", True, False)],
)
@pytest.mark.parametrize("m, n, k", [(5, 16, 16), (33, 40, 24)])
def test_the_kernel_against_torch(epilogue: str, bias: bool, other: bool, m: int, n: int, k: int) -> None:
    x, w, b, o = (torch.randn(*s).to(torch.float16) for s in ((m, k), (n, k), (n,), (m, n)))
    given = x, w.t(), b if bias else None, o if other else None
    want = mt.plain(*(None if g is None else g.double() for g in given), epilogue)
    torch.testing.assert_close(interpret(*given, epilogue).double(), want, rtol=2e-3, atol=2e-3)


def random(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


WIDE, FULL = random(33, 48), torch.float32
LED = {
    "cast": lambda: dict(x=random(33, 24, dtype=torch.float32)),
    "act": lambda: dict(x=random(33, 24), prologue="relu"),
    "gate of one buffer": lambda: dict(x=WIDE[:, :24], y=WIDE[:, 24:], prologue="silu"),
    "a factor of each column": lambda: dict(x=random(33, 24), y=random(24).expand(33, 24), prologue="gelu"),
    "a factor of each row": lambda: dict(x=random(33, 24, dtype=FULL), y=random(33, 1, dtype=FULL).expand(33, 24)),
    "a mask of bools": lambda: dict(x=random(33, 24), y=random(33, 24) > 0, prologue="gelu_tanh"),
    "whole turns of k": lambda: dict(x=random(33, 32), y=random(33, 32), prologue="silu"),
}


@interpreted
@pytest.mark.triton
@pytest.mark.parametrize("name", LED)
def test_what_leads_to_the_product(name: str) -> None:
    given = LED[name]()
    w, b = random(40, given["x"].shape[1]).t(), random(40)
    x, y, prologue = given["x"], given.get("y"), given.get("prologue", "")
    want = mt.plain(x.double(), w.double(), b.double(), None, "relu", None if y is None else y.double(), prologue)
    torch.testing.assert_close(interpret(x, w, b, None, "relu", y, prologue).double(), want, rtol=4e-3, atol=4e-3)
    halves = mt.plain(x, w, b, None, "relu", y, prologue)
    assert halves.dtype == torch.float16 and (halves.double() - want).abs().max() < 0.05


@interpreted
@pytest.mark.triton
@pytest.mark.parametrize("dtype, precision", [(torch.float16, 0), (torch.float32, 0), (torch.float32, 2)])
def test_a_batch_of_products(dtype: torch.dtype, precision: int) -> None:
    x, w, o = random(3, 24, 17, dtype=dtype).transpose(1, 2), random(3, 24, 20, dtype=dtype), random(3, 17, 20, dtype=dtype)
    want = mt.plain(x.double(), w.double(), None, o.double(), "gelu")
    got = interpret(x, w, None, o, "gelu", way=mt.Way(16, 16, 16, 1, 1, precision))
    limit = 1e-5 if dtype is torch.float32 else 4e-3
    torch.testing.assert_close(got.double(), want, rtol=limit, atol=limit)


def test_f32_only_rounds_its_factors_where_torch_does(monkeypatch: pytest.MonkeyPatch) -> None:
    matmul = torch.backends.cuda.matmul
    before = torch.get_float32_matmul_precision()
    try:
        for word, said in (("highest", False), ("high", True), ("highest", False)):
            torch.set_float32_matmul_precision(word)
            assert mt.uses_tf32() is said
    finally:
        torch.set_float32_matmul_precision(before)
    if hasattr(torch.backends, "fp32_precision"):
        newer = matmul.fp32_precision
        try:
            matmul.fp32_precision = "tf32"  # from then on the older words raise
            assert mt.uses_tf32()
        finally:
            matmul.fp32_precision = newer
    assert not mt.uses_tf32()
    found = {tf32: {w.precision for w in mt.ways(64, torch.float32, tf32)} for tf32 in (False, True)}
    assert found == {False: {2}, True: {1}} and {w.precision for w in mt.ways(64)} == {0}


@interpreted
@pytest.mark.triton
def test_the_order_of_tiles_and_strides() -> None:
    x, w = torch.randn(150, 64).half()[:, :16], torch.randn(16, 20).half()  # ten rows of tiles: more than a group
    got = interpret(x, w, way=mt.Way(16, 16, 16, 1, 1))
    torch.testing.assert_close(got.double(), x.double() @ w.double(), rtol=2e-3, atol=2e-3)


def test_constants_and_parameters_are_the_kernels() -> None:
    p = mt.problem_of(Spec.of(torch.ones(4, 8)), Spec.of(torch.ones(3, 8).t()), None, None, "gelu")
    assert (p.x, p.w) == ((0, 8, 1), (0, 1, 8))
    names = [n for n, _ in mt.constants(p, mt.LARGE[0], 80)]
    text = (mt.PRELUDE / "triton_matmul.py").read_text()
    assert parameters(text, "matmul") == ["x", "y", "w", "b", "other", "out", *names]
    for m in (1, 16, 100, 4000):
        ways = mt.ways(m)
        assert all(min(w.rows, w.columns, w.depth) >= 16 for w in ways) and len({w.name for w in ways}) >= 4


# ---- where a graph takes it ---------------------------------------------------------------------------------------------
class Tune:
    """A tuner that knows how long each candidate takes."""

    def __init__(self, library: float, ours: float) -> None:
        self.library, self.ours, self.asked = library, ours, []
        self.products = types.SimpleNamespace(
            problem_of=mt.problem_of,
            ways=mt.ways,
            plain=mt.plain,
            uses_tf32=lambda: False,
            gpu_linear=mt.gpu_linear,
            prepare=lambda problem, ways, device: self.asked.append(problem) or list(ways),
        )
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
            x, w, b, other, epilogue, _, y, prologue = args
            return mt.plain(x, w, b, other, epilogue, y, prologue)
        return super().call_function(target, args, kwargs)


def rewritten(fn, args: tuple, tune: Tune) -> torch.fx.Graph:
    """The graph of a function as if on a GPU, after the choice; checked to return the same."""
    graph = copy_graph(aten(fn, *args).graph)
    for n in graph.nodes:
        s = n.meta.get("spec")
        if isinstance(s, Spec):
            n.meta["spec"] = Spec(s.shape, s.stride, s.dtype, torch.device("cuda", 0))
    choose_gpu_linears(graph, Choices(tune, None))
    graph.lint()
    got = OnCpu(torch.fx.GraphModule({}, graph)).run(*args)[0]
    torch.testing.assert_close(got.float(), fn(*args).float(), rtol=2e-2, atol=2e-2)
    return graph


def ours(graph: torch.fx.Graph) -> list[tuple]:
    """(epilogue, has bias, has residual) of each product of ours."""
    return [
        (n.args[4], n.args[2] is not None, n.args[3] is not None)
        for n in graph.nodes
        if n.target is torch.ops.bytejit.gpu_linear.default
    ]


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape))).half() / 8


X, W, B, W2 = half(4, 32, 128), half(256, 128), half(256), half(128, 256)
CASES = {
    "mlp": (lambda x, w, b, v: F.linear(F.gelu(F.linear(x, w, b)), v), [("gelu", True, False), ("", False, False)]),
    "tanh": (
        lambda x, w, b, v: F.linear(F.gelu(F.linear(x, w), approximate="tanh"), v),
        [("gelu_tanh", False, False), ("", False, False)],
    ),
    "residual": (
        lambda x, w, b, v: F.linear(F.linear(F.relu(F.linear(x, w, b)), v) + x, w),
        [("relu", True, False), ("", False, True), ("", False, False)],
    ),
    "read by a norm": (lambda x, w, b, v: F.layer_norm(F.gelu(F.linear(x, w, b)), (256,)), [("", True, False)]),
    "read twice": (
        lambda x, w, b, v: F.linear((y := F.linear(x, w, b)).relu(), v) + y.sum(),
        [("", True, False), ("", False, False)],
    ),
    "flat": (
        lambda x, w, b, v: torch.mm(F.silu(torch.addmm(b, x.view(128, 128), w.t())), w),
        [("silu", True, False), ("", False, False)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_follows_is_taken_along(name: str) -> None:
    fn, found = CASES[name]
    assert ours(rewritten(fn, (X, W, B, W2), Tune(1.0, 1e-3))) == found


@pytest.mark.parametrize(
    "library, own, found",
    [(10e-6, 12e-6, [("gelu", True, False)]), (10e-6, 13.5e-6, []), (20e-6, 10e-6, [("gelu", True, False), ("", False, False)])],
)
def test_only_where_it_is_faster(library: float, own: float, found: list) -> None:
    graph = rewritten(CASES["mlp"][0], (X, W, B, W2), Tune(library, own - 1e-6))  # a kernel of its own: 2.5 us and more
    assert ours(graph) == found


def led(graph: torch.fx.Graph) -> list[tuple]:
    """(what is done to x, shape of y, dtype of x, epilogue) of each product of ours."""
    return [
        (n.args[7], n.args[6] is not None and tuple(n.args[6].meta["spec"].shape), n.args[0].meta["spec"].dtype, n.args[4])
        for n in graph.nodes
        if n.target is torch.ops.bytejit.gpu_linear.default
    ]


U, V, HALF = half(256, 128), half(128, 256), torch.float16
LEADING = {
    "swiglu": (
        lambda x, w, u, v: F.linear(F.silu(F.linear(x, w)) * F.linear(x, u), v),
        [("", False, HALF, ""), ("", False, HALF, ""), ("silu", (128, 256), HALF, "")],
    ),
    "one buffer": (
        lambda x, w, u, v: F.linear(F.silu((y := F.linear(x, torch.cat([w, u])))[..., :256]) * y[..., 256:], v),
        [("", False, HALF, ""), ("silu", (128, 256), HALF, "")],
    ),
    "a mask": (lambda x, w, u, v: F.linear(F.linear(x, w) * (w[:, 0] + 1), v), [("", False, HALF, ""), ("", False, HALF, "")]),
    "of inputs": (lambda x, w, u, v: F.linear(x * w[0, :128], w), [("", (128, 128), HALF, "")]),
    "a cast": (lambda x, w, u, v: F.linear(x.float().cos().half(), w), [("", False, HALF, "")]),
    "read twice": (lambda x, w, u, v: F.linear(y := x * x[..., :1], w) + y.sum(), [("", False, HALF, "")]),
    "a square": (lambda x, w, u, v: F.linear(x * x, w), [("", False, HALF, "")]),
}


@pytest.mark.parametrize("name", LEADING)
def test_what_leads_is_taken_along(name: str) -> None:
    fn, found = LEADING[name]
    assert led(rewritten(fn, (X, W, U, V), Tune(1.0, 1e-3))) == found


def test_a_cast_of_an_input_and_batches() -> None:
    tune = Tune(1.0, 1e-3)
    graph = rewritten(lambda x, w: F.linear(x.half(), w).relu(), (X.float(), W), tune)
    assert led(graph) == [("", False, torch.float32, "relu")] and tune.asked[-1].xtype is torch.float32
    a, b = half(3, 64, 128), half(3, 96, 128)
    graph = rewritten(lambda a, b: torch.bmm(torch.bmm(F.gelu(a), b.transpose(1, 2)).relu(), b), (a, b), tune)
    assert led(graph) == [("gelu", False, HALF, "relu"), ("", False, HALF, "")]
    assert (tune.asked[-1].batch, tune.asked[-1].x, tune.asked[-1].w) == (3, (64 * 96, 96, 1), (96 * 128, 128, 1))


def test_f32_is_timed_too() -> None:
    tune = Tune(1.0, 1e-3)
    assert ours(rewritten(CASES["mlp"][0], (X.float(), W.float(), B.float(), W2.float()), tune)) == CASES["mlp"][1]
    assert tune.asked[0].dtype is torch.float32


def test_what_is_left_to_the_library() -> None:
    tune = Tune(1.0, 1e-3)
    small = half(1, 2, 8), half(16, 8), half(16), half(8, 16)
    for args in (small, [a.double() for a in (X, W, B, W2)]):
        assert not ours(rewritten(CASES["mlp"][0], tuple(args), tune)) and not tune.asked
