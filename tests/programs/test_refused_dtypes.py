"""max_pool1d of each dtype: eager's result, or eager's error."""

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
