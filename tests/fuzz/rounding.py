"""Whether a difference from eager is a rounding: both sides beside the same program in float64.

A program of a few lines can enlarge a rounding a million times (slopes of exp(sin(5 w)) in a loop do), so no tolerance
holds for all. Ours is right where it is no further from float64 than twice eager's own distance. Eager's distance is the
largest over inputs that lie a few roundings apart: on one input alone it may be small by luck.
"""

import math
import re
from collections.abc import Callable

import torch

from ..programs import harness
from ..programs.compare import Comparer, Different
from .sides import build, call, case_of

ROUNDS = 12  # inputs a few roundings away
TIMES = 2.0  # the rule of the project
NUMBER = re.compile(r"-?\d+\.\d*(?:e[+-]?\d+)?|-?\binf\b|\bnan\b")  # a float in printed text
DIGITS = 1e-4  # what print() shows of it


class Floats(Comparer):
    """Walks two worlds in step and collects their floats; all else must be the same. any_width: float32 beside float64."""

    def __init__(self, any_width: bool):
        super().__init__()
        self.any_width = any_width
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def _number(self, a, b, where) -> None:
        self.pairs.append((torch.tensor(a).double(), torch.tensor(b).double()))

    def _values(self, a, b, where) -> None:
        if a.is_floating_point():
            self.pairs.append((a.double().clone(), b.double().clone()))
        else:
            super()._values(a, b, where)

    def _equal(self, a, b, where) -> None:
        if not (self.any_width and isinstance(a, torch.dtype) and a.is_floating_point and b.is_floating_point):
            super()._equal(a, b, where)


def floats(a: harness.Outcome, b: harness.Outcome, any_width: bool = True) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The floats of both, in pairs, those of the printed text first. Raises: Different, where more than floats differs."""
    walk = Floats(any_width)
    said = [" ".join(NUMBER.sub(" # ", o.printed.replace(", dtype=torch.float64", "")).split()) for o in (a, b)]
    walk.same((a.error, a.lines, repr(a.rng), said[0]), (b.error, b.lines, repr(b.rng), said[1]))
    shown = [torch.tensor([float(s) for s in NUMBER.findall(o.printed)], dtype=torch.float64) for o in (a, b)]
    walk.same(a.world, b.world)
    return [(shown[0], shown[1]), *walk.pairs]


def same_way(a: harness.Outcome, b: harness.Outcome, any_width: bool = True) -> bool:
    """Whether they differ in the values of floats at most."""
    try:
        floats(a, b, any_width)
    except Different:
        return False
    return True


def distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest over the elements: 0 where both are the same or nan, inf where one is no number."""
    if not a.numel():
        return 0.0
    d = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
    return torch.where(d.isnan(), torch.inf, d).max().item()


def explain(
    run: Callable[[int, bool], harness.Outcome], plain: harness.Outcome, ours: harness.Outcome, tol: tuple[float, float]
) -> str:
    """Why a difference is none; "": it is one.

    "rounding": ours is within twice eager's distance from float64. "way": ours or float64 goes another way, and so does
    eager itself where its inputs are off by a few roundings. run(number, wide): the plain program on such inputs (0: on the
    very ones), in float64 or not.
    """
    rounds = [(run(k, False), run(k, True)) for k in range(ROUNDS + 1)]
    exact = rounds[0][1]
    if not same_way(plain, ours, any_width=False) or not same_way(plain, exact):
        return "" if all(same_way(plain, e) for e, _ in rounds) else "way"
    far = [[distance(*p) for p in floats(e, x)] for e, x in rounds if same_way(plain, e) and same_way(plain, x)]
    for i, ((wide, own), (eager, _)) in enumerate(zip(floats(exact, ours), floats(plain, ours))):
        digits = 0.0 if i else DIGITS
        differ = ~torch.isclose(own, eager, rtol=tol[0], atol=tol[1] + digits, equal_nan=True)
        finite = wide[wide.isfinite()].abs()
        slack = tol[1] + digits + (tol[0] + digits) * (finite.max().item() if finite.numel() else 0.0)
        most = max((f[i] for f in far if f[i] != math.inf), default=0.0)
        if distance(wide[differ], own[differ]) > TIMES * most + slack:
            return ""
    return "rounding"


def runs(source: str, name: str, calls: int) -> Callable[[int, bool], harness.Outcome]:
    """The program of that text, run plainly so many times: `run` of `explain`."""
    wide_source = source.replace(".float()", ".double()")

    def run(number: int, wide: bool) -> harness.Outcome:
        draw = torch.Generator().manual_seed(number)

        def change(t: torch.Tensor) -> torch.Tensor:
            if number:
                t = t * (1 + torch.randint(-4, 5, t.shape, generator=draw) * 2.0**-20)
            return t.double() if wide else t

        text = wide_source if wide else source
        side = harness.Side(case_of(lambda: build(text, name), name, drive=in_float64 if wide else None), lambda f: f)
        for n in range(calls):
            last = call(side, n, change)
        return last

    return run


def in_float64(fn: Callable, *args: object) -> object:
    """What the program makes without a dtype is float64."""
    torch.set_default_dtype(torch.float64)
    try:
        return fn(*args)
    finally:
        torch.set_default_dtype(torch.float32)
