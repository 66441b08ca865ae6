"""What torch's Python warns of while an operation is traced: said of the user's line, once for each compile."""

from __future__ import annotations

import warnings
from typing import Any

from bytejit.tracer.core.tracer import Tracer


def say(t: Tracer, message: Any, category: type[Warning]) -> None:
    """Say a warning as often as Python's filters have it. Raises: what they make of it."""
    where, registry = t.tensors.where(), t.tensors.users_frame().globals.setdefault("__warningregistry__", {})
    warnings.warn_explicit(message, category, where.file, where.line, registry=registry)
