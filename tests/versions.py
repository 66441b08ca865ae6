"""The suite on every supported pair of Python and torch: `make test-versions`.

`python -m tests.versions` makes an environment a pair under .versions/, runs the suite there in parts, a process each,
and with --write puts the counts into docs/versions.md. `--short` runs a selection in minutes, as CI does with the newest
pair, whose environment it has made beside its own tests: `--make` runs nothing, `--made` makes nothing. Exit status: 0 all
passed, 1 a test failed, 3 no environment could be made (said on the last line).
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from .cuda_stubs import install

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "versions.md"
NEEDS = ("bytecode>=0.16", "cffi>=1.16", "rich>=13", "pytest>=8", "pytest-xdist>=3", "hypothesis>=6", "numpy>=1.26", "ruff>=0.6")
# what only the whole suite needs
MORE = ("scipy>=1.11", "matplotlib>=3.8", "pillow", "pyyaml", "safetensors", "huggingface_hub", "triton>=3.6", "transformers>=5")
# of CUDA's libraries those that torch calls when it is imported: without a driver they answer so. The others: cuda_stubs
CUDA = ("cudart", "cupti")
# what reads what an interpreter or torch may change: opcodes, private interfaces, guards, the tracer, shapes; and of training and
# kernels one file each. Some four minutes of CPU; what takes long and is of no version is left out
SHORT = (
    "tests/compat",
    "tests/rewriter",
    "tests/guards/test_sources.py",
    "tests/guards/test_own_answers.py",
    "tests/guards/test_looking_changes_nothing.py",
    "tests/tracer",
    "tests/test_api.py",
    "tests/common/test_special_cases.py",
    "tests/fake/test_fake.py",
    "tests/autograd/test_versions.py",
    "tests/programs/test_new_pythons.py",
    "tests/programs/test_exceptions.py",
    "tests/programs/test_with.py",
    "tests/programs/test_in_step.py",
    "tests/codegen/test_normalise.py",
    "tests/kernels/test_build.py",
)
OUTCOMES = ("passed", "failed", "error", "skipped")


@dataclass(frozen=True)
class Pair:
    """A Python and a torch: `py312-t215`."""

    python: str
    torch: str

    @property
    def name(self) -> str:
        """The environment's folder: versions without points or the last number of torch's."""
        return f"py{self.python.replace('.', '')}-t{''.join(self.torch.split('.')[:2])}"


# the newest last: what CI takes
PAIRS = (
    Pair("3.11", "2.11.0"),
    Pair("3.12", "2.12.1"),
    Pair("3.11", "2.13.0"),
    Pair("3.13", "2.14.1"),
    Pair("3.12", "2.15.0"),
    Pair("3.14", "2.15.0"),
)


class NotMade(Exception):
    """An environment that cannot be set up here: what was tried, and what it said."""


def run(*command: str | Path, seconds: float = 600, **more) -> str:
    """The output of a command. Raises: NotMade with its last lines."""
    try:
        done = subprocess.run(
            [*map(str, command)], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds, **more
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotMade(str(error)) from None
    if done.returncode:
        raise NotMade(f"{' '.join(map(str, command))}: {' | '.join(done.stdout.splitlines()[-3:])}")
    return done.stdout


def find_python(version: str, folder: Path) -> Path:
    """An interpreter of that version: of the path, of pyenv, or unpacked from Debian's packages. Raises: NotMade."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"), reverse=True)
    places = [Path(p) / f"python{version}" for p in os.environ.get("PATH", "").split(os.pathsep) if p]
    for found in [*pyenv, *places]:
        try:
            if run(found, "-c", "import sys; print('%d.%d' % sys.version_info[:2])", seconds=30).strip() == version:
                return found
        except NotMade:
            continue  # a shim of pyenv for a version that is not chosen
    from .debian_python import unpack

    return unpack(version, folder / f"cpython{version}")


def environment(pair: Pair, folder: Path, short: bool) -> Path:
    """The Python of the pair's environment, made when it is not there. Raises: NotMade."""
    home = folder / pair.name
    python = home / "bin" / "python"
    base = home / ".ready"
    whole = home / ".ready-whole"
    pip = (sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-input", "--disable-pip-version-check")
    if not base.exists():
        found = find_python(pair.python, folder)
        run(found, "-m", "venv", "--without-pip", "--clear", home)
        print(f"{pair.name}: installing torch {pair.torch} for {found}", flush=True)
        run(*pip, "--no-deps", f"torch=={pair.torch}")
        torch = next(home.glob("lib/python*/site-packages/torch"))
        run(*pip, *needs_of_torch(torch), *NEEDS)
        print(f"{pair.name}: stubs for {' '.join(install(torch))}", flush=True)
        run(python, "-c", "import torch, numpy, pytest; assert not torch.cuda.is_available()", env=environ())
        base.touch()
    if not short and not whole.exists():
        run(*pip, *MORE)
        minor = int(pair.torch.split(".")[1])
        run(*pip, "--no-deps", f"torchvision<0.{minor + 16}", "timm")  # 0.28 is built for torch 2.13, and so on
        whole.touch()
    return python


def needs_of_torch(torch: Path) -> list[str]:
    """What an installed torch requires, as pip is told: of CUDA's libraries only `CUDA`, and neither cuDNN nor triton."""
    (metadata,) = torch.parent.glob("torch-*.dist-info/METADATA")
    needs = []
    for line in re.findall(r"^Requires-Dist: (.*)$", metadata.read_text(), re.MULTILINE):
        need = line.split(";")[0].strip()
        if need.startswith("cuda-toolkit"):
            needs.append(re.sub(r"\[.*\]", f"[{','.join(CUDA)}]", need))
        elif "extra ==" not in line and not need.startswith(("cuda-", "nvidia-", "triton")):
            needs.append(need)
    return needs


def environ() -> dict[str, str]:
    """The environment of every process of a pair: ours, without a GPU."""
    return {**os.environ, "CUDA_VISIBLE_DEVICES": ""}


def parts(short: bool, only: list[str]) -> list[list[str]]:
    """What each pytest is given, two processes each: paths below the root."""
    if only or short:
        return [list(only or SHORT)]
    folders = sorted({p.parent for p in (ROOT / "tests").rglob("test_*.py")} - {ROOT / "tests"})
    files = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "tests").glob("test_*.py"))
    return [*([str(f.relative_to(ROOT))] for f in folders), files]


def tested(python: Path, paths: list[str], log: Path) -> Counter:
    """How many tests of these paths passed, failed, were skipped; a process that died counts as an error."""
    env = {**environ(), "PYTHONPATH": str(ROOT / "src")}
    command = [str(python), *"-X faulthandler -m pytest -p no:cacheprovider -n 2 --dist loadfile".split(), *paths]
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with log.open("a") as file:
        file.write(f"\n==== {' '.join(paths)}\n{done.stdout}")
    last = next((line for line in reversed(done.stdout.splitlines()) if re.search(r" in [\d.]+s", line)), "")
    found = Counter({what.rstrip("s"): int(n) for n, what in re.findall(r"(\d+) (passed|failed|errors?|skipped)", last)})
    if done.returncode not in (0, 1, 5):
        found["error"] += 1
        print("\n".join(done.stdout.splitlines()[-40:]))
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print("   ", line)
    return found


def row(pair: Pair, python: Path, total: Counter, minutes: float, short: bool) -> str:
    """The pair's line in docs/versions.md."""
    ask = "import sys, torch; print(sys.version.split()[0], torch.__version__)"
    interpreter, torch = run(python, "-c", ask).split()[-2:]
    commit = run("git", "rev-parse", "--short", "HEAD", cwd=ROOT).strip()
    counts = " | ".join(str(total[outcome]) for outcome in OUTCOMES)
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    return f"| {interpreter} | {torch} | {when} | {commit} | {'selection' if short else 'all'} | {counts} | {minutes:.0f} |"


def write(line: str) -> None:
    """Put a pair's line into the page, in place of its earlier one."""
    key = line.split("|")[1:3] + [line.split("|")[5]]
    lines = PAGE.read_text().splitlines()
    same = [i for i, old in enumerate(lines) if old.split("|")[1:3] + old.split("|")[5:6] == key]
    last = max(i for i, old in enumerate(lines) if old.startswith("|"))
    lines[same[0] if same else last] = line if same else lines[last] + "\n" + line
    PAGE.write_text("\n".join(lines) + "\n")


def main() -> int:
    """Run what the command line names."""
    say = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    named = f"of {' '.join(p.name for p in PAIRS)} or `newest`; without one all; newest: the newest that can be made"
    say.add_argument("pairs", nargs="*", help=named)
    say.add_argument("--short", action="store_true", help="a selection instead of the whole suite")
    say.add_argument("--make", action="store_true", help="make environments, run nothing")
    say.add_argument("--made", action="store_true", help="only pairs whose environment is there")
    say.add_argument("--parts", nargs="*", default=[], help="these paths only")
    say.add_argument("--envs", type=Path, default=ROOT / ".versions", help="where the environments are")
    say.add_argument("--write", action="store_true", help="put the counts into docs/versions.md")
    given = say.parse_args()
    newest = given.pairs == ["newest"]
    unknown = set(given.pairs) - {p.name for p in PAIRS} - {"newest"}
    if unknown:
        say.error(f"no such pair: {' '.join(sorted(unknown))}; there are {' '.join(p.name for p in PAIRS)}")
    wanted = PAIRS[::-1] if newest else [p for p in PAIRS if not given.pairs or p.name in given.pairs]
    given.envs.mkdir(exist_ok=True)
    bad = lost = 0
    for pair in wanted:
        try:
            if given.made and not (given.envs / pair.name / ".ready").exists():
                raise NotMade("none was made")
            python = environment(pair, given.envs, given.short)
        except NotMade as error:
            print(f"{pair.name}: NOT RUN, no environment: {error}", flush=True)
            lost += 1
            continue
        if given.make:
            print(f"{pair.name}: made", flush=True)
            if newest:
                return 0
            continue
        begin, total = time.time(), Counter()
        log = given.envs / f"{pair.name}-suite.log"
        log.write_text("")
        for paths in parts(given.short, given.parts):
            found = tested(python, paths, log)
            print(f"{pair.name} {paths[0]}: {dict(found)}", flush=True)
            total += found
        line = row(pair, python, total, (time.time() - begin) / 60, given.short)
        print(line, flush=True)
        if given.write:
            write(line)
        bad += total["failed"] + total["error"]
        if newest:
            return int(bool(bad))
    return 1 if bad else 3 if lost else 0


if __name__ == "__main__":
    from tests.versions import main as start  # NotMade is one class then, also for what imports this module

    sys.exit(start())
