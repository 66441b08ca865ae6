"""Joins small launches (horizontal fusion): one kernel whose programs are those of several small kernels.

    def k7(p0, p1, p2, ...):
        pid = tl.program_id(0)
        if pid < 128:
            k3_part(pid, p0, p1, X=512)
        elif pid < 384:
            k5_part(pid - 128, p0, p2, X=4, R=2048)

`loops/passes/side_by_side.py` moves them next to each other. No part may read or write memory that another part writes.
"""

from __future__ import annotations

from collections.abc import Iterator

from bytejit.codegen.cuda.store_forwarding import Overlap
from bytejit.codegen.emit import common
from bytejit.codegen.loops.passes.side_by_side import MOST, SMALL
from bytejit.codegen.loops.plan import Call, Plan
from bytejit.common.light_dataclass import light_dataclass

from .source import Arg, Launch, LaunchConfig

PARAMS = 64  # at most so many parameters has a joined kernel
PID = "    pid = tl.program_id(0)"


@light_dataclass(frozen=True)
class LaunchPart:
    """A launch that may become part of another: the names of its function's parameters, the function's lines, the buffers that it
    reads and writes, and which of them share bytes."""

    launch: Launch
    params: tuple[str, ...]
    body: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    overlap: Overlap

    def apart(self, other: LaunchPart) -> bool:
        """Whether neither writes memory that the other reads or writes."""
        written = [(a, b) for a in self.writes for b in (*other.reads, *other.writes)]
        return not any(self.overlap(a, b) for a, b in (*written, *((a, b) for a in other.writes for b in self.reads)))


def part_of(plan: Plan, launch: Launch, params: tuple[str, ...], body: str) -> LaunchPart | None:
    """The part for a step with one launch; None where it stays a launch of its own."""
    step = plan.steps[launch.step]
    if not isinstance(step, Call) or not body.startswith(PID) or common.traffic(plan, step) > SMALL:
        return None
    plain = all(a.kind == "buffer" for a in launch.args) and len(launch.grid) == 1 and isinstance(launch.grid[0], int)
    if not plain or not launch.grid[0]:
        return None
    overlap = Overlap(plan.offsets, plan.slots, plan.buffers)
    return LaunchPart(launch, params, body, tuple(step.reads), tuple(step.writes), overlap)


def groups(parts: list[LaunchPart | None], segments: list[list[int]]) -> Iterator[list[LaunchPart]]:
    """Sequences of two or more consecutive parts that can be one launch. parts: for each step."""
    for steps in segments:
        row: list[LaunchPart] = []
        for part in (parts[i] for i in steps):
            if part is not None and row and fits(row, part):
                row.append(part)
                continue
            if len(row) > 1:
                yield row
            row = [] if part is None else [part]
        if len(row) > 1:
            yield row


def fits(row: list[LaunchPart], part: LaunchPart) -> bool:
    """Whether one more part may join a sequence of parts."""
    args = {a for p in (*row, part) for a in p.launch.args}
    return len(row) < MOST and len(args) <= PARAMS and all(part.apart(p) for p in row)


@light_dataclass(frozen=True)
class JoinedKernel:
    """One kernel that does the work of a row of parts. signature: its parameters. functions: (parameters, lines) of the
    different parts. branches: which programs call which function. Two rows with equal fields share one kernel."""

    signature: str
    functions: tuple[tuple[str, str], ...]
    branches: tuple[tuple[int, int, str], ...]  # (end of the programs, number of the function, arguments)

    def text(self, name: str, first: str) -> str:
        """The functions and the kernel. first: the line that a kernel begins with."""
        out = [f"@triton.jit\ndef {name}_{i}({head}):\n{part_text(body)}\n" for i, (head, body) in enumerate(self.functions)]
        lines: list[str] = []
        for end, function, given in self.branches:
            lines += [f"    {'elif' if lines else 'if'} pid < {end}:", f"        {name}_{function}({given})"]
        out.append(f"@triton.jit\ndef {name}({self.signature}):\n{first}{PID}\n" + "\n".join(lines) + "\n")
        return "\n\n".join(out)


def joined(row: list[LaunchPart]) -> tuple[JoinedKernel, Launch]:
    """Makes one kernel for a row of parts, and its launch, which has no name yet."""
    args: dict[Arg, str] = {}
    functions: dict[tuple[str, str], int] = {}
    branches, start = [], 0
    for part in row:
        launch = part.launch
        names = [args.setdefault(a, f"a{len(args)}") for a in launch.args]
        constants = dict(launch.constants)
        head = ", ".join(["pid", *part.params, *(f"{n}: tl.constexpr" for n in constants)])
        function = functions.setdefault((head, part.body), len(functions))
        given = ", ".join([f"pid - {start}" if start else "pid", *names, *(f"{n}={v}" for n, v in constants.items())])
        start += launch.grid[0]
        branches.append((start, function, given))
    signature = ", ".join(f'{n}: "{a.type}"' for a, n in args.items())
    config = LaunchConfig((), max(p.launch.warps for p in row), max(p.launch.stages for p in row), (start,))
    return JoinedKernel(signature, tuple(functions), tuple(branches)), Launch(row[0].launch.step, "", tuple(args), config)


def part_text(body: str) -> str:
    """A function's lines with `pid` as a parameter."""
    line, _, rest = body.partition("\n")
    return rest if line == PID else line.replace("tl.program_id(0)", "pid") + "\n" + rest
