"""What is told of a graph with gradients, and backends of a user's own."""

from __future__ import annotations

import torch

import bytejit
import bytejit.backends

from .beside import beside


def test_a_backend_gets_both_graphs():
    seen = []

    def compiler(kind):
        def compile(gm, examples):
            seen.append((kind, [str(n.target) for n in gm.graph.nodes if n.op == "call_function"], len(examples)))
            return gm.forward

        return compile

    backend = bytejit.backends.aot(forward=compiler("forward"), backward=compiler("backward"))
    beside(backend, lambda x, w: (x @ w).sin(), lambda: (torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)), back)
    assert [kind for kind, _, _ in seen] == ["forward", "backward"]
    assert seen[0][1] == ["aten.mm.default", "aten.sin.default"] and "aten.cos.default" in seen[1][1]


def back(f, *args):
    f(*args).sum().backward()


def test_explain_says_what_is_saved():
    w = torch.randn(4, 8, requires_grad=True)
    f = bytejit.compile(lambda x, w: ((x * w * 2 + 1).relu() * 3).square(), backend="aot_eager")
    found = bytejit.explain(f, torch.randn(4, 8, requires_grad=True), w)
    assert "Saved for the backward pass:" in str(found) and "0 values" in str(found) and "x relu" in str(found)
