"""The opcode table: one handler an opcode, or a reason why it is refused. tests/test_layers.py holds it complete."""

from __future__ import annotations

import dis
from collections.abc import Callable

HANDLERS: dict[str, Callable] = {}
REFUSED: dict[str, str] = {}

RETURN, YIELD = -1, -2  # what a handler returns besides None (go on) and an index (jump)


def handles(*names: str) -> Callable:
    """Register `handler(t, f, ins) -> None | index | RETURN | YIELD` for opcodes (of any supported Python)."""

    def register(handler: Callable) -> Callable:
        for name in names:
            if name in HANDLERS or name in REFUSED:
                raise ValueError(f"opcode {name} has a handler already")
            HANDLERS[name] = handler
        return handler

    return register


def refuse(reason: str, *names: str) -> None:
    """Opcodes that end a region."""
    for name in names:
        if name in HANDLERS or name in REFUSED:
            raise ValueError(f"opcode {name} has a handler already")
        REFUSED[name] = reason


def missing() -> set[str]:
    """Opcodes of the running Python that are neither handled nor refused (specialised forms never reach the tracer)."""
    return {n for n, o in dis.opmap.items() if o < 256 and not n.startswith("INSTRUMENTED_")} - set(HANDLERS) - set(REFUSED)
