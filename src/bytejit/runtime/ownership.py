"""Whose exception it is that a graph raised: an operation's, the program's own Python's, a backend's, or a fault of bytejit's.

Decided by its traceback: the innermost frame outside of torch and of Python's library says who ran into it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

from bytejit.common import special_cases

GRAPH, CALLED, PROGRAM, BYTEJIT = "graph", "called", "program", "bytejit"
PACKAGE = __name__.partition(".")[0]
# called by whoever is further out; generated code has no name
PASSED_OVER = frozenset({"", "torch", "triton", "cffi", "sympy", *sys.stdlib_module_names})
GRAPHS = ("<eval_with_key>", "<bytejit call", "<aten graph>")  # text made of graphs
MADE = (
    f"{PACKAGE}.autograd.",
    f"{PACKAGE}.backends.",
    f"{PACKAGE}.codegen.",
)  # code that runs graphs


class UserError(Exception):
    """Carries an exception that is the user's own (a backend's) past the handling of internal faults."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


@contextmanager
def keeping_context(error: BaseException) -> Iterator[None]:
    """Within it an exception is raised once more: what it was raised in stays, whatever is handled by now."""
    context = error.__context__
    try:
        yield
    finally:
        error.__context__ = context


def frames_of(error: BaseException) -> Iterator[FrameType]:
    """The frames that an exception came through, innermost first."""
    frames, at = [], error.__traceback__
    while at is not None:
        frames.append(at.tb_frame)
        at = at.tb_next
    return reversed(frames)


def owner_of(error: BaseException) -> str:
    """GRAPH: an operation of an FX graph, or of what bytejit made of one, raised it; CALLED: Python code of the program that such
    a graph calls; PROGRAM: other Python code of the program, or of a library that it uses; BYTEJIT: none of these."""
    inner = ""
    for frame in frames_of(error):
        module = str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if is_of_graph(frame) or module == "torch.fx.interpreter" or module.startswith(MADE):
            return CALLED if inner == PROGRAM else GRAPH
        if is_ours(frame):
            inner = inner or BYTEJIT
        elif package not in PASSED_OVER:
            inner = inner or PROGRAM
    return inner or BYTEJIT


def is_of_graph(frame: FrameType) -> bool:
    """Whether a frame runs text made of a graph."""
    return frame.f_code.co_filename.startswith(GRAPHS)


def is_ours(frame: FrameType) -> bool:
    """Whether a frame runs code of bytejit's, or code that it generated."""
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package == PACKAGE or frame.f_code.co_filename.startswith("<bytejit")


def without_ours(error: BaseException) -> TracebackType | None:
    """An exception's traceback from the first frame on that is not bytejit's: a user has no use for those above it."""
    tb = error.__traceback__
    while tb is not None and is_ours(tb.tb_frame):
        tb = tb.tb_next
    return tb


def is_own(backend: object) -> bool:
    """Whether a backend is one of bytejit's."""
    return special_cases.BYTEJIT.made(backend)
