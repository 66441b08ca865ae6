"""`patch_torch_compile` and `python -m bytejit run`: torch.compile in code that is not changed is bytejit's."""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.metadata
import json
import pickle
import re
import sys
import warnings

import pytest
import torch

import bytejit
from bytejit.__main__ import main
from bytejit.common import caches
from bytejit.common.former_backends import DEBUGGING
from bytejit.kernels import artifacts
from bytejit.runtime.origins import settings_of

from .forked import COMPILER, run_forked

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Graphs(list):
    """A backend that keeps its graphs and what it was told, and runs them as they are."""

    def __call__(self, gm, example_inputs, **told):
        self.append(gm)
        self.told = told
        return gm.forward


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(4, 4)

    def forward(self, x):
        return torch.relu(self.lin(x)) + 1


@pytest.fixture(autouse=True)
def patched():
    with bytejit.patch_torch_compile():
        yield


def plus(x):
    return torch.relu(x) + 1


def test_begin_and_end():
    ours = torch.compile
    assert ours.__module__ == "bytejit.patching"
    with bytejit.patch_torch_compile():
        with bytejit.patch_torch_compile() as inner:
            inner.undo()
            inner.undo()
        assert torch.compile is ours
    assert torch.compile is ours
    with pytest.raises(KeyError), bytejit.patch_torch_compile():
        raise KeyError
    assert torch.compile is ours


def test_every_argument_of_torchs():
    import inspect

    code = "import inspect, torch; print([*inspect.signature(torch.compile).parameters])"
    names = eval(run_forked("-c", code).stdout)
    assert not set(names) - {*inspect.signature(torch.compile).parameters}
    caches.clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        f = torch.compile(
            plus, fullgraph=True, dynamic=False, backend="inductor", mode="max-autotune-no-cudagraphs",
            options={"triton.cudagraphs": False, "epilogue_fusion": True}, name="mine", disable=False, recompile_limit=3,
            isolate_recompiles=True, shapes_spec=None, dynamic_shapes=None, of_tomorrow=True,
        )  # fmt: skip
    assert torch.equal(f(X), plus(X))
    said = sorted(str(w.message) for w in found)
    assert len(said) == 2 and "'epilogue_fusion'" in said[0] and "of_tomorrow" in said[1]
    options = settings_of(f).options
    assert options.recompile_limit == 3 and options.tune and options.cudagraphs is False


def test_bad_arguments_are_errors_at_once():
    for bad in ({"backend": "no-such"}, {"mode": "fastest"}, {"options": {"no_such": 1}}):
        with pytest.raises(ValueError, match="unknown"):
            torch.compile(**bad)
    with pytest.raises(RuntimeError):
        torch.compile()(None)
    with pytest.raises(TypeError):
        torch.compile(3)


def test_the_mode_lite_is_the_default_one():
    caches.clear()
    with pytest.warns(RuntimeWarning, match="'lite' of torch.compile is the default"):
        f = torch.compile(plus, mode="lite")
    assert settings_of(f).options.mode == "default"
    for mode in torch._inductor.list_mode_options():
        torch.compile(plus, mode=mode)


@pytest.mark.parametrize("name", sorted(DEBUGGING))
def test_backends_that_debug_torchs_compiler_are_ours_of_that_sort(name):
    assert name in torch._dynamo.list_backends(exclude_tags=None)
    with pytest.raises(bytejit.exc.BadSetting, match=f"no backend '{name}'(?s:.*)use backend '{DEBUGGING[name]}'"):
        bytejit.compile(plus, backend=name)
    caches.clear()
    with pytest.warns(RuntimeWarning, match=f"'{name}' of torch.compile is '{DEBUGGING[name]}' here"):
        f = torch.compile(plus, backend=name)
    assert settings_of(f).backend == DEBUGGING[name] and torch.equal(f(X), plus(X))


def test_forms():
    seen = Graphs()

    @torch.compile
    def bare(x):
        return x + 1

    @torch.compile(backend=seen, fullgraph=True)
    def with_arguments(x):
        return x + 2

    assert torch.equal(bare(X), X + 1) and torch.equal(with_arguments(X), X + 2) and len(seen) == 1
    compile = functools.partial(torch.compile, backend=seen, fullgraph=True)
    assert torch.equal(compile(torch.relu)(X), torch.relu(X)) and len(seen) == 2
    assert torch.equal(compile(functools.lru_cache(plus))(X), plus(X)) and len(seen) == 3
    assert torch.equal(compile(functools.partial(torch.add, X))(X), X + X) and len(seen) == 4
    m = Net()
    assert torch.equal(compile(m)(X), m(X)) and torch.equal(compile(m.forward)(X), m(X)) and len(seen) == 6

    @compile
    class Made(torch.nn.Module):
        def forward(self, x):
            return x * 3

    assert isinstance(Made(), Made) and torch.equal(Made()(X), X * 3) and len(seen) == 7
    assert torch.compile(plus, disable=True) is plus
    scripted = torch.jit.trace(Net(), X)
    with pytest.raises(TypeError, match="not Python"):
        torch.compile(scripted)


def test_a_backend_of_the_programs_own_is_told_mode_and_options():
    seen = Graphs()
    f = torch.compile(plus, backend=seen, options={"anything": 1})
    assert torch.equal(f(X), plus(X)) and seen.told == {"options": {"anything": 1}}
    torch.compile(plus, backend=seen, mode="reduce-overhead")(X)
    assert seen.told == {"mode": "reduce-overhead"}
    torch.compile(plus, backend=seen)(X)
    assert seen.told == {} and len(seen) == 3


def test_isolated_recompiles():
    seen = Graphs()

    def f(x, n):
        return x + n

    one, two = (torch.compile(f, backend=seen, dynamic=False, isolate_recompiles=True, recompile_limit=2) for _ in range(2))
    for n in range(2):
        one(X, n)
        two(X, n)
    assert len(seen) == 4
    one(X, 5)
    assert len(seen) == 4


def test_isolated_recompiles_of_modules():
    seen = Graphs()
    for make in (lambda m: m, lambda m: m.forward):
        seen.clear()
        nets = [Net(), Net()]
        for m in [torch.compile(make(m), backend=seen, isolate_recompiles=True) for m in nets]:
            m(X)
        assert len(seen) == 2


def test_module_compile():
    seen = Graphs()
    nets = [Net() for _ in range(10)]
    n = bytejit.counters.total("recompiles")
    for m in nets:
        want, keys = m(X), list(m.state_dict())
        m.compile(backend=seen, fullgraph=True)
        assert torch.equal(m(X), want) and list(m.state_dict()) == keys and type(m) is Net
        assert torch.equal(pickle.loads(pickle.dumps(m))(X), want) and torch.equal(copy.deepcopy(m)(X), want)
    assert len(seen) == 1 and bytejit.counters.total("recompiles") == n
    m = nets[0]
    m.lin = torch.nn.Linear(4, 4)
    assert torch.equal(m(X), m.forward(X))
    # within other compiled code it is part of that
    outer = torch.compile(lambda x: m(x) * 2, backend=seen, fullgraph=True)
    assert torch.equal(outer(X), m(X) * 2)


def test_compiled_modules_as_programs_look_at_them():
    m = Net()
    c = torch.compile(m)
    assert c._orig_mod is m and getattr(c, "_orig_mod", c).state_dict().keys() == m.state_dict().keys()
    again = torch.compile(c, backend="eager")
    assert again._orig_mod is m and torch.equal(again(X), m(X))


def test_parameters_saved_by_torchs_compiled_modules():
    """Their names begin with `_orig_mod.`, of the whole and of parts of it."""
    m = torch.nn.Sequential(Net(), Net())
    for compiled, names in (
        (torch.compile(torch.nn.Sequential(Net(), Net())), lambda n: "_orig_mod." + n),
        (torch.nn.Sequential(torch.compile(Net()), Net()), lambda n: n.replace("0.", "0._orig_mod.", 1) if n[0] == "0" else n),
    ):
        saved = {names(n): v for n, v in m.state_dict().items()}
        assert compiled.load_state_dict(saved) == ([], []) and saved.keys() == {names(n) for n in m.state_dict()}
        assert torch.equal(compiled(X), m(X))
        with pytest.raises(RuntimeError, match="Unexpected key.*other"):
            compiled.load_state_dict({**saved, "_orig_mod.other": X})
        assert compiled.load_state_dict(m.state_dict()) == ([], [])


# ---- controls ----------------------------------------------------------------------------------------------------------
@torch.compiler.disable
def kept_out(x):
    return x * 3


@torch.compiler.assume_constant_result
def constant():
    return 4


def test_controls():
    seen = Graphs()
    torch._dynamo.reset()
    compile = functools.partial(torch.compile, backend=seen)
    assert torch.equal(compile(lambda x: kept_out(x + 1) + 1)(X), (X + 1) * 3 + 1) and len(seen) == 2
    assert torch.equal(compile(lambda x: x + (1 if torch.compiler.is_compiling() else 2))(X), X + 1)
    assert not torch.compiler.is_compiling()
    assert torch.equal(compile(lambda x: x * constant(), fullgraph=True)(X), X * 4)

    def breaks(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x + 2

    n = len(seen)
    assert torch.equal(compile(breaks)(X), X + 3) and len(seen) == n + 2
    n = len(seen)
    with torch.compiler.set_stance("force_eager"):
        compile(lambda x: x * 5)(X)
    assert len(seen) == n
    f, y = compile(lambda x: x * 2), torch.ones(3, 4)
    torch._dynamo.mark_dynamic(y, 0)
    for rows in (y, torch.ones(5, 4), torch.ones(7, 4)):
        assert torch.equal(f(rows), rows * 2)
    assert len(seen) == n + 1
    g, y = compile(lambda x: x * 2), torch.ones(3, 4)
    torch._dynamo.mark_static(y, 0)
    g(y)
    assert len(seen) == n + 2
    f(X)
    torch.compiler.cudagraph_mark_step_begin()
    with torch._dynamo.config.patch(suppress_errors=False, recompile_limit=1):
        h = compile(lambda x, n: x + n, dynamic=False)
        h(X, 1), h(X, 2)
    assert len(seen) == n + 3


def test_reset():
    seen = Graphs()
    f = torch.compile(plus, backend=seen)
    f(X), f(X)
    assert len(seen) == 1
    torch.compiler.reset()
    f(X)
    assert len(seen) == 2


RESETS = """
import sys, torch, bytejit
seen = []
def backend(gm, inputs):
    seen.append(gm)
    return gm.forward
patched = bytejit.patch_torch_compile()
f = torch.compile(lambda x: torch.relu(x) + 1, backend=backend)
f(torch.ones(3))
assert "torch._dynamo" not in sys.modules
import torch._dynamo
torch._dynamo.reset()
f(torch.ones(3))
assert len(seen) == 2, len(seen)
patched.undo()
torch._dynamo.reset()
f(torch.ones(3))
assert len(seen) == 2
"""


def test_a_reset_of_a_module_that_is_imported_later(folder):
    done = run_forked("-c", RESETS, cwd=folder, preload=COMPILER)
    assert done.returncode == 0, done.stderr


def test_wrap_numpy():
    @torch.compile(backend="eager")
    @torch.compiler.wrap_numpy
    def f(a):
        return a * 2 + 1

    assert torch.equal(f(X), X * 2 + 1)


def sealed(rest):
    return artifacts.MAGIC + hashlib.sha256(rest).hexdigest().encode() + b"\n" + rest


@pytest.mark.cxx
def test_artifacts_of_one_cache_fill_another(tmp_path, monkeypatch):
    def used(folder):
        """The entries of a cache after a compile in a process that knows nothing."""
        caches.clear()
        bytejit.reset()
        with bytejit.config.patch(cache_dir=str(folder)):
            assert torch.allclose(torch.compile(torch.nn.functional.silu, dynamic=False)(X), torch.nn.functional.silu(X))
            kept = torch.compiler.save_cache_artifacts()
        return kept, {p.name: p.stat().st_ino for p in folder.glob("bytejit-*/[!.]*.*")}

    assert torch.compiler.save_cache_artifacts.__wrapped__.__module__ == "torch.compiler"
    (data, info), made = used(tmp_path / "one")
    names = info.artifacts["bytejit"]
    assert isinstance(data, bytes) and any(n.endswith(".so") for n in names) and set(names) <= set(made)
    with bytejit.config.patch(cache_dir=str(tmp_path / "two")):
        elsewhere = json.dumps([["../" + names[0], 1]]).encode() + b"\n1"
        for bad in (data[:-1], data[:30], sealed(elsewhere), sealed(b'[["a.so", 1]]\n1'), sealed(b"[[1]]\n")):
            with pytest.warns(RuntimeWarning, match="artifacts.*nothing is loaded"):
                assert torch.compiler.load_cache_artifacts(bad) is None
            caches.WARNED.clear()
        assert not (tmp_path / "two").exists()
        assert torch.compiler.load_cache_artifacts(data).artifacts["bytejit"] == names
    before = {p.name: p.stat().st_ino for p in (tmp_path / "two").glob("bytejit-*/[!.]*.*")}
    assert set(before) == set(names)
    _, after = used(tmp_path / "two")
    libraries = lambda found: {n: i for n, i in found.items() if n.endswith((".so", ".plan"))}
    assert libraries(after) == libraries(before)  # nothing was built anew


# ---- programs that call torch.compile by themselves ---------------------------------------------------------------------
@pytest.mark.cxx
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_generate_with_a_static_cache(backend):
    pytest.importorskip("transformers")
    from tests.models import zoo

    zoo.torchvision()
    from transformers import CompileConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64, max_position_embeddings=64, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model, ids = LlamaForCausalLM(config).eval(), torch.randint(1, 64, (2, 5))
    given = {"max_new_tokens": 12, "do_sample": False, "cache_implementation": "static"}
    want = model.generate(ids, disable_compile=True, **given)
    settings = CompileConfig(backend=backend, fullgraph=False)
    settings._compile_all_devices = True  # generate compiles on GPUs only, else
    n = bytejit.counters.total("graphs")
    for _ in range(2):
        assert torch.equal(model.generate(ids, compile_config=settings, **given), want)
    assert bytejit.counters.total("graphs") == n + 1 and not bytejit.counters.total("recompiles")


# ---- a backend of torch.compile ----------------------------------------------------------------------------------------
def test_the_entry_point():
    import importlib
    import tomllib
    from pathlib import Path

    points = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]["entry-points"]
    module, _, name = points["torch_dynamo_backends"]["bytejit"].partition(":")
    assert getattr(importlib.import_module(module), name) is bytejit.patching.as_backend


BACKEND = """
import torch, bytejit
from bytejit.patching import as_backend
torch.manual_seed(0)
m, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.LayerNorm(4)), torch.linspace(-1, 1, 12).reshape(3, 4)
def same(a, b): torch.testing.assert_close(a, b)
c = torch.compile(m, backend=as_backend)
with torch.no_grad():
    same(c(x), m(x)), same(c(x), m(x))
    assert bytejit.counters.total("graphs") == 1
    for n in (5, 6, 7): same(c(torch.ones(n, 4)), m(torch.ones(n, 4)))
    assert bytejit.counters.total("graphs") == 2 and not bytejit.counters.total("recompiles")
c(x).square().sum().backward()
got = [p.grad.clone() for p in m.parameters()]
m.zero_grad(); m(x).square().sum().backward()
for a, p in zip(got, m.parameters()): same(a, p.grad)
def f(x, y):
    x = x + y
    x.add_(1)
    torch._dynamo.graph_break()
    y.mul_(2)
    return x * y, x.shape[0]
a, b = (torch.ones(3), torch.full((3,), 2.0)), (torch.ones(3), torch.full((3,), 2.0))
t = torch.compile(f, backend=as_backend, options={"max_autotune": False})
for _ in range(2):
    same(t(*a), f(*b)), same(a, b)
assert not bytejit.counters.total("faults") and not bytejit.counters.total("fallbacks")
assert not [name for name in ("add", "mul") if name in str(bytejit.counters["breaks"])]
with torch.compiler.set_stance("force_eager"):
    same(c(x), m(x))
"""


@pytest.mark.cxx
@pytest.mark.skipif(
    not importlib.metadata.entry_points(group="torch_dynamo_backends", name="bytejit"), reason="bytejit is not installed here"
)
def test_as_a_backend_of_torch_compile(folder):
    done = run_forked("-c", BACKEND, cwd=folder, preload=(*COMPILER, "torch._dynamo"))
    assert done.returncode == 0, done.stderr[-3000:]


# ---- python -m bytejit run ---------------------------------------------------------------------------------------------
SCRIPT = """
import sys, torch
assert __name__ == "__main__"
f = torch.compile(lambda x: torch.relu(x) + 1)
f(torch.ones(3))
import bytejit
print(sys.argv, bytejit.counters.total("graphs"), "torch._dynamo" in sys.modules)
import beside
if "leave" in sys.argv: sys.exit(7)
if "fail" in sys.argv: raise KeyError("its own")
"""


def ran(folder, *command, **environ):
    return run_forked(*command, cwd=folder, **environ)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("")
    return tmp_path


def test_run(folder):
    done = ran(folder.parent, "-m", "bytejit", "run", str(folder / "script.py"), "a", "--b", "leave")
    assert done.returncode == 7, done.stderr
    assert done.stdout.split("] ") == [f"['{folder / 'script.py'}', 'a', '--b', 'leave'", "1 False\n"]
    done = ran(folder, "-m", "bytejit", "run", "-m", "script", "fail")
    assert done.returncode == 1 and "KeyError: 'its own'" in done.stderr and done.stdout.endswith("'fail'] 1 False\n")


def test_a_traceback_of_run_shows_the_programs_lines_only(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys, "path", [*sys.path])
    script = folder / "script.py"
    for text, wanted in (
        ("def f():\n    return 1 / 0\nf()\n", ["line 3, in <module>", "line 2, in f", "ZeroDivisionError: division by zero"]),
        ("def f(:\n", ["line 1", "SyntaxError: invalid syntax"]),
    ):
        script.write_text(text)
        monkeypatch.setattr(sys, "argv", [])
        assert main(["run", str(script)]) == 1
        said = capsys.readouterr().err
        assert said.count("  File ") == len(wanted) - 1 and all(line in said for line in wanted), said
        assert "runpy" not in said and "__main__.py" not in said


def test_run_is_told_by_the_environment(folder):
    code = "import torch, bytejit; print(torch.compile.__module__)"
    assert ran(folder, "-c", code, BYTEJIT_REPLACE_TORCH_COMPILE="1").stdout == "bytejit.patching\n"
    assert ran(folder, "-c", code).stdout == "torch\n"
    (folder / "script.py").write_text(code)
    assert ran(folder, "-m", "bytejit", "run", "script.py", BYTEJIT_REPLACE_TORCH_COMPILE="0").stdout == "torch\n"
    assert ran(folder, "-m", "bytejit", "run", "script.py", BYTEJIT_REPLACE_TORCH_COMPILE="1").stdout == "bytejit.patching\n"


def test_run_of_nothing(folder):
    for arguments, line in (
        (("no_such.py",), "no such file: no_such.py"),
        (("-m", "no_such"), "no module named no_such"),
        (("-m", "no_such.part"), "no module named no_such"),
        (("-m", ""), "no module is named"),
        (("-m", ".relative"), "no module named .relative"),
        (("-m", "email"), "no __main__ in the package email"),
        (("-m", "math"), "math is a module in C"),
        ((str(folder),), f"no __main__.py in {folder}"),
    ):
        done = ran(folder, "-m", "bytejit", "run", *arguments)
        assert done.returncode == 2 and done.stderr == f"bytejit run: {line}\n"
    done = ran(folder, "-m", "bytejit", "run")
    assert done.returncode == 2 and done.stderr.startswith("usage:")


def test_run_of_a_package_that_raises_shows_its_lines_only(folder, monkeypatch, capsys):
    (folder / "raising_package").mkdir()
    (folder / "raising_package" / "__init__.py").write_text("import no_such_module\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert main(["run", "-m", "raising_package.part"]) == 1
    said = capsys.readouterr().err
    assert said.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_module'"
    assert said.count("  File ") == 1 and "raising_package/__init__.py" in said


def test_a_warning_of_a_command_is_one_line(folder):
    (folder / "no_folder").write_text("")
    (folder / "case.py").write_text("def case(): return (lambda x: x + 1), (__import__('torch').ones(3),)\n")
    done = ran(folder, "-m", "bytejit", "explain", "case.py:case", BYTEJIT_DEBUG="1", BYTEJIT_DEBUG_DIR="no_folder")
    assert done.returncode == 0 and len(done.stderr.splitlines()) == 1, done.stderr
    assert re.match(r"(case\.py:1: RuntimeWarning: )?bytejit: the debug folder cannot be written", done.stderr)


# ---- python -m bytejit -------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "arguments, status, out, err",
    [
        (["--help"], 0, "usage: python -m bytejit COMMAND", ""),
        (["--version"], 0, f"bytejit {bytejit.__version__}", ""),
        (["no_such"], 2, "", "bytejit: no command 'no_such': it is one of verify, run, explain, bench"),
        (["verify", "--backend", "eager"], 0, "All that this machine can do works.", ""),
        (["--backend", "eager"], 0, "All that this machine can do works.", ""),
        (["bench", "x.py:f", "--seconds", "0"], 2, "", "argument --seconds: '0' is no number of seconds above 0"),
        (["bench", "x.py:f", "--seconds", "many"], 2, "", "argument --seconds: 'many' is no number of seconds above 0"),
    ],
)
def test_commands(arguments, status, out, err, capsys):
    try:
        left = main(arguments)
    except SystemExit as e:
        left = e.code
    said = capsys.readouterr()
    assert (left, out in said.out, err in said.err) == (status, True, True) and bool(said.out) == bool(out), said
