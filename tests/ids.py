"""Names of parametrized tests."""

import re


def written(value: object) -> str:
    """The value as text without its address: one name in every process that collects the test."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
