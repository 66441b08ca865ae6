"""Tensor subclasses whose own properties and methods say what a tensor looks like: compiled code asks torch, not them"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import bytejit
from bytejit.common.overriding import ASKED, answers_as_torch

ran: list[str] = []


def class_with(name: str) -> type:
    """A subclass that answers to one name itself."""

    def answer(self: Any, *args: Any) -> str:
        ran.append(name)
        return "own"

    is_method = callable(getattr(torch.Tensor, name))
    return type("Own", (torch.Tensor,), {name: answer if is_method else property(answer)})


@pytest.mark.parametrize("name", sorted(ASKED))
def test_no_answer_of_the_program_is_asked_for(name: str) -> None:
    cls = class_with(name)
    assert not answers_as_torch(cls)
    for dynamic in (None, True):
        compiled = bytejit.compile(lambda x: (x * 2).relu(), backend="eager", dynamic=dynamic)
        ran.clear()
        for n in (2, 3, 3):
            x = torch.randn(n, 5)
            made = torch.Tensor.as_subclass(x, cls)
            assert torch.equal(torch.Tensor.as_subclass(compiled(x), torch.Tensor), (x * 2).relu())
            out = compiled(made)
            assert type(out) is cls and torch.equal(torch.Tensor.as_subclass(out, torch.Tensor), (x * 2).relu())
        assert not ran


def test_a_memory_address_of_its_own_reaches_no_kernel() -> None:
    x = torch.Tensor.as_subclass(torch.ones(3), class_with("data_ptr"))
    assert torch.Tensor.tolist(bytejit.compile(lambda x: x * 2 + 1)(x)) == [3.0] * 3


@pytest.mark.parametrize("dynamic", [None, True])
def test_symbols_are_read_without_telling_an_override(dynamic: bool | None) -> None:
    told = []

    class Told(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            told.append(func.__name__)
            return super().__torch_function__(func, types, args, kwargs or {})

    compiled = bytejit.compile(lambda x: x[1:] * 2, backend="eager", dynamic=dynamic)
    for n in (3, 4, 5, 6):
        compiled(torch.randn(n, 2).as_subclass(Told))
        assert told == ["__getitem__", "mul"]
        told.clear()
