"""Places in the user's code: file, line, function, the source text."""

from __future__ import annotations

import functools
import linecache
import os
from types import CodeType

from bytejit.common.light_dataclass import light_dataclass


def short_path(file: str) -> str:
    """A file as a message names it: relative to the current folder, from site-packages on, or its last two parts."""
    file = "".join(c if c.isprintable() else "?" for c in file)  # generated code may name anything
    if file.startswith("<"):
        return file
    file = os.path.abspath(file)
    for mark in ("site-packages", "dist-packages"):
        _, found, rest = file.partition(os.sep + mark + os.sep)
        if found:
            return rest
    here = os.getcwd()
    if file.startswith(here + os.sep):
        return file[len(here) + 1 :]
    return os.sep.join(file.split(os.sep)[-2:])


@light_dataclass(frozen=True)
class Where:
    """One place in the user's code. `line` counts from 1; `source`: its text, "" if unknown."""

    file: str
    line: int
    function: str
    source: str = ""

    @property
    def short(self) -> str:
        """`model.py:14`"""
        return f"{short_path(self.file)}:{self.line}"

    def __str__(self) -> str:
        text = f"{self.short} in {self.function}"
        return f"{text}: {self.source.strip()}" if self.source.strip() else text

    def __repr__(self) -> str:
        return f"Where({self})"


def line_at(code: CodeType, offset: int) -> int:
    """The line of the instruction at a byte offset; the function's first line when the instruction has none."""
    found = code.co_firstlineno
    for start, end, line in code.co_lines():
        if start <= offset < end:
            return line if line is not None else found
        if line is not None and start <= offset:
            found = line
    return found


def source_line(file: str, line: int) -> str:
    """The text of a line, counted from 1; "" when the file cannot be read. `linecache` is the program's and stays as it is."""
    if file in linecache.cache:
        return linecache.getline(file, line).rstrip("\n")
    try:
        changed = os.stat(file).st_mtime_ns
    except OSError:
        changed = 0
    except ValueError:  # a name that no file can have
        return ""
    lines = _lines(file, changed)
    return lines[line - 1].rstrip("\n") if 0 < line <= len(lines) else ""


@functools.lru_cache(maxsize=64)
def _lines(file: str, changed: int) -> list[str]:
    """The lines of a file as it was when it last changed."""
    found = linecache.getlines(file)
    linecache.cache.pop(file, None)
    return found


def where_of(code: CodeType, offset: int = 0) -> Where:
    """The place of the instruction at a byte offset of a code object. The source is "" when the file cannot be read."""
    line = line_at(code, offset)
    return Where(code.co_filename, line, code.co_qualname, source_line(code.co_filename, line))


def with_source(where: Where) -> Where:
    """A place with the text of its line, where the file can be read."""
    if where.source:
        return where
    return Where(where.file, where.line, where.function, source_line(where.file, where.line))


def where_of_function(fn: object) -> Where:
    """The place of a function's definition; for a callable without Python code its name and no line."""
    code = getattr(fn, "__code__", None)
    if code is None:
        return Where("<no Python source>", 0, getattr(fn, "__qualname__", type(fn).__qualname__))
    line = code.co_firstlineno
    return Where(code.co_filename, line, code.co_qualname, source_line(code.co_filename, line))
