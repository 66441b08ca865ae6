"""Random programs on lists from outside whose lengths differ from call to call: results, errors and the lists afterwards."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

import bytejit

STEPS = (
    "a.append(x + {i})",
    "a.append(a[{i}])",
    "b.append(a[{i}] * 2)",
    "b.append({i})",
    "a.extend([x, x * 2])",
    "x = a[{i}] + x",
    "x = x + a[{i}] if b else x - 1",
    "out.append(a[{i}])",
    "out.append(b[{i}])",
    "out.append(a[{i}] is a[{j}])",
    "out.append(len(b) + {i})",
    "out.append(a.pop())",
    "out.append(a.pop({i}))",
    "a[{i}] = a[{j}]",
    "b[{i}] = {j}",
    "del a[{i}]",
    "a.insert({i}, x)",
    "out += a[{i}:]",
    "out += a[-2:]",
    "a.reverse()",
    "for y in a: x = x + y",
    "b.clear()",
    "b = a",
    "a += [x]",
    "out.append({i} in b)",
    "kept[0] = a[{i}]",
    "held.last = a[{i}]",
    "x = x * held.last",
)


class Held:
    """An object with an attribute."""

    def __init__(self, last: torch.Tensor) -> None:
        self.last = last


def program(seed: int) -> tuple[str, Callable]:
    draw = random.Random(seed)
    steps = [draw.choice(STEPS).format(i=draw.choice((-3, -2, -1, -1, 0, 1)), j=draw.choice((-2, -1, 0))) for _ in range(6)]
    lines = "\n    ".join(["out = []", "x = x.sin()", *steps, "return x, out"])
    text = f"def f(a, b, x, kept, held):\n    {lines}\n"
    space: dict = {}
    exec(text, space)
    return text, space["f"]


def arguments(length: int, same: bool) -> tuple:
    """Lists of some length; same: whose tensors are one."""
    one = torch.arange(3.0)
    a = [one if same else one + k for k in range(length)]
    return a, list(range(length)), torch.ones(3), [one * 5], Held(one * 7)


def outcome(f: Callable, args: tuple) -> tuple:
    """What a call returns or raises, what the lists hold then, and which tensors are one."""
    try:
        result = f(*args)
    except (IndexError, TypeError, RuntimeError) as e:
        result = type(e).__name__, str(e)
    flat, stack = [], [result, args[0], args[1], args[3], args[4].last]
    while stack:
        part = stack.pop()
        if isinstance(part, (list, tuple)):
            flat.append(len(part))
            stack += part
        else:
            flat.append(part)
    first: dict = {}
    plain = [v.tolist() if isinstance(v, torch.Tensor) else v for v in flat]
    return plain, [first.setdefault(id(v), i) for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]


@pytest.mark.parametrize("seed", range(40))
def test_as_in_eager(seed):
    bytejit.reset()
    text, f = program(seed)
    compiled = bytejit.compile(f, backend="eager")
    for length, same in ((3, False), (4, False), (3, True), (5, False), (1, False), (0, False), (2, True), (6, False)):
        wanted, got = outcome(f, arguments(length, same)), outcome(compiled, arguments(length, same))
        assert str(got) == str(wanted), f"{text}\nlists of {length}"


class Decoder(torch.nn.Module):
    """Greedy words until the data say stop; what has been said is a local, an attribute, or an item of a dict."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.embed, self.cell, self.out = torch.nn.Embedding(50, 16), torch.nn.GRUCell(16, 16), torch.nn.Linear(16, 50)
        self.where, self.said, self.table = where, [], {}

    def forward(self, word: torch.Tensor, most: int) -> torch.Tensor:
        h, said = torch.zeros(len(word), 16), [word]
        if self.where == "attribute":
            self.said = said
        elif self.where == "dict":
            self.table["said"] = said
        for _ in range(most):
            so_far = self.said if self.where == "attribute" else self.table["said"] if self.where == "dict" else said
            h = self.cell(self.embed(so_far[-1]), h)
            so_far.append(self.out(h).argmax(-1))
            if bool((so_far[-1] == so_far[0]).all()):
                break
        return torch.stack(said, 1)


@pytest.mark.parametrize("where", ["local", "attribute", "dict"])
def test_a_list_that_grows_is_no_reason_to_compile_anew(where):
    bytejit.reset()
    torch.manual_seed(0)
    model = Decoder(where)
    compiled = bytejit.compile(model, backend="eager")
    word = torch.tensor([3, 4])
    with torch.no_grad():
        assert torch.equal(compiled(word, 20), model(word, 20))
        before = sum(bytejit.counters["graphs"].values())
        assert torch.equal(compiled(word, 24), model(word, 24))
    assert before < 8
    assert sum(bytejit.counters["graphs"].values()) <= before + 2  # the stack of another number of words
    assert not bytejit.counters["fallbacks"]


def test_that_two_objects_differ_is_guarded_where_it_was_asked():
    x, y = torch.ones(2), torch.ones(2)
    compiled = bytejit.compile(lambda a, b: (a["k"] is b[-1], a["k"] + b[-1]), backend="eager")
    assert not compiled({"k": x}, [y])[0]
    assert compiled({"k": x}, [x])[0]
    assert not compiled({"k": x}, [x, y])[0]
