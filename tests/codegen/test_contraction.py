"""On a GPU a product and a sum of one row are rounded once, those of two rows apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from graphs import aten
from torch.utils import _pytree as pytree

from bytejit.codegen.loops.expr import walk
from bytejit.codegen.loops.lower import lower


def names(fn: Callable, device: str) -> list[str]:
    """The ops of a function's rows of two tensors on a device."""
    graph = aten(fn, torch.randn(8), torch.randn(8))
    for node in graph.graph.nodes:
        for spec in pytree.tree_leaves(node.meta.get("spec")):
            object.__setattr__(spec, "device", torch.device(device))
    return [e.name for k in lower(graph).steps for p in k.nests for e in walk(p.roots()) if e.kind == "op"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: torch.addcmul(x, x, y),
        lambda x, y: x.sub(y, alpha=2),
        lambda x, y: torch.ops.aten.rsub.Tensor(x, y, alpha=3),
        lambda x, y: torch.lerp(x, y, 0.3),
    ],
)
def test_of_one_row(fn: Callable) -> None:
    assert "fma" not in names(fn, "cpu")
    assert "fma" in names(fn, "cuda")


def test_of_two_rows() -> None:
    assert sorted(names(lambda x, y: x * y + x, "cuda")) == ["add", "mul"]
