"""Tensors that a program makes in a layout of its own keep it, also with gaps, when they are written in place."""

from __future__ import annotations

import pytest
import torch

import bytejit

from .harness import F, check

LAYOUTS = {
    "gaps": ((4, 3), (8, 1)),
    "gaps, columns": ((4, 3), (1, 8)),
    "one column": ((4, 1), (1, 8)),
    "one row": ((1, 4), (9, 1)),
    "one of four": ((2, 3, 1, 5), (15, 5, 15, 1)),
    "dense, permuted": ((2, 3, 4), (1, 8, 2)),
}


def filled(x, made):
    return made.fill_(3)


def added(x, made):
    return made.zero_().add_(x)


def copied(x, made):
    return made.copy_(x)


def through_a_view(x, made):
    made.copy_(x)[:1].mul_(2)
    return made


def a_view_beside(x, made):
    made.copy_(x * 2)
    return made[..., :1], made


def written_by_out(x, made):
    torch.mul(x, 2, out=made)
    return made


PROGRAMS = filled, added, copied, through_a_view, a_view_beside, written_by_out


@pytest.mark.pairs
@pytest.mark.parametrize(
    "program", [filled, added, copied, through_a_view, a_view_beside, written_by_out], ids=lambda f: f.__name__
)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("grad", [False, True])
def test_layout_is_kept(program, layout, backend, grad):
    shape, stride = LAYOUTS[layout]
    if grad and program is written_by_out:
        pytest.skip("out= takes no gradients")

    def f(x):
        return program(x, torch.empty_strided(shape, stride))

    x = torch.randn(shape, requires_grad=grad)
    want, got = f(x), bytejit.compile(f, backend=backend, fullgraph=True)(x)
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (want, got))):
        assert torch.equal(a, b) and a.stride() == b.stride() and a.requires_grad == b.requires_grad
        assert a.untyped_storage().nbytes() == b.untyped_storage().nbytes()
    if isinstance(got, tuple):
        assert got[0].untyped_storage().data_ptr() == got[1].untyped_storage().data_ptr()
    if grad and program is not filled:
        grads = [torch.autograd.grad((r[-1] if isinstance(r, tuple) else r).square().sum(), x)[0] for r in (want, got)]
        assert torch.equal(*grads)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_memory_without_a_value_under_deterministic_algorithms(backend):
    """torch fills it: with NaN, or the largest integer"""

    def f(x):
        made = [torch.empty(3), torch.empty_like(x), x.new_empty(2)]
        made += [torch.empty(2, dtype=torch.int32), torch.empty_strided((2, 2), (1, 2))]
        return made, torch.empty(3).add(x), torch.empty(3, dtype=torch.bool).all(), torch.zeros(0).resize_(4)

    def steadily(g, x):
        torch.use_deterministic_algorithms(True)
        try:
            return g(x)
        finally:
            torch.use_deterministic_algorithms(False)

    check(f, F(3), drive=steadily, backend=backend)


EMPTY = [((3, 0, 4), (0, 4, 1)), ((0, 3, 4), (1, 0, 0)), ((2, 0), (1, 2)), ((2, 0, 3), (1, 2, 2)), ((2, 3, 0), (6, 1, 3))]


@pytest.mark.parametrize("shape, stride", EMPTY)
def test_layouts_of_tensors_without_elements(shape, stride):
    """Strides that no element shows are eager's, too: a copy keeps them, what is computed has others"""

    def f(x):
        made = x.clone(), torch.empty_like(x), x.double(), x.contiguous(), x.mT.clone(), torch.zeros_like(x), x[..., None].clone()
        return (
            *made,
            x + 1,
            x.sin(),
            torch.where(x > 0, x, 1),
            x.double() + x,
            x.sum(0),
            torch.cat([x, x]),
            x.masked_fill(x > 0, 1),
        )

    x = torch.empty_strided(shape, stride)
    for backend in ("aot_eager", "inductor"):
        got = bytejit.compile(f, backend=backend)(x)
        assert [r.stride() for r in got] == [r.stride() for r in f(x)]
