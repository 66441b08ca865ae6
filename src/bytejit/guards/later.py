"""Guards that are checked once more after the call that they were checked for."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence

from bytejit.common.interrupts import from_handler

from .guard_set import Guard
from .kinds import KINDS
from .sources import SourcePrinter


def checked_later(guards: Sequence[Guard]) -> Callable[[], bool] | None:
    """Returns a function that checks the guards; None where they read more than globals: locals of the call, tensors."""
    at = SourcePrinter()
    if not all(KINDS[g.kind].later for g in guards):
        return None
    text = " and ".join(f"({KINDS[g.kind].check(at, g.source.expr(at), g.value)})" for g in guards)
    tree = ast.parse(text, "<bytejit guards>", mode="eval")
    own = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} - own
    if not all(name in at.env or hasattr(builtins, name) for name in names):
        return None
    code, env = compile(tree, "<bytejit guards>", "eval"), at.env

    def holds() -> bool:
        try:
            return bool(eval(code, env))
        except Exception as error:  # a source that cannot be fetched any more
            if from_handler(error):
                raise
            return False

    return holds
