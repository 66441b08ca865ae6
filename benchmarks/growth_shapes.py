"""Programs of any size, for `bench_growth.py`: each makes (function, arguments) of about n operations of 64 elements."""

from __future__ import annotations

from collections.abc import Callable

import torch

Program = tuple[Callable, tuple]
SMALL = 16


def chain(n: int) -> Program:
    """Pointwise operations one after another, in a loop."""
    steps: list[Callable] = [torch.sin, lambda y: y * 1.01, torch.tanh, lambda y: y + 0.5, torch.relu]

    def f(x):
        for i in range(n):
            x = steps[i % 5](x)
        return x

    return f, (torch.randn(64),)


def lines(n: int) -> Program:
    """The same as n lines of code."""
    steps = ["torch.sin(x)", "x * 1.01", "torch.tanh(x)", "x + 0.5", "torch.relu(x)"]
    names: dict = {"torch": torch}
    body = "".join(f"    x = {steps[i % 5]}\n" for i in range(n))
    exec(f"def f(x):\n{body}    return x\n", names)
    return names["f"], (torch.randn(64),)


def linears(n: int) -> Program:
    """Small linear layers, each with an addition."""
    layers = [torch.nn.Linear(SMALL, SMALL) for _ in range(n // 2)]

    def f(x):
        for layer in layers:
            x = layer(x) + x
        return x

    return f, (torch.randn(4, SMALL),)


def wide(n: int) -> Program:
    """A sum of terms, each of an input of its own."""

    def f(xs):
        total = torch.zeros(64)
        for x in xs:
            total = total + torch.sin(x)
        return total

    return f, ([torch.randn(64) for _ in range(n // 2)],)


def outputs(n: int) -> Program:
    """Many outputs of one input."""

    def f(x):
        return [torch.sin(x) + float(i) for i in range(n // 2)]

    return f, (torch.randn(64),)


def appends(n: int) -> Program:
    """A list that a loop fills."""

    def f(x):
        out = []
        for _ in range(n):
            x = torch.sin(x)
            out.append(x)
        return torch.stack(out)

    return f, (torch.randn(64),)


def training(n: int) -> Program:
    """Layers, forward and backward."""
    model = torch.nn.Sequential(*(m for _ in range(n // 2) for m in (torch.nn.Linear(SMALL, SMALL), torch.nn.Tanh())))

    def f(x):
        model(x).sum().backward()

    return f, (torch.randn(4, SMALL),)


def writes(n: int) -> Program:
    """Steps of a recurrence, each writing a slice of the result, forward and backward."""
    steps = n // 5
    decay = torch.nn.Parameter(torch.rand(SMALL))

    def f(x):
        out, state = torch.zeros(4, steps, SMALL), torch.zeros(4, SMALL)
        for i in range(steps):
            state = torch.tanh(state * decay + x[:, i])
            out[:, i] = state * torch.exp(-state)
        out.sum().backward()

    return f, (torch.randn(4, steps, SMALL),)


def recurrence(n: int) -> Program:
    """An LSTM cell in a loop whose states are stacked, forward and backward, a step for ten operations."""
    steps, cell = n // 10, torch.nn.LSTMCell(SMALL, SMALL)

    def f(x):
        h = c = torch.zeros(4, SMALL)
        out = []
        for i in range(steps):
            h, c = cell(x[i], (h, c))
            out.append(h)
        torch.stack(out).sum().backward()

    return f, (torch.randn(steps, 4, SMALL),)


def model(n: int) -> Program:
    """Layers whose outputs need gradients: a joint graph in two parts."""
    layers = torch.nn.Sequential(*(m for _ in range(n // 2) for m in (torch.nn.Linear(SMALL, SMALL), torch.nn.Tanh())))
    return lambda x: layers(x), (torch.randn(4, SMALL),)


def step(n: int) -> Program:
    """Layers, forward, backward and AdamW: a whole step, when the optimizer has its state."""
    model = torch.nn.Sequential(*(m for _ in range(n // 2) for m in (torch.nn.Linear(SMALL, SMALL), torch.nn.Tanh())))
    optimizer = torch.optim.AdamW(model.parameters())

    def f(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    x = torch.randn(4, SMALL)
    with torch.enable_grad():
        f(x)
    return f, (x,)


def foreach(n: int) -> Program:
    """Two operations on lists of parameters."""
    params, grads = ([torch.randn(SMALL, 4) for _ in range(n // 2)] for _ in range(2))

    def f(params, grads):
        torch._foreach_mul_(params, 0.9)
        torch._foreach_add_(params, grads, alpha=-0.1)

    return f, (params, grads)


SHAPES = {
    f.__name__: f for f in (chain, lines, linears, wide, outputs, appends, training, writes, recurrence, model, step, foreach)
}
