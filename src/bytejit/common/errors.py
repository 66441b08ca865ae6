"""The errors of bytejit. Each says what, where, why and what to do; `bytejit.exc` is the public name of this module."""

from __future__ import annotations

from .where import Where


class BytejitError(Exception):
    """Base of all errors of bytejit's own."""


class Unsupported(BytejitError):
    """Something cannot be taken into a graph. Raised only under `nopython=True` / `fullgraph=True`, else a graph break.

    `what`, `why` and `do` are short texts; `where` is a `Where` or None. `str()` is the whole message, four lines.
    """

    __module__ = "bytejit.exc"

    def __init__(self, what: str, where: Where | None = None, why: str = "", do: str = "") -> None:
        super().__init__(what, where, why, do)
        self.what, self.where, self.why, self.do = what, where, why, do

    def __str__(self) -> str:
        parts = (("where", self.where), ("why", self.why), ("do", self.do))
        return "\n".join([self.what, *(f"  {name:<5}  {text}" for name, text in parts if text)])

    def at(self, where: Where | None) -> Unsupported:
        """The same with a place, when it has none yet."""
        return self if self.where is not None else Unsupported(self.what, where, self.why, self.do)

    @property
    def reason(self) -> str:
        """One line for logs, counters and `explain`: what and file:line."""
        return f"{self.what} at {self.where.short}" if self.where is not None else self.what


class ConstraintViolation(Unsupported):
    """A dimension that the user marked dynamic (`mark_dynamic`) can have only one size in the traced code. Raised by the call
    that traces it; `where` is the line that fixes the size."""

    __module__ = "bytejit.exc"


class RecompileError(Unsupported, RuntimeError):
    """A compile that the program forbids, by torch's stance "fail_on_recompile" or its config error_on_recompile."""

    __module__ = "bytejit.exc"


class BadSetting(BytejitError, ValueError):
    """A setting of the program or the environment names something that does not exist. Always raised: there is no fallback."""

    __module__ = "bytejit.exc"


class CannotRewrite(BytejitError):
    """A code object that cannot be rewritten with sites; it runs as it is. `reason` says why."""

    __module__ = "bytejit.exc"

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


RETURN = "return a callable that takes the graph's inputs and returns its outputs as a tuple, as the graph itself does"


class BackendFailed(BytejitError):
    """A backend returned something that cannot be called, or that does not return the graph's outputs. Errors of a backend itself
    are raised unchanged, with a note."""

    __module__ = "bytejit.exc"

    def __init__(self, backend: str, what: str, where: Where | None = None) -> None:
        super().__init__(backend, what, where)
        self.backend, self.what, self.where = backend, what, where

    def __str__(self) -> str:
        place = f"\n  where  {self.where}\n  do     {RETURN}" if self.where is not None else ""
        return f"backend {self.backend!r} {self.what}{place}"


class MissingPackage(BytejitError, ImportError):
    """A backend needs a package that is not installed, or too old. Raised by the first call. `str()` names the packages, their
    versions, and how to install them."""

    __module__ = "bytejit.exc"

    def __init__(self, backend: str, faults: tuple[str, ...], install: str) -> None:
        super().__init__(backend, faults, install)
        self.backend, self.faults, self.install = backend, faults, install

    def __str__(self) -> str:
        lines = [f"backend {self.backend!r} cannot be used", *(f"  why    {fault}" for fault in self.faults)]
        return "\n".join([*lines, f"  do     {self.install}"])


class IncorrectResult(BytejitError, RuntimeError):
    """`verify_correctness`, `check`: the code that a backend made returned a wrong result. Raised by the first call."""

    __module__ = "bytejit.exc"


class NothingFails(BytejitError, ValueError):
    """The call given to `minify` does not fail. Nothing is written."""

    __module__ = "bytejit.exc"


class Bug(BytejitError):
    """An internal check failed: a bug of bytejit. The message shows the values that disagree."""

    __module__ = "bytejit.exc"


class DeviceFault(BytejitError, IndexError):
    """A kernel on a GPU met an index out of range. Raised by a later call, as torch's own device asserts are: the call that
    met it has returned already."""

    __module__ = "bytejit.exc"


class BehindWrites(BytejitError, RuntimeError):
    """A step of bytejit's behind the writes of a graph failed (`__cause__`). The inputs keep what was written, so that the
    original code cannot run in the graph's place: it would write a second time. Always raised."""

    __module__ = "bytejit.exc"


def behind_writes(error: BaseException) -> BehindWrites:
    """The error of what failed behind the writes."""
    return BehindWrites(
        f"{type(error).__name__} behind the writes of a graph: {error}\n"
        "  why    a fault of bytejit, not of your code; its inputs are written, so the original code cannot run instead\n"
        "  do     report it with the traceback"
    )


def note_place(error: BaseException, doing: str, where: Where | None) -> BaseException:
    """Add "while <doing>, at <user's line>" to an exception once, keeping its type and message; returns it."""
    note = f"while {doing}" + (f", at {where}" if where is not None else "")
    if note not in getattr(error, "__notes__", ()):
        error.add_note(note)
    return error


def backend_name(backend: object) -> str:
    """The name of a backend in messages: its registered name, or the callable's own."""
    return backend if isinstance(backend, str) else getattr(backend, "__qualname__", type(backend).__qualname__)
