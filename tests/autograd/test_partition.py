"""What is saved between the passes and what is computed again."""

from __future__ import annotations

import torch

import bytejit
from bytejit.autograd.joint import make_joint
from bytejit.autograd.partition import Parts, partition
from bytejit.backends.surround import fakes_of
from bytejit.common.graph_info import info_of


def parts_of(f, *args) -> Parts:
    """The two graphs of a program."""
    found = []

    def backend(gm, examples):
        found.append(partition(make_joint(gm, fakes_of(gm)), info_of(gm).weights))
        return gm.forward

    bytejit.reset()
    bytejit.compile(f, backend=backend)(*args)
    return found[0]


def calls(aten) -> list[str]:
    return [str(n.target).split(".")[1] for n in aten.graph.nodes if n.op == "call_function" and "aten" in str(n.target)]


def test_cheap_chains_are_computed_again():
    """No value is kept where eager keeps two besides the inputs."""
    x, w = torch.randn(4, 8, requires_grad=True), torch.randn(8, requires_grad=True)
    parts = parts_of(lambda x, w: ((x * w * 2 + 1).relu() * 3).square(), x, w)
    assert (parts.saved, len(parts.saved_inputs)) == (0, 2)


def test_nothing_is_computed_again_from_an_input_that_eager_does_not_save():
    """It may be written between the passes. A value made of it is kept, or a copy of it where that is smaller."""
    x, w = torch.randn(64, 8), torch.randn(8, requires_grad=True)
    parts = parts_of(lambda x, w: ((x * w * 2 + 1).relu() * 3).square(), x, w)
    assert parts.saved == len(parts.saved_inputs) == calls(parts.forward).count("clone") == 1
    x, w = torch.randn(8), torch.randn(8, requires_grad=True)
    parts = parts_of(lambda x, w: (x * w + 1).sin(), x, w)
    assert parts.saved == len(parts.saved_inputs) == 1 and "clone" not in calls(parts.forward)


def test_products_and_random_numbers_are_not_computed_again():
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    parts = parts_of(lambda x, w: torch.nn.functional.dropout((x @ w).relu(), 0.5) @ w, x, w)
    assert not any("bernoulli" in c for c in calls(parts.backward))
    assert calls(parts.backward).count("mm") == 3


def test_what_is_stored_anyway_for_a_product_is_kept():
    """relu's result is an operand of the second product, in both passes."""
    x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
    parts = parts_of(lambda x, w: (x @ w).relu() @ w, x, w)
    assert parts.saved == 1 and "relu" not in calls(parts.backward)


def test_views_are_made_again_and_never_kept():
    x, w = torch.randn(4, 6), torch.randn(4, 6, requires_grad=True)

    def f(x, w):
        a, b = (x * w).chunk(2, -1)
        return a.sin() * b.t().exp().t()

    parts = parts_of(f, x, w)
    saved = [o.position for o in parts.forward.outputs[parts.results : parts.results + parts.saved]]
    flat = list(parts.forward.graph.nodes)[-1].args[0]
    assert not any("slice" in str(flat[p].target) for p in saved)


def test_weights_are_cast_once():
    """The cast of a weight is kept, not made again."""
    m, x = torch.nn.Linear(8, 6), torch.randn(4, 8, requires_grad=True)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return m(x)

    parts = parts_of(f, x)
    casts = [n.meta["spec"] for n in parts.backward.graph.nodes if str(n.target) == "aten._to_copy.default"]
    assert not any(s.dtype is torch.bfloat16 and s.shape == (6, 8) for s in casts)
