"""The table of private interfaces is complete and true; probes run in children, and what fails them is not used."""

from __future__ import annotations

import ast
import dataclasses
import functools
import json
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.utils.checkpoint

import bytejit
from bytejit import api, verify
from bytejit.common import caches
from bytejit.compat import checkpoint_frames, closures, layouts, probes, table
from bytejit.compat.probes import BEGIN, PROBES, Probes, search_path
from bytejit.guards import native_checker

SRC = Path(bytejit.__file__).parent
# not interfaces of torch's or CPython's: a package's own
PUBLIC = ("collections.namedtuple",)


def private(name: str) -> bool:
    """Whether a part of a dotted name is private."""
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def spelled(node: ast.expr, alias: dict[str, str]) -> str | None:
    """The dotted name of an expression that begins with something imported."""
    if isinstance(node, ast.Name):
        return alias.get(node.id)
    base = spelled(node.value, alias) if isinstance(node, ast.Attribute) else None
    return f"{base}.{node.attr}" if base else None


def names(path: Path) -> Iterator[str]:
    """Private names of other packages that a module uses."""
    tree = ast.parse(path.read_text())
    alias: dict[str, str] = {}
    kinds = ast.ImportFrom, ast.Import, ast.Attribute
    nodes = [node for node in ast.walk(tree) if isinstance(node, kinds)]
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            alias |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            alias |= {a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and (of := spelled(node.value, alias)):
            alias[node.targets[0].id] = of
    inner = {node.value for node in nodes if isinstance(node, ast.Attribute)}
    outer = [node for node in nodes if isinstance(node, ast.Attribute) and node not in inner]
    found = [*alias.values(), *filter(None, (spelled(node, alias) for node in outer))]
    yield from (name for name in found if private(name) and name.split(".")[0] != "bytejit")


def known(name: str) -> bool:
    """Whether a row is about a name: its own, of what it is an attribute, or of what is an attribute of it."""
    name = name.rstrip(".")
    return any(f"{name}.".startswith(f"{row.name.rstrip('.')}.") or row.name.startswith(f"{name}.") for row in table.ROWS)


def test_every_private_name_has_a_row() -> None:
    lost = {(name, path.name) for path in SRC.rglob("*.py") for name in names(path) if not known(name)}
    assert not lost, sorted(lost)


def test_every_row_is_used_and_there() -> None:
    words = {w for path in SRC.rglob("*.py") if path.parent.name != "compat" for w in re.findall(r"\w+", path.read_text())}
    # the last part of a name stands in the sources; layouts are read by compat/layouts.py itself
    unused = [row.name for row in table.ROWS if row.probe in ("name", "use") and row.name.rstrip(".").split(".")[-1] not in words]
    assert not unused and not probes.missing(), (unused, probes.missing())
    assert len({row.name for row in table.ROWS}) == len(table.ROWS)


def test_every_variable_that_is_read_of_a_closure_has_a_row() -> None:
    rows = {row.name for row in table.ROWS if row.probe == "own"}
    read = {f"{row.maker}.{name}" for row in closures.CLOSURES for name in row.names}
    assert read <= rows and all(map(closures.known, closures.CLOSURES)) and checkpoint_frames._names_hold()
    # by no other module: a closure is read by name through closures.py, and torch's own compiler's is in torch_controls.py
    readers = {path.name for path in SRC.rglob("*.py") if "getclosurevars" in path.read_text()}
    assert readers == {"checkpoint_frames.py", "torch_controls.py"}


@functools.singledispatch
def dispatched(x: object, y: torch.Tensor) -> torch.Tensor:
    return y + 1


@dispatched.register
def _(x: int, y: torch.Tensor) -> torch.Tensor:
    return y * 2


@dataclasses.dataclass
class Shown:
    n: int


@pytest.mark.parametrize("found", [True, False])
def test_closures_with_other_names_are_not_read(monkeypatch: pytest.MonkeyPatch, found: bool) -> None:
    def f(x: torch.Tensor) -> tuple:
        return dispatched(3, x), repr(Shown(2))

    bytejit.reset()
    closures.known.cache_clear()
    if not found:
        monkeypatch.setattr(closures, "_all_variables", lambda fn: {"other": fn})
    got, want = bytejit.compile(f, backend="eager")(torch.ones(2)), f(torch.ones(2))
    assert torch.equal(got[0], want[0]) and got[1] == want[1]
    assert bool(bytejit.counters.total("breaks")) != found
    closures.known.cache_clear()


def checkpointed(x: torch.Tensor) -> torch.Tensor:
    return x.sin().exp() * x


@pytest.mark.parametrize("holds", [True, False])
def test_a_checkpoint_whose_frames_are_not_found(monkeypatch: pytest.MonkeyPatch, holds: bool) -> None:
    """Without the names, what is saved in it is eager's."""
    bytejit.reset()
    checkpoint_frames._names_hold.cache_clear()
    if not holds:
        monkeypatch.setattr(checkpoint_frames, "_held", lambda pack: {})
    x, plain = (torch.linspace(-1, 1, 6).requires_grad_() for _ in range(2))
    f = bytejit.compile(checkpointed, backend="aot_eager")
    torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False).sum().backward()
    checkpointed(plain).sum().backward()
    torch.testing.assert_close(x.grad, plain.grad)
    assert checkpoint_frames._names_hold() == holds
    checkpoint_frames._names_hold.cache_clear()


def ended(code: str) -> str:
    """What the parent says of a child that ran this code as its probe."""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return probes._end(child, "layouts")[0]


def test_a_child_that_dies_is_a_failed_probe() -> None:
    assert ended("import ctypes; ctypes.string_at(8)") == "it died of signal 11"
    assert "ValueError: odd" in ended("raise ValueError('odd')")
    assert ended("pass") == "it said nothing" and ended("print('passed')") == ""


@pytest.mark.parametrize("slot", [2, 4])
def test_a_layout_that_is_another_is_noticed(slot: int) -> None:
    """Another function of torch's table in the place of the one that guards call."""
    path = str(SRC.parent)
    assert ended(
        f"import sys; sys.path.insert(0, {path!r})\nfrom bytejit.compat import layouts\n"
        f"layouts.FILL_SLOT = {slot}\nlayouts.main()\nprint('passed')"
    )


@pytest.fixture
def no_layouts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process in which the child that reads memory died."""
    monkeypatch.setitem(PROBES._found, "layouts", "it died of signal 11")
    for built in ("_build", "_calls"):
        monkeypatch.setattr(native_checker.CHECKER, built, None)
    native_checker.exchange_fill.cache_clear()
    yield
    native_checker.exchange_fill.cache_clear()


@pytest.mark.cxx
def test_without_layouts_guards_are_checked_from_python(no_layouts: None) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    compiled = bytejit.compile(net)
    with torch.no_grad():
        for x in (torch.randn(2, 4), torch.randn(3, 4), torch.randn(2, 4).t().contiguous().t()):
            torch.testing.assert_close(compiled(x), net(x))
    assert not native_checker.CHECKER.usable and native_checker.exchange_fill() is None


class Kept(dict):
    """A store in memory."""

    def load(self) -> dict:
        return self

    merge = dict.update


def test_a_child_reads_no_file_of_the_program(tmp_path: Path) -> None:
    """Modules of a program may have any name: neither its folder, the working folder nor a variable brings them in."""
    for name in ("torch", "random", "ctypes", "typing_extensions", "sitecustomize", "bytejit"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'read')!r}, 'w')\nraise SystemExit('a file of the program')")
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\n"
        "own = sys.path.pop(0)\n"
        f"sys.path.insert(0, {str(SRC.parent)!r})\n"
        "import random, ctypes, typing_extensions, torch, bytejit\n"
        "from bytejit.compat import probes\n"
        "probes.untested = lambda: 'a newer torch'\n"
        "sys.path[:0] = ['', own]\n"
        "print([probes.Probes().failed('layouts')])\n"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, str(program)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert done.stdout == "['']\n" and not (tmp_path / "read").exists(), done.stdout + done.stderr


def test_what_a_child_found_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "untested", lambda: "a newer torch")
    kept = Kept()
    first = Probes(lambda: kept)
    assert first.failed("layouts") == "" and len(kept) == 1
    again = Probes(lambda: kept)
    again.start("layouts")
    assert not again._running and again.failed("layouts") == ""


@pytest.mark.parametrize("slot", [layouts.FILL_SLOT, 1])
def test_on_versions_that_were_tested_no_child_is_started(monkeypatch: pytest.MonkeyPatch, slot: int) -> None:
    monkeypatch.setattr(layouts, "dict_values", lambda: None)
    if slot == 1:
        monkeypatch.setattr(layouts, "exchange_fill", lambda: None)
    kept, found = Kept(), Probes()
    found.open_store = lambda: kept
    found.start("layouts")
    assert bool(found.failed("layouts")) == (slot == 1) and not found._running and not kept


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A process on a torch that the suite never ran on."""
    caches_of = (probes.refused, probes.missing, api._refused)
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    monkeypatch.setattr(caches, "WARNED", set())
    for cached in caches_of:
        cached.cache_clear()
    yield monkeypatch
    for cached in caches_of:
        cached.cache_clear()


def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_newer_torch_whose_probes_pass(newer: pytest.MonkeyPatch) -> None:
    newer.setitem(PROBES._found, "trial", "")
    with pytest.warns(RuntimeWarning, match=r"torch 2.99.0 is newer than any .* the probes pass"):
        compiled = bytejit.compile(twice, backend="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bytejit.compile(lambda x: x + 1, backend="eager")(torch.ones(1)) == 2
    assert compiled(torch.ones(1)) == 2 and bytejit.counters.total("graphs")


@pytest.mark.parametrize("lost", [False, True])
def test_a_newer_torch_that_is_not_supported(newer: pytest.MonkeyPatch, lost: bool) -> None:
    newer.setitem(PROBES._found, "trial", "ImportError: no such name")
    if lost:
        find = probes.find
        newer.setattr(probes, "find", lambda name: probes.MISSING if name == "torch._C._set_grad_enabled" else find(name))
    said = "has no torch._C._set_grad_enabled" if lost else "could not be compiled: ImportError: no such name"
    with pytest.warns(RuntimeWarning, match=said):
        assert bytejit.compile(twice)(torch.ones(1)) == 2
    assert not bytejit.counters.total("graphs")
    with pytest.raises(bytejit.exc.Unsupported, match="torch 2.99.0"):
        bytejit.compile(twice, fullgraph=True)


def test_a_python_without_the_gil_is_refused_in_one_sentence(newer: pytest.MonkeyPatch) -> None:
    newer.setattr(sys, "abiflags", "t")
    with pytest.warns(RuntimeWarning, match=r"free-threaded .*: functions run as they are") as said:
        assert bytejit.compile(twice)(torch.ones(1)) == 2
        assert bytejit.compile(lambda x: x + 1)(torch.ones(1)) == 2
    assert len(said) == 1 and not bytejit.counters.total("graphs")
    assert verify.check_interfaces().state == verify.BROKEN
    with pytest.raises(bytejit.exc.Unsupported, match="free-threaded"):
        bytejit.compile(twice, fullgraph=True)


def test_the_trial_passes_here() -> None:
    command = [sys.executable, "-I", "-S", "-c", BEGIN, json.dumps(search_path()), "trial"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout == "passed\n", done.stderr
