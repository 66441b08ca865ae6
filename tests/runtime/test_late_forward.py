"""A compiled module stands for the module that was given: what its class gets later is what the next call runs"""

from collections.abc import Callable

import pytest
import torch
from torch import nn

import bytejit


def classes() -> tuple[type, type]:
    """A class of modules and a subclass of it, of their own for each test."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor, by: int = 2, *, plus: int = 1) -> torch.Tensor:
            return self.linear(x) * by + plus

    class Inherits(Scaled):
        pass

    return Scaled, Inherits


def other(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x + 3


def with_defaults(self: nn.Module, x: torch.Tensor, by: int = 2, *, plus: int = 1) -> torch.Tensor:
    return x * by - plus


def set_defaults(base: type, cls: type) -> None:
    base.forward.__defaults__ = (5,)


def set_keyword_defaults(base: type, cls: type) -> None:
    base.forward.__kwdefaults__ = {"plus": 7}


def set_code(base: type, cls: type) -> None:
    base.forward.__code__ = with_defaults.__code__


def set_forward(base: type, cls: type) -> None:
    base.forward = other


def set_forward_below(base: type, cls: type) -> None:
    cls.forward = other


def set_builtin(base: type, cls: type) -> None:
    cls.forward = staticmethod(torch.neg)


def set_bases(base: type, cls: type) -> None:
    cls.__bases__ = (type("Between", (base,), {"forward": other}),)


CHANGES = (set_defaults, set_keyword_defaults, set_code, set_forward, set_forward_below, set_builtin, set_bases)
COMPILED = {
    "compiled": lambda m: bytejit.compile(m, backend="eager"),
    "disabled": bytejit.disable,
    "copied": lambda m: bytejit.compile(m, backend="eager").__copy__(),
}


@pytest.mark.parametrize("called", [0, 2], ids=["uncalled", "called"])
@pytest.mark.parametrize("make", COMPILED.values(), ids=COMPILED)
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_the_class_has_now(change: Callable, make: Callable, called: int) -> None:
    base, cls = classes()
    m, x = cls(), torch.randn(3, 2)
    c = make(m)
    for _ in range(called):
        torch.testing.assert_close(c(x), m(x))
        torch.testing.assert_close(c.forward(x), m.forward(x))
    change(base, cls)
    for _ in range(2):
        torch.testing.assert_close(c(x), m(x), rtol=0, atol=0)
        torch.testing.assert_close(c.forward(x), m.forward(x), rtol=0, atol=0)


def test_set_through_the_compiled_module() -> None:
    _, cls = classes()
    m, x = cls(), torch.randn(3, 2)
    c = bytejit.compile(m, backend="eager")
    c(x)
    type(c).forward = other
    assert c(x).equal(x + 3) and m(x).equal(x + 3)


def test_a_method_is_compiled_once() -> None:
    _, cls = classes()
    c = bytejit.compile(cls(), backend="eager")
    assert c.forward.__func__ is c.forward.__func__
    bytejit.counters.clear()
    for _ in range(3):
        c.forward(torch.ones(1, 2))
    assert sum(bytejit.counters["graphs"].values()) == 1


def test_a_subclass_of_a_compiled_module_s_class() -> None:
    """As deepcopy and frameworks make them: `super().forward` is the compiled one."""
    _, cls = classes()
    m, x = cls(), torch.randn(3, 2)
    c = bytejit.compile(m, backend="eager")
    below = type("Below", (type(c),), {})
    view = object.__new__(below)
    object.__setattr__(view, "__dict__", m.__dict__)
    assert view.forward(x).equal(m(x))
    cls.forward = staticmethod(torch.neg)
    assert view.forward(x).equal(-x)
