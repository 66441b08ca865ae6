"""Tensors of the CPU and of a GPU in one function, and what goes from one to the other, against eager. Skipped without a GPU."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch

import bytejit
from tests.cuda.test_gpu import near, rand

pytestmark = pytest.mark.gpu


def host(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def there_and_back(x: torch.Tensor) -> torch.Tensor:
    return ((x.cuda() * 2).cpu() + 1).exp() * 3


def both(x: torch.Tensor) -> tuple:
    there = torch.cos(x).cuda() * 2
    back = (there.sum(0).cpu() + x[0]) * 2
    return there, back, back.cuda() + there


def in_place(x: torch.Tensor, y: torch.Tensor) -> tuple:
    x.copy_(y.cuda() if x.is_cuda else y.cpu())
    y.add_(1)
    return x * 2, y


def by_arguments(x: torch.Tensor, like: torch.Tensor) -> tuple:
    return x.to(like) + 1, x.to(like.device, torch.float64), x.to("cuda:0") * 2, x.type_as(like) - 1, x.to(device="cuda") / 2


def made_inside(x: torch.Tensor) -> tuple:
    small = torch.tensor([1.0, 2.0, 3.0]).cuda()
    return x[:3] + small, torch.arange(4).to(x.device) * x[:4], torch.zeros(2, device=x.device) + 1, torch.ones(3) * 2


def pinned(x: torch.Tensor) -> torch.Tensor:
    return (x * 2 + 1).pin_memory().cuda(non_blocking=True).sin() + x.pin_memory().to("cuda", non_blocking=True)


def back_without_waiting(x: torch.Tensor) -> torch.Tensor:
    y = (x * 2).sin().to("cpu", non_blocking=True)
    torch.cuda.synchronize()
    return y + 1


def read_as_number(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x * s.item() + float(x.sum().cpu() > 0) + x.cpu().numpy().shape[0]


CASES: dict[str, tuple[Callable, Callable[[], tuple]]] = {
    "a number of f64": (lambda x, s: x * s + 1, lambda: (rand(100), torch.tensor(2.5, dtype=torch.float64))),
    "a number of i64": (lambda x, s: x * s - s, lambda: (rand(100), torch.tensor(3))),
    "numbers alone first": (lambda x, s: x * (s * 2 + 1).exp(), lambda: (rand(100), torch.tensor(0.5))),
    "a number chooses": (lambda x, s: torch.where(x > 0, x, s), lambda: (rand(100), torch.tensor(0.5))),
    "a number fills": (lambda x, s: x.masked_fill(x > 0, s) + torch.maximum(x, s), lambda: (rand(100), torch.tensor(0.5))),
    "a number is added in place": (lambda x, s: x.clone().add_(s).mul_(s), lambda: (rand(100), torch.tensor(0.5))),
    "a number of the gpu": (lambda x, s: x * 2 + s.cpu(), lambda: (host(100), rand(()))),
    "both kinds of numbers": (lambda s, t: (s + t) * 2, lambda: (rand(()), torch.tensor(0.5))),
    "an index": (lambda x, i: x[i] * 2, lambda: (rand(50, 8), torch.arange(0, 50, 3))),
    "a written index": (
        lambda x, i: x.clone().index_put_((i,), torch.tensor(5.0, device="cuda")),
        lambda: (rand(50), torch.arange(0, 50, 3)),
    ),
    "there and back": (there_and_back, lambda: (host(100, 100),)),
    "there and back, small": (there_and_back, lambda: (host(7),)),
    "both ways": (both, lambda: (host(100, 100),)),
    "into a tensor of the gpu": (in_place, lambda: (rand(40), host(40))),
    "into a tensor of the cpu": (in_place, lambda: (host(40), rand(40))),
    "where another one is": (by_arguments, lambda: (host(30), rand(5))),
    "made inside": (made_inside, lambda: (rand(10),)),
    "pinned": (pinned, lambda: (host(100, 90),)),
    "back without waiting": (back_without_waiting, lambda: (rand(100, 90),)),
    "read as a number": (read_as_number, lambda: (rand(10), torch.tensor(2.0))),
    "already there": (lambda x: x.cuda() * 2 + x.to("cuda").to(x.device), lambda: (rand(10),)),
}


def copies(args: tuple) -> tuple:
    return tuple(a.clone() if isinstance(a, torch.Tensor) else a for a in args)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name: str, mode: str) -> None:
    fn, make = CASES[name]
    compiled = bytejit.compile(fn, mode=mode)
    with torch.no_grad():
        for _ in range(5):
            args = make()
            mine, eagers = copies(args), copies(args)
            got, want = compiled(*mine), fn(*eagers)
            near(got, want)
            near(mine, eagers)
    assert not bytejit.counters["fallbacks"], bytejit.counters["fallbacks"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, y: x + y,
        lambda x, y: torch.cat([x, y]),
        lambda x, y: torch.where(x > 0, x, y),
        lambda x, y: x @ y[:, None],
        lambda x, y: torch.clamp(x, max=y[0]),
    ],
)
def test_tensors_of_both_in_one_operation_raise_as_in_eager(fn: Callable) -> None:
    x, y = rand(4), host(4)
    with pytest.raises(RuntimeError) as want:
        fn(x, y)
    with pytest.raises(RuntimeError) as got:
        bytejit.compile(fn)(x, y)
    assert str(got.value).split("\n")[0] == str(want.value).split("\n")[0]


INDEXED = {
    "read": lambda x, i: x[i] * 2,
    "a dimension further on": lambda x, i: x[:, i % 8] * 2,
    "beside one on the GPU": lambda x, i: x[i, (i % 8).cuda()],
    "behind a new dimension": lambda x, i: x[None, i] + 1,
    "written": lambda x, i: operator.setitem(y := x * 1, i, x[i] * 3) or y * 2,
    "written by a method": lambda x, i: (y := x * 1).__setitem__(i, 1.0) or y * 2,
    "put": lambda x, i: x.clone().index_put_((i,), x.new_ones(())) * 2,
    "of no dimension": lambda x, i: x[i[3]] + 1,
}


@pytest.mark.parametrize("name", INDEXED)
def test_an_index_on_the_cpu_is_in_the_graph(name: str) -> None:
    fn, i = INDEXED[name], torch.arange(0, 50, 5)
    compiled = bytejit.compile(fn, fullgraph=True)
    x = rand(50, 8).requires_grad_()
    y = x.detach().clone().requires_grad_()
    for n in (i, i[:4], i[:6]):
        want, got = fn(x, n), compiled(y, n)
        near(got, want)
        near(torch.autograd.grad(got.square().sum(), y), torch.autograd.grad(want.square().sum(), x))


def test_the_same_function_here_and_there() -> None:
    compiled = bytejit.compile(lambda x, s: torch.softmax(x * s, -1) + 1)
    for turn in range(6):
        device = "cuda" if turn % 2 else "cpu"
        x, s = torch.randn(8, 9, device=device), torch.tensor(2.0, device="cpu" if turn < 3 else device)
        near(compiled(x, s), torch.softmax(x * s, -1) + 1)
    assert not bytejit.counters["fallbacks"]


def test_a_batch_from_pinned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).cuda().eval()
    compiled = bytejit.compile(model, mode="reduce-overhead")
    data = torch.utils.data.TensorDataset(torch.randn(90, 16), torch.arange(90))
    seen = 0
    with torch.no_grad():
        for x, at in torch.utils.data.DataLoader(data, batch_size=10, pin_memory=True):
            assert x.is_pinned()
            got = compiled(x.cuda(non_blocking=True))
            near(got, model(x.cuda()))
            seen += len(at)
    assert seen == 90 and not bytejit.counters["fallbacks"]
