"""`torch.autograd.graph.disable_saved_tensors_hooks` in a compiled function."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch.autograd.graph import disable_saved_tensors_hooks, save_on_cpu
from torch.utils.checkpoint import checkpoint

import bytejit

said = torch._C._autograd._saved_tensors_hooks_get_disabled_error_message


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    yield
    torch._C._autograd._saved_tensors_hooks_enable()


def refusing(x: torch.Tensor, then: str = "") -> tuple:
    y = (x * 2).sin()
    try:
        with disable_saved_tensors_hooks("inner"):
            y, inside = y * y, said()
            if then == "raise":
                raise KeyError(then)
            if then == "push":
                with save_on_cpu():
                    y = y * 2
            if then == "checkpoint":
                y = checkpoint(torch.sin, y, use_reentrant=False)
    except KeyError:
        y = y + 3
    return y.sum(), inside, said()


def outcome(f: Callable, then: str) -> tuple:
    x = torch.arange(3.0).requires_grad_()
    try:
        y, *rest = f(x, then)
        y.backward()
        return y.detach(), x.grad, rest, said()
    except RuntimeError as e:
        return str(e), said()


def agree(found: tuple, wanted: tuple) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        torch.testing.assert_close(a, b) if isinstance(a, torch.Tensor) else None
        assert isinstance(a, torch.Tensor) or a == b


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_refused_around_a_part(backend):
    """One graph; what was refused before is guarded and comes back, also where the part raises, or puts on hooks"""
    made = bytejit.compile(refusing, backend=backend)
    for then in ("", "raise", "", "raise"):
        agree(outcome(made, then), outcome(refusing, then))
    assert sum(bytejit.counters["graphs"].values()) == 2 and not bytejit.counters["breaks"]
    with disable_saved_tensors_hooks("outer"):
        for then in ("", "raise"):
            found = outcome(made, then)
            agree(found, outcome(refusing, then))
            assert found[-1] == "outer"
    for then in ("push", "checkpoint", ""):
        agree(outcome(made, then), outcome(refusing, then))
    with save_on_cpu():
        with pytest.raises(RuntimeError, match="inner"):
            made(torch.ones(3, requires_grad=True))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_checkpoint_where_hooks_are_refused(backend):
    """Compiled before that"""
    f = lambda x: checkpoint(torch.sin, x, use_reentrant=False)  # noqa: E731
    made, x = bytejit.compile(f, backend=backend), torch.ones(3, requires_grad=True)
    torch.testing.assert_close(made(x), f(x))
    with disable_saved_tensors_hooks("outer"):
        for g in (f, made):
            with pytest.raises(RuntimeError, match="outer"):
                g(x)
    torch.testing.assert_close(made(x), f(x))
