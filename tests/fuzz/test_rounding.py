"""What a rounding makes of a program is no difference; a wrong value is one, however small beside others."""

import pytest

from ..programs import harness
from .prelude import PRELUDE
from .rounding import explain, runs
from .sides import build, call, case_of

TOL = (1e-4, 1e-5)
HEAD = "\ndef program(x, y, n, items, table, thing):\n"
GROWS = """
    for _ in range(2):
        for i in (1, 3, 5):
            x = {} * 4 + 2
    return x, y * 1.0000001
"""  # a rounding is a million times as large at the end
BY_AUTOGRAD, BY_HAND = "slope(x, lambda w: (w * i).sin().exp())", "i * torch.cos(i * x) * torch.exp(torch.sin(i * x))"
STEADY = "\n    print(x)\n    return (x * {}).sin(), LOG\n"
BRANCH = "\n    return y + 1 if torch.nn.functional.softmax({}, 0).sum() >= 1 else (y, n)\n"
PLAIN_BRANCH = "\n    return y + 1 if {} else (y, n)\n"


def outcome(body: str, n: int) -> harness.Outcome:
    """Of a plain run: what a compiled program would return if it computed so."""
    source = PRELUDE + HEAD + body
    side = harness.Side(case_of(lambda: build(source, "<other>"), "<fuzz>"), lambda f: f)
    return [call(side, k) for k in range(n + 1)][-1]


def verdict(body: str, other: str, n: int) -> str:
    return explain(runs(PRELUDE + HEAD + body, "<fuzz>", n + 1), outcome(body, n), outcome(other, n), TOL)


@pytest.mark.parametrize("n", range(3))
def test_a_rounding_that_grows(n):
    """Values that eager itself does not know: as near to float64 as eager's"""
    assert verdict(GROWS.format(BY_AUTOGRAD), GROWS.format(BY_HAND), n) == "rounding"


def test_a_wrong_value():
    """Twice eager's distance from float64, and what a tolerance leaves, is the most"""
    assert verdict(STEADY.format("1.0"), STEADY.format("1.01"), 0) == ""
    assert verdict(STEADY.format("1.0"), STEADY.format("1.0000001"), 0) == "rounding"
    assert verdict(GROWS.format(BY_AUTOGRAD), GROWS.format(BY_AUTOGRAD).replace("1.0000001", "1.001"), 0) == ""


def test_printed_floats_are_floats():
    """A last digit that print() rounds otherwise is a rounding; other text is not"""
    said = STEADY.format("1.0")
    assert verdict(said, said.replace("print(x)", "print(x * 1.0001)"), 1) == "rounding"
    assert verdict(said, said.replace("print(x)", "print(x * 1.01)"), 1) == ""
    assert verdict(said, said.replace("print(x)", "print('x', x)"), 1) == ""


def test_a_branch_on_a_rounding():
    """Another way is excused where eager goes it too on inputs a few roundings away"""
    taken = "True" if len(outcome(BRANCH.format("x"), 0).world[2]) == 3 else "False"
    other = {"True": "False", "False": "True"}[taken]
    assert verdict(BRANCH.format("x"), PLAIN_BRANCH.format(other), 0) == "way"
    assert verdict(PLAIN_BRANCH.format("n == 3"), PLAIN_BRANCH.format("n != 3"), 0) == ""
