"""What the program tells torch's compiler holds for bytejit: marks, the stance, config; and whose exceptions are whose."""

from __future__ import annotations

import copy
import functools
import subprocess
import sys
import warnings

import pytest
import torch
import torch._dynamo

import bytejit
from bytejit.common import registry, torch_controls, torch_settings
from tests.programs.test_corners import Lost

X = torch.arange(4.0)


class Graphs:
    """A backend that counts its graphs and runs them as they are."""

    def __init__(self) -> None:
        self.seen: list[torch.fx.GraphModule] = []

    def __call__(self, gm, example_inputs):
        self.seen.append(gm)
        return gm.forward

    def __len__(self) -> int:
        return len(self.seen)


def graphs(f, *args, **settings) -> tuple[int, object]:
    """How many graphs a first call makes, and its result."""
    backend = Graphs()
    result = bytejit.compile(f, backend=backend, **settings)(*args)
    return len(backend), result


# names that the oldest torch lacks; what sets them is not there either
LATER = {"_default_backend"} if not hasattr(torch.compiler, "set_default_backend") else set()


# ---- reading marks runs no code of the program -----------------------------------------------------------------------
TOLD: list[str] = []


class TellingMeta(type):
    def __getattr__(cls, name):
        TOLD.append(name)
        raise AttributeError(name)

    def __getattribute__(cls, name):
        TOLD.append(name)
        return super().__getattribute__(name)

    def __hash__(cls):
        TOLD.append("hash")
        return 1

    def __eq__(cls, other):
        TOLD.append("eq")
        return False


class Telling(metaclass=TellingMeta):
    def __getattribute__(self, name):
        TOLD.append(name)
        return super().__getattribute__(name)

    def __hash__(self):
        TOLD.append("hash")
        return 1

    def __call__(self):
        return 1


@pytest.mark.parametrize("asked", [Telling, Telling()], ids=["a class", "an instance"])
def test_marks_are_read_without_running_code(asked):
    """Also in a process that has torch's compiler, where a mark may stand on anything that is called"""
    ask = torch_controls
    questions = [ask.disabled, ask.disabled_module, ask.wrapped, ask.constant, ask.allowed, ask.nonstrict, ask.refused]
    questions += [ask.is_graph_break, ask.substitute, *(functools.partial(registry.marked, kind) for kind in registry.MARK_KINDS)]
    bytejit.disable(Other.method)
    TOLD.clear()
    for question in questions:
        question(asked)
    assert not TOLD


class Other:
    def method(self):
        return 1


# ---- the table -------------------------------------------------------------------------------------------------------
def test_the_names_of_torch_are_there():
    """Where a torch has one no more, its row says what happens; the table is to be looked through then."""
    for row in torch_controls.NAMES.values():
        if row.where.startswith("torch.") and row.name not in LATER:
            holder = sys.modules[row.where]
            if row.name.startswith("_get"):
                holder = holder.PolyfilledFunctionVariable
            assert hasattr(holder, row.name), row
    for field, default in torch_settings.FIELDS.items():
        assert getattr(torch._dynamo.config, field) == default, field


def test_without_these_names_nothing_is_heard_and_nothing_fails(monkeypatch):
    for name in [*sys.modules]:
        if name.startswith("torch._dynamo"):
            monkeypatch.setitem(sys.modules, name, type(sys)(name))
    assert graphs(lambda x: torch.relu(x) + 1, X)[0] == 1
    assert torch_controls.stance() == torch_controls.Stance() and torch_controls.default_backend() == "inductor"
    assert torch_controls.dims_of(X) is None and not torch_controls.within_disabled()


def test_modules_are_made_and_copied_in_a_graph_after_torchs_compiler_ran():
    """From its first compile on it notes each module that is made or unpickled: that breaks no graph"""
    torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(2))
    assert not hasattr(torch.nn.Module, "___needs_generation_tag_patch") or not torch.nn.Module.___needs_generation_tag_patch
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())

    def f(x):
        twin = copy.deepcopy(net)
        return twin(x), torch.nn.Linear(4, 4)(x).shape, twin

    count, (y, shape, twin) = graphs(f, X, fullgraph=True)
    assert count == 1 and shape == (4,) and twin is not net
    torch.testing.assert_close(y, net(X))


def test_bytejit_hears_without_loading_torchs_compiler():
    code = (
        "import sys, torch, bytejit\n"
        "bytejit.compile(lambda x: torch.relu(x) + 1, backend='eager')(torch.ones(3))\n"
        "assert not [m for m in sys.modules if m.startswith('torch._dynamo')]\n"
        "f = bytejit.compile(lambda x: x.add(1), backend='eager')\n"
        "f(torch.ones(3))\n"
        "torch.compiler.set_stance('force_eager')\n"  # loads it; the entry there is of before
        "from unittest import mock\n"
        "n = bytejit.counters.total('graphs')\n"
        "f(torch.ones(3)); f(torch.ones(4))\n"
        "assert bytejit.counters.total('graphs') == n\n"
        "torch.compiler.set_stance('default')\n"
        "f(torch.ones(4)); assert bytejit.counters.total('graphs') == n + 1\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr


# ---- disable ---------------------------------------------------------------------------------------------------------
def plus_two(x):
    return x + 2


@torch.compiler.disable
def kept_out(x):
    return plus_two(x) * 2


def test_disable():
    assert graphs(torch.compiler.disable(plus_two), X)[0] == 0
    n, result = graphs(lambda x: kept_out(x + 1) - 1, X)
    assert n == 2 and torch.equal(result, kept_out(X + 1) - 1)
    assert graphs(torch.compiler.disable(plus_two, recursive=False), X)[0] == 0
    n, _ = graphs(lambda x: torch.compiler.disable(plus_two, recursive=False)(x + 1) - 1, X)
    assert n == 2
    with pytest.raises(bytejit.exc.Unsupported, match=r"torch.compiler.disable"):
        graphs(lambda x: kept_out(x + 1), X, fullgraph=True)


def test_a_wrapper_of_a_disabled_function_is_not_disabled():
    @functools.wraps(kept_out)
    def wrapper(x):
        return x * 3

    assert graphs(wrapper, X)[0] == 1


def test_disable_of_methods_classes_and_modules():
    class Part(torch.nn.Module):
        @torch.compiler.disable
        def forward(self, x):
            return x * 2

        @torch.compiler.disable
        def other(self, x):
            return x * 3

    class Whole(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = Part()

        def forward(self, x):
            return self.part(x + 1) + self.part.other(x)

    assert graphs(Part(), X)[0] == 0
    assert graphs(Part().other, X)[0] == 0
    n, result = graphs(Whole(), X)
    assert n == 2 and torch.equal(result, (X + 1) * 2 + X * 3)

    @torch.compiler.disable
    class Off(torch.nn.Module):
        def forward(self, x):
            return x * 2

    assert graphs(Off(), X)[0] == 0
    whole = torch.nn.Sequential(torch.nn.ReLU(), torch.compiler.disable(torch.nn.ReLU()), torch.nn.ReLU())
    assert graphs(whole, X)[0] == 2
    assert graphs(torch.compiler.disable(torch.nn.ReLU()), X)[0] == 0


def test_below_a_disabled_function_nothing_new_is_compiled():
    backend = Graphs()
    inner = bytejit.compile(plus_two, backend=backend)
    torch.compiler.disable(lambda x: inner(x))(X)
    assert len(backend) == 0
    inner(X)
    assert len(backend) == 1
    torch._dynamo.run(lambda x: inner(x))(torch.ones(5))
    assert len(backend) == 1


# ---- other marks -----------------------------------------------------------------------------------------------------
def test_graph_break():
    def f(x):
        x = x + 1
        torch._dynamo.graph_break()
        return x + 2

    assert graphs(f, X)[0] == 2


@torch.compiler.disable(reason="it reads a file")
def disabled_for_a_reason(x):
    return x + 1


@pytest.mark.parametrize(
    "step, reason",
    [
        (disabled_for_a_reason, "disabled_for_a_reason is marked torch.compiler.disable: it reads a file"),
        (
            lambda x: torch.compiler.disable(plus_two, reason="here")(x),
            "plus_two is marked torch.compiler.disable: here",
        ),
        (lambda x: (torch._dynamo.graph_break("here"), x)[1], "torch._dynamo.graph_break('here')"),
        (lambda x: (torch._dynamo.graph_break(msg="here"), x)[1], "torch._dynamo.graph_break('here')"),
        (lambda x: (torch._dynamo.graph_break(), x)[1], "torch._dynamo.graph_break()"),
    ],
)
def test_reasons_that_the_program_gives_are_said(step, reason):
    with pytest.raises(bytejit.exc.Unsupported) as caught:
        bytejit.compile(lambda x: step(x + 1) + 1, backend="eager", fullgraph=True)(X)
    assert str(caught.value).splitlines()[0] == reason


def test_suppressed_errors_of_a_backend():
    def broken(gm, example_inputs):
        raise LookupError("not this graph")

    with torch._dynamo.config.patch(suppress_errors=True):
        assert torch.equal(bytejit.compile(lambda x: x + 1, backend=broken)(X), X + 1)
        assert bytejit.counters["fallbacks"]
        with pytest.raises(LookupError):
            bytejit.compile(lambda x: x + 1, backend=broken, options={"raise_on_backend_error": True})(X)
    with pytest.raises(LookupError):
        bytejit.compile(lambda x: x + 1, backend=broken)(X)


def test_disallow_and_allow_in_graph():
    def f(x):
        return torch.neg(torch.sub(x + 1, 2)) * 3

    try:
        torch._dynamo.disallow_in_graph(torch.sub)
        n, result = graphs(f, X)
        assert n == 2 and torch.equal(result, f(X))
    finally:
        torch._dynamo.allow_in_graph(torch.sub)
    assert graphs(f, X)[0] == 1

    @torch._dynamo.allow_in_graph
    def whole(x):
        return [y for y in [x * 2] if not isinstance(open, list)][0]

    backend = Graphs()
    bytejit.compile(lambda x: whole(x) + 1, backend=backend, fullgraph=True)(X)
    assert whole in [n.target for n in backend.seen[0].graph.nodes]


def test_nonstrict_trace():
    lin = torch.nn.Linear(4, 4)

    @torch._dynamo.nonstrict_trace
    def traced(parts, x):
        return parts["a"](x) + 1

    n, result = graphs(lambda x: traced({"a": lin}, x) * 2, X)
    assert n == 1 and torch.equal(result, (lin(X) + 1) * 2)


def test_forbid_in_graph():
    @torch._dynamo.forbid_in_graph
    def forbidden(x):
        return x + 1

    assert graphs(lambda x: forbidden(x * 2) * 3, X)[0] == 2
    with pytest.raises(bytejit.exc.Unsupported, match="forbid_in_graph"):
        graphs(lambda x: forbidden(x * 2) * 3, X, fullgraph=True)


def test_assume_constant_result():
    calls = []

    @torch.compiler.assume_constant_result
    def scale():
        calls.append(1)
        return float(input_of[0])  # what cannot be traced

    input_of = [torch.tensor(3.0)]
    c = bytejit.compile(lambda x: x * scale(), backend=Graphs(), fullgraph=True)
    assert torch.equal(c(X), X * 3) and torch.equal(c(X), X * 3)
    assert len(calls) == 1


def test_substitute_in_graph():
    import zlib

    @torch.compiler.substitute_in_graph(zlib.adler32, skip_signature_check=True)
    def adler(data, value=1):
        return torch.ones(4) * len(data)

    result = graphs(lambda x: x + zlib.adler32(b"abc"), X, fullgraph=True)[1]
    assert torch.equal(result, X + 3)
    assert type(zlib.adler32(b"abc")) is int


def test_questions():
    def f(x):
        if torch.compiler.is_compiling() and torch.compiler.is_dynamo_compiling() and torch._dynamo.is_compiling():
            x = x + 1
        if torch.compiler.is_exporting():
            x = x + 10
        torch.compiler.cudagraph_mark_step_begin()
        return x

    n, result = graphs(f, X, fullgraph=True)
    assert n == 1 and torch.equal(result, X + 1)


def test_questions_without_work():
    """What is asked is True where no tensor is at hand, too: in a call without one, and behind a graph break."""
    ways = torch.compiler.is_compiling, torch.compiler.is_dynamo_compiling, torch._dynamo.is_compiling, bytejit.is_compiling

    def f(n):
        return [n * 2 if asked() else n for asked in ways]

    def broken(n):
        print(end="")
        return f(n)

    for g in (f, broken):
        c = bytejit.compile(g, backend="eager")
        assert c(3) == c(3) == [6] * 4
        assert torch.equal(c(X)[0], X * 2) and c(5) == [10] * 4
    assert bytejit.compile(lambda: torch.compiler.is_compiling(), backend="eager", fullgraph=True)()
    with torch.compiler.set_stance("force_eager"):
        assert bytejit.compile(f, backend="eager")(3) == [3] * 4


def test_wrap_numpy():
    import numpy

    f = torch.compiler.wrap_numpy(lambda a: numpy.sum(a * a))
    assert float(bytejit.compile(f, backend="eager")(X)) == 14.0


def test_a_function_that_torch_compile_made():
    made = torch.compile(plus_two, backend="eager")
    assert graphs(made, X)[0] == 1
    assert graphs(lambda x: made(x) * 2, X, fullgraph=True)[0] == 1
    lin = torch.nn.Linear(4, 4)
    assert graphs(torch.compile(lin, backend="eager"), X)[0] == 1


# ---- sizes -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "mark", [torch._dynamo.mark_dynamic, torch._dynamo.maybe_mark_dynamic, torch._dynamo.decorators.mark_unbacked]
)
def test_marks_of_dynamic_sizes(mark):
    backend = Graphs()
    c = bytejit.compile(lambda x: (x * 2).sum(-1), backend=backend)
    x = torch.ones(5, 4)
    mark(x, 0)
    for n in (5, 6, 7):
        assert c(x if n == 5 else torch.ones(n, 4)).shape == (n,)
    assert len(backend) == 1


def test_marks_that_cannot_hold():
    def f(x):
        return x + torch.ones(5, 4)

    x = torch.ones(5, 4)
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(bytejit.exc.ConstraintViolation):
        bytejit.compile(f, backend="eager", fullgraph=True)(x)
    y = torch.ones(5, 4)
    torch._dynamo.maybe_mark_dynamic(y, 0)
    assert bytejit.compile(f, backend="eager", fullgraph=True)(y).shape == (5, 4)


def test_ranges_of_marks():
    backend = Graphs()
    c = bytejit.compile(lambda x: x * 2, backend=backend)
    x = torch.ones(5, 4)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    c(x), c(torch.ones(8, 4))
    assert len(backend) == 1
    c(torch.ones(9, 4))
    assert len(backend) == 2


def test_mark_static():
    backend = Graphs()
    c = bytejit.compile(lambda x: x * 2, backend=backend, dynamic=True)
    for n in (4, 5):
        x = torch.ones(n, 3)
        torch._dynamo.mark_static(x)
        c(x)
    assert len(backend) == 2

    def inside(x):
        torch._dynamo.mark_static(x, 0)
        return x * 2

    backend = Graphs()
    c = bytejit.compile(inside, backend=backend, dynamic=True, fullgraph=True)
    c(torch.ones(4, 3)), c(torch.ones(5, 3))
    assert len(backend) == 2


def test_mark_static_address_does_no_harm():
    x = torch.ones(3)
    torch._dynamo.mark_static_address(x)
    assert graphs(lambda x: x * 2, x)[0] == 1


# ---- the stance ------------------------------------------------------------------------------------------------------
def test_force_eager_as_function_manager_and_decorator():
    backend = Graphs()
    ran = []

    def f(x):
        ran.append(bytejit.is_compiling())
        return x + 1

    c = bytejit.compile(f, backend=backend)
    c(X)
    with torch.compiler.set_stance("force_eager"):
        c(X)  # compiled code is there, and is not used
        c(torch.ones(9))
    assert len(backend) == 1 and ran[-2:] == [False, False]

    @torch.compiler.set_stance("force_eager")
    def around():
        return c(torch.ones(7))

    around()
    assert len(backend) == 1
    c(torch.ones(7))
    assert len(backend) == 2


def test_eager_and_fail_on_recompile():
    backend = Graphs()
    c = bytejit.compile(plus_two, backend=backend)
    c(X)
    with torch.compiler.set_stance("eager_on_recompile"):
        c(X), c(torch.ones(3, 3))
    assert len(backend) == 1
    with torch.compiler.set_stance("fail_on_recompile"):
        c(X)
        with pytest.raises(RuntimeError, match="fail_on_recompile"):
            c(torch.ones(3, 3))
    c(torch.ones(3, 3))
    assert len(backend) == 2


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_eager_then_compile(stance):
    backend = Graphs()
    c = bytejit.compile(plus_two, backend=backend)
    with torch.compiler.set_stance(stance):
        c(torch.ones(5, 2))
        assert len(backend) == 0
        c(torch.ones(6, 2)), c(torch.ones(7, 2))
    assert len(backend) == 1  # the size that differed from the first call's is dynamic at once


def test_force_backend():
    first, second = Graphs(), Graphs()
    c = bytejit.compile(plus_two, backend=first)
    c(X)
    with torch.compiler.set_stance(force_backend=second):
        c(X), c(X)
    c(X)
    assert (len(first), len(second)) == (1, 1)
    with torch.compiler.set_stance(force_backend="nonsense"), pytest.raises(ValueError, match="nonsense"):
        c(torch.ones(3, 3))


def test_a_stance_that_there_is_not():
    """An error at the call, as torch has it: of new code, and of code that was compiled before."""
    c = bytejit.compile(plus_two, backend="eager")
    c(X)
    with torch.compiler.set_stance("eager"):
        for call in (c, bytejit.compile(plus_two, backend="eager")):
            with pytest.raises(RuntimeError, match="invalid torch.compile stance"):
                call(X)
    assert torch.equal(c(X), X + 2)


def test_skip_guard_eval_unsafe_is_taken():
    with torch.compiler.set_stance(skip_guard_eval_unsafe=True):
        assert graphs(plus_two, X)[0] == 1


# ---- config ----------------------------------------------------------------------------------------------------------
def test_config_recompile_limit():
    with torch._dynamo.config.patch(recompile_limit=2):
        backend = Graphs()
        c = bytejit.compile(lambda x: x + 1, backend=backend, dynamic=False)
        with pytest.warns(RuntimeWarning, match="compiled 2 times"):
            for n in range(2, 7):
                c(torch.ones(n))
    assert len(backend) == 2
    with torch._dynamo.config.patch(cache_size_limit=1):
        backend = Graphs()
        c = bytejit.compile(lambda x: x + 1, backend=backend, dynamic=False, options={"recompile_limit": 3})
        with pytest.warns(RuntimeWarning, match="compiled 3 times"):
            for n in range(2, 7):
                c(torch.ones(n))
    assert len(backend) == 3  # what is given in the call comes first


def test_config_of_sizes():
    for change, wanted in (({}, 2), ({"automatic_dynamic_shapes": False}, 3), ({"assume_static_by_default": False}, 1)):
        with torch._dynamo.config.patch(**change):
            backend = Graphs()
            c = bytejit.compile(lambda x: x + 1, backend=backend)
            for n in (4, 5, 6):
                c(torch.ones(n, 2))
        assert len(backend) == wanted, change


def test_config_of_errors():
    c = bytejit.compile(lambda x: x + 1, backend="eager")
    c(torch.ones(4))
    with torch._dynamo.config.patch(error_on_recompile=True), pytest.raises(bytejit.exc.RecompileError):
        c(torch.ones(5))
    with torch._dynamo.config.patch(recompile_limit=1, fail_on_recompile_limit_hit=True):
        with pytest.raises(bytejit.exc.RecompileError, match="limit"):
            c(torch.ones(6))
    with torch._dynamo.config.patch(disable=True):
        assert bytejit.compile(plus_two) is plus_two


@pytest.mark.parametrize("name", torch_settings.UNHEARD)
def test_fields_that_do_nothing_are_warned_of_once(name):
    default, instead = torch_settings.UNHEARD[name]
    assert getattr(torch._dynamo.config, name) == default
    other = {False: True, True: False, 256: 9}.get(default, "another") if not isinstance(default, set) else {print}
    with torch._dynamo.config.patch(**{name: other}):
        with pytest.warns(RuntimeWarning, match=f"{name} does nothing here: ") as said:
            for _ in range(2):
                bytejit.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert len(said) == 1 and instead in str(said[0].message)
    bytejit.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bytejit.compile(lambda x: x + 1, backend="eager")(torch.ones(2))


def test_environment_that_switches_off(monkeypatch):
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")
    assert bytejit.compile(plus_two) is plus_two


def test_backends_that_torch_knows():
    backend = Graphs()
    torch._dynamo.register_backend(lambda gm, ex: backend(gm, ex), name="of_the_program")
    bytejit.compile(plus_two, backend="of_the_program")(X)
    assert len(backend) == 1
    with pytest.raises(ValueError, match="openxla"):
        bytejit.compile(plus_two, backend="openxla")


@pytest.mark.skipif(not hasattr(torch.compiler, "set_default_backend"), reason="this torch has no default backend to set")
def test_the_default_backend_of_torch():
    backend = Graphs()
    torch.compiler.set_default_backend(backend)
    try:
        bytejit.compile(lambda x: x * 7)(X)
    finally:
        torch.compiler.set_default_backend(None)
    assert len(backend) == 1


# ---- the profiler ----------------------------------------------------------------------------------------------------
def profiled(f, *args) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as p:
        f(*args)
    return [e.name for e in p.events()]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.cxx), Graphs()])
def test_record_function_is_seen(backend):
    @torch.autograd.profiler.record_function("decorated")
    def part(x):
        return x * 2

    def f(x):
        with torch.profiler.record_function("outer"):
            x = torch.relu(x + 1)
            with torch.profiler.record_function("inner"):
                x = x * 3
        bytejit.graph_break()
        with torch.profiler.record_function("broken"):
            x = x + 1
            bytejit.graph_break()
            x = part(x)
        return x

    c = bytejit.compile(f, backend=backend)
    for _ in range(2):
        names = profiled(c, X)
        assert [names.count(n) for n in ("outer", "inner", "broken", "decorated")] == [1, 1, 1, 1], names
        assert torch.equal(c(X), f(X))
    if isinstance(backend, Graphs):
        assert not [n for g in backend.seen for n in g.graph.nodes if "range" in str(n.target)]


def test_names_of_ranges_that_change_between_calls():
    calls = [0]

    def f(x, name):
        calls[0] += 1
        with torch.profiler.record_function(f"step {calls[0]}"), torch.profiler.record_function("in " + name):
            x = torch.relu(x + 1)
        with torch.profiler.record_function(f"sum {x.sum()}"):
            return x * 2

    c = bytejit.compile(f, backend="eager")
    for i in range(4):
        c(X, f"n{i}")
    before = bytejit.counters.total("graphs")
    for i in range(4, 9):
        assert torch.equal(c(X, f"n{i}"), torch.relu(X + 1) * 2)
    assert bytejit.counters.total("graphs") == before <= 4 and not bytejit.counters.total("breaks")
    for i in (9, 10):  # the graph above has no names
        names = profiled(c, X, f"n{i}")
        assert [names.count(n) for n in (f"step {i + 1}", f"in n{i}", f"sum {torch.relu(X + 1).sum()}")] == [1, 1, 1], names
    c(X, "n11")
    assert calls == [12]


def test_ranges_end_when_a_graph_raises():
    from bytejit.common import profiler_ranges

    def f(x, i):
        with torch.profiler.record_function("outer"):
            return x[i] * 2

    c = bytejit.compile(f, backend="eager")
    i = torch.tensor([1])
    c(X, i)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        with pytest.raises(IndexError):
            c(X, i + 100)
    assert profiler_ranges._open.stack == []


# ---- whose exception it is -------------------------------------------------------------------------------------------
def test_errors_of_a_backend_reach_the_program():
    def at_compile(gm, args):
        raise ZeroDivisionError("the backend's")

    def at_run(gm, args):
        def run(*a):
            raise ZeroDivisionError("the backend's")

        return run

    def behind(gm, args):
        def run(*a):
            gm.forward(*a)
            return [][1]

        return run

    def of_torch(gm, args):
        return lambda *a: torch.ones(2) + torch.ones(3)

    def of_c(gm, args):
        return functools.partial(int, "no number")

    for backend, kind in (
        (at_compile, ZeroDivisionError),
        (at_run, ZeroDivisionError),
        (behind, IndexError),
        (of_torch, RuntimeError),
        (of_c, TypeError),
    ):
        for fullgraph in (False, True):
            with pytest.raises(kind) as caught:
                bytejit.compile(lambda x: x + 3, backend=backend, fullgraph=fullgraph)(X)
            assert any("backend" in note for note in caught.value.__notes__)


def test_errors_of_operations_are_the_programs_own():
    """With a backend that runs the graph, what an operation raises is caught where the program catches it."""

    def f(x, i):
        try:
            return x[i] + 1
        except IndexError:
            return x - 1

    for backend in (lambda gm, a: gm.forward, lambda gm, a: torch.fx.Interpreter(gm).run, "eager"):
        c = bytejit.compile(f, backend=backend)
        i = torch.tensor([1])
        assert torch.equal(c(X, i), f(X, i)) and torch.equal(c(X, i + 100), X - 1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.cxx)])
def test_errors_of_the_programs_python_in_a_graph(backend):
    """A custom operator that raises once: the exception is not lost, and it is not called a second time."""
    calls = []

    @bytejit.allow_in_graph
    def own(x):
        if not isinstance(x, torch._subclasses.FakeTensor) and type(x) is torch.Tensor:
            calls.append(1)
            if len(calls) == 2:
                raise KeyError("once")
        return x * 2

    @torch.library.custom_op(f"test_controls::own_{backend}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise KeyError("once")
        return x * 2

    @op.register_fake
    def _(x):
        return torch.empty_like(x)

    for function in (op,):
        calls.clear()
        c = bytejit.compile(lambda x, function=function: function(x) + 1, backend=backend)
        assert torch.equal(c(X), X * 2 + 1)
        with pytest.raises(KeyError, match="once"):
            c(X)
        assert len(calls) == 2
        assert torch.equal(c(X), X * 2 + 1)


def test_errors_of_the_programs_python_are_caught_where_the_program_catches():
    @torch.library.custom_op("test_controls::raises", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        if x[0] > 0:
            raise KeyError("the program's")
        return x * 2

    @op.register_fake
    def _(x):
        return torch.empty_like(x)

    def f(x):
        try:
            return op(x) + 1
        except KeyError:
            return x - 1

    for backend in ("eager", lambda gm, a: gm.forward):
        c = bytejit.compile(f, backend=backend)
        assert torch.equal(c(X), f(X)) and torch.equal(c(X + 1), X)


def test_an_exception_of_a_keys_hash_is_the_programs():
    class Key:
        def __hash__(self):
            raise ZeroDivisionError("the key's")

    @functools.lru_cache
    def scale(key):
        return 2

    with pytest.raises(ZeroDivisionError, match="the key's"):
        bytejit.compile(lambda x, key: x * scale(key), backend="eager")(X, Key())


# ---- errors on graph breaks ------------------------------------------------------------------------------------------
def breaks_once(x):
    x = x + 1
    torch._dynamo.graph_break()
    return x * 2


def test_error_on_graph_break_around_a_call():
    c = bytejit.compile(breaks_once, backend="eager")
    with torch._dynamo.error_on_graph_break(True):
        assert graphs(lambda x: torch.relu(x) + 1, X)[0] == 1
        with pytest.raises(bytejit.exc.Unsupported, match="graph_break(.|\n)*leave torch._dynamo.error_on_graph_break off"):
            c(X)
        with torch._dynamo.error_on_graph_break(False):
            assert torch.equal(bytejit.compile(breaks_once, backend="aot_eager")(X), breaks_once(X))
    assert torch.equal(c(X), breaks_once(X))


def test_error_on_graph_break_within_compiled_functions():
    def parts(x, at):
        with torch._dynamo.error_on_graph_break(True):
            x = x + 1
            if at == 1:
                torch._dynamo.graph_break()
        if at == 2:
            torch._dynamo.graph_break()
        return careful(x, at) * 2

    @torch._dynamo.error_on_graph_break(True)
    def careful(x, at):
        with torch._dynamo.error_on_graph_break(False):
            if at == 3:
                torch._dynamo.graph_break()
        return inner(x, at)

    def inner(x, at):
        if at == 4:
            torch._dynamo.graph_break()
        return x * 3

    for at, refused in enumerate((False, True, False, False, True)):
        bytejit.reset()
        c = bytejit.compile(parts, backend="eager")
        if refused:
            with pytest.raises(bytejit.exc.Unsupported, match="graph_break"):
                c(X, at)
            assert not torch._dynamo.utils._get_error_on_graph_break()
        else:
            assert torch.equal(c(X, at), (X + 1) * 6)
    with pytest.raises(bytejit.exc.Unsupported):  # fullgraph comes first
        bytejit.compile(parts, backend="eager", fullgraph=True)(X, 3)


# ---- sizes that change, by name --------------------------------------------------------------------------------------
TABLE = torch.ones(3, 2)


@pytest.mark.parametrize(
    "names, count", [("", 2), ("L['x']", 1), ("L['x']:0", 1), ("L['x']:1", 2), ("L['y'], L\\[.x.\\]", 1), ("G['x']", 2)]
)
def test_dynamic_sources(names, count):
    for field in ("dynamic_sources", "unbacked_sources"):
        if hasattr(torch.compiler.config, field):
            bytejit.reset()
            seen = []
            c = bytejit.compile(lambda x: x * 2, backend=lambda gm, e, seen=seen: seen.append(gm) or gm.forward)
            with torch.compiler.config.patch(**{field: names}):
                for n in (3, 4, 5):
                    assert torch.equal(c(torch.ones(n, 2)), torch.full((n, 2), 2.0))
            assert len(seen) == count


def test_dynamic_sources_of_attributes_globals_and_numbers(monkeypatch):
    class Batch:
        pass

    batch, seen = Batch(), []

    def f(batch, n):
        return batch.mask * n + TABLE[0, 0] + TABLE.sum()

    c = bytejit.compile(f, backend=lambda gm, e: seen.append(gm) or gm.forward)
    with torch.compiler.config.patch(dynamic_sources="L['batch'].mask:0, L['n'], G['TABLE']"):
        for n in (3, 4, 5):
            batch.mask = torch.ones(n)
            monkeypatch.setitem(f.__globals__, "TABLE", torch.ones(n, 2))
            assert torch.equal(c(batch, n), f(batch, n))
    assert len(seen) == 1


def test_the_module_of_a_class_is_not_asked_of_its_metaclass():
    def f(x):
        return x + Lost().n, isinstance(x, Lost)

    made = bytejit.compile(f, backend="eager", fullgraph=True)(X)
    torch.testing.assert_close(made, f(X))
