"""Whose exception it is that a graph raised: an operation's, the program's own Python's, a backend's, or a fault of bytejit's.

Decided by its traceback: the innermost frame outside of torch and of Python's library says who ran into it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

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
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__", ""))
        package = module.partition(".")[0]
        if file.startswith(GRAPHS) or module == "torch.fx.interpreter" or module.startswith(MADE):
            return CALLED if inner == PROGRAM else GRAPH
        if package == PACKAGE or file.startswith("<bytejit"):
            inner = inner or BYTEJIT
        elif package not in PASSED_OVER:
            inner = inner or PROGRAM
    return inner or BYTEJIT


def is_own(backend: object) -> bool:
    """Whether a backend is one of bytejit's."""
    return special_cases.BYTEJIT.made(backend)
