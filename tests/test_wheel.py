"""The wheel, installed outside the tree: its headers, its version, its types, its entry point, kernels that it builds."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import bytejit

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = """
import importlib.metadata, importlib.resources, os, sys, torch, bytejit
assert bytejit.__file__.startswith(sys.argv[1]), bytejit.__file__
assert importlib.metadata.version("bytejit") == bytejit.__version__ == sys.argv[2]
assert importlib.resources.files("bytejit").joinpath("py.typed").is_file()
f = lambda x: torch.nn.functional.gelu(x).softmax(-1) + x.exp().sum(0)
x = torch.linspace(-1, 1, 12).reshape(3, 4)
torch.testing.assert_close(bytejit.compile(f)(x), f(x))
assert not bytejit.counters.total("faults") and not bytejit.counters.total("fallbacks"), bytejit.counters
assert [name for name in os.listdir(os.environ["BYTEJIT_CACHE_DIR"])]
torch.testing.assert_close(torch.compile(f, backend="bytejit")(x), f(x))
assert bytejit.counters["graphs"]["inductor"] == 2
"""


def ran(*command: str, **environ: str) -> str:
    """The output of a command. Raises where it fails."""
    env = {**os.environ, **environ}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env, cwd=environ.get("TMPDIR"))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


FILES = ("pyproject.toml", "setup.py", "README.md", "LICENSE")
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")


def copied(tree: Path) -> Path:
    """What a package is built from, in a folder of its own."""
    tree.mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src" / "bytejit", tree / "src" / "bytejit", ignore=shutil.ignore_patterns("__pycache__"))
    return tree


def built(tree: Path, to: Path) -> tuple[Path, set[str], str]:
    """The wheel of a tree, the files of the package in it, its metadata."""
    ran(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(to), str(tree), TMPDIR=str(to))
    (wheel,) = to.glob("bytejit-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        inside = {name.removeprefix("bytejit/") for name in packed.namelist() if name.startswith("bytejit/")}
        (metadata,) = (packed.read(name).decode() for name in packed.namelist() if name.endswith("METADATA"))
    return wheel, inside, metadata


LINKS = re.compile(r"(!?)\[[^\]]*\]\(([^)\s]+)\)")
AT = "https://example.org/owner/bytejit"


@pytest.mark.parametrize("urls", [False, True])
def test_links_of_the_readme_hold_on_a_package_index(urls, tmp_path):
    """Where the repository is named they lead there, each to a file of the tree; else there is none."""
    pytest.importorskip("setuptools", minversion="77")
    tree = copied(tmp_path / "tree")
    project = re.sub(r"\[project\.urls\][^\[]*", "", (tree / "pyproject.toml").read_text())
    (tree / "pyproject.toml").write_text(project + (f'\n[project.urls]\nRepository = "{AT}"\n' if urls else ""))
    _, _, metadata = built(tree, tmp_path)
    head, _, page = metadata.partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head and (f"Project-URL: Repository, {AT}" in head) == urls
    found = LINKS.findall(page)
    here = LINKS.findall((ROOT / "README.md").read_text())
    assert len(found) == (len(here) if urls else 0) and page.startswith("# bytejit\n")
    for (picture, link), (_, path) in zip(found, here):
        assert link == f"{AT}/{'raw' if picture else 'blob'}/v{bytejit.__version__}/{path}"
        assert (ROOT / path).is_file()
    assert not urls or any(picture for picture, _ in found)


@pytest.mark.cxx
def test_the_wheel_works_outside_the_tree(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    tree, site = copied(tmp_path / "tree"), tmp_path / "site"
    wheel, inside, metadata = built(tree, tmp_path)
    here = (p for p in (ROOT / "src" / "bytejit").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    assert inside == {str(p.relative_to(ROOT / "src" / "bytejit")) for p in here}
    assert "Provides-Extra: gpu" in metadata and re.search(r"Requires-Dist: triton.*extra == .gpu.", metadata)
    ran(*PIP, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel), TMPDIR=str(tmp_path))
    given = (Path(p).absolute() for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)
    needed = [str(p) for p in given if not (p / "bytejit").exists()]  # where its requirements may lie, not the tree
    ran(
        sys.executable, "-c", PROGRAM, str(site), bytejit.__version__,
        PYTHONPATH=os.pathsep.join([str(site), *needed]), BYTEJIT_CACHE_DIR=str(tmp_path / "cache"), TMPDIR=str(tmp_path),
    )  # fmt: skip
