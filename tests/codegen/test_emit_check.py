"""Library calls that return other strides than were inferred: noticed in the first call, copied from then on."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from dynamic import compiled as compiled_for_all
from graphs import aten
from marks import interpreted

import bytejit
from bytejit.backends import compiled as compiled_module
from bytejit.backends import inductor, plan_cache
from bytejit.backends.cpu import CpuTarget, compile_plan, cpu_machine
from bytejit.codegen.aten import whole_functions
from bytejit.codegen.aten.normalise import normalise
from bytejit.codegen.aten.rewrite import contiguous
from bytejit.codegen.cpu.schedule import schedule
from bytejit.codegen.emit import call as call_module
from bytejit.codegen.emit import check
from bytejit.codegen.emit.check import KEPT, LibraryResults, checked_from_python
from bytejit.codegen.libraries.stride_feedback import foreseen
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.passes.fuse import fuse
from bytejit.common import registry
from bytejit.common.errors import Bug
from bytejit.common.options import config
from bytejit.common.spec import Spec, channels_last_stride
from bytejit.fake.tensor import fake_of_spec
from bytejit.guards.native_checker import CHECKER
from bytejit.kernels.build import BuildFailed

r = torch.randn


def conv_graph(wrong: bool):
    """conv + relu over rows, its result inferred with the channels innermost where `wrong`: torch returns row-major."""
    args = r(2, 3, 6, 6), r(4, 3, 3, 3)
    graph = aten(lambda x, w: F.conv2d(x, w, padding=1).relu() * 2, *args)
    for node in graph.graph.nodes:
        spec = node.meta.get("spec")
        if wrong and "convolution" in str(node.target):
            node.meta["spec"] = Spec(spec.shape, channels_last_stride(spec.shape), spec.dtype, spec.device)
    plan = schedule(fuse(lower(graph)), cpu_machine(1))
    return compile_plan(plan, config.current), args


@pytest.mark.cxx
@pytest.mark.parametrize("wrong", [False, True])
def test_a_result_in_other_strides_is_copied(wrong: bool) -> None:
    graph, (x, w) = conv_graph(wrong)
    for _ in range(3):
        torch.testing.assert_close(graph.call(x, w)[0], F.conv2d(x, w, padding=1).relu() * 2)
    told = [k for k in registry.counters["externs"] if "other strides" in k]
    assert told == (["aten.convolution.default returns other strides than inferred: copied"] if wrong else [])


@pytest.mark.cxx
def test_only_the_first_call_at_a_size_is_checked_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    fit = LibraryResults.fit
    monkeypatch.setattr(LibraryResults, "fit", lambda self, *args: seen.append(args[4]) or fit(self, *args))
    graph = compiled_for_all(lambda x, w: F.linear(x, w).relu(), (r(4, 6), r(5, 6)), (("s0",), ()))
    for n, calls in ((4, 1), (4, 1), (9, 2), (4, 2), (9, 2)):
        graph(r(n, 6), r(5, 6))
        assert len(seen) in (calls, 0)  # a product that writes into our memory needs no check


def test_what_a_check_returns() -> None:
    fits, f32 = LibraryResults(), torch.float32
    x = r(3, 4)
    assert fits.fit(x, (3, 4), (4, 1), f32, "op") is x
    assert fits.fit(r(3, 1)[:, :1], (3, 1), (1, 7), f32, "op").stride() == (1, 1)  # a size of 1 has any stride
    fits.learn((1,))
    assert set(fits.known) == {(1,)}
    assert fits.fit(x, (3, 4), (1, 3), f32, "op").stride() == (1, 3) and fits.copied == {"op"}
    fits.learn((2,))
    assert (2,) not in fits.known
    with pytest.raises(Bug, match=r"returned torch.float32\[3, 4\] on cpu, but torch.float32\[4, 3\]"):
        fits.fit(x, (4, 3), (3, 1), f32, "op")
    with pytest.raises(Bug, match="torch.bfloat16"):
        fits.fit(x, (3, 4), (4, 1), torch.bfloat16, "op")


LAYOUTS = {
    "as inferred": lambda: r(3, 4),
    "bf16": lambda: r(3, 4).bfloat16(),
    "f64": lambda: r(3, 4).double(),
    "bool": lambda: r(3, 4) > 0,
    "transposed": lambda: r(4, 3).t(),
    "wide": lambda: r(3, 8)[:, ::2],
    "fewer": lambda: r(2, 4),
    "flat": lambda: r(12),
    "meta": lambda: r(3, 4).to("meta"),
    "needs gradients": lambda: r(3, 4).requires_grad_(),
    "at an offset": lambda: r(4, 4)[1:],
    "a parameter": lambda: torch.nn.Parameter(r(3, 4)),
}


@pytest.mark.cxx
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_call_looks_at_what_a_kernel_reads(name: str) -> None:
    """dtype, device, sizes and strides, from C++ and from Python; a result laid out otherwise is copied, another raises."""
    fits, read, x = LibraryResults(), [], LAYOUTS[name]()
    fits.fit(r(3, 4), (3, 4), (4, 1), torch.float32, "op", "", read)
    fits.learn((), [check.ExpectedResult((2, 1), (1, 9), torch.int64, torch.device("cpu")), *read])
    words, at = fits.known[()], 1 + check.words_of(2)
    right = name in ("as inferred", "needs gradients", "at an offset")
    assert checked_from_python(words, at, x) is (right or name == "a parameter")
    if CHECKER.usable:
        assert CHECKER.fit(words, at, x) is right
    if right or name in ("transposed", "wide", "a parameter"):
        again = fits.again(words, at, x, "op")
        assert again.stride() == (4, 1) and torch.equal(again, x)
    else:
        with pytest.raises(Bug, match="op returned"):
            fits.again(words, at, x, "op")


@pytest.mark.cxx
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "from python"])
def test_a_library_that_changes_its_mind(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After calls that returned as inferred, an operation returns other strides, then another dtype, as under state of torch's
    that no guard names: the first is copied, the second read by no kernel; the original code runs."""
    if not compiled:
        monkeypatch.setattr(call_module, "steady_check", lambda: checked_from_python)
    way = ["plain"]
    with torch.library._scoped_library("bjmood", "FRAGMENT") as library:
        library.define("op(Tensor x) -> Tensor")
        library.impl(
            "op", lambda x: {"plain": x * 2, "turned": (x.t().contiguous() * 2).t(), "bf16": (x * 2).bfloat16()}[way[0]], "CPU"
        )
        library.impl("op", lambda x: torch.empty_like(x), "Meta")
        step = bytejit.compile(lambda x: torch.ops.bjmood.op(x).relu() + 1)
        x = r(5, 7)
        for mood in ("plain", "plain", "turned", "bf16", "turned", "plain"):
            way[0] = mood
            want, got = torch.ops.bjmood.op(x).relu() + 1, step(x)
            assert got.dtype is want.dtype
            torch.testing.assert_close(got, want)
    assert any("a graph raised Bug" in k for k in registry.counters["fallbacks"])


@pytest.mark.cxx
def test_a_library_whose_result_another_one_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    """From library to library too: a view between the two goes by the strides that were inferred."""
    way = ["plain"]
    with torch.library._scoped_library("bjmood2", "FRAGMENT") as library:
        library.define("op(Tensor x) -> Tensor")
        library.impl("op", lambda x: {"plain": x * 2, "turned": (x.t().contiguous() * 2).t()}[way[0]], "CPU")
        library.impl("op", lambda x: torch.empty_like(x), "Meta")
        ops = torch.ops.bjmood2
        step = bytejit.compile(lambda x: ops.op(ops.op(x)[1:, 2:].t()))
        for mood in ("plain", "plain", "turned", "plain", "turned"):
            way[0] = mood
            x = r(5, 7)
            torch.testing.assert_close(step(x), ops.op(ops.op(x)[1:, 2:].t()))
    assert not registry.counters["fallbacks"]


def test_few_sizes_are_remembered() -> None:
    fits = LibraryResults()
    for n in range(KEPT + 5):
        fits.learn((n,))
    assert len(fits.known) == 5


def test_a_result_in_a_temps_memory_is_copied() -> None:
    fits, x = LibraryResults(), r(3, 4)
    kept = fits.own(x[1:], "op", (x,))
    assert torch.equal(kept, x[1:]) and kept.data_ptr() != x[1:].data_ptr() and fits.copied == {"op"}
    assert fits.own(y := r(2), "other", (x,)) is y and fits.own(None, "none", (x,)) is None and fits.copied == {"op"}


# ---- the graph is built anew by what came ---------------------------------------------------------------------------------
def attend(q: torch.Tensor, k: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    def heads(x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, w).view(2, 9, 4, 8).transpose(1, 2)

    for _ in range(2):
        q = q + F.scaled_dot_product_attention(heads(q), heads(k), heads(k) * 2).transpose(1, 2).reshape(2, 9, 32)
    return q


def inferred_otherwise(monkeypatch: pytest.MonkeyPatch) -> list:
    """Attention is inferred row-major, as some of torch's kernels on a GPU return it; on the CPU its heads lie aside. Returns the
    graphs that are lowered."""

    def infer(gm, fakes):
        found = normalise(gm, fakes)
        for node in found.graph.nodes:
            if "attention" in str(node.target):
                node.meta["spec"] = contiguous(node.meta["spec"])
        return found

    def seen(graph):
        lowered.append([n.meta["spec"].stride for n in graph.graph.nodes if "attention" in str(n.target)])
        return lower(graph)

    lowered: list = []
    monkeypatch.setattr(inductor, "normalise", infer)
    monkeypatch.setattr(compiled_module, "lower", seen)
    monkeypatch.setattr(plan_cache, "load", lambda key, options: None)  # none of an earlier run's
    return lowered


@pytest.mark.cxx
@pytest.mark.parametrize("options", [{}, pytest.param({"interpret": True}, marks=[pytest.mark.triton, interpreted])])
def test_from_the_second_call_on_no_result_is_copied(monkeypatch: pytest.MonkeyPatch, options: dict) -> None:
    lowered = inferred_otherwise(monkeypatch)
    args = r(2, 9, 32), r(2, 9, 32), r(32, 32) / 6
    compiled = bytejit.compile(attend, options=options)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(*args), attend(*args))
    assert lowered == [[(288, 72, 8, 1)] * 2, [(288, 8, 32, 1)] * 2]  # B, H, S, D of a [B, S, H, D]
    told = registry.counters["externs"]
    assert told["a graph is laid out anew, by the strides that its libraries return"] == 1
    assert told["aten.scaled_dot_product_attention.default returns other strides than inferred: copied"] == 1


@pytest.mark.cxx
def test_an_output_keeps_the_strides_of_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = inferred_otherwise(monkeypatch)
    q = r(2, 9, 4, 8).transpose(1, 2)
    compiled = bytejit.compile(lambda q: F.scaled_dot_product_attention(q, q, q))
    with torch.no_grad():
        for _ in range(2):
            assert compiled(q).stride() == (288, 72, 8, 1)  # what was inferred stands for eager's here
    assert len(lowered) == 1 and not any("anew" in k for k in registry.counters["externs"])


@pytest.mark.cxx
def test_where_it_cannot_be_built_the_copies_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    lowered = inferred_otherwise(monkeypatch)
    args = r(2, 9, 32), r(2, 9, 32), r(32, 32) / 6
    plain, compiled = CpuTarget.launch, bytejit.compile(attend)

    def once(self, plan, source, graph):
        if len(lowered) > 1:
            raise BuildFailed("a kernel cannot be built\n  why    the disk is full")
        return plain(self, plan, source, graph)

    monkeypatch.setattr(CpuTarget, "launch", once)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(*args), attend(*args))
    assert len(lowered) == 2
    assert registry.counters["fallbacks"]["a graph keeps its copies: a kernel cannot be built"] == 1


# ---- what is known before: an attention on a GPU that is handed another mask ------------------------------------------------
def masked_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    """As torch on a GPU: heads aside from its fused kernels, which take masks whose last dimension is side by side."""
    b, h, n, d = q.shape
    fused = mask is None or mask.stride(-1) == 1
    return q.new_empty(b, n, h, d).transpose(1, 2) if fused else q.new_empty(b, h, n, d)


def foreseen_graph(monkeypatch: pytest.MonkeyPatch, shown: str, wide: bool) -> torch.fx.Graph:
    """The graph of an attention under a mask of bools (wide: expanded along its last dimension) on a pretended GPU."""
    monkeypatch.setitem(whole_functions.WHOLE, masked_attention, torch.ops.aten.scaled_dot_product_attention.default)
    gpu = torch.device("cuda", 0)
    graph = torch.fx.Graph()
    q, mask = graph.placeholder("q"), graph.placeholder("mask")
    made = graph.call_function(masked_attention, (q, q, q, mask))
    joined = graph.call_method("reshape", (graph.call_method("transpose", (made, 1, 2)), 2, 9, 32))
    also = {"": [], "itself": [made], "a view": [graph.call_method("unsqueeze", (made, 0))]}[shown]
    graph.output((graph.call_function(torch.sin, (joined,)), *also))
    fakes = [
        fake_of_spec(Spec((2, 4, 9, 8), (288, 8, 32, 1), torch.float32, gpu)),
        fake_of_spec(Spec((2, 1, 9, 9), (9, 9, 1, 0) if wide else (81, 81, 9, 1), torch.bool, gpu)),
    ]
    return foreseen(normalise(torch.fx.GraphModule({}, graph), fakes)).graph


@pytest.mark.parametrize(
    "shown, wide, clones, stride",
    [
        ("", True, 0, (288, 8, 32, 1)),
        ("itself", True, 1, (288, 72, 8, 1)),
        ("a view", True, 1, (288, 72, 8, 1)),
        ("", False, 0, (288, 8, 32, 1)),
    ],
)
def test_the_mask_that_is_handed_over_decides(
    monkeypatch: pytest.MonkeyPatch, shown: str, wide: bool, clones: int, stride: tuple
) -> None:
    graph = foreseen_graph(monkeypatch, shown, wide)
    targets = [str(n.target) for n in graph.nodes]
    assert targets.count("aten.clone.default") == clones
    (found,) = (n for n in graph.nodes if "attention" in str(n.target))
    assert found.meta["spec"].stride == stride
