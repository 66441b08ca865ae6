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


PADDED = {"edge": 7, "wrap": ((1, 2), (0, 9)), "symmetric": (1, 6), "reflect": [[5, 0], [2, 2]], "constant": ((1,), (2,))}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("mode", PADDED)
def test_pads_are_in_the_graph(mode: str, dtype: torch.dtype) -> None:
    """numpy.pad, at changing sizes too"""

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.pad(x.numpy(), PADDED[mode], mode=mode))

    made = bytejit.compile(f, fullgraph=True, backend="eager")
    for shape in ((3, 4), (5, 4), (1, 2)):
        x = (torch.randn(shape) * 4).to(dtype)
        torch.testing.assert_close(made(x), f(x), rtol=0, atol=0)


@pytest.mark.parametrize("kwargs", [{"mode": "mean"}, {"constant_values": (1, 2)}, {"mode": "reflect", "reflect_type": "odd"}])
def test_other_pads_break_the_graph(kwargs: dict) -> None:
    x = torch.randn(3, 4)
    got = bytejit.compile(lambda x: np.pad(x.numpy(), 1, **kwargs), backend="eager")(x)
    np.testing.assert_array_equal(got, np.pad(x.numpy(), 1, **kwargs))
    assert any(reason.startswith("a call of numpy.pad") for reason in bytejit.counters["breaks"])
