"""A backward pass frees what the forward pass saved as soon as nothing reads it any more, as eager does node by node."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator

import pytest
import torch

import bytejit

from ..codegen.marks import interpreted

alive: list[int] = []  # how many of the saved values were there when the backward pass came to the first layer
saved: list[weakref.ref] = []


@pytest.fixture(scope="module", autouse=True)
def ops() -> Iterator[None]:
    with torch.library._scoped_library("given_up", "DEF") as library:
        library.define("first_layer(Tensor x) -> Tensor")
        library.define("reached(Tensor x) -> Tensor")
        for name, made in (("first_layer", torch.clone), ("reached", reached)):
            library.impl(name, made, "CPU")
            torch.library.register_fake(f"given_up::{name}", torch.empty_like, lib=library)
        torch.library.register_autograd("given_up::first_layer", lambda ctx, grad: torch.ops.given_up.reached(grad), lib=library)
        yield


def reached(x: torch.Tensor) -> torch.Tensor:
    alive.append(sum(r() is not None for r in saved))
    return x.clone()


def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x = torch.ops.given_up.first_layer(x @ w)
    for _ in range(4):
        x = (x @ w).sin()
    return x.sum()


def watched(loss: torch.Tensor) -> int:
    """Notes the memory of what a region has saved; returns how many values these are."""
    alive.clear()
    saved[:] = [weakref.ref(s.data.untyped_storage()) for s in loss.grad_fn._raw_saved_tensors]
    return len(saved)


def run(f: Callable, shape: tuple[int, int] = (16, 32)) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    w = (torch.randn(32, 32) / 8).requires_grad_()
    return f(torch.randn(shape), w), w


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("interpret", [False, pytest.param(True, marks=interpreted)])
def test_freed_while_the_pass_runs(dynamic: bool, interpret: bool) -> None:
    compiled = bytejit.compile(layers, dynamic=dynamic, options={"interpret": interpret})
    for rows in (16, 24, 24):
        loss, w = run(compiled, (rows, 32))
        assert watched(loss) > 4
        loss.backward()
        assert alive == [2]  # x and w, which the caller holds
        want, plain = run(layers, (rows, 32))
        want.backward()
        torch.testing.assert_close(w.grad, plain.grad)


def test_kept_for_a_second_pass() -> None:
    loss, w = run(bytejit.compile(layers))
    count = watched(loss)
    loss.backward(retain_graph=True)
    loss.backward()
    assert alive == [count, 2]
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_what_the_program_holds_stays() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.ops.given_up.first_layer(x @ w)
        y = (y @ w).exp()
        return (y @ w).sum(), y

    (loss, y), _ = run(bytejit.compile(f))
    (want, plain), _ = run(f)
    loss.backward()
    torch.testing.assert_close(y, plain)


@pytest.mark.parametrize("compiler", [bytejit.compile, lambda f: f], ids=["compiled", "eager"])
def test_behind_an_error_of_the_pass(compiler: Callable) -> None:
    """What the pass came to is freed."""

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.ops.given_up.first_layer(x @ w).sin().sum()

    loss, w = run(compiler(f))
    saved[:] = [unhappy]
    with pytest.raises(ZeroDivisionError):
        loss.backward()
    saved.clear()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    assert w.grad is None


def unhappy() -> object:
    raise ZeroDivisionError


def test_parts_of_a_graph_one_after_the_other() -> None:
    """Passes from results that share no node each free their own part."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x.sin() * w[:16]).exp().sum(), (x.cos() * w[16:]).exp().sum()

    (a, b), w = run(bytejit.compile(f))
    (c, d), v = run(f)
    for first, second in ((a, b), (c, d)):
        first.backward()
        second.backward()
    torch.testing.assert_close(w.grad, v.grad)


def test_with_hooks_on_what_is_saved() -> None:
    with torch.autograd.graph.save_on_cpu():
        loss, w = run(bytejit.compile(layers))
    loss.backward()
    want, v = run(layers)
    want.backward()
    torch.testing.assert_close(w.grad, v.grad)
