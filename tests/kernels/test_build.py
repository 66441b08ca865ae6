"""Units are built once, found again without a compiler, rebuilt when damaged; errors name the line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import bytejit
from bytejit.common import caches
from bytejit.common.options import Options
from bytejit.kernels import build_cpp, launch, machine, precompiled
from bytejit.kernels.build import BuildFailed, Compiler, NoCompiler, find_compiler
from bytejit.kernels.machine import cpu

pytestmark = pytest.mark.cxx
UNIT = """#include "glue.h"
static PyObject* twice(PyObject*, PyObject* const* a, bj_size) {
    f32* p = pointer<f32>(a[0]);
    bj::parallel(integer(a[1]), 1, integer(a[2]), [&](i64 begin, i64 end) {
        for (i64 i = begin; i < end; ++i) p[i] *= 2;
    });
    return PyLong_FromLong(7);
}
static bj::Method table[] = {{"twice", twice, 0x80, nullptr}};
BJ_EXPORT(table, 1)
"""


@pytest.fixture
def options(tmp_path: Path) -> Options:
    caches.clear()
    yield Options(cache_dir=str(tmp_path / "cache"))
    caches.clear()


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_a_unit_runs_on_threads(options: Options, threads: int) -> None:
    twice = build_cpp.build([UNIT], options).calls[0]["twice"]
    x = torch.arange(101.0)
    assert twice(x.data_ptr(), 101, threads) == 7
    assert torch.equal(x, torch.arange(101.0) * 2)


def test_a_warm_start_runs_no_compiler(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build_cpp.build([UNIT], options).cached == 0
    caches.clear()
    monkeypatch.setattr("subprocess.Popen", lambda *a, **k: pytest.fail("a process was started"))
    assert build_cpp.build([UNIT], options).cached == 1
    assert build_cpp.build([UNIT], options).cached == 1


def test_a_damaged_library_is_rebuilt(options: Options) -> None:
    file = Path(build_cpp.build([UNIT], options).files[0])
    body = file.read_bytes()
    caches.clear()
    file.unlink()
    file.write_bytes(body[:-1] + b"x")
    built = build_cpp.build([UNIT], options)
    assert built.cached == 0 and file.read_bytes() == body


def test_a_refused_unit_shows_its_line(options: Options) -> None:
    with pytest.raises(BuildFailed, match="no_such_name") as e:
        build_cpp.build([UNIT.replace("p[i] *= 2", "p[i] = no_such_name")], options)
    assert "p[i] = no_such_name;" in str(e.value)


@pytest.mark.parametrize("times", [1, 2])
def test_a_compiler_that_was_killed_runs_once_more(
    times: int, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the system does where memory runs out: guards were then checked from Python, and graphs run through torch."""
    script, log, real = tmp_path / "g++", tmp_path / "log", shutil.which("g++") or shutil.which("clang++")
    script.write_text(
        f'#!{shutil.which("sh")}\nPATH={os.environ["PATH"]}\ncase "$*" in *.cpp*) echo run >> {log}\n'
        f'if [ $(wc -l < {log}) -le {times} ]; then kill -9 $$; fi;; esac\nexec {real} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    if times == 1:
        assert build_cpp.build([UNIT], options).calls
        assert log.read_text().count("run") == 2
    else:
        with pytest.raises(BuildFailed):
            build_cpp.build([UNIT], options)


def test_no_compiler_warns_once_and_says_what_to_install(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.warns(RuntimeWarning, match="Install g"), pytest.raises(NoCompiler):
        build_cpp.build([UNIT], options)
    with pytest.raises(NoCompiler):
        build_cpp.build([UNIT], options)


@pytest.mark.parametrize("name", ["zig", "clang++"])
def test_other_compilers_are_found_on_the_path(
    name: str, options: Options, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, real = tmp_path / name, shutil.which("g++") or shutil.which("clang++")
    drop = "shift\n" if name == "zig" else ""
    script.write_text(f'#!{shutil.which("sh")}\nPATH={os.environ["PATH"]}\n{drop}exec {real} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    found = find_compiler(build_cpp.disk_of(options.cache_path, options.cache_mb))
    assert found.path == str(script) and found.extra == (("c++",) if name == "zig" else ())
    assert build_cpp.build([UNIT], options).calls


def test_what_a_key_depends_on(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    gcc = Compiler("/usr/bin/g++", "g++ 12", True)
    base = build_cpp.unit_key(UNIT, gcc)
    assert base == build_cpp.unit_key(UNIT, Compiler("/elsewhere/g++", "g++ 12", True))
    assert base != build_cpp.unit_key(UNIT + "\n", gcc)
    assert base != build_cpp.unit_key(UNIT, Compiler("/usr/bin/g++", "g++ 13", True))
    monkeypatch.setattr(build_cpp, "prelude_key", lambda: "other")
    assert base != build_cpp.unit_key(UNIT, gcc)


def test_the_programs_lines_do_not_change_a_key() -> None:
    gcc = Compiler("/usr/bin/g++", "g++ 12", True)
    key = lambda line: build_cpp.unit_key(f"{UNIT}\n{line}\n", gcc)  # noqa: E731
    assert key("const f32 t0 = 1.0f;  // a.py:3 x + 1") == key("const f32 t0 = 1.0f;  // b.py:12") == key("const f32 t0 = 1.0f;")
    assert key("const f32 t0 = 1.0f;  // a.py:3") != key("const f32 t0 = 2.0f;  // a.py:3")
    assert key('const char* s = "a  // b";') != key('const char* s = "a  // c";')


def test_the_prelude_is_read_once(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit is the same one, byte for byte, whether the compiler has read the prelude before or not."""
    monkeypatch.setattr(caches, "PRECOMPILED", {})
    compiler = find_compiler(build_cpp.disk_of(options.cache_path, options.cache_mb))
    if not compiler.gcc:
        pytest.skip("only GCC's are made")
    units = [UNIT.replace("*= 2", f"*= {n}") for n in range(3, 9)]
    before = [build_cpp.unit_key(unit, compiler) for unit in units]
    plain = [build_cpp._compile({key: unit}, compiler)[key] for key, unit in zip(before, units)]
    made = next(iter(caches.PRECOMPILED.values()))
    assert isinstance(made, precompiled.Precompiled) and made.process.wait(60) == 0
    words = precompiled.include_words(compiler, 0)
    assert words[0] == f"-I{made.folder}" and [p.name for p in made.folder.iterdir()] == ["glue.h.gch"]
    again = [build_cpp._compile({key: unit}, compiler)[key] for key, unit in zip(before, units)]
    assert again == plain
    monkeypatch.setattr(precompiled.os, "getpid", lambda: -1)
    made.end()
    assert made.folder.exists(), "a child deletes nothing"
    monkeypatch.undo()
    made.end()
    assert not made.folder.exists() and build_cpp._compile({before[0]: units[0]}, compiler)[before[0]] == plain[0]


def test_one_openmp_runtime(options: Options) -> None:
    def runtimes() -> set[str]:  # other packages of the process may bring their own
        maps = Path("/proc/self/maps").read_text().splitlines()
        return {line.split()[-1] for line in maps if "gomp" in line or "iomp" in line}

    launch.openmp()
    before = runtimes()
    build_cpp.build([UNIT], options)
    assert runtimes() == before


def test_machine_facts() -> None:
    c = cpu()
    assert c.cores >= 1 and c.vector_bytes in (16, 32, 64) and len(c.key) == 16


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 5, 8])
def test_a_bad_place_among_good_ones_is_seen(columns: int) -> None:
    """Loops so short that the compiler writes them out, and puts conditions of neighbours side by side"""
    compiled = bytejit.compile(lambda x, i: x * 2 + x.gather(0, i))
    x = torch.arange(2.0 * columns).view(2, columns)
    good = torch.arange(columns)[None] % 2
    torch.testing.assert_close(compiled(x, good), x * 2 + x.gather(0, good))
    for at in range(columns):
        for bad in (2, 5, -1):
            places = good.clone()
            places[0, at] = bad
            with pytest.raises(RuntimeError, match=f"index {bad} is out of bounds"):
                compiled(x, places)


def test_gcc_13_puts_no_conditions_side_by_side() -> None:
    flags = {n: Compiler("g++", f"g++ (Ubuntu {n}.3.0-6ubuntu2~24.04) {n}.3.0", True).flags for n in (12, 13, 14)}
    assert [n for n, words in flags.items() if "-fno-tree-slp-vectorize" in words] == [13]
    assert "-fno-tree-slp-vectorize" not in Compiler("clang++", "clang version 13.0.1 clang", False).flags


@pytest.mark.parametrize(
    "said, name, flags, tuned",
    [
        ("Not affected\n", "Intel(R) Xeon(R) Processor 6 207 2", {"avx2"}, True),
        ("Not affected\n", "AMD EPYC 25 1 1", {"avx2"}, False),
        ("Not affected\n", "Intel(R) Atom", set(), False),
        ("Mitigation: Microcode\n", "Intel(R) Xeon(R) Gold 6 85 7", {"avx2"}, False),
        (None, "Intel(R) Xeon(R)", {"avx2"}, False),
    ],
)
def test_where_gathers_are_asked_for(monkeypatch, tmp_path, said, name, flags, tuned) -> None:
    """On CPUs of Intel's whose gathers are fast. A system that does not say so, and other makers', keep the compiler's choice."""
    told = tmp_path / "gathers"
    if said is not None:
        told.write_text(said)
    monkeypatch.setattr(machine, "SAMPLED", told)
    monkeypatch.setattr(machine, "cpu", lambda: SimpleNamespace(name=name, flags=frozenset(flags)))
    assert bool(machine.tuning.__wrapped__()) == tuned
