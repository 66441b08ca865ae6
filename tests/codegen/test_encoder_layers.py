"""The fused calls of torch.nn's attention and encoder layers: one graph, in parts where there is no mask, equal eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit
from bytejit.codegen.aten.normalise import normalise
from bytejit.fake.tensor import fake_like

X = torch.randn(2, 10, 32)
LAID_OUT = {"rows": X, "transposed": torch.randn(2, 32, 10).transpose(1, 2), "one sequence": torch.randn(10, 32)}
PADDED = torch.arange(10) >= torch.tensor([[10], [7]])
WHOLE = {"_transformer_encoder_layer_fwd.default", "_native_multi_head_attention.default"}


def calls(module: torch.nn.Module, *args, **kwargs) -> set[str]:
    """What the normalised graph of a module calls; compiled, with no break, it is as eager, strides too."""
    names: set[str] = set()

    def keep(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable:
        names.update(
            n.target.__name__ for n in normalise(gm, [fake_like(x) for x in inputs]).graph.nodes if n.op == "call_function"
        )
        return gm

    with torch.no_grad():
        bytejit.compile(module, fullgraph=True, backend=keep)(*args, **kwargs)
        expected = module(*args, **kwargs)
        got = bytejit.compile(module, fullgraph=True)(*args, **kwargs)
    for a, b in zip(*((r if isinstance(r, tuple) else (r,)) for r in (expected, got)), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-5)
            assert a.stride() == b.stride()
    return names


@pytest.mark.pairs
@pytest.mark.cxx
@pytest.mark.parametrize("layout", LAID_OUT)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_encoder_layer(layout: str, activation: str, norm_first: bool, masked: bool) -> None:
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, norm_first=norm_first, activation=activation, batch_first=True).eval()
    x = LAID_OUT[layout]
    given = {"src_key_padding_mask": PADDED if x.dim() == 3 else PADDED[1]} if masked else {}
    names = calls(layer, x, **given)
    assert bool(WHOLE & names) == (masked and x.dim() == 3)


@pytest.mark.cxx
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_attention_layer(weights: bool, average: bool) -> None:
    layer = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    other = torch.randn(2, 7, 32)
    assert bool(WHOLE & calls(layer, X, X, X, need_weights=weights, average_attn_weights=average)) == weights
    calls(layer, X, other, other, need_weights=weights, average_attn_weights=average)


@pytest.mark.cxx
def test_learns() -> None:
    """With gradients torch takes the parts itself."""
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    expected = torch.autograd.grad(layer(X).square().sum(), layer.linear1.weight)[0]
    got = torch.autograd.grad(bytejit.compile(layer, fullgraph=True)(X).square().sum(), layer.linear1.weight)[0]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
