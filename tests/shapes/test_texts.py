"""Text made of numbers that change: eager's, and made without a compile for each number."""

# ruff: noqa: UP031, F507 - text by %, and wrong uses of it, are among the programs
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import bytejit


def raised(n: float) -> str:
    try:
        raise ValueError(f"too large: {n}", n)
    except ValueError as e:
        return f"{e} {e.args}"


class Message(Exception):
    """Keeps what it is given."""


TEXTS: dict[str, Callable] = {
    "f-string": lambda n: f"step {n}: {n + 1}",
    "specs": lambda n: f"{n:8}|{n:<8}|{n:+}|{n!r:>9}|{n!s}|{n!a}",
    "format": lambda n: "{} of {total}, {0}".replace("{} ", "{1} ").format(n, "x", total=n * 2),
    "percent": lambda n: "%s %5.1f %r %%" % (n, n, n),
    "percent, one": lambda n: "loss %s" % n,
    "str": lambda n: str(n) + "!" + repr(n - 1),
    "join": lambda n: ", ".join(["a", str(n), f"{n}"]),
    "put together": lambda n: "a" + f"{n}" + "b" + str(n),
    "kept": lambda n: {"name": f"layer.{n}", "list": [f"{n}", (str(n), n)]},
    "in an f-string": lambda n: f"<{f'({n})'}>",
    "of a message": lambda n: Message(f"{n}"),
    "negative": lambda n: f"{-n} {n % 3}",
}
# what looks at the text compiles once a number, and gives what eager does
LOOKED_AT: dict[str, Callable] = {
    "length": lambda n: len(f"{n}"),
    "compared": lambda n: f"{n}" == "3",
    "a key": lambda n: {f"{n}": n},
    "a method": lambda n: f"{n}".rjust(9, "."),
    "a width": lambda n: f"{1:{int(n)}}",
    "a width below 0": lambda n: f"{1:{-int(n)}}",
    "a character": lambda n: "%c" % int(n + 64),
    "a character of a format": lambda n: f"{int(n + 64):c}",
    "no format of a float": lambda n: f"{n:x}",
    "no format at all": lambda n: f"{n:q}",
    "too few": lambda n: "%d %d" % (n,),
    "raised": raised,
}


def outcome(f: Callable, *args: object) -> tuple:
    try:
        x, said = f(*args)
    except Exception as e:
        return type(e), str(e)
    return x.tolist(), repr(said)


def compiles(make: Callable, convert: type) -> int:
    """How many graphs six numbers need; each result is compared with eager's."""
    graphs: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        graphs.append(1)
        return gm.forward

    def f(x: torch.Tensor, n: float) -> tuple[torch.Tensor, object]:
        return x * 2, make(n)

    compiled = bytejit.compile(f, backend=backend)
    for i in (3, 4, 7, 12, 100, 5):
        n = convert(i) + (0.25 if convert is float else 0)
        assert outcome(compiled, torch.ones(2), n) == outcome(f, torch.ones(2), n)
    return len(graphs)


@pytest.mark.parametrize("convert", [int, float])
@pytest.mark.parametrize("name", TEXTS)
def test_text_that_leaves(name: str, convert: type) -> None:
    assert compiles(TEXTS[name], convert) <= 2


@pytest.mark.parametrize("convert", [int, float])
@pytest.mark.parametrize("name", LOOKED_AT)
def test_text_that_is_looked_at(name: str, convert: type) -> None:
    compiles(LOOKED_AT[name], convert)


def test_what_is_printed(capsys: pytest.CaptureFixture) -> None:
    """A loop that says where it is: a break, and no compile a step."""

    def step(x: torch.Tensor, i: int) -> torch.Tensor:
        y = x * i
        print(f"step {i:03d} of {i + 1}", "%d" % i)
        return y + i

    compiled = bytejit.compile(step, backend="eager")
    for i in range(2, 20):
        torch.testing.assert_close(compiled(torch.ones(2), i), torch.full((2,), 2.0 * i))
    assert capsys.readouterr().out == "".join(f"step {i:03d} of {i + 1} {i}\n" for i in range(2, 20))
    assert sum(bytejit.counters["recompiles"].values()) <= 2 and not bytejit.counters["fallbacks"]
