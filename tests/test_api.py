"""What can be compiled, what the public functions accept and refuse, options and their sources, errors' texts."""

from __future__ import annotations

import functools
import gc
import operator
import pickle
import sys
import types
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import bytejit
from bytejit.common import caches, registry
from bytejit.common.errors import Unsupported, note_place
from bytejit.common.options import Options, Settings
from bytejit.common.where import Where, where_of

from .ids import written

X = torch.arange(4.0)


def double(x: torch.Tensor, n: int = 2, *, plus: float = 0.0) -> torch.Tensor:
    """Twice x."""
    return x * n + plus


class Scale:
    """A callable object with methods of all kinds."""

    def __init__(self, n: float) -> None:
        self.n = n

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.n

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.n

    @bytejit.optimize("eager")
    def decorated(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.n

    @bytejit.compile(backend="eager")
    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @bytejit.compile(backend="eager")
    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * len(cls.__name__)


def eager(target: object) -> object:
    return bytejit.compile(target, backend="eager")


# --- what can be compiled ----------------------------------------------------------------------------------------


def test_functions_keep_what_they_are() -> None:
    f = eager(double)
    assert (f.__name__, f.__qualname__, f.__module__, f.__doc__) == ("double", "double", __name__, "Twice x.")
    assert f.__defaults__ == (2,) and f.__kwdefaults__ == {"plus": 0.0} and f.__wrapped__ is double
    assert f.__annotations__ == double.__annotations__ and f.__globals__ is double.__globals__
    assert torch.equal(f(X), X * 2)
    assert torch.equal(f(X, 3, plus=1.0), X * 3 + 1)
    with pytest.raises(TypeError, match=r"double\(\) got an unexpected keyword argument 'minus'"):
        f(X, minus=1)


def test_methods_lambdas_closures_partials_objects() -> None:
    s, k = Scale(2.0), 5.0

    def closure(x: torch.Tensor) -> torch.Tensor:
        return x * k

    assert torch.equal(eager(s.method)(X), X + 2)
    assert eager(s.method).__self__ is s
    assert torch.equal(eager(lambda x: x + 1)(X), X + 1)
    assert torch.equal(eager(closure)(X), X * 5)
    k = 6.0
    assert torch.equal(eager(closure)(X), X * 6)
    part = eager(functools.partial(double, n=4))
    assert isinstance(part, functools.partial) and torch.equal(part(X), X * 4)
    assert torch.equal(eager(s)(X), X * 2)
    assert torch.equal(s.decorated(X), X - 2)
    assert torch.equal(Scale.static(X), X * 3) and torch.equal(s.static(X), X * 3)
    assert torch.equal(Scale.of_class(X), X * 5)


def test_compiled_twice_is_compiled_once() -> None:
    f, s = eager(double), Scale(1.0)
    assert eager(double) is f and eager(f) is f
    assert eager(s.method) == eager(s.method) and eager(eager(s.method)) == eager(s.method)
    assert bytejit.compile(f, backend="aot_eager").__wrapped__ is double
    assert eager(eager(functools.partial(f, n=1))).func is f


def test_a_function_with_other_code_or_defaults_is_compiled_anew() -> None:
    """As after a reload, which writes into the function that there is."""

    def f(x: torch.Tensor, a: int = 1, *, b: int = 2) -> torch.Tensor:
        return x * a + b

    first = eager(f)
    assert torch.equal(first(X), X + 2)
    f.__defaults__, f.__kwdefaults__ = (5,), {"b": 7}
    assert torch.equal(eager(f)(X), X * 5 + 7) and eager(f) is eager(f) and eager(f) is not first
    f.__code__ = (lambda x, a=1, *, b=2: x * a - b).__code__
    assert torch.equal(eager(f)(X), X * 5 - 7) and torch.equal(first(X), X + 2)


def test_a_wrapper_of_a_compiled_function_is_a_function_of_its_own() -> None:
    f = eager(double)

    @functools.wraps(f)
    def wrapper(x: torch.Tensor) -> torch.Tensor:
        return f(x) + 1

    g = eager(wrapper)
    assert g is not wrapper and g.__wrapped__ is wrapper
    assert torch.equal(g(X), X * 2 + 1) and torch.equal(wrapper(X), X * 2 + 1)
    assert [len(bytejit.explain(h, X).graphs[0].graph.nodes) for h in (wrapper, f)] == [5, 4]


def test_a_compiled_function_goes_when_the_user_lets_go() -> None:
    gone = weakref.ref(eager(lambda x: x))
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    "bad, words",
    [
        (3, "int 3: it is not callable"),
        (None.__class__, "the class NoneType"),
        (operator.itemgetter(0), "the itemgetter object itemgetter"),
        (Scale, "the class Scale"),
        (torch.nn.Linear, "compile an instance of it"),
        (functools.lru_cache(double), "below the cache"),
        (functools.partial(operator.itemgetter(0)), "not written in Python"),
        (str.lower, "not written in Python"),
    ],
    ids=written,
)
def test_what_cannot_be_compiled(bad: object, words: str) -> None:
    with pytest.raises(TypeError) as e:
        eager(bad)
    assert words in str(e.value) and "Python functions" in str(e.value)


@pytest.mark.parametrize("fn", [torch.sin, F.softshrink, torch.relu, functools.partial(torch.add, alpha=2)], ids=written)
def test_builtin_functions(fn: Callable) -> None:
    args = (X, X) if isinstance(fn, functools.partial) else (X,)
    compiled = bytejit.compile(fn, fullgraph=True)
    torch.testing.assert_close(compiled(*args), fn(*args))
    assert len(bytejit.explain(compiled, *args).graphs) == len(bytejit.explain(fn, *args).graphs) == 1
    with pytest.raises(TypeError, match="nothing"):
        bytejit.compile(fn)(*args, nothing=3)


def test_builtin_functions_without_tensors() -> None:
    items: list = []
    assert eager(len)([1, 2]) == 2 and eager(len) is eager(len)
    assert eager(items.append)(3) is None and items == [3]


def test_decorators() -> None:
    @bytejit.compile
    def bare(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @bytejit.compile(backend="eager", dynamic=False)
    def given(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    @bytejit.optimize("eager", nopython=True)
    def optimized(x: torch.Tensor) -> torch.Tensor:
        return x + 3

    assert torch.equal(given(X), X + 2) and torch.equal(optimized(X), X + 3)
    assert bare.__wrapped__ is not None
    assert bytejit.compile(double, disable=True) is double


# --- settings ----------------------------------------------------------------------------------------------------


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown backend 'inducter'; did you mean 'inductor'.*aot_ts, cudagraphs, eager"):
        bytejit.optimize("inducter")
    with pytest.raises(ValueError, match="unknown mode 'fast'. Known: default, max-autotune"):
        bytejit.compile(double, mode="fast")
    with pytest.raises(ValueError, match="unknown option 'frieze'; did you mean 'freeze'"):
        bytejit.compile(double, options={"frieze": True})
    with pytest.raises(ValueError, match="option freeze is 3: expected bool"):
        bytejit.compile(double, options={"freeze": 3})
    with pytest.raises(TypeError, match="backend is a name or a callable"):
        bytejit.compile(double, backend=3)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_modes_of_torch_compile_are_accepted(mode: str) -> None:
    settings = Settings.make("eager", False, None, mode, None)
    assert settings.options.mode == mode
    assert settings.options.tune == mode.startswith("max") and settings.options.use_cudagraphs == (
        mode in ("reduce-overhead", "max-autotune")
    )


def test_options_from_the_environment() -> None:
    got = Options.from_env(
        {
            "BYTEJIT_DEBUG": "1",
            "BYTEJIT_LOGS": "graph, breaks",
            "BYTEJIT_RECOMPILE_LIMIT": "3",
            "BYTEJIT_DYNAMIC": "none",
            "BYTEJIT_CACHE_DIR": "~/k",
            "OTHER": "x",
        }
    )
    assert got.debug and got.logs == ("graph", "breaks") and got.recompile_limit == 3 and got.dynamic is None
    assert str(got.cache_path).endswith("/k") and "~" not in str(got.cache_path)
    with pytest.raises(ValueError, match="BYTEJIT_RECOMPILE_LIMIT='many': it is no int"):
        Options.from_env({"BYTEJIT_RECOMPILE_LIMIT": "many"})
    with pytest.raises(ValueError, match="unknown kind of log 'grafs'"):
        Options.from_env({"BYTEJIT_LOGS": "grafs"})
    # the last to come: activation_memory_budget and dynamic_sources, which torch's users know by these names
    assert len(Options.__dataclass_fields__) <= 23


def test_config_patch() -> None:
    config = bytejit.config
    before = config.current
    with config.patch(freeze=True):
        assert config.freeze
        with config.patch({"recompile_limit": 2}):
            assert config.freeze and config.recompile_limit == 2
        assert config.recompile_limit == before.recompile_limit

    @config.patch("debug", True)
    def patched() -> bool:
        return config.debug

    assert patched() and patched() and config.current == before
    with pytest.raises(ValueError, match="unknown option"):
        config.patch(nonsense=1)
    with pytest.raises(RuntimeError, match="out"), config.patch(freeze=True):
        raise RuntimeError("out")
    assert config.current == before
    config.recompile_limit = 5
    assert Settings().options.recompile_limit == 5
    assert Settings.make("eager", False, None, None, {"recompile_limit": 6}).options.recompile_limit == 6


# --- backends ----------------------------------------------------------------------------------------------------


def test_register_and_list_backends() -> None:
    calls = []

    @bytejit.register_backend
    def my_backend(gm: torch.fx.GraphModule, example_inputs: list) -> object:
        assert isinstance(gm, torch.fx.GraphModule) and all(isinstance(t, torch.Tensor) for t in example_inputs)
        calls.append(len(example_inputs))
        return gm.forward

    assert {"eager", "aot_eager", "inductor", "my_backend"} <= set(bytejit.list_backends())
    f = bytejit.compile(lambda x, y: x + y, backend="my_backend")
    y = X + 1
    assert torch.equal(f(X, y), X + y) and torch.equal(f(y, X), X + y)
    assert calls == [2]
    with pytest.raises(TypeError, match="a backend is a callable"):
        bytejit.register_backend(3)


def test_what_a_backend_raises_passes_through_with_the_place() -> None:
    class Mine(Exception):
        pass

    def broken(gm: torch.fx.GraphModule, example_inputs: list) -> object:
        raise Mine("no")

    with pytest.raises(Mine, match="no") as e:
        bytejit.compile(lambda x: x + 1, backend=broken)(X)
    assert any("test_api.py" in note for note in e.value.__notes__)


def test_a_backend_that_returns_nonsense() -> None:
    with pytest.raises(bytejit.exc.BackendFailed, match="callable"):
        bytejit.compile(lambda x: x + 1, backend=lambda gm, inputs: 3)(X)


# --- marks, explain, export, reset -------------------------------------------------------------------------------


def test_explain_prints_and_unpacks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        if y.sum() > 0:
            return y * 2
        return y

    report = bytejit.explain(f, X)
    explanation, out_guards, graphs, ops_per_graph, break_reasons, verbose = report
    assert len(graphs) == 2 and len(ops_per_graph) == 2 and len(break_reasons) == 1
    assert "test_api.py" in str(break_reasons[0]) and "test_api.py" in verbose
    assert "2 graphs" in explanation and str(report)
    assert out_guards


@pytest.mark.parametrize("what", [bytejit.explain, bytejit.export])
def test_arguments_may_come_later(what: Callable) -> None:
    """torch's own form, explain(f)(x); what needs no arguments is called at once"""
    same = type(what(double, X))
    assert type(what(double)(X)) is type(what(torch.nn.Linear(4, 2))(torch.ones(3, 4))) is same
    assert type(what(lambda: X * 2)) is type(what(lambda x=X, *more: x * 2)) is same


def test_export_gives_one_graph() -> None:
    gm, guards = bytejit.export(double, X)
    assert isinstance(gm, torch.fx.GraphModule) and guards
    assert torch.equal(gm(X), X * 2)

    def breaks(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(bytejit.exc.Unsupported):
        bytejit.export(breaks, X)


def test_unsupported_says_what_where_why_and_do() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(bytejit.exc.Unsupported) as e:
        bytejit.compile(f, backend="eager", fullgraph=True)(X)
    lines = str(e.value).splitlines()
    assert len(lines) <= 8
    assert "test_api.py" in lines[1] and "if x.sum() > 0:" in lines[1] and lines[1].startswith("  where  ")
    assert lines[2].startswith("  why ") and lines[3].startswith("  do ")


def test_disable_run_and_graph_break() -> None:
    @bytejit.disable
    def secret(x: torch.Tensor) -> torch.Tensor:
        assert not bytejit.is_compiling()
        return x + 1

    def f(x: torch.Tensor) -> torch.Tensor:
        y = secret(x * 2)
        bytejit.graph_break()
        return y * 3

    g = eager(f)
    assert torch.equal(g(X), (X * 2 + 1) * 3)
    assert bytejit.counters.total("breaks") >= 1
    graphs = bytejit.counters.total("graphs")
    runs = bytejit.run(g)
    assert torch.equal(runs(X), g(X))
    assert torch.equal(runs(torch.ones(7, dtype=torch.int64)), torch.full((7,), 9))  # a miss: nothing is compiled
    assert bytejit.counters.total("graphs") == graphs
    assert torch.equal(bytejit.disable(g)(X), f(X))


def test_the_reason_of_disable_is_that_of_the_break() -> None:
    @bytejit.disable(reason="talks to a device")
    def secret(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    unhooked = bytejit.disable(torch.nn.Linear(5, 5), reason="has hooks of its own")

    def f(x: torch.Tensor) -> torch.Tensor:
        return unhooked(secret(x * 2) - 1)

    shown = str(bytejit.explain(f, torch.ones(5)))
    assert "secret is marked bytejit.disable: talks to a device" in shown and "has hooks of its own" in shown


def test_is_compiling_is_decided_while_tracing() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if bytejit.is_compiling() else x + 2

    assert torch.equal(f(X), X + 2) and torch.equal(eager(f)(X), X + 1)


def test_allow_disallow_and_constants() -> None:
    seen: list[object] = []

    def backend(gm: torch.fx.GraphModule, inputs: list) -> object:
        seen.append([n.target for n in gm.graph.nodes if n.op == "call_function"])
        return gm.forward

    @bytejit.allow_in_graph
    def opaque(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @bytejit.assume_constant_result
    def answer() -> int:
        return 42

    f = bytejit.compile(lambda x: opaque(x) + answer(), backend=backend)
    assert torch.equal(f(X), X * 2 + 42)
    assert any(opaque in targets for targets in seen)
    bytejit.disallow_in_graph(torch.erf)
    try:
        assert torch.equal(eager(lambda x: torch.erf(x) + 1)(X), torch.erf(X) + 1)
        assert bytejit.counters.total("breaks") == 1
    finally:
        registry.unmark("disallow", torch.erf)
    with pytest.raises(TypeError, match="expected a callable"):
        bytejit.allow_in_graph(3)


def test_mark_dynamic_and_static() -> None:
    f = eager(lambda x: x * x.shape[0])
    a, b = torch.ones(5, 3), torch.ones(9, 3)
    bytejit.mark_dynamic(a, 0)
    assert torch.equal(f(a), a * 5) and torch.equal(f(b), b * 9)
    with pytest.raises(IndexError, match="dimension 2 of a tensor with 2"):
        bytejit.mark_dynamic(a, 2)
    bytejit.mark_static(a)
    with pytest.raises(TypeError):
        bytejit.mark_static([1])


def test_a_dynamic_size_does_not_recompile() -> None:
    f = eager(lambda x: x * x.shape[0])
    a = torch.ones(5, 3)
    bytejit.mark_dynamic(a, 0)
    f(a), f(torch.ones(9, 3))
    assert bytejit.counters.total("recompiles") == 0


def test_reset_compiles_anew() -> None:
    made: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list) -> object:
        made.append(1)
        return gm.forward

    f = bytejit.compile(lambda x: x + 1, backend=backend)
    f(X), f(X)
    assert len(made) == 1
    bytejit.reset()
    assert bytejit.counters.total("graphs") == 0
    f(X)
    assert len(made) == 2


# --- errors and places -------------------------------------------------------------------------------------------


def test_error_text_is_exact_and_pickles() -> None:
    where = Where("model.py", 14, "forward", "    if x.sum() > 0:")
    error = Unsupported(
        "a tensor decides a branch",
        where,
        "its value exists only after the kernel runs",
        "use torch.where, or keep the default and let this block run in eager",
    )
    text = str(error).splitlines()
    assert text[0] == "a tensor decides a branch"
    assert text[1].startswith("  where  ") and text[1].endswith("model.py:14 in forward: if x.sum() > 0:")
    assert text[2] == "  why    its value exists only after the kernel runs"
    assert text[3] == "  do     use torch.where, or keep the default and let this block run in eager"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert error.reason.endswith("model.py:14") and error.at(None) is error
    note_place(error, "testing", where), note_place(error, "testing", where)
    assert len(error.__notes__) == 1


def test_where_of_an_instruction() -> None:
    import dis

    call = next(i for i in dis.get_instructions(double) if i.opname == "BINARY_OP")
    where = where_of(double.__code__, call.offset)
    assert where.function == "double" and where.source.strip() == "return x * n + plus"
    assert where.short.endswith("test_api.py:" + str(double.__code__.co_firstlineno + 2))


def test_code_that_has_its_lines_followed_is_left_alone():
    """It would be shown calls of the compiler's at its sites: it runs as it is, and so do functions that call it."""
    events = []

    def follow(frame, event, arg):
        events.append((frame.f_code.co_name, event))

    def helper():
        return len([1])

    def followed(x):
        sys.settrace(follow)
        try:
            helper()
            list(i for i in (1, 2))
        finally:
            sys.settrace(None)
        return x + 1

    def around(x):
        return followed(x * 2) * 3

    before, x = sys.gettrace(), torch.ones(2)
    try:
        want = followed(x)
        plain = list(events)
        for f, arg in ((bytejit.compile(around, backend="eager"), x), (bytejit.compile(around, backend="eager"), x)):
            events.clear()
            assert torch.equal(f(arg), (arg * 2 + 1) * 3)
            assert events == plain
        caches.WARNED.clear()
        with pytest.warns(RuntimeWarning, match="runs uncompiled: .*settrace"):
            compiled = bytejit.compile(followed, backend="eager")
        events.clear()
        assert torch.equal(compiled(x), want) and events == plain
    finally:
        sys.settrace(before)


def test_annotations_of_a_class_are_made_when_the_program_asks():
    def f(x, cls):
        had = "__annotations__" in cls.__dict__ or "__annotations_cache__" in cls.__dict__  # the cache: 3.14
        cls.__annotations__["a"] = int
        return had, list(cls.__annotations__), x + 1

    for call in (f, bytejit.compile(f, backend="eager")):
        had, names, y = call(torch.ones(2), type("Made", (), {}))
        assert (had, names) == (False, ["a"]) and torch.equal(y, torch.full((2,), 2.0))


def test_a_lazy_module_is_loaded_when_the_program_asks():
    """Not when the compiler looks at it."""

    class Lazy(types.ModuleType):
        def __getattribute__(self, name):
            asked.append(name)
            return super().__getattribute__(name)

    def f(x, module):
        if module is None:
            return x
        known = list(asked)
        return x + 1, known, module.value

    asked, module = [], Lazy("late")
    module.value = 3
    compiled = bytejit.compile(f, backend="eager")
    for _ in range(2):
        asked.clear()
        y, known, value = compiled(torch.ones(2), module)
        assert known == [] and value == 3 and asked == ["value"]
        assert torch.equal(y, torch.full((2,), 2.0))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.cxx)])
@pytest.mark.parametrize("grad", [True, False])
def test_autocast_around_the_call_may_change(backend: str, grad: bool) -> None:
    """On and off, its dtype, its cache of cast weights: each is an entry of its own, whatever came before."""
    model, x = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.GELU(), torch.nn.Linear(8, 3)).eval(), torch.randn(4, 16)
    compiled = bytejit.compile(model, backend=backend)
    with torch.set_grad_enabled(grad):
        for dtype in (torch.bfloat16, torch.float16, None, torch.float16, torch.bfloat16, None):
            for cache in (True, False):
                with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None, cache_enabled=cache):
                    torch.testing.assert_close(compiled(x), model(x))
    assert grad or not bytejit.counters["fallbacks"]  # gradients: through torch
