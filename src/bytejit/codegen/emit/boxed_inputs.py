"""Frees the inputs of a boxed call (see `common/boxed.py`): the local that holds one is deleted behind its last use."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

NAMES = re.compile(r"\b[pd]\d+\b")
WITHIN = (" ", "except", "finally", "else", "elif")  # how a line begins that does not stand by itself


def freeing(lines: Sequence[str], result: str, inputs: Sequence[str], pointers: Mapping[str, str]) -> list[str]:
    """Returns the lines with lines between them that delete inputs. result: the text of what the function returns; inputs: the
    locals that hold tensors; pointers: local that holds an address -> the input that it is of."""
    last = dict.fromkeys(inputs, -1)
    for at, line in enumerate(lines):
        last.update((pointers.get(name, name), at) for name in NAMES.findall(line))
    kept = {pointers.get(name, name) for name in NAMES.findall(result)}
    dead: dict[int, list[str]] = {}
    for name in inputs:
        if name not in kept:
            dead.setdefault(last[name], []).append(name)
    made = list[str]()
    waiting = dead.get(-1, [])
    for at, line in enumerate(lines):
        if waiting and not line.startswith(WITHIN):
            made.append(f"del {', '.join(waiting)}")
            waiting = []
        made.append(line)
        waiting = waiting + dead.get(at, [])
    return [*made, f"del {', '.join(waiting)}"] if waiting else made
