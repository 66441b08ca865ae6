"""Warnings that torch's Python gives while an operation is traced. They name the user's line, once for each compile."""

from __future__ import annotations

import warnings
from typing import Any

from bytejit.tracer.core.tracer import Tracer


def say(t: Tracer, message: Any, category: type[Warning]) -> None:
    """Give a warning as often as Python's filters allow. Raises: the warning, where a filter makes it an error."""
    where, registry = t.tensors.where(), t.tensors.users_frame().globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, where.file, where.line, registry=registry)
