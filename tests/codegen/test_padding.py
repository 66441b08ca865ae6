"""Products with odd sides: equal to the plain ones; which sides get zeros. The GPU and its timing are pretended."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bytejit.codegen.aten.normalise import normalise
from bytejit.codegen.aten.rewrite import spec_or_none
from bytejit.codegen.libraries import padding
from bytejit.common.spec import Spec
from bytejit.fake.tensor import fake_like


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=numbers).to(torch.bfloat16)


numbers = torch.Generator().manual_seed(0)
# program, operands, zeros added: of each operand that gets some, the sides
CASES = {
    "words": (lambda x, w: F.linear(x, w), (half(2, 9, 16), half(33, 16)), [[0, 0, 0, 7]]),
    "with a bias": (lambda x, w, b: F.linear(x, w, b), (half(9, 16), half(33, 16), half(33)), [[0, 0, 0, 7]]),
    "gradient of what is read": (lambda x, y: x @ y, (half(9, 33), half(33, 16)), [[0, 7, 0, 0], [0, 0, 0, 7]]),
    "gradient of the words": (lambda g, x: g.t() @ x, (half(24, 33), half(24, 16)), [[0, 7, 0, 0]]),
    "both across": (lambda x, y: x.t() @ y.t(), (half(24, 33), half(41, 24)), [[0, 7, 0, 0], [0, 0, 0, 7]]),
    "even": (lambda x, w: F.linear(x, w), (half(9, 16), half(32, 16)), []),
    "rows only": (lambda x, w: F.linear(x, w), (half(9, 16), half(16, 16)), []),
    "floats": (lambda x, w: F.linear(x, w), (torch.randn(9, 16), torch.randn(33, 16)), []),
}


@pytest.mark.parametrize("name", CASES)
def test_zeros(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, args, ends = CASES[name]
    monkeypatch.setattr(padding, "LEAST_WORK", 1)
    monkeypatch.setattr(padding, "_pays", lambda a, b, tune: True)
    graph = normalise(torch.fx.symbolic_trace(fn), [fake_like(x) for x in args]).graph
    for node in graph.nodes:
        if (s := spec_or_none(node)) is not None:
            node.meta["spec"] = Spec(s.shape, s.stride, s.dtype, torch.device("cuda", 0))
    before = next(n for n in graph.nodes if n.op == "output").args[0][0].meta["spec"]
    padding.pad_products(graph, _Choices())
    (after,) = next(n for n in graph.nodes if n.op == "output").args[0]
    assert (after.meta["spec"].shape, after.meta["spec"].stride) == (before.shape, before.stride)
    assert [n.args[1] for n in graph.nodes if n.target is torch.ops.aten.constant_pad_nd.default] == ends
    got = torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(*args)[0]
    torch.testing.assert_close(got, fn(*args), rtol=2e-2, atol=2e-2)
    assert got.stride() == fn(*args).stride()


def test_what_several_products_read_is_padded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a language model's words is read by two products, as it lies and turned."""
    monkeypatch.setattr(padding, "LEAST_WORK", 1)
    monkeypatch.setattr(padding, "_pays", lambda a, b, tune: True)

    def fn(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> tuple:
        return g.t() @ x, g @ w, x @ w.t()

    args = half(24, 33), half(24, 16), half(33, 16)
    graph = normalise(torch.fx.symbolic_trace(fn), [fake_like(x) for x in args]).graph
    for node in graph.nodes:
        if (s := spec_or_none(node)) is not None:
            node.meta["spec"] = Spec(s.shape, s.stride, s.dtype, torch.device("cuda", 0))
    padding.pad_products(graph, _Choices())
    pads = [n for n in graph.nodes if n.target is torch.ops.aten.constant_pad_nd.default]
    assert [(n.args[0].name, n.args[1]) for n in pads] == [
        (pads[0].args[0].name, [0, 7, 0, 0]),
        (pads[1].args[0].name, [0, 0, 0, 7]),
    ]
    got = torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(*args)
    for a, b in zip(got, fn(*args), strict=True):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)


class _Choices:
    tune = None
