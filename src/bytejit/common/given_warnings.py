"""Python's warnings in compiled code: a region gives them where it ends. Where one is an error, or calls code of the program's
(`warnings.showwarning` replaced), it gives none: the graph breaks there."""

from __future__ import annotations

import sys
import types
import warnings
from types import CodeType
from typing import Any

from bytejit.common.light_dataclass import light_dataclass

from . import special_cases

OTHERWISE, SHOWN, RECORDED = 0, 1, 2


def manner() -> int:
    """How a warning is given now: SHOWN on stderr or not at all, RECORDED in a list, or OTHERWISE. Cost: 1.5 us (11 filters)."""
    if (
        warnings.showwarning is not warnings._showwarning_orig  # type: ignore[attr-defined]
        or getattr(warnings, "_use_context", False)  # 3.14: what is recorded is a matter of the context
        or warnings.defaultaction == "error"  # type: ignore[attr-defined]
        or any(rule[0] == "error" for rule in warnings.filters)
    ):
        return OTHERWISE
    shows = warnings._showwarnmsg_impl  # type: ignore[attr-defined]
    if type(shows) is types.FunctionType:
        return SHOWN if special_cases.WARNINGS.made(shows) else OTHERWISE
    found = record()
    return RECORDED if type(found) is list and shows == found.append else OTHERWISE


def record() -> Any:
    """The list that warnings are recorded in, by `catch_warnings(record=True)`; None without one."""
    return getattr(warnings._showwarnmsg_impl, "__self__", None)  # type: ignore[attr-defined]


@light_dataclass(frozen=True)
class Place:
    """Where the call of `warnings.warn` stands. Called, it gives the warning."""

    file: str
    line: int
    namespace: dict

    def __call__(self, message: object, category: type[Warning]) -> None:
        registry = self.namespace.setdefault("__warningregistry__", {})
        module = self.namespace.get("__name__", "<string>")
        if module is not None:  # as warn(): at the end of the process nothing is said
            warnings.warn_explicit(message, category, self.file, self.line, module, registry)  # type: ignore[call-overload]


@light_dataclass(frozen=True)
class Above:
    """A place that many frames above the code that the region is of, for a `stacklevel`."""

    code: CodeType
    levels: int

    def __call__(self, message: object, category: type[Warning]) -> None:
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_code is not self.code:
            frame = frame.f_back
        for _ in range(self.levels):
            frame = frame and frame.f_back
            while frame is not None and is_imports_own(frame.f_code):
                frame = frame.f_back
        place = Place(frame.f_code.co_filename, frame.f_lineno, frame.f_globals) if frame else NOWHERE
        place(message, category)


NOWHERE = Place("sys", 1 if sys.version_info < (3, 12) else 0, sys.__dict__)  # what warn() says above the outermost frame


def gives(function: object) -> bool:
    """Whether calling it gives a warning."""
    return isinstance(function, (Place, Above))


def is_imports_own(code: CodeType) -> bool:
    """Whether `stacklevel` does not count frames of this code: those of `import`."""
    return "importlib" in code.co_filename and "_bootstrap" in code.co_filename
