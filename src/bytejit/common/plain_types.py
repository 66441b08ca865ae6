"""Types of Python whose values are constants: immutable, compared by value, without attributes of the program's."""

from __future__ import annotations

JSON_TYPES = (bool, int, float, str, type(None))  # those that a text of JSON has
PLAIN_TYPES = (*JSON_TYPES, complex, bytes, type(Ellipsis))
