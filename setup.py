"""Writes the README of a package: its links and pictures, which are relative in the tree, lead to the project's repository.

The repository is `Repository` of `[project.urls]` in pyproject.toml, the one place that names it. Without it such links become
their text, and pictures are left out: none leads nowhere.
"""

import re
import tomllib
from pathlib import Path

import setuptools

ROOT = Path(__file__).resolve().parent
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#|mailto:)([^)\s]+)\)")


def absolute(text: str, repository: str, version: str) -> str:
    """The text with links that hold outside the tree, to the state of a version (its tag)."""

    def link(found: re.Match) -> str:
        picture, title, path = found.groups()
        if not repository:
            return "" if picture else title
        return f"{picture}[{title}]({repository.rstrip('/')}/{'raw' if picture else 'blob'}/v{version}/{path})"

    return LINK.sub(link, text)


def readme() -> str:
    """README.md as a package index shows it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = re.search(r'^__version__ = "(.+)"', (ROOT / "src/bytejit/__init__.py").read_text(encoding="utf-8"), re.M)
    assert version is not None
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return absolute(text, project.get("urls", {}).get("Repository", ""), version[1])


if __name__ == "__main__":
    setuptools.setup(long_description=readme(), long_description_content_type="text/markdown")
