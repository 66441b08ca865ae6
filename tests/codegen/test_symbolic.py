"""Kernels for sizes that are known at the call only: one build, right at every size."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from dynamic import agree, compiled, traced

from bytejit.codegen.aten.normalise import normalise
from bytejit.codegen.aten.run import run_aten
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.index import Sym, index, var
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.memory import extent, plan_memory
from bytejit.codegen.loops.passes.fuse import fuse
from bytejit.codegen.loops.text import parse, text
from bytejit.common.dtypes import DTYPES
from bytejit.kernels import build_cpp

cxx = pytest.mark.cxx
r = torch.randn
AB, A_B = ("s0", "s1"), ("s0", None, "s1")
IMAGE = ("s0", None, "s1", "s1")
SIZES = [(7, 11), (2, 3), (5, 2), (16, 33), (3, 130), (11, 11)]

# name -> (function, its tensors at sizes a, b, the symbols of their dims)
ROWS = {
    "add": (lambda x, y: x + y * 2, lambda a, b: (r(a, b), r(a, b)), (AB, AB)),
    "outer": (lambda x, y: (x[:, None] * y).relu(), lambda a, b: (r(a), r(b)), (("s0",), ("s1",))),
    "moments": (lambda x: (x.mean(1), x.mean(0), x.var(1), x.std(0)), lambda a, b: (r(a, b),), (AB,)),
    "free": (
        lambda x: (x.var(1, correction=1.5), x.std(0, correction=5), torch.var_mean(x, 1, correction=0.5)[0]),
        lambda a, b: (r(a, b),),
        (AB,),
    ),
    "all": (lambda x: (x.mean(), x.amax(), (x * x).sum()), lambda a, b: (r(a, b),), (AB,)),
    "softmax": (lambda x: (x.softmax(-1), x.softmax(0)), lambda a, b: (r(a, b),), (AB,)),
    "log_softmax": (lambda x: x.log_softmax(-1), lambda a, b: (r(a, b),), (AB,)),
    "norm_gelu": (lambda x, w, b: F.gelu(F.layer_norm(x, (32,), w, b)), lambda a, b: (r(a, b, 32), r(32), r(32)), (AB, (), ())),
    "norm_symbolic": (lambda x: F.layer_norm(x, x.shape[1:]), lambda a, b: (r(a, b),), (AB,)),
    "group_norm": (lambda x: F.group_norm(x, 1).relu(), lambda a, b: (r(3, a, b),), ((None, "s0", "s1"),)),
    "flat": (lambda x: x.view(-1, 32).softmax(-1) + 1, lambda a, b: (r(a, b, 32),), (AB,)),
    "flat_tail": (lambda x: x.flatten(1).sum(1), lambda a, b: (r(a, b, 3),), (AB,)),
    "cut": (lambda x: x.view(x.shape[0] * x.shape[1], 32)[1:].relu(), lambda a, b: (r(a, b, 32),), (AB,)),
    "heads": (
        lambda x: x.view(x.shape[0], x.shape[1], 4, 8).transpose(1, 2).contiguous() * 2,
        lambda a, b: (r(a, b, 32),),
        (AB,),
    ),
    "unheads": (
        lambda x: (x.transpose(1, 2) + 1).reshape(x.shape[0], x.shape[2], 32).relu(),
        lambda a, b: (r(a, 4, b, 8),),
        (A_B,),
    ),
    "transpose": (lambda x, y: x.t() + y, lambda a, b: (r(a, b), r(b, a)), (AB, ("s1", "s0"))),
    "turned": (lambda x: x.permute(2, 0, 1).contiguous(), lambda a, b: (r(a, b, 5),), (AB,)),
    "linear": (lambda x, w, b: F.gelu(F.linear(x + 1, w, b)).sum(-1), lambda a, b: (r(a, b, 32), r(16, 32), r(16)), (AB, (), ())),
    "products": (lambda x, w: torch.sin((x @ w) @ w.t()) @ w, lambda a, b: (r(a, b, 32), r(32, 16)), (AB, ())),
    "inner": (lambda x, w: (x @ w).relu(), lambda a, b: (r(a, b), r(b, 16)), (AB, ("s1",))),
    "bmm": (lambda x, y: torch.bmm(x, y.transpose(1, 2)).softmax(-1), lambda a, b: (r(a, b, 8), r(a, b, 8)), (AB, AB)),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v) + 1,
        lambda a, b: (r(a, 2, b, 8), r(a, 2, b, 8), r(a, 2, b, 8)),
        (A_B,) * 3,
    ),
    "einsum": (lambda x, y: torch.einsum("abc,dc->abd", x, y), lambda a, b: (r(a, b, 8), r(6, 8)), (AB, ())),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1).relu(), lambda a, b: (r(a, 3, b, b), r(4, 3, 3, 3)), (IMAGE, ())),
    "conv_stride": (
        lambda x, w: F.conv2d(x, w, stride=2, padding=1).relu(),
        lambda a, b: (r(a, 3, b + 1, b + 1), r(4, 3, 3, 3)),
        (IMAGE, ()),
    ),
    "batch_norm": (lambda x, m, v: F.batch_norm(x, m, v).relu(), lambda a, b: (r(a, 4, b, b), r(4), r(4).abs()), (IMAGE, (), ())),
    "batch_norm_train": (lambda x: F.batch_norm(x, None, None, training=True), lambda a, b: (r(a, 4, b, b),), (IMAGE,)),
    "pool": (lambda x: F.max_pool2d(x, 2, 1), lambda a, b: (r(a, 2, b, b),), (IMAGE,)),
    "pool_all": (lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), lambda a, b: (r(a, 3, b, b),), (IMAGE,)),
    "pool_all_inner": (
        lambda x: F.adaptive_avg_pool2d((x + 1).to(memory_format=torch.channels_last), 1).flatten(1),
        lambda a, b: (r(a, 3, b, b),),
        (IMAGE,),
    ),
    "arg": (lambda x: (x.argmax(1), x.argmin(0), x.max(1).values), lambda a, b: (r(a, b),), (AB,)),
    "embedding": (lambda i, w: F.embedding(i, w) * 2, lambda a, b: (torch.randint(0, 30, (a, b)), r(30, 16)), (AB, ())),
    "gather": (lambda x, i: x.gather(1, i), lambda a, b: (r(a, b), torch.randint(0, b, (a, 5))), (AB, ("s0",))),
    "index": (lambda x, i: x[i] + 1, lambda a, b: (r(a, b), torch.randint(0, a, (b,))), (AB, ("s1",))),
    "cat": (lambda x, y: torch.cat([x, y], 1).relu() + 1, lambda a, b: (r(a, b), r(a, 4)), (AB, ("s0",))),
    "cat_both": (lambda x, y: torch.cat([x, y], 0).softmax(0), lambda a, b: (r(a, 4), r(b, 4)), (("s0",), ("s1",))),
    "stack": (lambda x: torch.stack([x, x + 1], 1).sum(2), lambda a, b: (r(a, b),), (AB,)),
    "pad": (lambda x: F.pad(x, (1, 2)), lambda a, b: (r(a, b),), (AB,)),
    "pad_computed": (lambda x: F.pad(x.softmax(0).exp(), (1, 0, 0, 2)), lambda a, b: (r(a, b),), (AB,)),
    "shifted": (lambda x: x[:, 1:] + x[:, :-1], lambda a, b: (r(a, b + 1),), (AB,)),
    "half": (lambda x: x[:, : x.shape[1] // 2] * 2, lambda a, b: (r(a, 2 * b),), (AB,)),
    "repeat": (lambda x: x.repeat(2, 1), lambda a, b: (r(a, b),), (AB,)),
    "expand": (lambda x, y: x[:, None].expand(-1, y.shape[0]).contiguous(), lambda a, b: (r(a), r(b)), (("s0",), ("s1",))),
    "arange": (lambda x: x + torch.arange(x.shape[1]) * x.shape[0], lambda a, b: (r(a, b),), (AB,)),
    "filled": (lambda x: x.new_zeros(x.shape[1]) + torch.full((x.shape[0], 1), 2.0), lambda a, b: (r(a, b),), (AB,)),
    "scalars": (lambda x: (x * x.shape[0], x + x.shape[1] / 2, x * (x.shape[1] ** 0.5)), lambda a, b: (r(a, b),), (AB,)),
    "numbers": (lambda x: (x * 2, x.shape[0] * 3 + 1, x.shape[1]), lambda a, b: (r(a, b),), (AB,)),
    "aliases": (lambda x: (x.t(), x.view(-1)), lambda a, b: (r(a, b),), (AB,)),
    "choice": (lambda x: torch.where(x > 0, x, -x).amax(1), lambda a, b: (r(a, b),), (AB,)),
    "halfs": (lambda x: (x * 2).softmax(-1), lambda a, b: (r(a, b).bfloat16(),), (AB,)),
    "scan_columns": (lambda x: torch.where(x.cumsum(1) > 0, x, x * 2), lambda a, b: (torch.randint(-9, 9, (a, b, 8)),), (AB,)),
    "scans": (lambda x: (x.cumsum(1) * 2).cumsum(1).tril(), lambda a, b: (torch.randint(-9, 9, (a, b)),), (AB,)),
    "scan": (lambda x: x.cumsum(1), lambda a, b: (torch.randint(-9, 9, (a, b)),), (AB,)),
}


@cxx
@pytest.mark.parametrize("name", ROWS)
def test_one_build_for_every_size(name: str) -> None:
    fn, make, dims = ROWS[name]
    graph = agree(fn, make, dims, SIZES, tol=2e-2 if name == "halfs" else 2e-4)
    assert not graph.compiled.stats.unfused, f"through torch: {graph.compiled.stats.unfused}"


@cxx
def test_no_compiler_runs_for_a_new_size(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = compiled(lambda x: x.softmax(-1) * 2, (r(4, 6),), (AB,))
    monkeypatch.setattr(build_cpp, "build", None)
    for a, b in SIZES:
        x = r(a, b)
        torch.testing.assert_close(graph(x), x.softmax(-1) * 2)
    assert len(graph.compiled.files) == 1


@cxx
def test_a_written_input_of_symbolic_size() -> None:
    graph = compiled(lambda x, y: (x.mul_(2), x + y)[1], (r(4, 6), r(4, 6)), (AB, AB))
    for a, b in SIZES:
        x, y = r(a, b), r(a, b)
        own = x.clone()
        want = x.mul_(2) + y
        torch.testing.assert_close(graph(own, y), want)
        torch.testing.assert_close(own, x)


@cxx
def test_memory_of_temps_grows_and_is_kept() -> None:
    def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = torch.tanh(x @ w) + x.softmax(-1)
        return x

    graph = agree(chain, lambda a, b: (r(a, b, 16), r(16, 16)), (AB, ()), [(4, 4), (2, 2), (30, 20), (3, 3), (30, 21)])
    assert "make_memory" in graph.compiled.call_source
    pool = graph.compiled.call.__defaults__[graph.compiled.call.__code__.co_varnames.index("pool") - 4]
    assert len(pool) == 1 and len(pool[0].blocks) <= 4


@cxx
def test_slots_are_shared_by_buffers_that_do_not_meet() -> None:
    graph = compiled(lambda x, w: torch.sin(torch.cos(torch.tanh(x @ w) @ w) @ w) @ w, (r(4, 4, 8), r(8, 8)), (AB, ()))
    loops = fuse(lower(graph.aten))
    memory = plan_memory(loops)
    assert len(memory.slots) > len(memory.slot_bytes)
    for name, slot in memory.slots.items():
        assert extent(loops.buffers[name]) in memory.slot_bytes[slot]


def test_text_of_symbolic_loops_reads_back() -> None:
    fn, make, dims = ROWS["unheads"]
    loops = lower(compiled_aten(fn, make(4, 6), dims))
    assert text(parse(text(loops))) == text(loops)
    assert "$s0" in text(loops) and all(b.dtype in DTYPES for b in loops.buffers.values())


def compiled_aten(fn, args, dims):
    gm, fakes, _ = traced(fn, args, dims)
    return normalise(gm, fakes)


def test_the_functional_graph_runs_at_every_size() -> None:
    for name in ("heads", "numbers", "aliases", "scalars", "cat_both"):
        fn, make, dims = ROWS[name]
        aten = compiled_aten(fn, make(7, 11), dims)
        run = run_aten(aten)
        names = [n.name for n in aten.graph.nodes if n.op == "placeholder"]
        for a, b in SIZES:
            args = make(a, b)
            values = {"s0": a, "s1": b}
            got = run(*(values[n] for n in names if n in values), *args)
            want = fn(*args)
            for g, w in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,)):
                torch.testing.assert_close(torch.as_tensor(g), torch.as_tensor(w))


# ---- the algebra --------------------------------------------------------------------------------------------------

S, T = index(Sym("s")), index(Sym("t"))


def test_division_by_symbols() -> None:
    sizes = {"i": ix.size_of(T), "j": ix.size_of(S)}
    flat = var("i") * S + var("j")
    assert ix.floordiv(flat, S, sizes) == var("i") and ix.mod(flat, S, sizes) == var("j")
    both = var("i") * (S + T) + var("j")
    assert ix.floordiv(both, S + T, sizes) == var("i")
    assert ix.floordiv(S * T * 6, S * 2, {}) == T * 3
    assert ix.mod(var("j") + T, S, sizes) != var("j")


def test_order_of_sizes_is_only_decided_where_it_holds_for_all() -> None:
    assert S * T >= S and S + 1 > S and not S < 2 and S * T - S >= 0
    with pytest.raises(ix.Undecided, match="some sizes only"):
        assert S < T
    with pytest.raises(ix.Undecided):
        int(S)


def test_products_have_one_form() -> None:
    u = index(Sym("u"))
    assert (S * T) * u == S * (u * T) == u * (T * S)
    assert ix.evaluate((S + 1) * T - ix.floordiv(S, 2, {}), {"s": 5, "t": 3}) == 16
    assert ix.quotient(S * T * 4, T * 2) == S * 2 and ix.quotient(S + 1, T) is None


def test_symbols_have_their_least_value() -> None:
    large = index(Sym("n", 100, 64))
    assert ix.at_least(large, 64, {}) and not ix.at_least(index(Sym("n", 100, 2)), 64, {})
    assert math.isinf(ix.bounds(large, {})[1]) and ix.hint(large * 2) == 200
