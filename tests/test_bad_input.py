"""Settings that name nothing, decorators without parentheses, no compiler: each says so, once, in plain words."""

from __future__ import annotations

import functools
import re
import sys
import threading
import traceback
import warnings
from pathlib import Path

import pytest
import torch

import bytejit
import bytejit.backends
from bytejit.common import caches
from bytejit.common.options import Options
from bytejit.guards.native_checker import CHECKER

from .forked import run_forked


def said(code: str, **environ: str) -> str:
    """What a fresh process writes to stderr. Raises where it fails."""
    done = run_forked("-c", code, **environ)
    assert done.returncode == 0, done.stderr
    return done.stderr


# ---- the compiler ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("cxx", ["no-such-g++", "/nowhere/g++", sys.executable + " -c 1/0 #"])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_a_compiler_that_is_not_there_is_an_error(cxx, needs_grad, tmp_path):
    x = torch.ones(4, requires_grad=needs_grad)
    c = bytejit.compile(lambda x: torch.relu(x) + 1, options={"cxx": cxx, "cache_dir": tmp_path})
    caches.clear()
    CHECKER.install(None)  # as in a new process: the unit that checks tensors is built with the first graph
    with pytest.raises(bytejit.exc.BadSetting, match="BYTEJIT_CXX") as caught:
        c(x)
    assert cxx.split()[0] in str(caught.value)
    assert _files_of_ours(caught.tb) == ["dispatch.py"]


def test_other_functions_do_not_hear_of_its_settings(tmp_path):
    x = torch.ones(4)
    caches.clear()
    CHECKER.install(None)
    with pytest.raises(bytejit.exc.BadSetting):
        bytejit.compile(lambda x: torch.relu(x) + 1, options={"cxx": "no-such-g++", "cache_dir": tmp_path})(x)
    assert torch.equal(bytejit.compile(lambda x: x + 2, backend="eager")(x), x + 2)
    assert torch.equal(bytejit.compile(lambda x: x + 3)(x), x + 3)


def test_what_cannot_be_in_one_graph_is_said_without_the_frames_of_the_compiler():
    c = bytejit.compile(lambda x: x if x.sum() > 0 else -x, fullgraph=True, backend="eager")
    with pytest.raises(bytejit.exc.Unsupported, match="decides a branch") as caught:
        c(torch.ones(4))
    assert _files_of_ours(caught.tb) == ["dispatch.py"]


def broken_backend(gm, inputs):
    try:
        {}["key"]
    except KeyError as e:
        raise LookupError("not this graph") from e


def broken_callable(gm, inputs):
    def run(*args):
        raise LookupError("not these inputs")

    return run


AOT = bytejit.backends.aot
BROKEN = {
    "backend": (broken_backend, ["dispatch.py"]),
    "callable": (broken_callable, ["dispatch.py", "ambient.py", "failures.py"]),
    "compiler of ATen graphs": (AOT(forward=broken_backend), ["dispatch.py"]),
    "callable of ATen graphs": (AOT(forward=broken_callable), ["dispatch.py", "ambient.py", "failures.py", "aot_backend.py"]),
}


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("case", BROKEN)
def test_errors_of_a_backend_show_its_own_frames(case, needs_grad, tmp_path):
    backend, ours = BROKEN[case]
    x = torch.ones(4, requires_grad=needs_grad)
    with pytest.raises(LookupError, match="not th") as caught:
        bytejit.compile(lambda x: x + 1, backend=backend)(x)
    assert _files_of_ours(caught.tb) == ours
    assert traceback.extract_tb(caught.tb)[-1].name in ("broken_backend", "run")
    with pytest.raises(LookupError) as caught:
        bytejit.compile(lambda x: x + 1, backend=backend, options={"debug": True, "debug_dir": str(tmp_path)})(x)
    assert len(_files_of_ours(caught.tb)) > len(ours)


def test_errors_that_may_be_bytejits_keep_its_frames():
    c = bytejit.compile(lambda x: x + 1, backend=lambda gm, inputs: functools.partial(int, "no number"))  # no frame of its own
    with pytest.raises(TypeError) as caught:
        c(torch.ones(4))
    assert "rollback.py" in _files_of_ours(caught.tb)


@pytest.mark.parametrize("backend", [broken_backend, AOT(forward=broken_backend)])
def test_errors_of_a_backend_keep_their_causes(backend):
    with pytest.raises(LookupError) as caught:
        try:
            raise OSError("the program's")
        except OSError:
            bytejit.compile(lambda x: x + 1, backend=backend)(torch.ones(4))
    error = caught.value
    assert isinstance(error.__cause__, KeyError) and error.__context__ is error.__cause__
    assert isinstance(error.__cause__.__context__, OSError)


def test_a_compiler_of_aten_graphs_that_returns_no_callable():
    c = bytejit.compile(lambda x: x + 1, backend=AOT(forward=lambda gm, inputs: 5))
    with pytest.raises(bytejit.exc.BackendFailed, match="returned int, not a callable"):
        c(torch.ones(4))


def _files_of_ours(tb):
    """Names of the package's files that a traceback shows."""
    package = Path(bytejit.__file__).parent
    return [Path(f.filename).name for f in traceback.extract_tb(tb) if Path(f.filename).is_relative_to(package)]


def test_suppressed_errors_do_not_hide_it():
    code = (
        "import torch, bytejit\n"
        "try: bytejit.compile(lambda x: torch.relu(x) + 1)(torch.ones(3))\n"
        "except bytejit.exc.BadSetting as e: assert 'no-such' in str(e)\n"
        "else: raise SystemExit(1)\n"
    )
    said(code, BYTEJIT_CXX="no-such", BYTEJIT_SUPPRESS_ERRORS="1")


def test_without_any_compiler_one_warning_names_the_variable(tmp_path):
    code = (
        "import warnings, torch, bytejit\n"
        "with warnings.catch_warnings(record=True) as found:\n"
        "    warnings.simplefilter('always')\n"
        "    for f in (torch.relu, torch.sin, torch.cos):\n"
        "        c = bytejit.compile(lambda x, f=f: f(x) + 1)\n"
        "        for n in (3, 4): assert torch.equal(c(torch.ones(n)), f(torch.ones(n)) + 1)\n"
        "assert len(found) == 1, [str(w.message) for w in found]\n"
        "assert 'BYTEJIT_CXX' in str(found[0].message) and 'unfused' in str(found[0].message)\n"
        "assert bytejit.counters.total('fallbacks')\n"
    )
    said(code, PATH=str(tmp_path), CXX="", BYTEJIT_CXX="", BYTEJIT_CACHE_DIR=str(tmp_path / "cache"))


# ---- the environment -------------------------------------------------------------------------------------------------
def test_unknown_variables_are_warned_of_once_with_the_nearest_name():
    with pytest.warns(RuntimeWarning, match="BYTEJIT_CACHE_DIRR is no option.*did you mean BYTEJIT_CACHE_DIR"):
        Options.from_env({"BYTEJIT_CACHE_DIRR": "/x"})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Options.from_env({"BYTEJIT_CACHE_DIRR": "/x"})
        Options.from_env({"BYTEJIT_DEBUG": "1", "BYTEJIT_TEST_SLOW": "1", "OTHER": "1"})
    with pytest.warns(RuntimeWarning, match="BYTEJIT_QQQ is no option, and does nothing. Known: "):
        assert Options.from_env({"BYTEJIT_QQQ": "1"}) == Options()
    text = said("import bytejit; bytejit.config.reload()", BYTEJIT_RECOMPILE_LIMITS="3")
    assert text.count("did you mean BYTEJIT_RECOMPILE_LIMIT?") == 1


@pytest.mark.parametrize(
    "name, value, says",
    [
        ("MODE", "fastest", "BYTEJIT_MODE='fastest': unknown mode 'fastest'. Known: default"),
        ("LOGS", "breaks,bogus", "BYTEJIT_LOGS='breaks,bogus': unknown kind of log 'bogus'. Known: breaks"),
        (
            "ACTIVATION_MEMORY_BUDGET",
            "2",
            "BYTEJIT_ACTIVATION_MEMORY_BUDGET='2': option activation_memory_budget is 2.0: expected",
        ),
        ("RECOMPILE_LIMIT", "many", "BYTEJIT_RECOMPILE_LIMIT='many': it is no int"),
        ("CHECK", "maybe", "BYTEJIT_CHECK='maybe': it is no bool"),
    ],
)
def test_bad_values_name_the_variable(name, value, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        Options.from_env({f"BYTEJIT_{name}": value})


def test_a_bad_value_is_one_warning_at_the_programs_line_and_the_others_hold(tmp_path):
    (tmp_path / "program.py").write_text("import sys\nimport bytejit\nprint(bytejit.config.mode, bytejit.config.debug_dir)\n")
    done = run_forked("program.py", cwd=tmp_path, BYTEJIT_MODE="fastest", BYTEJIT_DEBUG_DIR="there")
    assert (done.returncode, done.stdout) == (0, "default there\n"), done.stderr
    said = "program.py:2: RuntimeWarning: bytejit: BYTEJIT_MODE='fastest': unknown mode 'fastest'. Known: default, "
    assert said in done.stderr and "; the default holds\n" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["bytejit", "bytejit run no.py", "bytejit explain a.py:f", "bytejit.verify"])
def test_commands_refuse_a_bad_value_in_one_line(command):
    done = run_forked("-m", *command.split(), BYTEJIT_CACHE_MB="much")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "bytejit: BYTEJIT_CACHE_MB='much': it is no int\n")


# ---- decorators ------------------------------------------------------------------------------------------------------
def test_optimize_without_parentheses():
    @bytejit.optimize
    def one(x):
        return torch.relu(x) + 1

    assert torch.equal(one(torch.ones(3)), torch.ones(3) * 2) and bytejit.counters.total("graphs") == 1

    @bytejit.optimize
    def three(x, y, z=1, *, w):
        return x + y + z + w

    assert torch.equal(three(torch.ones(3), 1, w=2), torch.ones(3) * 5)
    assert isinstance(bytejit.optimize(torch.nn.ReLU()), torch.nn.ReLU)

    @bytejit.optimize
    def two(x, y):  # takes what a backend takes
        return x + y

    with pytest.raises(TypeError, match=r"'.*two' as its backend.*@bytejit.optimize\(\)"):
        two(torch.ones(3), torch.ones(3))

    @bytejit.optimize()
    def with_parentheses(x, y):
        return x + y

    assert torch.equal(with_parentheses(torch.ones(3), 1), torch.ones(3) * 2)

    @bytejit.compile
    def bare(x):
        return x + 1

    assert torch.equal(bare(torch.ones(3)), torch.ones(3) * 2)


def test_a_backend_given_to_optimize_is_one():
    seen = []

    def backend(gm, example_inputs):
        seen.append(gm)
        return gm.forward

    bytejit.optimize(backend)(lambda x: x + 1)(torch.ones(3))
    assert len(seen) == 1


# ---- arguments and backends ------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "settings, error, says",
    [
        ({"options": ["debug"]}, TypeError, "options is ['debug']: expected a mapping of option names to values"),
        ({"options": "debug"}, TypeError, "options is 'debug': expected a mapping"),
        ({"fullgraph": "no"}, ValueError, "fullgraph is 'no': expected bool"),
        ({"dynamic": "yes"}, ValueError, "option dynamic is 'yes': expected bool"),
    ],
)
def test_arguments_of_another_type_are_refused(settings, error, says):
    with pytest.raises(error, match=re.escape(says)):
        bytejit.compile(lambda x: x, **settings)


@pytest.mark.parametrize("fullgraph", [None, False, 0, True, 1])
def test_fullgraph_is_a_truth(fullgraph):
    c = bytejit.compile(lambda x: x + 1, fullgraph=fullgraph, backend="eager")
    assert torch.equal(c(torch.ones(3)), torch.full((3,), 2.0))


@pytest.mark.parametrize(
    "outputs, said",
    [
        ((), "not enough values to unpack (expected 2, got 0)"),
        ((1, 2, 3), "too many values to unpack (expected 2"),  # newer Pythons say how many there are
        (None, "cannot unpack non-iterable NoneType object"),
    ],
)
def test_a_backend_whose_callable_returns_other_outputs(outputs, said):
    def short(gm, inputs):
        return lambda *args: outputs

    c = bytejit.compile(lambda x: (x + 1, x - 1), backend=short)
    with pytest.raises(bytejit.exc.BackendFailed) as caught:
        c(torch.ones(3))
    first, where, do = str(caught.value).splitlines()
    assert f"short' made what does not return the graph's outputs: {said}" in first
    assert where.startswith("  where  tests/test_bad_input.py:") and do.startswith("  do     return a callable")


def test_an_error_of_unpacking_within_a_backend_is_its_own():
    def wrong(gm, inputs):
        def run(*args):
            a, b = (1,)
            return a, b

        return run

    with pytest.raises(ValueError, match="not enough values to unpack") as caught:
        bytejit.compile(lambda x: (x + 1, x - 1), backend=wrong)(torch.ones(3))
    assert type(caught.value) is ValueError and traceback.extract_tb(caught.tb)[-1].name == "run"


def test_a_cache_that_cannot_be_used_is_said_at_the_programs_line(tmp_path):
    (tmp_path / "file").write_text("")
    lines = (
        "import torch",
        "import bytejit",
        f"c = bytejit.compile(lambda x: x.sin() + 1, options={{'cache_dir': {str(tmp_path / 'file')!r}}})",
        "c(torch.ones(3))",
        "c(torch.ones(3, 3))",
    )
    (tmp_path / "program.py").write_text("\n".join(lines))
    done = run_forked("program.py", cwd=tmp_path)
    assert done.returncode == 0 and done.stderr.count("RuntimeWarning") == 1, done.stderr
    assert re.search(r"program\.py:[34]: RuntimeWarning: bytejit: kernel cache ", done.stderr), done.stderr
    assert "Set BYTEJIT_CACHE_DIR to a folder of yours" in done.stderr and "threading.py" not in done.stderr


def test_a_warning_of_a_thread_waits_for_the_program():
    thread = threading.Thread(target=caches.warn_once, args=("odd", "from a thread of ours"))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        thread.start()
        thread.join()
        assert not found and caches.UNSAID == ["from a thread of ours"]
        caches.say_unsaid()
    assert [(str(w.message), Path(w.filename).name) for w in found] == [("from a thread of ours", "test_bad_input.py")]
    assert not caches.UNSAID


def test_the_recompile_limit_names_its_option():
    def f(x, n):
        return x * hash(n)

    c = bytejit.compile(f, backend="eager", dynamic=False)
    with pytest.warns(
        RuntimeWarning, match=r"f .*compiled 8 times; .*option recompile_limit.*; what kept changing: n was 7, is 8"
    ):
        for n in range(10):
            c(torch.ones(2), n)
