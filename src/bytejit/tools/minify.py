"""`bytejit.minify`: a program whose compiled form fails becomes a script of a few lines that fails in the same way.

The program runs once, graph by graph in eager, and its graphs are kept with their inputs. The first one that fails by itself is
brought into ATen calls (a training graph: of both passes). Calls are taken away while it goes on failing (delta debugging; the
first value that is off is tried alone before), then inputs become random numbers, then sizes smaller.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from bytejit.autograd.joint import make_joint
from bytejit.backends.surround import fakes_of
from bytejit.codegen.aten.mutation import CannotNormalise
from bytejit.codegen.aten.normalise import normalise
from bytejit.common.errors import NothingFails
from bytejit.common.files import writable
from bytejit.common.graph_info import info_of
from bytejit.common.graph_script import NoText, value_text
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.text import plural
from bytejit.common.where import Where
from bytejit.runtime.verification import DEFAULT_TOLERANCE, TOLERANCE, copied

from .compare import difference, in_float64, run
from .programs import Program, groups, leaves, registered_elsewhere, whole_program

Compile = Callable[[Callable], Callable]
AGAINST = ("eager", "float64")
SMALL = (1, 2, 3, 4, 8, 16)  # sizes that are tried in place of larger ones


@light_dataclass(frozen=True)
class Minified:
    """The short program. text: the script; failure: what it shows; ops: its operators; where: the graph's place in the
    program; file: where the script was written, None for nowhere."""

    text: str = field(repr=False)
    failure: str
    ops: tuple[str, ...]
    where: Where | None
    file: str | None = None

    def __str__(self) -> str:
        written = f", written to {self.file}" if self.file else ""
        return f"{self.failure} in {plural(len(self.ops), 'op')}: {', '.join(self.ops)}{written}"

    def write(self, file: str | os.PathLike) -> Minified:
        """Write the script. Raises: OSError."""
        Path(file).write_text(self.text)
        return replace(self, file=os.fspath(file))


class Captured:
    """A backend that keeps graphs with their inputs, and runs them in eager."""

    def __init__(self) -> None:
        self.graphs: list[tuple[torch.fx.GraphModule, list[Any]]] = []

    def __call__(self, gm: torch.fx.GraphModule, inputs: list) -> Callable:
        self.graphs.append((gm, [copied(x) for x in inputs]))
        return gm.forward


@dataclass
class Judge:
    """Does a program fail? compile: of a function; kind: of the failure that is looked for, once it is known."""

    compile: Compile
    against: str = "eager"
    tolerance: float | None = None
    kind: str = ""
    tried: int = 0

    def failure(self, program: Program, every: bool = False) -> tuple[str, int]:
        """(what fails, the index of the first output that is off); ("", -1) where nothing does, or eager itself raises."""
        self.tried += 1
        try:
            inputs, f = program.given(), program.make(every)
            eager = self.outputs(f, inputs)
        except Exception:
            return "", -1
        try:
            with torch.no_grad():
                found = self.outputs(self.compile(f), inputs)
        except Exception as e:
            return self.alike(f"{type(e).__name__}: {str(e).strip().partition(chr(10))[0][:200]}", type(e).__name__, -1)
        exact: list[Any] = [None] * len(eager)
        if self.against == "float64":
            exact = leaves(in_float64(torch.fx.symbolic_trace(f), inputs)) or exact
        for i, (got, a, b) in enumerate(zip(found, eager, exact)):
            if (off := difference(got, a, b, self.tolerance)) is not None:
                return self.alike(str(off), "different", i)
        return "", -1

    def outputs(self, f: Callable, inputs: Sequence) -> list[torch.Tensor]:
        """The tensors that a function returns for copies of the inputs."""
        found, _ = run(lambda *given: tuple(leaves(f(*given))), inputs)
        return found[: len(found) - len([x for x in inputs if isinstance(x, torch.Tensor)])]

    def alike(self, text: str, kind: str, index: int) -> tuple[str, int]:
        """A failure, where it is of the kind that is looked for."""
        self.kind = self.kind or kind
        return (text, index) if kind == self.kind else ("", -1)

    def fails(self, program: Program) -> bool:
        """Whether it fails as the first one did."""
        return bool(self.failure(program)[0])


# ---- calls -----------------------------------------------------------------------------------------------------------
def fewest_calls(whole: Program, judge: Judge) -> Program:
    """The program with no call that can be left out."""
    units = groups(whole.nodes)
    keeping = lambda some: whole.keeping([n for g in some for n in g])
    at = judge.failure(whole, every=True)[1]
    if at >= 0:  # the first value that is off: its call alone, or with what leads to it
        values = [n for n in whole.nodes if isinstance(whole.values[n], torch.Tensor)]
        culprit = next(i for i, g in enumerate(units) if values[at] in g)
        for some in ([units[culprit]], units[max(0, culprit - 1) : culprit + 1], units[: culprit + 1]):
            if len(some) < len(units) and judge.fails(keeping(some)):
                units = list(some)
                break
    return keeping(reduced(units, lambda some: bool(some) and judge.fails(keeping(some))))


def reduced(items: list, fails: Callable[[list], bool]) -> list:
    """The shortest list that delta debugging finds for which `fails` still holds: no single item can be taken away.

    Source: Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002.
    """
    parts = 2
    while len(items) > 1:
        size = -(-len(items) // parts)
        cuts = [items[i : i + size] for i in range(0, len(items), size)]
        rests = [[x for c in cuts if c is not cut for x in c] for cut in cuts]
        smaller = next((c for c in (*cuts, *(rests if len(cuts) > 2 else ())) if len(c) < len(items) and fails(c)), None)
        if smaller is not None:
            parts = 2 if len(smaller) <= size else max(parts - 1, 2)
            items = smaller
        elif size == 1:
            return items
        else:
            parts = min(2 * parts, len(items))
    return items


# ---- inputs ----------------------------------------------------------------------------------------------------------
def with_random_inputs(program: Program, judge: Judge) -> Program:
    """The program with random numbers for inputs where these fail too, all at once or one by one."""
    texts = {}
    for n in program.inputs:
        try:
            texts[n] = value_text(program.values[n])
        except NoText:
            continue
    if judge.fails(made := replace(program, texts=texts)):
        return made
    for n, text in texts.items():
        if judge.fails(made := replace(program, texts={**program.texts, n: text})):
            program = made
    return program


def with_small_sizes(program: Program, judge: Judge) -> Program:
    """The program with each size as small as it goes on failing: all dimensions of that size at once."""
    sizes = {d for n in program.inputs for d in getattr(program.values[n], "shape", ()) if d > 1}
    for size in sorted(sizes, reverse=True):
        for less in (s for s in SMALL if s < size):
            try:
                made = resized(program, size, less)
            except (NoText, RuntimeError):
                break
            if judge.fails(made):
                program = made
                break
    return program


def resized(program: Program, size: int, less: int) -> Program:
    """The program with `less` in place of `size` in its inputs' shapes and in lists of sizes. Raises: NoText."""
    values, texts = dict(program.values), dict(program.texts)
    for n in program.inputs:
        x = values[n]
        if isinstance(x, torch.Tensor) and size in x.shape:
            values[n] = x[tuple(slice(less if d == size else None) for d in x.shape)].clone()
            if n in texts:
                texts[n] = value_text(values[n])
    return replace(program, values=values, texts=texts, sizes={**program.sizes, size: less})


# ---- the script ------------------------------------------------------------------------------------------------------
SCRIPT = '''"""Made by bytejit.minify{place}: {failure}"""

import torch

import bytejit
{note}

{function}

torch.manual_seed(0)
inputs = (
{inputs}
)
with torch.no_grad():
    eager = f(*inputs)
    compiled = bytejit.compile(f{settings})(*inputs)
print("eager   ", *eager)
print("compiled", *compiled)
for wanted, found in zip(eager, compiled):
    torch.testing.assert_close(found, wanted, rtol={near}, atol={near}, equal_nan=True)
print("equal: it does not fail here")
'''


def script(program: Program, failure: str, where: Where | None, settings: str, tolerance: float | None) -> str:
    """The program as a file that runs by itself and fails with what is wrong."""
    elsewhere = registered_elsewhere(program)
    note = f"# import here what registers {', '.join(elsewhere)}\n" if elsewhere else ""
    rows = [program.texts[n] if n in program.texts else literal(program.values[n]) for n in program.inputs]
    dtypes = [x.dtype for n in program.outputs for x in leaves(program.values[n])]
    near = (
        tolerance
        if tolerance is not None
        else max((TOLERANCE.get(d, DEFAULT_TOLERANCE) for d in dtypes), default=DEFAULT_TOLERANCE)
    )
    return SCRIPT.format(
        place=f" from {where.short} in {where.function}" if where is not None else "",
        failure=failure.replace("\\", "/").replace('"', "'"),
        note=note,
        function=program.text(),
        inputs="\n".join(f"    {row}," for row in rows),
        settings=settings,
        near=near,
    )


def literal(x: Any) -> str:
    """A value as it is: the numbers of a tensor. Raises: NoText."""
    if not isinstance(x, torch.Tensor):
        return value_text(x)
    where = "" if x.device.type == "cpu" else f', device="{x.device}"'
    numbers = str(x.detach().cpu().tolist()).replace("inf", 'float("inf")').replace("nan", 'float("nan")')
    made = f"torch.tensor({numbers}, dtype={x.dtype}{where})"
    return (
        made
        if x.is_contiguous()
        else f"torch.empty_strided({tuple(x.shape)}, {x.stride()}, dtype={x.dtype}{where}).copy_({made})"
    )


# ---- the whole -------------------------------------------------------------------------------------------------------
def program_of(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Program:
    """The ATen calls of a traced graph; of both passes where its outputs need gradients. Raises: CannotNormalise, NoText."""
    given = [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]
    if not info_of(gm).needs_grad:
        return whole_program(normalise(gm, fakes_of(gm)), given)
    joint = make_joint(gm, fakes_of(gm))
    tangents = [torch.empty_strided(s.shape, s.stride, dtype=s.dtype, device=s.device).normal_() for s in joint.tangents]
    return whole_program(joint.aten, [*given, *tangents])


def minified(captured: Captured, judge: Judge, settings: str) -> Minified | None:
    """The shortest program for the first graph that fails; None where none fails by itself."""
    for gm, inputs in captured.graphs:
        where = info_of(gm).where
        try:
            with torch.no_grad():
                whole = program_of(gm, inputs)
        except (CannotNormalise, NoText):
            continue
        judge.kind = ""
        if not whole.nodes or not judge.fails(whole):
            continue
        program = fewest_calls(whole, judge)
        program = with_small_sizes(with_random_inputs(program, judge), judge)
        failure = judge.failure(program)[0]
        ops = tuple(str(n.target) for n in program.nodes)
        return Minified(script(program, failure, where, settings, judge.tolerance), failure, ops, where)
    return None


def check_against(against: str) -> None:
    """Raises: ValueError."""
    if against not in AGAINST:
        raise ValueError(f"against is {against!r}: expected one of {', '.join(AGAINST)}")


def nothing_fails(graphs: int, against: str) -> str:
    """What to say where so many graphs were looked at, and each is right."""
    if graphs == 0:
        return "this call has no graph: nothing of it is compiled"
    which = "the graph of this call does not fail" if graphs == 1 else f"none of the {graphs} graphs of this call fails"
    return f"{which} by itself beside {against}: compiled and not, {'it' if graphs == 1 else 'each'} gives the same"


def minify(
    run_captured: Callable[[Captured], Any], compile: Compile, settings: str, against: str, tolerance: float | None, file: Any
) -> Minified:
    """See `bytejit.minify`. run_captured(backend): calls the program with a backend; compile: a function as the program is."""
    check_against(against)
    if tolerance is not None and not tolerance >= 0:
        raise ValueError(f"tolerance is {tolerance!r}: expected a number of at least 0")
    if file is not None:
        writable(Path(file))  # before the search, which may take minutes
    captured = Captured()
    run_captured(captured)
    judge = Judge(compile, against, tolerance)
    found = minified(captured, judge, settings)
    if found is None:
        raise NothingFails(nothing_fails(len(captured.graphs), against))
    return found.write(file) if file is not None else found
