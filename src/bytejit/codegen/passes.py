"""Passes: named steps from a program to an equal one. One loop runs a tuple of them, and times, checks and prints after each.

A target holds a tuple for each form that a program takes: over the ATen graph, over `Loops`, over the `Plan`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from bytejit.common.errors import Bug
from bytejit.common.light_dataclass import light_dataclass


@light_dataclass(frozen=True)
class Pass:
    """A named step. run(program, *context) -> program. why: the reason for its place in the tuple."""

    name: str
    run: Callable[..., Any]
    why: str = ""


@dataclass
class Journal:
    """The record of a graph's passes. prints: keep the program's text after each; checks: check the program after each.
    stages: (stage, text, suffix) in the order in which they were made; seconds: "stage.pass" -> time taken."""

    prints: bool = False
    checks: bool = False
    stages: list[tuple[str, str, str]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def note(self, stage: str, text: str, suffix: str = ".txt") -> None:
        """Keep a stage's text, where texts are kept."""
        if self.prints:
            self.stages.append((stage, text, suffix))


@light_dataclass(frozen=True)
class Stage:
    """A form of the program. name: of the stage; check: raises `Bug` for an illegal program; show: returns its text."""

    name: str
    check: Callable[[Any], Any]
    show: Callable[[Any], str]


def run_passes(form: Stage, passes: Sequence[Pass], program: Any, journal: Journal | None = None, *context: Any) -> Any:
    """Runs the passes in order, and returns the program. context: further arguments of each. Raises: what a pass raises, and
    Bug."""
    journal = journal or Journal()
    for n, step in enumerate(passes):
        began = time.perf_counter()
        program = step.run(program, *context)
        name = f"{form.name}.{step.name}"
        journal.seconds[name] = journal.seconds.get(name, 0.0) + time.perf_counter() - began
        if journal.checks:
            try:
                form.check(program)
            except Bug as error:
                raise Bug(f"after the pass {name}: {error}") from None
        if journal.prints:
            journal.note(f"{form.name}.{n + 1}_{step.name}", form.show(program))
    return program
