"""A plan as a picture: kernels, library calls and the buffers between them, as SVG text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from bytejit.codegen.loops.ir import View
from bytejit.codegen.loops.plan import Call, ExternCall, Plan

BOX, GAP, ROW, MARGIN = 190, 26, 74, 12  # widths of a box and between boxes, height of a row, space around; in pixels
MOST = 300  # steps: a picture of more would not be readable, and is not drawn


@dataclass(eq=False)
class Box:
    """One box. kind: input, kernel, library, torch or output; lines: its text; reads: the boxes that it takes from."""

    name: str
    kind: str
    lines: tuple[str, ...]
    title: str = ""
    reads: list[Box] = field(default_factory=list)
    row: int = 0
    x: float = 0.0
    y: float = 0.0


def drawing(plan: Plan, weights: Iterable[int] = (), names: Sequence[str] = ()) -> str:
    """The picture of a plan. weights: inputs that are left out; names: what the program calls the first inputs. "" where there is
    too much to draw."""
    if len(plan.steps) > MOST:
        return ""
    boxes = boxes_of(plan, frozenset(weights), names)
    rows: dict[int, list[Box]] = {}
    for box in boxes:
        box.row = max((b.row + 1 for b in box.reads), default=0)
        rows.setdefault(box.row, []).append(box)
    widest = max(map(len, rows.values()), default=1)
    width = widest * (BOX + GAP) - GAP + 2 * MARGIN
    for n, row in rows.items():
        left = (width - len(row) * (BOX + GAP) + GAP) / 2
        row.sort(key=lambda b: sum(r.x for r in b.reads) / len(b.reads) if b.reads else 0.0)
        for i, box in enumerate(row):
            box.x, box.y = left + i * (BOX + GAP), MARGIN + n * ROW
    height = 2 * MARGIN + len(rows) * ROW - (ROW - 46)
    parts = [*(edge(a, b) for b in boxes for a in b.reads), *map(shape, boxes)]
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f'<svg class="graph" xmlns="http://www.w3.org/2000/svg" role="img" {size}>{"".join(parts)}</svg>'


def boxes_of(plan: Plan, weights: frozenset[int], names: Sequence[str] = ()) -> list[Box]:
    """Inputs, steps in order, outputs, with what each reads."""
    makers: dict[str, Box] = {}
    boxes = []
    for i, name in enumerate(plan.inputs):
        if name is not None and i not in weights:
            called = names[i] if i < len(names) else f"input {i}"
            makers[name] = Box(name, "input", (called, form(plan, name)), called)
            boxes.append(makers[name])
    for step in plan.steps:
        box = kernel_box(plan, step) if isinstance(step, Call) else library_box(plan, step)
        read = [*step.reads, *step.writes] if isinstance(step, Call) else list(buffers_in((step.extern.args, step.extern.kwargs)))
        box.reads = list(dict.fromkeys(makers[b] for b in read if b in makers))
        boxes.append(box)
        made = step.writes if isinstance(step, Call) else [b for b in step.extern.outs if b is not None]
        makers.update(dict.fromkeys(made, box))
    for i, result in enumerate(plan.outputs):
        if result.view is not None and result.view.buffer in makers:
            made_by = makers[result.view.buffer]
            boxes.append(Box(f"o{i}", "output", (f"output {i}", form(plan, result.view.buffer)), reads=[made_by]))
    used = {id(b) for box in boxes for b in box.reads}
    return [b for b in boxes if b.kind != "input" or id(b) in used]


def kernel_box(plan: Plan, step: Call) -> Box:
    """The box of a kernel."""
    ops = [op.removeprefix("aten.").partition(".")[0] for op in step.kernel.ops]
    names = ", ".join(f"{n} {op}" if n > 1 else op for op, n in Counter(ops).items())
    result = form(plan, step.writes[0]) if step.writes else ""
    return Box(step.kernel.name, "kernel", (names, result), f"a kernel: {', '.join(ops)}")


def library_box(plan: Plan, step: ExternCall) -> Box:
    """The box of a call of a library or of torch."""
    e = step.extern
    name = e.target.removeprefix("aten.").removesuffix(".default")
    outs = [o for o in e.outs if o is not None]
    kind = "library" if e.reason == "library" else "torch"
    return Box(e.name, kind, (name, form(plan, outs[0]) if outs else ""), f"{e.target}: {e.reason}")


def form(plan: Plan, buffer: str) -> str:
    """Dtype and shape of a buffer."""
    b = plan.buffers[buffer]
    return f"{b.dtype}[{', '.join(map(str, b.shape))}]"


def buffers_in(x: Any) -> Iterable[str]:
    """The buffers among a library call's arguments."""
    if isinstance(x, View):
        yield x.buffer
    elif isinstance(x, (tuple, list)):
        for v in x:
            yield from buffers_in(v)


def shape(box: Box) -> str:
    """A box as SVG."""
    fit = lambda text: text if len(text) <= 27 else text[:26] + "\N{HORIZONTAL ELLIPSIS}"
    texts = "".join(
        f'<text x="{box.x + BOX / 2:g}" y="{box.y + 19 + 15 * i:g}">{escape(fit(line))}</text>'
        for i, line in enumerate(box.lines)
    )
    title = f"<title>{escape(box.title)}</title>" if box.title else ""
    corner = 20 if box.kind in ("input", "output") else 4
    frame = f'<rect x="{box.x:g}" y="{box.y:g}" width="{BOX}" height="46" rx="{corner}"/>'
    return f'<g class="{box.kind}">{title}{frame}{texts}</g>'


def edge(a: Box, b: Box) -> str:
    """A line from what made a buffer to what reads it."""
    x1, y1, x2, y2 = a.x + BOX / 2, a.y + 46, b.x + BOX / 2, b.y
    half = (y2 - y1) / 2
    return f'<path d="M{x1:g} {y1:g}C{x1:g} {y1 + half:g} {x2:g} {y2 - half:g} {x2:g} {y2:g}"/>'
