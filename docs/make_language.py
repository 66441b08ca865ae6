"""Write docs/language.md from the programs under tests/programs: their names, what they claim, whether they pass.

python docs/make_language.py            # runs the programs, writes docs/language.md
python docs/make_language.py --check    # exit status 1 when docs/language.md is not what would be written
"""

import argparse
import importlib
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "language.md"
ORDER = (
    "control",
    "exceptions",
    "with",
    "iteration",
    "outside_generators",
    "classes",
    "builtin_subclasses",
    "functools",
    "containers",
    "corners",
    "values",
    "numpy",
    "tensors",
    "subclasses",
    "modules",
    "autograd",
    "transforms",
    "watched",
    "calls",
    "user_programs",
    "mixed_programs",
    "flags",
    "guards_programs",
)
HEAD = """# The Python that bytejit takes

Written by `python docs/make_language.py` from the tests in tests/programs and their results on Python {version}, torch
{torch}. Each row is a program that was run as it is and compiled (`backend="eager"`), with its results, side effects
and their order, exceptions, printed text and random numbers compared.

| mark | meaning |
|---|---|
| G | one graph; also compiles under `nopython=True` |
| B | breaks: the graph ends there and the original code goes on; `nopython=True` raises `bytejit.exc.Unsupported` |
| B (n graphs) | breaks into n graphs in the first call |
| - | right; the number of graphs is not promised |

{passed} of {total} programs pass.

## The end of objects

Where a function has a graph break, three things differ from eager. None changes a result that does not ask for them.

- A local that is not read any more is let go at the next break, in eager at the end of the function or where the name gets
  another value. So its finalizer (`__del__`) runs earlier, and a weak reference with a callback that is itself such a local
  is gone before its object: the callback is not called. Where a name with a finalizer's object gets another value, the
  finalizer may run after what follows, up to the next break. `del name` and the end of a callee are as in eager.
- A tensor that was made in a graph and is held by a weak reference only may live until the function returns.
- Objects that a function makes, and that have a finalizer, and weak references with callbacks are made by the original code.
"""


@dataclass(frozen=True)
class Row:
    """One program: what it shows, its mark, its result."""

    feature: str
    mark: str
    result: str
    where: str

    def text(self) -> str:
        return f"| {self.feature.replace('|', chr(92) + '|')} | {self.mark} | {self.result} | {self.where} |"


class Results:
    """Collects the outcome of each test. A pytest plugin."""

    def __init__(self):
        self.of: dict[str, str] = {}
        self.items: list = []

    def pytest_collection_finish(self, session):
        self.items = list(session.items)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.of[report.nodeid] = "**fails**"
        elif report.skipped:
            self.of[report.nodeid] = "skipped"
        elif report.when == "call":
            self.of[report.nodeid] = "passes"


def modules() -> list[str]:
    """The files of programs: those of ORDER, then any other."""
    files = sorted((ROOT / "tests" / "programs").glob("test_*.py"))
    programs = [f.stem.removeprefix("test_") for f in files if "\n@case(" in (text := f.read_text()) or "\n@program(" in text]
    return [*ORDER, *(name for name in programs if name not in ORDER)]


def run() -> Results:
    """Run all programs."""
    import pytest

    results = Results()
    files = [str(ROOT / "tests" / "programs" / f"test_{name}.py") for name in modules()]
    pytest.main([*files, "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"], [results])
    return results


def rows(results: Results, module: str) -> list[Row]:
    """The rows of one file; the cases of a parametrised test are one row."""
    out: dict[str, list] = {}
    for item in results.items:
        if item.nodeid.split("::")[0].endswith(f"test_{module}.py"):
            out.setdefault(item.originalname or item.name, []).append(item)
    return [row(items, results) for items in out.values()]


def row(items: list, results: Results) -> Row:
    """One row from the items of one test function."""
    test = items[0].function
    said = (test.__doc__ or test.__name__[5:].replace("_", " ")).strip().splitlines()[0]
    got = [results.of.get(i.nodeid, "not run") for i in items]
    bad = sum(g == "**fails**" for g in got)
    result = got[0] if len(items) == 1 else (f"**{bad} of {len(got)} fail**" if bad else f"{len(got)} pass")
    mark = test.case.stays if hasattr(test, "case") else "-"
    file = items[0].nodeid.split("::")[0].rpartition("/")[2]
    return Row(said, mark, result, f"{file} `{items[0].originalname or items[0].name}`")


def page(results: Results) -> str:
    """The whole document."""
    import platform

    import torch

    parts, every = [], []
    for module in modules():
        title = importlib.import_module(f"tests.programs.test_{module}").__doc__.strip().splitlines()[0]
        found = rows(results, module)
        every += found
        parts += ["", f"## {title.partition(':')[0]}", "", "| program | graphs | result | test |", "|---|---|---|---|"]
        parts += [r.text() for r in found]
    passed = sum("fail" not in r.result for r in every)
    version = ".".join(platform.python_version_tuple()[:2])
    head = HEAD.format(version=version, torch=torch.__version__.split("+")[0], passed=passed, total=len(every))
    return head + "\n".join(parts) + "\n"


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    text = page(run())
    if args.check:
        same = PAGE.exists() and PAGE.read_text() == text
        print("docs/language.md is " + ("up to date" if same else "out of date: python docs/make_language.py"))
        return 0 if same else 1
    PAGE.write_text(text)
    print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
