"""Text for users: identifiers, near misses, plurals, indented lines, tables. No address, no set order in any text."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence


def identifier(name: str) -> str:
    """Returns a name that may follow a letter in generated Python. The name of a code object may be any text."""
    return re.sub(r"\W", "_", name.strip("<>"), flags=re.ASCII)


def near(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to a mistyped one, or None."""
    found = difflib.get_close_matches(name, sorted(known), 1, 0.6)
    return found[0] if found else None


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """The text of an error about an unknown name: what it is, a near miss, all known ones in order."""
    known = sorted(known)
    guess = near(str(name), known)
    hint = f"; did you mean {guess!r}?" if guess else "."
    return f"unknown {kind} {name!r}{hint} Known: {', '.join(known)}"


def plural(n: int, noun: str) -> str:
    """`plural(1, "graph")` is "1 graph", `plural(2, "graph")` "2 graphs"."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def first_line(error: BaseException | str) -> str:
    """The first line of a message that is not empty; the type's name where all are."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def indent(text: str, by: str = "  ") -> str:
    """Every non-empty line moved right."""
    return "\n".join(by + line if line else line for line in text.splitlines())


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Rows under headers in aligned columns; numbers to the right, other things to the left."""
    cells = [[str(c) for c in row] for row in rows]
    width = [max(len(h), *(len(r[i]) for r in cells)) if cells else len(h) for i, h in enumerate(headers)]
    right = [bool(rows) and all(isinstance(r[i], (int, float)) for r in rows) for i in range(len(headers))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, width, right)).rstrip()

    return "\n".join([line(headers), "  ".join("-" * w for w in width), *map(line, cells)])


def file_name(text: str) -> str:
    """A qualified name as part of a file name: `Model.forward.<locals>.f` is "Model.forward.f"."""
    return re.sub(r"[^\w.-]+", "_", text.replace(".<locals>", "")).strip("_") or "code"


def without_records(name: str) -> str:
    """The name of a function of pybind's without that of its record, which no program knows."""
    return re.sub(r"\bpybind11_detail_function_record_\w+\.", "", name)
