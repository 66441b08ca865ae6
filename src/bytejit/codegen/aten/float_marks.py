"""Symbolic floats in a recorded graph where torch's C++ takes plain numbers: the epsilon of a norm, the exponent of a gradient.

torch's C++ passes an operator a double, never the symbol. While a graph is recorded, a symbolic float that C++ asks for is
replaced by a mark: a number that occurs nowhere else. Where a mark, or a simple function of one, is among an operation's
arguments, it is replaced by the symbol again. Anything else that was computed from a mark is found by recording the graph
twice, with different marks: where the two graphs differ, the floats become constants.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from bytejit.codegen.loops.sizes import Sizes
from bytejit.shapes import symbols

from .graph import Aten

T = TypeVar("T")
# what torch's C++ computes of a number before it gives it to the next operation
DERIVED: tuple[Callable[[Any], Any], ...] = (
    lambda m: m,
    lambda m: -m,
    lambda m: m - 1.0,
    lambda m: m - 2.0,
    lambda m: 1.0 - m,
    lambda m: m + 1.0,
    lambda m: 1.0 / m,
    lambda m: 1.0 / (1.0 - m),
    lambda m: 2.0 * m,
    lambda m: m * m,
    lambda m: m / 2.0,
    lambda m: torch.sym_sqrt(m),
)
_SINGLE = struct.Struct("f")
NARROW = (torch.float32, torch.float16, torch.bfloat16)  # there, what is computed from a number has no more digits than a float32


def single(x: float) -> float:
    """A number rounded as C++ rounds it to a float."""
    try:
        return _SINGLE.unpack(_SINGLE.pack(x))[0]
    except OverflowError:
        return x


class TakenFloat(NamedTuple):
    """A symbolic float that torch's C++ asked for."""

    mark: float
    symbol: torch.SymFloat


class FloatMarks:
    """The marks of one recording. apart: whether they differ much from the values with which the graph was traced."""

    def __init__(self, env: Any, apart: bool) -> None:
        self.env, self.apart = env, apart
        self.taken: dict[Any, TakenFloat] = {}  # by expression
        # a mark, or a function of one -> the function and the symbol; the second table: of marks rounded to a float32
        self.names: tuple[dict[float, tuple], dict[float, tuple]] = {}, {}

    @contextmanager
    def given(self) -> Iterator[None]:
        """Inside, torch's C++ is given marks."""
        was, self.env.taken = self.env.taken, self.take
        try:
            yield
        finally:
            self.env.taken = was

    def take(self, number: Any) -> float:
        """The mark of a symbolic float, which stays on its side of 0 and 1."""
        at = self.env.on_its_side(number)
        if number.constant is not None:
            return at
        found = self.taken.get(number.value)
        if found is None:
            found = self.taken[number.value] = TakenFloat(self.mark(at), torch.SymFloat(number))
            self.name(found)
        return found.mark

    def mark(self, at: float) -> float:
        """A number with unusual last digits, on the same side of 0 and 1. Marks are in the order of their numbers."""
        if self.apart:
            at = at * at if 0 < at < 1 else at * 1.25
        tail = 1e-7 * (1 + 0.3819660112501051 * (len(self.taken) + 1))
        found = at * (1 + tail)
        return found if (found < 1) == (at < 1) else at * (1 - tail)

    def name(self, found: TakenFloat) -> None:
        """Note what a mark, and each number that may be computed from it, stands for."""
        for names, at in zip(self.names, (found.mark, single(found.mark))):
            for function in DERIVED:
                with suppress(ArithmeticError, ValueError):
                    names.setdefault(function(at), (function, found.symbol))

    def named(self, x: Any, narrow: bool) -> Any:
        """The arguments of an operation with symbols in place of marks. narrow: it computes in float32 at most."""
        if type(x) is float:
            function, symbol = self.names[0].get(x) or narrow and self.names[1].get(x) or (None, None)
            return x if function is None else function(symbol)
        if isinstance(x, (list, tuple)):
            return type(x)(self.named(y, narrow) for y in x)
        if isinstance(x, dict):
            return {k: self.named(v, narrow) for k, v in x.items()}
        return x

    def name_all(self, args: tuple, kwargs: dict, out: Any) -> tuple[tuple, dict]:
        """The arguments of a call with symbols in place of marks. out: what it returns."""
        if not self.taken:
            return args, kwargs
        given = [a.meta["spec"] for a in tree_leaves((args, kwargs)) if isinstance(a, fx.Node)]
        narrow = all(s.dtype in NARROW for s in (*tree_leaves(given), *tree_leaves(out)) if hasattr(s, "dtype"))
        return self.named(args, narrow), self.named(kwargs, narrow)


def with_marks(gm: fx.GraphModule, record: Callable[[FloatMarks | None], T], graph_of: Callable[[T], Aten]) -> T:
    """Calls `record` while torch's C++ gets marks for symbolic floats, and returns its result."""
    env = symbols.env_of(*(n.meta.get("val") for n in gm.graph.nodes if n.op == "placeholder"))
    if env is None:
        return record(None)
    made, other = FloatMarks(env, False), FloatMarks(env, True)
    with made.given():
        found = record(made)
    if not made.taken:
        return found
    with other.given():
        again = record(other)
    if _agree(graph_of(found), graph_of(again), made, other):
        return found
    for taken in made.taken.values():
        taken.symbol.node.float_()
    return record(None)


def _agree(a: Aten, b: Aten, made: FloatMarks, other: FloatMarks) -> bool:
    """Whether two graphs are the same calls of the same arguments, with the same constants. Multiples of marks become symbols."""
    if len(a.constants) != len(b.constants) or not all(map(_same_tensor, a.constants, b.constants)):
        return False
    at = [{n: i for i, n in enumerate(x.graph.nodes)} for x in (a, b)]
    if [(n.op, n.target if n.op == "call_function" else "") for n in at[0]] != [
        (n.op, n.target if n.op == "call_function" else "") for n in at[1]
    ]:
        return False
    pairs = Pairs(made, other, at)
    try:
        for x, y in zip(*at):
            x.args, x.kwargs = pairs.one(x.args, y.args), pairs.one(dict(x.kwargs), dict(y.kwargs))
    except RecordingsDiffer:
        return False
    return True


class RecordingsDiffer(Exception):
    """Two recordings differ."""


class Pairs:
    """Arguments of the two recordings, one by one."""

    def __init__(self, made: FloatMarks, other: FloatMarks, at: list[dict[fx.Node, int]]) -> None:
        self.at, self.sizes = at, Sizes()
        self.marks = [(a.mark, other.taken[e].mark, a.symbol) for e, a in made.taken.items() if e in other.taken]

    def one(self, x: Any, y: Any) -> Any:
        """Returns the value that stands for both. Raises: RecordingsDiffer."""
        if isinstance(x, fx.Node) and isinstance(y, fx.Node) and self.at[0][x] == self.at[1][y]:
            return x
        if type(x) is not type(y):
            raise RecordingsDiffer
        if isinstance(x, (list, tuple)) and len(x) == len(y):
            return type(x)(map(self.one, x, y))
        if isinstance(x, dict) and x.keys() == y.keys():
            return {k: self.one(v, y[k]) for k, v in x.items()}
        if x == y or isinstance(x, float) and repr(x) == repr(y):
            return x
        if isinstance(x, float) and math.isfinite(x):
            for a, b, symbol in self.marks:
                if b and x and math.isclose(x / a, y / b, rel_tol=1e-15):
                    return self.sizes(symbol * (x / a))
        raise RecordingsDiffer


def _same_tensor(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a is b or a.dtype is b.dtype and a.shape == b.shape and torch.equal(a, b)
