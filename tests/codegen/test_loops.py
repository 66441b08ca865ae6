"""Loops as text: reads back, deterministic, checked."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from graphs import aten, stages

from bytejit.codegen.loops.check import check_loops
from bytejit.codegen.loops.expr import Cons, Expr, walk
from bytejit.codegen.loops.text import parse, text
from bytejit.common.errors import Bug

PROGRAMS = {
    "softmax": (lambda x: x.softmax(-1), (4, 6)),
    "views": (lambda x: torch.cat([x.t(), x.t() * 2])[1:].flip(0), (3, 4)),
    "norm": (lambda x: F.gelu(F.layer_norm(x.bfloat16(), (6,))), (4, 6)),
    "extern": (lambda x: (x @ x.t()).relu().to(torch.float64), (3, 5)),
    "pad": (lambda x: F.pad(x, (1, 1), value=-math.inf), (2, 3)),
    "gather": (lambda x: x[x[:, 0].sign().long()] + 1, (4, 2)),
    "scan": (lambda x: x.cumsum(0), (5, 2)),
    "arg": (lambda x: x.max(1), (4, 3)),
    "const": (lambda x: torch.full((2,), math.nan) + x, (2,)),
    "linear": (lambda x: torch.ops.aten.constant_pad_nd(torch.rand(3, generator=None) * x, [1, 1]), (3,)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_text_reads_back_at_every_stage(name: str) -> None:
    fn, shape = PROGRAMS[name]
    loops, fused, _ = stages(aten(fn, torch.randn(shape)))
    for stage in (loops, fused):
        again = parse(text(stage))
        assert again == stage
        assert text(again) == text(stage)


def test_text_is_deterministic() -> None:
    fn, shape = PROGRAMS["norm"]
    first, second = (text(stages(aten(fn, torch.randn(shape)))[2]) for _ in range(2))
    assert first == second
    assert "0x" not in first


def test_equal_expressions_are_one_object_and_five_zeros_are_not() -> None:
    cons = Cons()
    a = cons.op("add", (cons.const(1.0, "f32"), cons.const(2.0, "f32")), "f32")
    assert a is cons.op("add", (cons.const(1.0, "f32"), cons.const(2.0, "f32")), "f32")
    zeros = [
        cons.const(0.0, "f32"),
        cons.const(-0.0, "f32"),
        cons.const(0, "i64"),
        cons.const(False, "b8"),
        cons.const(math.nan, "f32"),
    ]
    assert len({id(z) for z in zeros}) == 5
    assert len(set(zeros)) == 5
    assert zeros[4] == Cons().const(math.nan, "f32")


def test_deep_expressions_compare_and_walk_without_recursion_blowup() -> None:
    def tower(cons: Cons) -> Expr:
        e = cons.load("p0", (), "f32")
        for _ in range(400):
            e = cons.op("add", (e, e), "f32")
        return e

    a, b = tower(Cons()), tower(Cons())
    assert a == b
    assert sum(1 for _ in walk((a,))) == 401


@pytest.mark.parametrize(
    "body, message",
    [
        ("t0: f32 = load p0[i0 + 1]\n    set b0[i0] = t0", "k0 load p0: index i0 + 1 reaches 4, the buffer holds 4"),
        ("t0: f32 = load p1[i0]\n    set b0[i0] = t0", "k0 loads p1 before it is made"),
        ("t0: f32 = load p0[i0]\n    set p0[i0] = t0", "k0 stores to buffer p0"),
        ("t0: f64 = load p0[i0]\n    set b0[i0] = t0", "k0 load p0: f64"),
        ("t0: f32 = load p0[j0]\n    set b0[i0] = t0", "uses ['j0'], the loops are ['i0']"),
        ("t0: f32 = load p0[i0]\n    t1: f32 = wobble(t0)\n    set b0[i0] = t1", "op wobble has no row"),
        ("t0: f32 = load p0[i0]\n    t1: f32 = add(t0)\n    set b0[i0] = t1", "add takes 2 operands, has 1"),
        ("t0: f32 = ref m0\n    set b0[i0] = t0", "ref m0"),
        (
            "t0: i64 = index i0\n    t1: f32 = load p0[i0]\n    t2: f32 = add(t1, t0)\n    set b0[i0] = t2",
            "add of ['f32', 'i64']",
        ),
    ],
)
def test_the_checker_says_what_is_wrong(body: str, message: str) -> None:
    source = f"""inputs p0
buffer p0: f32[4] stride (1) input
buffer b0: f32[4] stride (1) output
kernel k0 [i0:4] ops test
  nest []
    {body}
output b0[4:1@0]
"""
    with pytest.raises(Bug) as caught:
        check_loops(parse(source))
    assert message in str(caught.value)


def test_a_line_that_is_none_is_named() -> None:
    with pytest.raises(ValueError, match="not a line of loops: '  nonsense here'"):
        parse("inputs\n  nonsense here\n")
