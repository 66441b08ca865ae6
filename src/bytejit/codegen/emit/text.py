"""The text of a kernel while a printer writes it."""

from __future__ import annotations


class Text:
    """Lines with an indent. The comments with the user's lines are kept separately: equal code may come from different lines."""

    mark = "//"  # begins a comment
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
