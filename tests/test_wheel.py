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


@pytest.mark.cxx
def test_the_wheel_works_outside_the_tree(tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    tree, site = tmp_path / "tree", tmp_path / "site"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    shutil.copytree(ROOT / "src" / "bytejit", tree / "src" / "bytejit", ignore=shutil.ignore_patterns("__pycache__"))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
    ran(*pip, "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", str(tmp_path), str(tree), TMPDIR=str(tmp_path))
    (wheel,) = tmp_path.glob("bytejit-*.whl")
    with zipfile.ZipFile(wheel) as packed:
        inside = {name.removeprefix("bytejit/") for name in packed.namelist() if name.startswith("bytejit/")}
        (metadata,) = (packed.read(name).decode() for name in packed.namelist() if name.endswith("METADATA"))
    here = (p for p in (ROOT / "src" / "bytejit").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    assert inside == {str(p.relative_to(ROOT / "src" / "bytejit")) for p in here}
    assert "Provides-Extra: gpu" in metadata and re.search(r"Requires-Dist: triton.*extra == .gpu.", metadata)
    ran(*pip, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel), TMPDIR=str(tmp_path))
    given = (Path(p).absolute() for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p)
    needed = [str(p) for p in given if not (p / "bytejit").exists()]  # where its requirements may lie, not the tree
    ran(
        sys.executable, "-c", PROGRAM, str(site), bytejit.__version__,
        PYTHONPATH=os.pathsep.join([str(site), *needed]), BYTEJIT_CACHE_DIR=str(tmp_path / "cache"), TMPDIR=str(tmp_path),
    )  # fmt: skip
