"""Numbers that the program reads out of tensors and only keeps: `losses.append(loss.item())`, `total += loss.item()`,
`return float(loss)`, `f"{loss:.3f}"`.

Nothing in the region depends on such a number, so that the region goes on: the tensor is an output of the graph, and the exit
reads it. Arithmetic that cannot raise waits with it. Where the program decides by the number (a branch, a size, a key) or
computes tensors with it, the graph breaks.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bytejit.fake.tensor import Fake
from bytejit.shapes.symbols import hint
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.read_values import ReadVar
from bytejit.tracer.core.signals import Break, CannotReconstruct
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Known, SeqVar, SymVar, TensorVar, Var

MOST_ITEMS = 64  # of a tensor whose numbers are read
MOST_REPEATED = 128  # nodes of a loop that reads a tensor in each turn: above it each turn is a graph that serves all of them
MOST_BITS = 1000  # of an integer that is combined with floats: it is one of them as well
WARNING = (float, complex, torch.Tensor.__float__)  # they warn of a tensor that requires gradients
PLAIN = (None, torch.Tensor, torch.nn.Parameter)
DEVICES = frozenset(("cpu", "cuda"))
# functions of numbers that cannot raise -> the types of number that they take; of several arguments: all of one type
PURE: dict[Any, tuple[type, ...]] = {
    abs: (int, float),
    min: (int, float),
    max: (int, float),
    float: (int, float, bool),
    int: (int, bool),
    bool: (int, float, bool),
    round: (int,),
    math.isnan: (float,),
    math.isinf: (float,),
    math.isfinite: (float,),
    operator.neg: (int, float),
    operator.pos: (int, float),
}
COMPARING = frozenset((operator.lt, operator.le, operator.eq, operator.ne, operator.gt, operator.ge))
FREE = frozenset(("add", "sub", "mul"))  # operators that cannot raise for floats, or for integers of some digits
DIVIDING = frozenset(("truediv", "floordiv", "mod"))


class ReadNumbers(Component):
    """The part of the tracer that leaves reads of tensors to the exit."""

    def __init__(self, t: Tracer) -> None:
        super().__init__(t)
        self.count = 0
        self.first: dict[tuple, tuple[int, int]] = {}  # place -> the step and the nodes at its first read

    # ---- what is read ---------------------------------------------------------------------------------------------------
    def number(self, v: TensorVar, function: Callable, why: str) -> Var:
        """function(tensor): known now, or read by the exit. Raises: Break(why)."""
        known = self.t.tensor_values.python_value(v, function)
        found = self.read(v, function, why) if known is None else known
        if found is None:
            raise Break(why)
        return found

    def read(self, v: TensorVar, function: Callable, why: str) -> Var | None:
        """function(tensor), for one of item, tolist, int, float...; None where it is not left to the exit."""
        fake = v.fake
        if not isinstance(fake, Fake) or v.cls not in PLAIN or v.node is None or v.base is not None or v.wrapper is not None:
            return None
        if self.t.overrides.modes or self.t.overrides.entered or v in self.t.effects.data_set:
            return None
        if fake.layout is not torch.strided or fake.device.type not in DEVICES:
            return None
        if any(type(n) is not int for n in fake.shape) or fake.numel() > (MOST_ITEMS if fake.dim() == 1 else 1):
            return None
        like = _like(fake.dtype)
        if function is torch.Tensor.tolist and fake.dim() > 1:
            return None
        if function is torch.Tensor.tolist and fake.dim():
            whole = self._make(function, v, [like], why)
            return SeqVar(
                [ReadVar(operator.getitem, [whole, Known(i)], like, why, whole.step) for i in range(fake.numel())], list
            )
        if fake.numel() != 1 or function not in READS or function is int and type(like) is not int:
            return None
        made = READS[function]
        return self._make(function, v, like if made is None else made(like), why)

    def _make(self, function: Callable, v: TensorVar, like: Any, why: str) -> ReadVar:
        step, nodes = self.t.limits.steps, len(self.t.graph.nodes)
        first, before = self.first.setdefault(self._place(), (step, nodes))
        if nodes - before > MOST_REPEATED:
            raise Break(f"{why}, in a long loop", at_step=first)
        made = ReadVar(function, [v], like, why, step)
        made.watched = v.fake.m.store, v.fake.m.store.written
        self.count += 1
        return made

    def _place(self) -> tuple:
        """The instruction that runs, and the calls on the way to it: in a loop they are the same in each turn."""
        found, frame = [], self.t.frame
        while frame is not None:
            found.append((frame.code, frame.ip))
            frame = frame.parent
        return tuple(found)

    def check(self, v: ReadVar) -> None:
        """Raises: CannotReconstruct where the region has written the tensor since."""
        assert v.tensor is not None and v.watched is not None, v
        store, writes = v.watched
        if store is not v.tensor.fake.m.store or store.written != writes or v.tensor in self.t.effects.data_set:
            raise CannotReconstruct("a tensor's value, which is changed afterwards,", v.step)
        self.t.sizes.sizes_leave |= self.t.job.measure

    # ---- what is computed of it ------------------------------------------------------------------------------------------
    def binary(self, name: str, function: Callable, a: Var, b: Var) -> ReadVar | None:
        """Arithmetic on numbers, of which one is read; None where it may raise, or where there is something else than numbers."""
        if not all(map(is_number, (a, b))) or not any(isinstance(v, ReadVar) for v in (a, b)):
            return None
        if name not in FREE and not (name in DIVIDING and self._divides(b, _example(b))):
            return None
        bits = [*map(_bits, (a, b))]
        if max(bits) > MOST_BITS and (name == "truediv" or float in map(_kind, (a, b))):
            return None
        return self._computed(function, [a, b], sum(bits) if name == "mul" else max(bits) + 1)

    def compare(self, function: Callable, a: Var, b: Var) -> ReadVar | None:
        """A comparison of numbers, of which one is read; None for other values."""
        found = all(map(is_number, (a, b))) and any(isinstance(v, ReadVar) for v in (a, b))
        return self._computed(function, [a, b]) if found else None

    def call(self, function: Callable, args: Sequence[Var]) -> Var | None:
        """A function of Python's, of numbers of which one is read; None where it may raise, or may give one of another type."""
        found = any(isinstance(v, ReadVar) for v in args) and all(map(is_number, args))
        return self._called(function, args) if found else None

    def kept(self, function: Any, args: Sequence[Var]) -> Var | None:
        """The same, and comparisons, for numbers that the graph measures, where a symbol of the result would decide something."""
        if not any(map(self.t.measures.is_measured, args)) or not all(map(is_number, args)):
            return None
        return self._computed(function, args) if function in COMPARING else self._called(function, args)

    def _called(self, function: Callable, args: Sequence[Var]) -> Var | None:
        kinds = {*map(_kind, args)}
        if function is round and len(args) == 2 and type(args[1]) is Known and type(args[1].obj) is int:
            return self._computed(function, args) if _kind(args[0]) in (int, float) else None
        if len(kinds) != 1 or not kinds <= {*PURE.get(function, ())}:
            return None
        return args[0] if kinds == {function} else self._computed(function, args)

    def called(self, function: Any, args: Sequence[Var]) -> Var | None:
        """The same for any callable and arguments that nothing has looked at."""
        try:
            known = function in PURE
        except TypeError:
            return None
        return self.call(function, [*map(self.t.values.real, args)]) if known else None

    def total(self, function: Callable, numbers: Sequence[Var]) -> Var | None:
        """The sum of numbers of which one is read, as `function` computes it."""
        if not any(isinstance(v, ReadVar) for v in numbers) or not all(map(is_number, numbers)):
            return None
        bits = max(map(_bits, numbers)) + len(numbers)
        return self._computed(function, numbers, bits) if bits < MOST_BITS or float not in map(_kind, numbers) else None

    def _computed(self, function: Callable, args: Sequence[Var], bits: int | None = None) -> ReadVar:
        why, step = "a number that is known only when the graph runs is needed before", self.t.limits.steps
        if read := [v for v in args if isinstance(v, ReadVar)]:
            why, step = max(((v.why, v.step) for v in read), key=operator.itemgetter(1))
        made = ReadVar(function, [*args], function(*map(_example, args)), why, step)
        made.bits = max(map(_bits, args)) if bits is None else bits
        return made

    def _divides(self, v: Var, example: Any) -> bool:
        """Whether a divisor is known not to be 0. Of one that changes that is a condition."""
        if type(v) is SymVar:
            return isinstance(v.value, torch.SymInt) and bool(v.value != 0)
        return not isinstance(v, ReadVar) and example != 0


# function that reads a number -> the type that it makes of it
READS: dict[Any, type | None] = {
    torch.Tensor.item: None,
    torch.Tensor.tolist: None,
    torch.Tensor.__float__: float,
    float: float,
    torch.Tensor.__int__: int,
    int: int,
    bool: bool,
}


def _like(dtype: torch.dtype) -> Any:
    return True if dtype is torch.bool else 1j + 1.5 if dtype.is_complex else 1.5 if dtype.is_floating_point else 3


def is_number(v: Var) -> bool:
    """Whether it is a number of Python's: read, known or symbolic."""
    if isinstance(v, ReadVar):
        return v.kind in (int, float, bool)
    return type(v) is SymVar or type(v) is Known and type(v.obj) in (int, float, bool)


def _example(v: Var) -> Any:
    if isinstance(v, ReadVar):
        return v.like
    return hint(v.value) if type(v) is SymVar else v.obj if isinstance(v, Known) else None


def _kind(v: Var) -> type:
    return type(_example(v))


def _bits(v: Var) -> int:
    """At most so many bits has an integer; 0 for a float."""
    if _kind(v) is float:
        return 0
    if isinstance(v, ReadVar):
        return v.bits
    return v.obj.bit_length() if type(v) is Known and isinstance(v.obj, int) else 64
