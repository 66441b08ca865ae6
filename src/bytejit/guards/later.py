"""Guards that are checked once more after the call that they were checked for."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Sequence

from bytejit.common.interrupts import from_handler

from .guard_set import Guard
from .kinds import ATTR_ABSENT, BOOL, DICT_ABSENT, DICT_KEYS, EQUALS, ID_IS, KINDS, LEN_IS, TYPE_IS
from .sources import SourcePrinter

KINDS_CHECKED_LATER = frozenset((ATTR_ABSENT, BOOL, DICT_ABSENT, DICT_KEYS, EQUALS, ID_IS, LEN_IS, TYPE_IS))


def checked_later(guards: Sequence[Guard]) -> Callable[[], bool] | None:
    """Returns a function that checks the guards; None where they read more than globals: locals of the call, tensors."""
    at = SourcePrinter()
    if any(g.kind not in KINDS_CHECKED_LATER for g in guards):
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
