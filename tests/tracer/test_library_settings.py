"""What a program asks and sets of torch's libraries, through modules whose classes have properties; checks within the graph."""

from __future__ import annotations

import abc
import re
import types

import pytest
import torch

import bytejit
from bytejit.tracer.torch.library_settings import GETTERS

X = torch.randn(4, generator=torch.Generator().manual_seed(0))
FLAGS = {
    "cudnn.benchmark": (torch.backends.cudnn, "benchmark", (True, False)),
    "cudnn.enabled": (torch.backends.cudnn, "enabled", (False, True)),
    "mkldnn.enabled": (torch.backends.mkldnn, "enabled", (False, True)),
    "mkldnn.deterministic": (torch.backends.mkldnn, "deterministic", (True, False)),
    "matmul.allow_fp16_accumulation": (torch.backends.cuda.matmul, "allow_fp16_accumulation", (True, False)),
}


class Settings(types.ModuleType):
    """A module with a property, as torch.backends' are."""

    kept = [1.0]

    @property
    def scale(self):
        return self.kept[0]

    @scale.setter
    def scale(self, value):
        self.kept[0] = value * 2


class Writes(types.ModuleType):
    """A module that sees what is set in it."""

    def __setattr__(self, name, value):
        types.ModuleType.__setattr__(self, name, value + 1)


settings, writes = Settings("settings_of_a_test"), Writes("writes_of_a_test")


@pytest.fixture(params=FLAGS)
def flag(request):
    owner, name, values = FLAGS[request.param]
    before = getattr(owner, name)
    yield owner, name, values
    setattr(owner, name, before)


def test_a_flag_is_read_in_one_graph(flag):
    owner, name, values = flag
    made = bytejit.compile(lambda x: x + 1 if getattr(owner, name) else x - 1, backend="eager", fullgraph=True)
    for value in (*values, *values):
        setattr(owner, name, value)
        torch.testing.assert_close(made(X), X + 1 if value else X - 1)
    assert bytejit.counters["graphs"]["eager"] == 2


def test_a_flag_set_within_the_function_is_set(flag):
    owner, name, values = flag

    def f(x, value):
        y = x.sin()
        setattr(owner, name, value)
        return y + 1, getattr(owner, name)

    made = bytejit.compile(f, backend="eager")
    for value in (*values, *values):
        torch.testing.assert_close(made(X, value), (X.sin() + 1, value))
        assert getattr(owner, name) is value


def cudnn():
    """What cuDNN's flags are now."""
    b = torch.backends.cudnn
    return b.enabled, b.benchmark, b.deterministic


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_flags_around_a_part(backend):
    """One graph, where no GPU looks at them; what they were comes back, also where the part raises, and is guarded"""
    if torch.cuda.is_available():
        pytest.skip("the graph breaks where there is a GPU")

    def f(x, bad=False):
        y = x.sin()
        try:
            with torch.backends.cudnn.flags(enabled=False, benchmark=True, deterministic=True):
                y, inside = y * 2, cudnn()
                if bad:
                    raise KeyError("bad")
        except KeyError:
            y = y - 1
        return y + 1, inside, cudnn()

    made = bytejit.compile(f, backend=backend, fullgraph=True)
    before = cudnn()
    try:
        for deterministic in (False, True, False):
            torch.backends.cudnn.deterministic = deterministic
            for bad in (False, True):
                want, state = f(X, bad), cudnn()
                torch.testing.assert_close(made(X, bad), want)
                assert cudnn() == state
        assert sum(bytejit.counters["graphs"].values()) == 4
    finally:
        torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = before


def test_flags_around_a_break_and_an_error(capsys):
    """Code in the block that runs as it is sees the flags; so does what an exception leaves"""

    def f(x, bad):
        y = x.sin()
        with torch.backends.cudnn.flags(enabled=False, benchmark=True):
            y = y * 2
            print(cudnn())
            if bad:
                raise KeyError("bad")
        torch.backends.cudnn.benchmark = True
        return y + 1

    before = cudnn()
    made = bytejit.compile(f, backend="eager")
    try:
        for bad in (False, True, False):
            torch.backends.cudnn.benchmark, found = False, []
            for g in (f, made):
                torch.backends.cudnn.benchmark = False
                try:
                    found.append((g(X, bad).tolist(), cudnn(), capsys.readouterr().out))
                except KeyError as e:
                    found.append((str(e), cudnn(), capsys.readouterr().out))
            assert found[0] == found[1]
    finally:
        torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = before


def test_a_flag_that_an_error_of_the_graph_leaves():
    """The graph raises after the flag was set: the original code has set it, and no later one"""

    def f(x, at):
        torch.backends.cudnn.benchmark = True
        y = x[at]
        torch.backends.cudnn.benchmark = False
        return y

    before = torch.backends.cudnn.benchmark
    made = bytejit.compile(f, backend="eager")
    try:
        for at, left in ((1, False), (9, True), (2, False)):
            torch.backends.cudnn.benchmark = False
            try:
                assert made(X, torch.tensor(at)) == X[at]
            except IndexError:
                assert at == 9
            assert torch.backends.cudnn.benchmark is left
    finally:
        torch.backends.cudnn.benchmark = before


def test_what_is_so_already_is_set_again():
    """A script's setup at the top of its step: after the first call nothing breaks there"""

    def f(x, on, only_warns):
        torch.use_deterministic_algorithms(on, warn_only=only_warns)
        torch.set_float32_matmul_precision("highest")
        torch.backends.mkldnn.enabled = True
        return x + 1, torch.get_deterministic_debug_mode()

    made = bytejit.compile(f, backend="eager")
    try:
        for on, only_warns in ((True, False), (True, False), (True, True), (True, True), (False, False), (False, False)):
            for _ in range(2):
                torch.testing.assert_close(made(X, on, only_warns), (X + 1, 2 - only_warns if on else 0))
                assert torch.are_deterministic_algorithms_enabled() is on
                assert torch.is_deterministic_algorithms_warn_only_enabled() is only_warns
            broken = sum(bytejit.counters["breaks"].values())
            made(X, on, only_warns)
            assert sum(bytejit.counters["breaks"].values()) == broken
        assert bytejit.compile(f, backend="eager", fullgraph=True)(X, False, False)[1] == 0
        with pytest.raises(bytejit.exc.Unsupported, match="use_deterministic_algorithms changes how operations run"):
            bytejit.compile(f, backend="eager", fullgraph=True)(X, True, False)
    finally:
        torch.use_deterministic_algorithms(False)


def test_each_part_of_a_setting_is_guarded():
    """Whether anomaly detection looks for nan, whether what is not deterministic only warns"""
    made = bytejit.compile(
        lambda x: (x + 1, torch.is_deterministic_algorithms_warn_only_enabled(), torch.is_anomaly_check_nan_enabled()),
        backend="eager",
        fullgraph=True,
    )
    try:
        for only_warns, nan in ((False, True), (True, True), (True, False), (False, False)):
            torch.use_deterministic_algorithms(True, warn_only=only_warns)
            torch.set_anomaly_enabled(False, nan)
            assert made(X)[1:] == (only_warns, nan)
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_anomaly_enabled(False, True)


def test_other_settings_are_questions():
    def f(x):
        exact = torch.get_float32_matmul_precision() == "highest"
        return x + torch.get_num_threads(), exact, torch.backends.quantized.engine == "none"

    before = torch.get_float32_matmul_precision()
    made = bytejit.compile(f, backend="eager", fullgraph=True)
    try:
        for precision in ("high", "highest", "high"):
            torch.set_float32_matmul_precision(precision)
            torch.testing.assert_close(made(X), f(X))
    finally:
        torch.set_float32_matmul_precision(before)


def test_a_property_of_a_modules_class():
    def f(x, n):
        settings.scale = n
        return x * settings.scale

    made = bytejit.compile(f, backend="eager", fullgraph=True)
    for n in (2.0, 3.0):
        torch.testing.assert_close(made(X, n), X * (n * 2))
        assert settings.kept == [n * 2] and "scale" not in vars(settings)


def test_a_modules_own_setattr():
    def f(x, n):
        y = x + 1
        writes.level = n
        return y * writes.level

    made = bytejit.compile(f, backend="eager")
    for n in (1, 4):
        torch.testing.assert_close(made(X, n), (X + 1) * (n + 1))


class Derived(abc.ABCMeta):
    """A metaclass that inherits its checks."""


class Overriding(abc.ABCMeta):
    """One that has one of them in Python, with an effect."""

    def __subclasscheck__(cls, sub):
        asked.append(sub)
        return sub is int


class Base(metaclass=Derived):
    pass


class Child(Base):
    pass


class Numbers(metaclass=Overriding):
    pass


asked: list[type] = []


def test_metaclasses_that_inherit_the_checks_of_abstract_classes():
    def f(x, a, b):
        return x + isinstance(a, Base), isinstance(b, Base), issubclass(type(a), Base)

    made = bytejit.compile(f, backend="eager", fullgraph=True)
    torch.testing.assert_close(made(X, Child(), 3), f(X, Child(), 3))

    def g(x):
        return x + 1, isinstance(3, Numbers), isinstance("", Numbers)

    made = bytejit.compile(g, backend="eager", fullgraph=True)
    for _ in range(2):
        asked.clear()
        want, kept = g(X), list(asked)
        asked.clear()
        torch.testing.assert_close(made(X), want)
        assert asked == kept == [int, str]


def test_assert_async_is_a_check_in_the_graph():
    def f(x, y):
        torch._assert_async(y.sum() > 0, "too small")
        x.add_(1)
        return x * 2

    made = bytejit.compile(f, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(made(X.clone(), torch.ones(2)), (X + 1) * 2)
    kept = X.clone()
    with pytest.raises(RuntimeError, match="too small"):
        made(kept, -torch.ones(2))
    torch.testing.assert_close(kept, X)


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.randn((2, 3), generator=None, device=torch.device("cpu"), layout=torch.strided),
        lambda x: torch.rand(3, generator=None),
        lambda x: torch.randint(5, (3,), generator=None),
        lambda x: torch.randperm(4, generator=None),
        lambda x: torch.bernoulli(x.abs().clamp(max=1), generator=None),
        lambda x: x.clone().normal_(generator=None),
        lambda x: torch.normal(x, 1.0, generator=None),
    ],
)
def test_no_generator_may_be_named(draw):
    torch.manual_seed(0)
    want = draw(X)
    torch.manual_seed(0)
    torch.testing.assert_close(bytejit.compile(draw, fullgraph=True)(X), want)


@pytest.mark.parametrize("name", [name for name in GETTERS if hasattr(torch._C, name)])
def test_every_question(name: str) -> None:
    """Each is part of the graph, whatever kind its answer has: one of them is None on a CPU."""
    asked, args = getattr(torch._C, name), ("generic", "all") if name == "_get_fp32_precision_getter" else ()
    compiled = bytejit.compile(lambda x: (x + 1, asked(*args)), backend="eager", fullgraph=True)
    for _ in range(2):
        assert compiled(X)[1] == asked(*args)
    assert not bytejit.counters["recompiles"]


QUESTIONS = {
    "CPU": lambda: len(torch.backends.cpu.get_cpu_capability()),
    "GPUs": torch.cuda.device_count,
    "accelerators": torch.accelerator.device_count,
    "an accelerator": lambda: torch.accelerator.current_accelerator() is None,
    "whether there is one": torch.accelerator.is_available,
    "bfloat16": torch.cuda.is_bf16_supported,
    "architectures": lambda: len(torch.cuda.get_arch_list()),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_about_the_machine_is_no_break(question) -> None:
    compiled = bytejit.compile(lambda x: x + QUESTIONS[question](), backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X + QUESTIONS[question]())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("question", [torch.cuda.get_device_capability, torch.cuda.current_device, torch.cuda.get_device_name])
def test_a_question_about_a_gpu_without_one(question) -> None:
    with pytest.raises((AssertionError, RuntimeError)) as eagers:
        question()
    with pytest.raises(eagers.type, match=re.escape(str(eagers.value).splitlines()[0])):
        bytejit.compile(lambda x: (x, question()), backend="eager")(X)
