"""What became of a call as one HTML page that needs no network: the program with its breaks, pictures, kernels, guards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape

from bytejit.codegen.loops.plan import Plan
from bytejit.common.graph_info import info_of, report_of
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.where import Where, short_path, source_line

from .drawing import drawing
from .inspection import NOTHING, BreakReason, Region

AROUND = 2  # lines shown before and after one that is in a graph
COLOURS = 6  # of graphs, again from the first after the last
LINE = re.compile(r"^(.*?)\s*(?://|#) (\S+:\d+)(?: (.*))?$")  # a line of a kernel with the user's line as its comment

# A rule a line; each holds only inside the report, which may stand in a notebook's page
RULES = """
{background:var(--bg);color:var(--fg);font:14px/1.5 system-ui,sans-serif;--bg:#fff;--fg:#1f2328;--soft:#59636e;--line:#d1d9e0}
{--code:#f6f8fa;--bad:#cf222e;--badbg:#ffebe9}
h1{font-size:21px;margin:0 0 4px}
h2{font-size:17px;margin:28px 0 8px}
h3{font-size:14px;margin:14px 0 6px}
p{margin:4px 0}
.soft{color:var(--soft)}
.wide{overflow-x:auto}
pre{background:var(--code);padding:8px 10px;overflow-x:auto;border-radius:6px;margin:4px 0}
pre,td.c,td.u{font:12px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
table{border-collapse:collapse}
table.rows th,table.rows td{text-align:left;padding:3px 12px 3px 0;border-bottom:1px solid var(--line);vertical-align:top}
table.rows td.n{text-align:right}
table.code{width:100%;background:var(--code);border-radius:6px}
table.code td{padding:0 8px;white-space:pre;vertical-align:top;text-align:left}
table.code td.l{color:var(--soft);text-align:right;width:1%;font:12px/1.5 ui-monospace,monospace}
td.g{width:1%}
td.u{color:var(--soft);border-right:1px solid var(--line);max-width:min(460px,30vw);overflow:hidden;text-overflow:ellipsis}
tr.break td{background:var(--badbg)}
table.code tr.said td{background:var(--badbg);color:var(--bad);white-space:normal;padding-bottom:4px}
.t{display:inline-block;min-width:18px;text-align:center;border-radius:9px;font:11px/17px system-ui;color:#fff;margin-right:2px}
.t{text-decoration:none}
.g0{background:#0969da}
.g1{background:#1a7f37}
.g2{background:#9a6700}
.g3{background:#8250df}
.g4{background:#bf3989}
.g5{background:#0a7286}
details{border:1px solid var(--line);border-radius:6px;padding:6px 10px;margin:6px 0}
summary{cursor:pointer}
svg.graph text{font:12px system-ui,sans-serif;text-anchor:middle;fill:#1f2328}
svg.graph path{fill:none;stroke:#8c959f}
svg.graph rect{stroke:#8c959f;fill:#f6f8fa}
svg.graph .kernel rect{fill:#ddf4ff;stroke:#0969da}
svg.graph .library rect{fill:#fff8c5;stroke:#9a6700}
svg.graph .torch rect{fill:#ffebe9;stroke:#cf222e}
"""
DARK = "{--bg:#0d1117;--fg:#e6edf3;--soft:#9198a1;--line:#3d444d;--code:#151b23;--bad:#f85149;--badbg:#341a1c}"
PAGE = "body{margin:0 auto;max-width:1280px;padding:20px}"


@light_dataclass(frozen=True)
class Story:
    """What a page tells. summary: one line; left: (what was left to the original code, how often)."""

    name: str
    summary: str
    regions: Sequence[Region]
    breaks: Sequence[BreakReason]
    recompiles: Mapping[str, int]
    left: Mapping[str, int]


def style() -> str:
    """The rules, for what is inside an element of the class `bytejit`."""
    rules = [line.partition("{") for line in RULES.strip().splitlines()]
    inside = [f"{','.join(f'.bytejit {x}'.rstrip() for x in selectors.split(','))}{{{rest}" for selectors, _, rest in rules]
    return "\n".join([*inside, f"@media(prefers-color-scheme:dark){{.bytejit{DARK}}}"])


def page(story: Story) -> str:
    """The whole page."""
    head = f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>bytejit: {escape(story.name)}</title>'
    view = '<meta name="viewport" content="width=device-width,initial-scale=1">'
    return f'{head}{view}<style>{PAGE}\n{style()}</style></head><body class="bytejit">{body(story)}</body></html>\n'


def fragment(story: Story) -> str:
    """The same for a notebook's cell."""
    return f'<style>{style()}</style><div class="bytejit">{body(story)}</div>'


def body(story: Story) -> str:
    """All sections."""
    graphs = [r for r in story.regions if r.graph is not None]
    parts = [f"<h1>{escape(story.name)}</h1><p class='soft'>{escape(story.summary)}</p>"]
    if graphs:
        parts += [section("Graphs", table(graphs)), section("Program", program(graphs, story.breaks))]
        parts += [section(f"Graph {i}: {escape(r.function)}", graph(i, r), f"graph{i}") for i, r in enumerate(graphs)]
    elif story.breaks:
        parts.append(section("Program", program(graphs, story.breaks)))
    elif not story.left:
        parts.append(f"<p>{NOTHING}</p>")
    parts.append(section("Compiled again in this process, and why", listed(story.recompiles)) if story.recompiles else "")
    parts.append(section("Left to the original code", listed(story.left)) if story.left else "")
    return "".join(parts)


def section(title: str, content: str, anchor: str = "") -> str:
    """A heading and what is below it."""
    return f"<h2{f' id={anchor}' if anchor else ''}>{title}</h2>{content}"


def listed(counts: Mapping[str, int]) -> str:
    """Texts with how often each."""
    rows = "".join(f"<tr><td class=n>{n}</td><td>{escape(what)}</td></tr>" for what, n in counts.items())
    return f"<table class=rows>{rows}</table>"


def tag(i: int) -> str:
    """The mark of a graph."""
    return f'<a class="t g{i % COLOURS}" href="#graph{i}">{i}</a>'


# ---- the table of graphs -----------------------------------------------------------------------------------------------
def table(graphs: Sequence[Region]) -> str:
    """A row a graph: what it holds, what it costs."""
    heads = ("graph", "of", "from", "ops", "kernels", "library calls", "guards", "compiled in", "runs in", "kernels move", "at")
    rows = "".join(
        f"<tr><td>{tag(i)}</td><td>{escape(r.function)}</td><td>{escape(r.where.short)}</td>"
        + "".join(f"<td class=n>{escape(x)}</td>" for x in figures(r))
        + "</tr>"
        for i, r in enumerate(graphs)
    )
    return f"<div class=wide><table class=rows><tr>{''.join(f'<th>{h}</th>' for h in heads)}</tr>{rows}</table></div>"


def figures(r: Region) -> tuple[str, ...]:
    """The numbers of a graph as text, "" where they are not known."""
    report = report_of(r.graph) if r.graph is not None else None
    stats, seconds = getattr(report, "stats", None), getattr(report, "run_seconds", None)
    moved, externs = getattr(stats, "bytes", 0), getattr(stats, "externs", ())
    return (
        str(len(r.ops)),
        str(stats.kernels) if stats is not None else "",
        str(len(externs)) if stats is not None else "",
        str(len(r.guards)),
        f"{r.seconds:.2f} s",
        f"{seconds * 1e6:,.0f} \N{MICRO SIGN}s" if seconds else "",
        size(moved) if isinstance(moved, int) and moved else "",
        f"{moved / seconds / 1e9:.1f} GB/s" if seconds and isinstance(moved, int) and moved and not externs else "",
    )


def size(n: int) -> str:
    """Bytes in words."""
    return f"{n / 1e6:,.1f} MB" if n >= 1e5 else f"{n / 1e3:,.1f} kB"


# ---- the program -------------------------------------------------------------------------------------------------------
def program(graphs: Sequence[Region], breaks: Sequence[BreakReason]) -> str:
    """The lines that are in graphs, with a few around, and the breaks below theirs."""
    inside: dict[tuple[str, int], set[int]] = {}
    for i, r in enumerate(graphs):
        for n in r.graph.graph.nodes:  # type: ignore[union-attr]
            where = n.meta.get("where")
            if isinstance(where, Where) and n.op != "placeholder":
                inside.setdefault((where.file, where.line), set()).add(i)
    said: dict[tuple[str, int], list[BreakReason]] = {}
    for b in breaks:
        said.setdefault((b.where.file, b.where.line), []).append(b)
    files = dict.fromkeys(file for file, _ in (*inside, *said))
    return "".join(f"<h3>{escape(short_path(f))}</h3>{listing(f, inside, said)}" for f in files)


def listing(file: str, inside: Mapping[tuple[str, int], set[int]], said: Mapping[tuple[str, int], list[BreakReason]]) -> str:
    """The lines of one file."""
    marked = {line for f, line in (*inside, *said) if f == file}
    shown = sorted({n for line in marked for n in range(max(1, line - AROUND), line + AROUND + 1)})
    rows, last = [], 0
    for n in shown:
        text = source_line(file, n)
        if not text and n not in marked:
            last = n
            continue
        if last and n > last + 1:
            rows.append("<tr><td class=g></td><td class=l>\N{VERTICAL ELLIPSIS}</td><td></td></tr>")
        last, here = n, said.get((file, n), [])
        tags = "".join(map(tag, sorted(inside.get((file, n), ()))))
        kind = " class=break" if here else ""
        rows.append(f"<tr{kind}><td class=g>{tags}</td><td class=l>{n}</td><td class=c>{escape(text)}</td></tr>")
        for b in here:
            rows.append(f"<tr class=said><td></td><td></td><td>break: {escape(b.reason)}. Do: {escape(b.do)}.</td></tr>")
    return f"<div class=wide><table class=code>{''.join(rows)}</table></div>"


# ---- one graph ---------------------------------------------------------------------------------------------------------
def graph(i: int, r: Region) -> str:
    """A graph: its picture, its kernels beside the user's lines, what stands around them."""
    report = report_of(r.graph)  # type: ignore[arg-type]
    parts = [f"<p>{tag(i)} {escape(str(r.where))}</p>"]
    if report.through_torch:
        parts.append(f"<p>It runs through torch: {escape(report.through_torch)}</p>")
    if isinstance(report.plan, Plan):
        names = [source.name() for source in r.trace.inputs]
        picture = drawing(report.plan, info_of(r.graph).weights, names)  # type: ignore[arg-type]
        parts.append(f"<div class=wide>{picture}</div>" if picture else "<p class=soft>Too many steps to be drawn.</p>")
    texts = {stage: text for stage, text, _ in report.stages}
    for stage, text in texts.items():
        if stage.rstrip("0123456789").endswith("kernel"):
            parts.append(folded("Kernels, beside your lines", beside(text), opened=True))
    parts += [folded("How they are called", pre(text)) for stage, text in texts.items() if stage.endswith("call")]
    parts.append(folded("The graph as traced", pre(r.graph.code)))  # type: ignore[union-attr]
    parts.append(folded(f"{len(r.guards)} guards: what it relies on", pre("\n".join(r.guards))))
    lines = [*r.saved, *r.cudagraphs, *(f"{n} x {what}" for what, n in r.externs.items())]
    return "".join(parts) + (f"<p class=soft>{'<br>'.join(map(escape, lines))}</p>" if lines else "")


def folded(title: str, content: str, opened: bool = False) -> str:
    """A part that opens when it is asked for."""
    return f"<details{' open' if opened else ''}><summary>{escape(title)}</summary>{content}</details>"


def pre(text: str) -> str:
    """Text as it is."""
    return f"<pre>{escape(text.strip(chr(10)))}</pre>"


def beside(text: str) -> str:
    """The kernels' lines to the right, the user's line of each to the left, named where it changes."""
    rows, last = [], ""
    for line in text.strip("\n").splitlines():
        found = LINE.match(line)
        code, place = (found[1], f"{found[2]} {found[3] or ''}".strip()) if found else (line, "")
        left = place if place != last else ""
        last = place or last
        rows.append(f'<tr><td class=u title="{escape(place)}">{escape(left)}</td><td class=c>{escape(code)}</td></tr>')
    return f"<div class=wide><table class=code>{''.join(rows)}</table></div>"
