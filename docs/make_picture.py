"""Write docs/architecture.svg from the code: the packages by level, their imports, and how a call runs.

    python docs/make_picture.py            # writes docs/architecture.svg
    python docs/make_picture.py --check    # exit status 1 when the file is not what would be written

Levels and the imports of each module come from tests/test_layers.py; what a package is for, from its docstring.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from html import escape
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "architecture.svg"
# the steps of the first call of a compiled function; a later call takes only the step of `runtime`
WAY = (
    ("api", "the user calls compile"),
    ("rewriter", "the code is rewritten, with sites"),
    ("runtime", "each call: an entry whose guards hold runs"),
    ("pipeline", "no entry fits: one is made"),
    ("tracer", "bytecode becomes an FX graph"),
    ("guards", "what the trace relied on"),
    ("backends", "the graph becomes a callable"),
    ("codegen", "ATen, loops, plan, text"),
    ("kernels", "text becomes functions"),
)
WIDTH, LEFT, GAP = 1060, 20, 32
LOW, HIGH = 50, 94  # heights of a level of one package, and of several
INNER = 920  # the boxes of a level share this width; arrows past a level run to the right of it
SPLIT = 80  # letters of a line across a box that is as wide as the picture
COLOURS = {"line": "#5b6770", "box": "#f4f6f8", "step": "#0b6bcb", "text": "#1c2329"}


class Box(NamedTuple):
    """Where a package is drawn."""

    x: int
    y: int
    width: int
    height: int


def layers() -> ModuleType:
    """tests/test_layers.py as a module."""
    spec = importlib.util.spec_from_file_location("layers", ROOT / "tests" / "test_layers.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sentence(package: str, src: Path) -> str:
    """The first line of a package's docstring; of a file's, where the package is a file of the root."""
    path = src / package / "__init__.py" if (src / package).is_dir() else src / f"{package}.py"
    doc = ast.get_docstring(ast.parse(path.read_text()))
    assert doc, f"{path} has no docstring"
    return doc.splitlines()[0]


def arrows(module: ModuleType) -> list[tuple[str, str]]:
    """Imports between packages, without those that others imply: (a, b) is left out where a imports c and c leads to b."""
    direct: dict[str, set[str]] = {}
    for name in module.modules():
        for target, _ in module.imports(name):
            other = module.own(target)
            if other is not None and (name, other) not in module.NAMED_ABOVE and module.room(other) != module.room(name):
                direct.setdefault(module.room(name), set()).add(module.room(other))

    def reached(package: str) -> set[str]:
        found: set[str] = set()
        todo = list(direct.get(package, ()))
        while todo:
            one = todo.pop()
            if one not in found:
                found.add(one)
                todo.extend(direct.get(one, ()))
        return found

    return sorted((a, b) for a, targets in direct.items() for b in targets if not any(b in reached(c) for c in targets - {b}))


def wrapped(text: str, letters: int) -> list[str]:
    """A sentence in lines of at most so many letters; three at most."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > letters:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines if len(lines) <= 3 else [*lines[:2], lines[2] + " ..."]


def places(levels: tuple[tuple[str, ...], ...]) -> dict[str, Box]:
    """The box of each package; the highest level is on top."""
    found, top = {}, 60
    for packages in reversed(levels):
        width = (INNER - 12 * (len(packages) - 1)) // len(packages)
        height = HIGH if len(packages) > 1 else LOW
        for n, package in enumerate(packages):
            found[package] = Box(LEFT + n * (width + 12), top, width, height)
        top += height + GAP
    return found


def box(package: str, place: Box, text: str, folders: list[str]) -> list[str]:
    """A package: its name, its step in a call, its sentence, its folders."""
    x, y, width, height = place
    step = next((n for n, (name, _) in enumerate(WAY, 1) if name == package), 0)
    out = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{COLOURS["box"]}" stroke="{COLOURS["line"]}"/>',
        f'<text x="{x + 10}" y="{y + 19}" font-weight="bold">{package}</text>',
    ]
    if step:
        label = WAY[step - 1][1] if width > 280 else ""
        out.append(f'<text x="{x + width - 26}" y="{y + 18}" text-anchor="end" fill="{COLOURS["step"]}">{escape(label)}</text>')
        out.append(f'<circle cx="{x + width - 13}" cy="{y + 14}" r="9" fill="{COLOURS["step"]}"/>')
        out.append(f'<text x="{x + width - 13}" y="{y + 18}" text-anchor="middle" fill="white">{step}</text>')
    lines = wrapped(text, SPLIT * width // 480)
    if folders:
        listed = "Folders: " + ", ".join(folders) + "."
        lines = [f"{text} {listed}"] if height == LOW else lines + wrapped(listed, SPLIT * width // 480)
    for n, line in enumerate(lines):
        out.append(f'<text x="{x + 10}" y="{y + 37 + 14 * n}" font-size="11">{escape(line)}</text>')
    return out


def arrow(n: int, start: Box, end: Box, side: int) -> str:
    """From under one box to the top of another; by a line at `side` where levels lie between (0: none do)."""
    x, y = start.x + start.width // 2 + 9 * (n % 7 - 3), start.y + start.height
    to, top = end.x + end.width // 2 + 9 * (n % 5 - 2), end.y
    if not side:
        way = f"M{x} {y} V{y + GAP // 2} H{to} V{top - 5}"
    else:
        way = f"M{x} {y} V{y + 8 + n % 3 * 4} H{side} V{top - 12 - n % 3 * 4} H{to} V{top - 5}"
    return f'<path d="{way}" fill="none" stroke="{COLOURS["line"]}" marker-end="url(#tip)"/>'


def picture() -> str:
    """The SVG."""
    module = layers()
    boxes = places(module.LEVELS)
    height = max(b.y + b.height for b in boxes.values()) + 20
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" '
        f'fill="{COLOURS["text"]}">',
        "<!-- written by docs/make_picture.py -->",
        f'<defs><marker id="tip" markerWidth="7" markerHeight="7" refX="3" refY="3.5" orient="auto">'
        f'<path d="M0 0 L7 3.5 L0 7 z" fill="{COLOURS["line"]}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16" font-weight="bold">The packages of bytejit, and how a call runs</text>',
        f'<text x="{LEFT}" y="44">Arrows: imports, always downwards; those that others imply are left out. '
        "Numbers: the order in which a first call reaches the packages.</text>",
    ]
    found = [(a, b) for a, b in arrows(module) if module.LEVEL[a] > module.LEVEL[b]]
    far = [pair for pair in found if module.LEVEL[pair[0]] - module.LEVEL[pair[1]] > 1]
    apart = (WIDTH - LEFT - INNER - 20) // max(1, len(far))
    for n, (a, b) in enumerate(found):
        side = LEFT + INNER + 10 + apart * far.index((a, b)) if (a, b) in far else 0
        out.append(arrow(n, boxes[a], boxes[b], side))
    for package, place in boxes.items():
        folders = sorted(name.partition("/")[2] for name in module.FOLDERS if name.startswith(f"{package}/"))
        out += box(package, place, sentence(package, module.SRC), folders)
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    made = picture()
    if "--check" in sys.argv[1:]:
        sys.exit(0 if PICTURE.exists() and PICTURE.read_text() == made else f"{PICTURE} is old: run docs/make_picture.py")
    PICTURE.write_text(made)
