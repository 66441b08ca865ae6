"""torch's tensor versions of NumPy's functions do not read their own signatures in each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest
import torch

import bytejit
from bytejit.common.numpy_calls import tensor_version, versions


def function(x: torch.Tensor) -> np.ndarray:
    return np.cumsum(x.numpy(), axis=1)


def method(x: torch.Tensor) -> np.ndarray:
    return x.numpy().cumsum(axis=1)


@pytest.mark.parametrize("f", [function, method])
def test_signatures_are_read_once(f: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    own = versions().cumsum.__wrapped__
    vars(own).pop("__signature__", None)
    right, made = inspect.signature(own), bytejit.compile(f, fullgraph=True, backend="eager")
    made(torch.randn(3, 4))
    assert inspect.signature(own) == right
    monkeypatch.setattr(own, "__signature__", None)  # as if there were none
    assert inspect.signature(own) == right
    monkeypatch.undo()
    assert own.__signature__ == right  # what a call reads
    np.testing.assert_allclose(made(x := torch.randn(3, 4)), f(x))


def test_names_without_a_version() -> None:
    assert tensor_version(versions(), "no_such_function") is None
    assert tensor_version(versions(), "float32") is versions().float32
