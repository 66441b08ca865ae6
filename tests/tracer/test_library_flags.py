"""Which of torch's settings a graph is guarded by. The GPU is pretended."""

from __future__ import annotations

import pytest
import torch

import bytejit
from bytejit.common.graph_calls import GraphCall
from bytejit.guards import library_flags
from bytejit.guards.library_flags import STATES, states_of

F = torch.nn.functional


class Elsewhere(torch.Tensor):
    """A tensor that says that it lies on a GPU."""

    device = torch.device("cuda", 0)


def nodes_of(fn) -> list[torch.fx.Node]:
    graph = torch.fx.symbolic_trace(fn).graph
    for n in graph.nodes:
        n.meta["val"] = (torch.ones(2).as_subclass(Elsewhere),)
    return list(graph.nodes)


@pytest.mark.parametrize(
    "fn, states",
    [
        (lambda x: x.sin() + 1, []),
        (lambda x: x @ x, ["gpu_products"]),
        (lambda x: F.linear(x, x), ["gpu_products"]),
        (lambda x: torch.baddbmm(x, x, x), ["gpu_products"]),
        (lambda x: F.conv2d(x, x), ["gpu_convolutions"]),
        (lambda x: F.scaled_dot_product_attention(x, x, x), ["gpu_products", "attention"]),
        (lambda x: x.matmul(F.conv1d(x, x)), ["gpu_products", "gpu_convolutions"]),
    ],
)
def test_what_decides_how_operations_compute(fn, states: list[str]) -> None:
    nodes = nodes_of(fn)
    assert states_of(nodes) == states
    for n in nodes:
        n.meta["val"] = torch.ones(2)
    assert states_of(nodes) == [s for s in states if s == "attention"]


def test_a_part_of_the_programs_own_may_do_anything() -> None:
    nodes = nodes_of(lambda x: x.sin())
    nodes[1].target = GraphCall(lambda x: x, opaque="a checkpointed part")
    assert states_of(nodes) == list(STATES)


def test_a_setting_that_changes_is_another_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library_flags, "_on_gpu", lambda value: True)
    compiled, x = bytejit.compile(lambda x: x @ x + 1), torch.randn(4, 4)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        for setting, graphs in ((before, 1), (not before, 2), (before, 2), (not before, 2)):
            torch.backends.cuda.matmul.allow_tf32 = setting
            torch.testing.assert_close(compiled(x), x @ x + 1)
            assert bytejit.counters["graphs"]["inductor"] == graphs
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        compiled(x)
    assert bytejit.counters["graphs"]["inductor"] == 2


def test_whether_the_gpu_has_bfloat16_is_known_while_tracing() -> None:
    """torch.autocast asks it where it is entered."""

    def fn(x):
        with torch.autocast("cpu", torch.bfloat16, enabled=torch.cuda.is_bf16_supported(including_emulation=False)):
            return x @ x

    x = torch.randn(4, 4)
    torch.testing.assert_close(bytejit.compile(fn, fullgraph=True)(x), fn(x))
