"""A compiled function in a notebook's cell: its source, with what is compiled of it at each line."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.where import Where, source_line
from bytejit.runtime.function import CompiledFunction, Handle

from .page import folded, pre, style


@light_dataclass(frozen=True)
class Site:
    """What is compiled from a line on. entries: (guards, text) of each; why: what last made it compile again."""

    line: int
    entries: Sequence[tuple[int, str]]
    why: str


def sites_of(function: CompiledFunction) -> list[Site]:
    """The places that hold compiled code, in order."""
    found = []
    for point, state in sorted(function.sites.states.items()):
        entries = [(len(tuple(e.guards)), e.text) for e in state.entries if not e.negative]
        if entries:
            found.append(Site(function.place(point).line, entries, function.recompiles.failures.get(point, "")))
    return found


def last_line(function: CompiledFunction) -> int:
    """The last line of a function's code. For a module's call it is the last line of the function that the region is named
    after, found by its indentation."""
    if not function.unnamed:
        return max((line for *_, line in function.rewritten.original.co_lines() if line), default=function.where.line)
    first, n = function.where, function.where.line
    depth = len(first.source) - len(first.source.lstrip())
    while (text := source_line(first.file, n + 1)) and (not text.strip() or len(text) - len(text.lstrip()) > depth):
        n += 1
    return n


def cell(handle: Handle, *called_on: object) -> str:
    """The source of a compiled function as HTML, each line with the number of compiled entries that begin there.

    called_on: the module whose call the function is.
    """
    function = handle.function
    function.name_after(called_on)
    where, sites = function.where, sites_of(function)
    at = {site.line: site for site in sites}
    first = min([where.line, *at])
    rows = "".join(row(where, n, at.get(n)) for n in range(first, max([last_line(function), *at]) + 1))
    title = f"{where.function}, {where.short}: " + (
        f"{sum(len(s.entries) for s in sites)} compiled" if sites else "nothing compiled yet"
    )
    texts = "".join(
        folded(f"line {s.line}: entry {i}, {guards} guards", pre(text))
        for s in sites
        for i, (guards, text) in enumerate(s.entries)
    )
    source = f"<div class=wide><table class=code>{rows}</table></div>"
    return f'<style>{style()}</style><div class="bytejit"><p><b>{escape(title)}</b></p>{source}{texts}</div>'


def row(where: Where, n: int, site: Site | None) -> str:
    """Prints one line."""
    mark = f'<span class="t g0" title="compiled entries that begin here">{len(site.entries)}</span>' if site is not None else ""
    line = f"<tr><td class=g>{mark}</td><td class=l>{n}</td><td class=c>{escape(source_line(where.file, n))}</td></tr>"
    said = (
        f"<tr><td></td><td></td><td class=u>compiled again: {escape(site.why)}</td></tr>" if site is not None and site.why else ""
    )
    return line + said
