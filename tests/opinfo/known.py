"""Rows that differ from eager, each with its reason. A row listed that passes is an error: then delete it here.

(operator, setting or a part of its name) -> why. The setting is matched by words: "grad" fits every setting with it.
"""

from __future__ import annotations

KNOWN: dict[tuple[str, str], str] = {}


def reason(op: str, setting: str) -> str:
    """Why a row is known to differ; "" when it is not."""
    words = set(setting.split())
    return next((why for (name, where), why in KNOWN.items() if name == op and set(where.split()) <= words), "")
