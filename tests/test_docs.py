"""The documents are true: code runs, contracts are the code's, links and paths exist, generated pages are current."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from .forked import COMPILER, run_forked

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *ROOT.glob("*.md")])
# every block marked `python` is run, in order, as one program
RUN = ("README.md", "CONTRIBUTING.md", "docs/custom-backend.md", "docs/migrating.md", "docs/tools.md")
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"(?<![\w/.<~-])[\w-]+(?:/[\w.-]+)*/[\w-]+\.(?:py|h|md|svg|png|toml|yml)\b")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


CONTRACT = re.compile(r"^class (\w+):.*?# (\S+\.py)?.*?\n((?: {4}.*\n)+)", re.M)
GIVEN = {"Kernel": "codegen/loops/ir.py", "Plan": "codegen/loops/plan.py"}


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def links(page: Path) -> list[Path]:
    """The files that a page links to."""
    found = [target.partition("#")[0] for target in LINK.findall(page.read_text())]
    return [(page.parent / target).resolve() for target in found if target and "://" not in target]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_exist(page: Path) -> None:
    missing = [str(target) for target in links(page) if not target.exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_paths_exist(page: Path) -> None:
    """A path is written from the package's folder or from the root."""
    text = re.sub(r"\w+://\S+", "", page.read_text())
    text = re.sub(r"\]\([^)]*\)", "", text)
    missing = [
        path
        for path in PATH.findall(text)
        if not (ROOT / path).exists() and not (ROOT / "src" / "bytejit" / path).exists() and not path.startswith("bytejit_debug/")
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_file_names_exist(page: Path) -> None:
    """A file named without its folder is somewhere in the tree."""
    known = {path.name for folder in ("src", "tests", "docs", "benchmarks", "examples") for path in (ROOT / folder).rglob("*")}
    known |= {path.name for path in ROOT.iterdir()}
    missing = [name for name in re.findall(r"`([a-z_]\w*\.(?:py|h))`", page.read_text()) if name not in known]
    assert not missing


NAMES = ("architecture", "troubleshooting", "custom-backend")
NOT_OURS = {"FakeTensorMode", "my_package"}


@pytest.mark.parametrize("page", NAMES)
def test_names_exist(page: str) -> None:
    """Names in backticks are words of the sources, or names of files."""
    files = [path for folder in ("src", "tests") for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".h")]
    words = {word for path in files for word in re.findall(r"\w+", path.read_text())} | {path.stem for path in files}
    text = re.sub(r"```.*?```", "", (DOCS / f"{page}.md").read_text(), flags=re.S)
    named = {word for quoted in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"[A-Za-z_]\w{3,}", quoted)}
    missing = named - words - NOT_OURS
    assert not missing


def test_contracts_are_those_of_the_code() -> None:
    """Fields of the dataclasses that docs/architecture.md shows: all are in the class, and all of the class are shown."""
    shown = 0
    for name, file, body in CONTRACT.findall((DOCS / "architecture.md").read_text()):
        tree = ast.parse((ROOT / "src" / "bytejit" / (file or GIVEN[name])).read_text())
        cls = next(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name)
        fields = {n.target.id for n in cls.body if isinstance(n, ast.AnnAssign)}
        lines = [line.partition("#")[0] for line in body.splitlines()]
        page = {word for line in lines for word in re.findall(r"\w+", line.partition(":")[0])}
        assert not page - fields, (name, page - fields)
        assert "..." in body or name in GIVEN or fields - page <= {"cons"}, (name, fields - page)
        shown += 1
    assert shown >= 8


def test_every_page_is_reached_from_the_readme() -> None:
    todo, seen = [ROOT / "README.md"], set()
    while todo:
        page = todo.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            todo.extend(links(page))
    assert not set(PAGES) - seen


@pytest.mark.parametrize("script", ["make_picture.py", "make_api.py"])
def test_generated_pages_are_current(script: str) -> None:
    out = run_forked(DOCS / script, "--check")
    assert out.returncode == 0, out.stderr


def test_every_page_with_code_is_run() -> None:
    assert {name_of(page) for page in PAGES if BLOCK.search(page.read_text())} == set(RUN)


@pytest.mark.cxx
@pytest.mark.parametrize("page", RUN)
def test_code_blocks_run(page: str, tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks
    program = tmp_path / "program.py"
    program.write_text("\n".join(blocks))
    out = run_forked(program, cwd=tmp_path, preload=COMPILER, BYTEJIT_SUPPRESS_ERRORS="0")
    assert out.returncode == 0, out.stdout + out.stderr


def test_the_changelog_says_each_thing_once() -> None:
    """Lines that two branches add, or move, meet in a merge."""
    text = (ROOT / "CHANGELOG.md").read_text()
    lines = [line[2:].removeprefix("Wrong until now: ").lower()[:60] for line in text.splitlines() if line.startswith("- ")]
    twice = [line for line, count in Counter(lines).items() if count > 1]
    assert not twice, twice
