"""Dtypes and devices that torch refuses: eager's result, or eager's error and what was done before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import bytejit

CALLS: dict[str, Callable] = {
    "functional": lambda x: F.max_pool1d(x, 2),
    "module": lambda x: torch.nn.MaxPool1d(3, 2, 1)(x),
    "function": lambda x: torch.max_pool1d(x, 2),
    "operator": lambda x: torch.ops.aten.max_pool1d(x, [2]),
    "indices": lambda x: F.max_pool1d(x, 2, return_indices=True),
    "indices by place": lambda x: F.max_pool1d(x, 2, None, 0, 1, False, True),
    "two dimensions": lambda x: F.max_pool2d(x.unsqueeze(0), 2),
}
DTYPES = [torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool, torch.float16, torch.float32, torch.complex64]


def outcome(f: Callable, x: torch.Tensor) -> str:
    try:
        return repr(f(x))
    except (RuntimeError, NotImplementedError) as e:
        return repr(e)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("call", CALLS)
def test_each_dtype(call: str, dtype: torch.dtype) -> None:
    x = (torch.arange(32).reshape(1, 4, 8) % 11).to(dtype)
    assert outcome(bytejit.compile(CALLS[call]), x) == outcome(CALLS[call], x)


class Counted(torch.nn.Module):
    """Writes a buffer before the operation that torch refuses."""

    def __init__(self, call: Callable) -> None:
        super().__init__()
        self.call = call
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.call(x, torch.ones(3, 2, dtype=torch.double))


PRODUCTS: dict[str, Callable] = {
    "product": lambda x, w: x @ w.t(),
    "with a vector": lambda x, w: x @ w[0],
    "added": lambda x, w: torch.addmm(x[:, :1], x, w.t()),
    "linear": F.linear,
    "its result is unused": lambda x, w: (F.linear(x, w), x)[1],
    "convolution": lambda x, w: F.conv1d(x[None], w[None, :2]),
    "cell": lambda x, w: torch.gru_cell(x, x[:, :1], w, w[:, :1]),
    "lengths": lambda x, w: F.ctc_loss(torch.zeros(2, 1, 3), torch.tensor([[9]]), torch.tensor([2]), torch.tensor([5])),
    "bools": lambda x, w: (x > 0) @ (w.t() > 0),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("call", PRODUCTS)
def test_nothing_is_written_twice(call: str, backend: str) -> None:
    """A library call that torch refuses when it runs: what the program wrote before is written once"""
    module = Counted(PRODUCTS[call])
    compiled = bytejit.compile(module, backend=backend)
    for n in range(1, 4):
        with pytest.raises((RuntimeError, NotImplementedError)):
            compiled(torch.ones(2, 2))
        assert module.calls.item() == n


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_meta_tensors(backend: str) -> None:
    """Torch does not tell whether autocast is on for them"""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple:
        y = F.linear(x, w)
        return y, F.scaled_dot_product_attention(y, y, y), F.interpolate(y, scale_factor=2.0), F.avg_pool1d(y, y.shape[-1])

    given = torch.empty(1, 2, 3, device="meta"), torch.empty(4, 3, device="meta")
    for want, got in zip(f(*given), bytejit.compile(f, backend=backend, dynamic=True)(*given)):
        assert got.shape == want.shape and got.device == want.device and got.dtype == want.dtype
