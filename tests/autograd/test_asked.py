"""Backward passes for some tensors of a program in several regions: what they return, and what they leave for later ones."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest
import torch

import bytejit

BACKENDS = ["aot_eager", "inductor"]
ONE = ("{}.sin()", "{} * 2", "{}.exp()", "{}.view(4, 2).t().reshape(8)", "{}.detach() * 1.5", "{} + 1", "{}[:]", "{}.clone()")
TWO = ("{} * {}", "{} + {}", "{}.where({} > 0, {}.cos())")
BREAK = "print(end='')"
Results = list[object]


def program(seed: int) -> str:
    """A function of three tensors in several regions: passes for some of its tensors, twice, and all that it computed."""
    r = random.Random(seed)
    lines: list[str] = []
    names = ["x", "w", "u"]
    for _ in range(r.randint(2, 4)):
        for _ in range(r.randint(1, 3)):
            form = r.choice(ONE if r.random() < 0.55 else TWO)
            lines.append(f"v{len(names)} = " + form.format(*[r.choice(names) for _ in range(form.count("{}"))]))
            names.append(f"v{len(names)}")
        lines += [BREAK] * (r.random() < 0.8)
    roots = r.sample(names[3:], min(len(names) - 3, r.randint(1, 3)))
    lines.append("loss = " + " + ".join(f"({v} * {v}).sum()" for v in roots))
    for i in range(2):
        ends, retain = ", ".join(r.sample(names, r.randint(1, 3))), r.random() < 0.5
        lines += [BREAK] * (r.random() < 0.5)
        if r.random() < 0.7:
            unused = r.random() < 0.7
            call = f"g{i} = torch.autograd.grad(loss, [{ends}], retain_graph={retain}, allow_unused={unused})"
        else:
            call = f"loss.backward(inputs=[{ends}], retain_graph={retain}); g{i} = [t.grad for t in [{ends}]]"
        lines += [f"try: {call}", f"except RuntimeError as e: g{i} = str(e)"]
    lines.append(f"return g0, g1, {', '.join(names)}")
    return "def f(x, w, u):\n" + "\n".join("    " + line for line in lines)


def flat(found: object) -> Results:
    if isinstance(found, (tuple, list)):
        return [x for f in found for x in flat(f)]
    return [found.requires_grad, found.detach().clone()] if isinstance(found, torch.Tensor) else [found]


def equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("seed, backend", [*((n, "aot_eager") for n in range(20)), *((n, "inductor") for n in range(20, 26))])
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_random_programs(seed: int, backend: str) -> None:
    space: dict = {"torch": torch}
    exec(compile(program(seed), f"<program {seed}>", "exec"), space)
    compiled = bytejit.compile(space["f"], backend=backend)
    for k in range(2):
        found = []
        for f in (space["f"], compiled):
            torch.manual_seed(k)
            found.append(flat(f(*(torch.randn(8, requires_grad=not (k and i == 1)) for i in range(3)))))
        assert len(found[0]) == len(found[1])
        wrong = [(a, b) for a, b in zip(*found) if not equal(a, b)]
        assert not wrong, (program(seed), wrong)


def beside(x: torch.Tensor, w: torch.Tensor) -> tuple:
    """Results of one region, each of which leads to another input"""
    h, y = w * 2, x.exp()
    print(end="")
    return (h * 3).sum() + (y * y).sum(), x, w, h, y


def chained(x: torch.Tensor, w: torch.Tensor) -> tuple:
    """Another region is between, which is for nothing in some passes"""
    v, h = x.exp(), w + 1
    print(end="")
    a = h * v.detach()
    print(end="")
    return (a * a).sum() + (h * h).sum(), x, w, v, a


def both_ways(x: torch.Tensor, w: torch.Tensor) -> tuple:
    """A result leads to all inputs, another to some"""
    v = w + x
    print(end="")
    a, b = x + 1, v.where(w > 0, x.cos())
    print(end="")
    return (b * b).sum() + (a * a).sum(), x, w, v, a


def viewed(x: torch.Tensor, w: torch.Tensor) -> tuple:
    h, y = (w * 2)[:2], x.exp()
    print(end="")
    return (h * 3).sum() + (y * y).sum(), x, w, h, y


def asked(how: str, loss: torch.Tensor, ends: list[torch.Tensor], retain: bool) -> Results:
    """The gradients that a pass makes, or its error."""
    try:
        if how == "backward":
            loss.backward(inputs=ends, retain_graph=retain)
            return [t.grad for t in ends]
        of = ends if how == "grad" else [torch.autograd.graph.get_gradient_edge(t) for t in ends]
        return list(torch.autograd.grad(loss, of, retain_graph=retain, allow_unused=True))
    except RuntimeError as e:
        return [str(e)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("f", [beside, chained, both_ways, viewed])
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_two_passes(f: Callable, backend: str) -> None:
    """A pass for some tensors, those beside the way included, then another one: results and errors are eager's"""
    compiled = bytejit.compile(f, backend=backend)
    some = [c for n in (1, 2) for c in itertools.combinations(range(4), n)]
    for i, (first, second) in enumerate(itertools.product(some, some)):
        how = ("grad", "edges", "backward")[i % 3]
        found = []
        for g in (f, compiled):
            x, w = torch.linspace(-1, 1, 3).requires_grad_(), torch.full((3,), 2.0, requires_grad=True)
            loss, *ends = g(x, w)
            made = asked(how, loss, [ends[k] for k in first], False)
            found.append(made + asked("grad", loss, [ends[k] for k in second], False))
        assert len(found[0]) == len(found[1]) and all(map(equal, *found)), (first, second, how, found)


def said(f: Callable[[], object]) -> object:
    try:
        return f()
    except RuntimeError as e:
        return str(e)


def one(w: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    loss = (w * x).exp().sum()
    loss.backward()
    return [loss]


def several(w: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    h = w * x
    loss = h.exp().square().sum()
    loss.backward()
    return [loss, h]


def made_leaf(w: torch.Tensor, x: torch.Tensor) -> list[torch.Tensor]:
    a = x.clone().requires_grad_()
    loss = (a * w).exp().sum()
    loss.backward()
    return [loss, a]


@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
@pytest.mark.parametrize("f", [one, several, made_leaf])
def test_a_second_pass_for_some_tensors(f: Callable, backend: str) -> None:
    """The history that a pass in the graph has used up still leads to what it led to, and to nothing else"""
    found = []
    for g in (f, bytejit.compile(f, backend=backend)):
        w, other = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
        loss, *made = g(w, torch.arange(3.0))
        ends = [w, other, *made]
        found.append([said(lambda t=t: torch.autograd.grad(loss, t, allow_unused=True)[0]) for t in ends] + [said(loss.backward)])
    assert found[1] == found[0] and "second time" in found[0][0] and found[0][1] is None
