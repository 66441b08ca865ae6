"""What special methods of the program return: of another type than Python wants, an error or a warning of its own."""

import operator
import warnings

import pytest
import torch

import bytejit


class Text(str):
    pass


class Count(int):
    pass


class Says:
    """Each special method returns `said`."""

    def __init__(self, said):
        self.said = said

    def __str__(self):
        return self.said

    __repr__ = __str__

    def __format__(self, spec):
        return self.said

    def __len__(self):
        return self.said

    def __index__(self):
        return self.said


TEXTS = {
    "str": str,
    "repr": repr,
    "format": lambda w: format(w, ">3"),
    "f-string": lambda w: f"{w}",
    "f-string !s": lambda w: f"{w!s}",
    "f-string !r": lambda w: f"{w!r:>5}",
    "in a list": lambda w: str([w]),
}
NUMBERS = {
    "len": len,
    "bool": lambda w: 1 if w else 2,
    "item": lambda w: [1, 2, 3, 4][w],
    "index": operator.index,
    "range": lambda w: list(range(w)) if w.said in (0, 1, 2) else 0,
    "times": lambda w: [1] * w if w.said in (0, 1, 2) else 0,
    "slice": lambda w: (1, 2, 3)[:w],
}


def said_by(f, *args):
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        try:
            result = f(*args)
        except (TypeError, ValueError, OverflowError, IndexError) as e:
            result = repr(e)
    return str(result), [(str(w.message), w.category, w.filename, w.lineno) for w in given]


@pytest.mark.parametrize("use", [*TEXTS, *NUMBERS])
def test_what_is_returned(use):
    run = {**TEXTS, **NUMBERS}[use]
    values = ["a", Text("b"), 7, None, [1]] if use in TEXTS else [2, True, False, Count(1), -1, 10**30, 2.5]

    def f(x, said):
        return x + 1, run(Says(said))

    for said in values:
        bytejit.reset()
        compiled = bytejit.compile(f, backend="eager")
        for _ in range(2):
            assert said_by(compiled, torch.ones(2), said) == said_by(f, torch.ones(2), said), (use, said)


def test_a_divmod_of_a_metaclass():
    """A class whose metaclass has the operator: it runs in each call"""
    seen = []

    class Meta(type):
        def __divmod__(cls, other):
            seen.append(other)
            return cls, other

        def __rdivmod__(cls, other):
            return other

    class Of(metaclass=Meta):
        pass

    @bytejit.compile(backend="eager", fullgraph=True)
    def f(x):
        return x + 1, divmod(Of, 2), divmod(3, Of)

    for n in range(3):
        assert f(torch.ones(2))[1:] == ((Of, 2), 3) and seen == [2] * (n + 1)
