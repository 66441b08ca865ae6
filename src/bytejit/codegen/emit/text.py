"""The text of a kernel as it is written."""

from __future__ import annotations


class Text:
    """Lines with an indent. The user's line beside each is kept apart, as equal code may come from different lines."""

    mark = "//"  # how a comment begins
    start = 0  # the first indent

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []
        self.depth = self.start

    def add(self, line: str, comment: str = "") -> None:
        self.rows.append(("    " * self.depth + line, comment))

    def plain(self) -> str:
        """The code without comments. Two kernels with equal code are one."""
        return "\n".join(line for line, _ in self.rows)

    def full(self) -> str:
        """The code with the user's lines."""
        return "\n".join(f"{line}  {self.mark} {note}" if note else line for line, note in self.rows)
