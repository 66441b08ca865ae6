"""Programs that run under managers of torch's ambient state, with breaks and exceptions in all places, with and without
training: results, and the state that is left behind, are eager's. `make ambient` runs all of them, the suite a sample."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import bytejit
from bytejit.common import ambient, ambient_kinds, attention_choice

BACKENDS = ("eager", "inductor")
if torch.cuda.is_available():  # what torch sets up once for a GPU is no trace of a program
    torch.cuda.init()
    attention_choice.settled()
EVERY = ambient_kinds.KINDS + ambient_kinds.WATCHED


class Told(torch.overrides.TorchFunctionMode):
    """Is told of every call, and makes it."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextlib.contextmanager
def generator(*managers: Callable) -> Iterator[None]:
    """Managers entered by a generator."""
    with contextlib.ExitStack() as stack:
        for manager in managers:
            stack.enter_context(manager())
        yield


def bf16() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def f16() -> torch.autocast:
    return torch.autocast("cpu", torch.float16)


MANAGERS: dict[str, Callable] = {
    "autocast": bf16,
    "autocast_f16": f16,
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference": torch.inference_mode,
    "autocast_nocache": lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False),
    "autocast_off": lambda: torch.autocast("cpu", enabled=False),
    "set_grad": lambda: torch.set_grad_enabled(False),
    "device": lambda: torch.device("cpu"),
    "dtype": lambda: default_dtype(torch.float64),
    "deterministic": deterministic,
    "sdpa": lambda: sdpa_kernel(SDPBackend.MATH),
    "profiler": lambda: torch.profiler.record_function("r"),
    "anomaly": lambda: torch.autograd.detect_anomaly(check_nan=False),
    "fork_rng": torch.random.fork_rng,
    "saved": torch.autograd.graph.save_on_cpu,
    "warnings": warnings.catch_warnings,
    "null": contextlib.nullcontext,
    "mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "function_mode": Told,
    "hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x * 1, lambda x: x),
    "dtypes_nested": lambda: generator(bf16, f16),
    "sdpa_nested": lambda: generator(
        lambda: sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION]), lambda: sdpa_kernel(SDPBackend.MATH)
    ),
    "grad_in_inference": lambda: generator(torch.inference_mode, torch.enable_grad),
    "no_inference": lambda: generator(torch.inference_mode, lambda: torch.inference_mode(False)),
    "generator": lambda: generator(bf16, torch.no_grad),
    "functions_off": torch._C.DisableTorchFunctionSubclass,
    "refused": lambda: torch.autograd.graph.disable_saved_tensors_hooks("refused"),
    "cudnn": lambda: torch.backends.cudnn.flags(benchmark=True),
}
OUTER = ("autocast", "null", "no_grad")
WITHOUT_GRADIENTS = ("no_grad", "set_grad", "inference", "grad_in_inference", "generator")


@dataclass(frozen=True)
class Program:
    """`with outer: with inner:` around a model. where: of the break; raises: the model does, behind the break."""

    inner: str
    outer: str
    where: str
    raises: bool
    trains: bool

    def __str__(self) -> str:
        said = f"{self.inner}-in-{self.outer}-break-{self.where}"
        return said + "-raises" * self.raises + "-trains" * self.trains

    def build(self) -> Callable:
        """A step of the program on new modules."""
        torch.manual_seed(0)
        first, second = torch.nn.Linear(6, 6), torch.nn.Linear(6, 3)
        opt = torch.optim.SGD([*first.parameters(), *second.parameters()], 0.5)
        inner, outer, where, raises, trains = MANAGERS[self.inner], MANAGERS[self.outer], self.where, self.raises, self.trains

        def model(x):
            h = torch.relu(first(x))
            if where != "here":
                bytejit.graph_break()
            if raises:
                raise ValueError("boom")
            return second(h)

        def deep(x):
            return model(x) * 1

        def step(x):
            opt.zero_grad()
            try:
                with outer():
                    with inner():
                        out = (deep if where == "deep" else model)(x)
                        if where == "here":
                            bytejit.graph_break()
                        y = out.float().pow(2).mean()
            except ValueError:
                y = first(x).pow(2).mean()
            made = torch.zeros(1)
            if trains and y.requires_grad:
                y.backward()
                opt.step()
            return y.detach(), made.dtype, y.requires_grad

        return step


ALL = [
    p
    for p in (
        Program(*parts) for parts in itertools.product(MANAGERS, OUTER, ("callee", "here", "deep"), (False, True), (False, True))
    )
    if not (p.trains and (p.inner in WITHOUT_GRADIENTS or p.outer in WITHOUT_GRADIENTS))
]
SAMPLE = ALL[::19]  # a prime: all managers, places and outcomes come up


def chosen(config: pytest.Config) -> list[Program]:
    return ALL if config.getoption("--all-ambient") else SAMPLE


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "program" in metafunc.fixturenames:
        metafunc.parametrize("program", chosen(metafunc.config), ids=str)


@pytest.fixture(autouse=True)
def apart() -> Iterator[None]:
    """What a failing program leaves is no other's business."""
    before = ambient.capture()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(False)
    before.restore()


def left_by(run: Callable[[], object]) -> tuple[object, ambient.Ambient]:
    """What a run returns, and the state behind it; the state before is put back, where it can be."""
    before = ambient.capture()
    found = run()
    after = ambient.capture(EVERY)
    before.restore()
    return found, after


def agree(a: ambient.Ambient, b: ambient.Ambient) -> None:
    other = [k.name for k, x, y in zip(a.kinds, a.values, b.values) if not k.same(x, y)]
    assert not other, f"left otherwise than by eager: {other}: {a} and {b}"


def test_the_sample_holds_every_manager() -> None:
    assert {p.inner for p in SAMPLE} == set(MANAGERS) and {p.outer for p in SAMPLE} == set(OUTER)
    assert {(p.where, p.raises, p.trains) for p in SAMPLE} == {(p.where, p.raises, p.trains) for p in ALL}


@pytest.mark.parametrize("backend", BACKENDS)
def test_as_eager(program: Program, backend: str) -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1))
    step, compiled = program.build(), bytejit.compile(program.build(), backend=backend)
    torch.manual_seed(0)
    want, wanted_state = left_by(lambda: [step(x) for _ in range(4)])
    torch.manual_seed(0)
    got, state = left_by(lambda: [compiled(x) for _ in range(4)])
    for (a, *more), (b, *others) in zip(want, got):
        torch.testing.assert_close(b.float(), a.float(), rtol=2e-2, atol=2e-3)
        assert more == others
    agree(wanted_state, state)


# ---- autocast --------------------------------------------------------------------------------------------------------
def mixed_precision(where: str) -> Callable[[], torch.Tensor]:
    """A training step under autocast, with a break in the block, in a callee, behind it, or none."""
    torch.manual_seed(0)
    a, b = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)
    x = torch.randn(8, 16)
    opt = torch.optim.SGD([*a.parameters(), *b.parameters()], lr=0.5)

    def model(x):
        h = torch.relu(a(x))
        if where == "callee":
            bytejit.graph_break()
        return b(h)

    def step():
        opt.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
            if where == "block":
                bytejit.graph_break()
            loss = out.float().pow(2).mean()
        if where == "behind":
            bytejit.graph_break()
        loss.backward()
        opt.step()
        return loss.detach()

    return step


@pytest.mark.parametrize("where", ["callee", "block", "behind", "nowhere"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_learns(backend: str, where: str) -> None:
    """The loss falls as in eager, and so it does in eager code that follows: no cast weights stay in autocast's cache."""
    step = mixed_precision(where)
    want = [step().item() for _ in range(6)]
    compiled = bytejit.compile(mixed_precision(where), backend=backend)
    got = [compiled().item() for _ in range(6)]
    assert got == pytest.approx(want, rel=2e-2) and got[-1] < got[0] / 2
    assert ambient_kinds.autocast_nesting() == 0
    step = mixed_precision(where)
    assert [step().item() for _ in range(6)] == want


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_region_traced_in_two_autocasts_runs_in_one(backend: str) -> None:
    """Leaving the outermost block empties the cache, whatever the depth was while tracing."""
    layer, x = torch.nn.Linear(4, 4), torch.ones(2, 4)

    def step(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = layer(x)
            bytejit.graph_break()
            y = y + layer(x)
        return y

    compiled = bytejit.compile(step, backend=backend)
    with torch.autocast("cpu", torch.bfloat16):
        compiled(x)
    for value in (1.0, 2.0, 3.0):
        with torch.no_grad():
            layer.weight.fill_(value)
            layer.bias.fill_(0)
        assert compiled(x).float().tolist() == step(x).float().tolist() == [[8 * value] * 4] * 2
    assert ambient_kinds.autocast_nesting() == 0


@pytest.mark.parametrize("backend", [*BACKENDS, "aot_eager"])
def test_a_graph_that_begins_within_autocast_and_works_outside(backend: str) -> None:
    """The library call is f32: where it ran under the autocast that is still on, a kernel would read bf16 as f32."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(6, 6), torch.randn(4, 6)

    def inner(x):
        torch.relu(layer(x))
        bytejit.graph_break()
        raise ValueError

    def step(x):
        try:
            with torch.autocast("cpu", torch.bfloat16):
                inner(x)
        except ValueError:
            y = layer(x).pow(2).mean()
        return y.detach()

    compiled = bytejit.compile(step, backend=backend)
    for _ in range(4):
        torch.testing.assert_close(compiled(x), step(x))


@pytest.mark.parametrize("backend", [*BACKENDS, "aot_eager"])
@pytest.mark.parametrize("around", [None, torch.bfloat16, torch.float16], ids=str)
def test_autocast_off_within_a_region(backend: str, around: torch.dtype | None) -> None:
    """Blocks of a region turn autocast off, and to another dtype, whatever is on around the call (without the cache: it
    gives eager weights of the other dtype)."""
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(6, 6), torch.randn(4, 6)

    @torch.no_grad()
    def step(x):
        with torch.autocast("cpu", enabled=False):
            a = layer(x) * 2
        with torch.autocast("cpu", torch.float16):
            b = layer(x) * 2
        return a, b, layer(x) * 2

    compiled = bytejit.compile(step, backend=backend)
    for _ in range(2):
        with torch.autocast("cpu", around, enabled=around is not None, cache_enabled=False):
            for want, got in zip(step(x), compiled(x)):
                assert want.dtype is got.dtype
                torch.testing.assert_close(got, want, rtol=2e-2, atol=1e-2)


# ---- graphs that raise, and other kinds of state ---------------------------------------------------------------------------
class Interrupt(BaseException):
    pass


def test_an_interrupt_in_a_graph_leaves_its_managers() -> None:
    """The graph has entered them; the program's own `with` blocks are not on Python's stack to leave them."""

    def step(x):
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
            y = torch.mm(x, x)
        return y

    def backend(gm: torch.fx.GraphModule, examples: list) -> Callable:
        def run(*args):
            for node in gm.graph.nodes:
                if node.op == "call_function" and node.target is torch.mm:
                    raise Interrupt
                if node.op == "call_function":
                    node.target(*node.args)

        return run

    compiled, before = bytejit.compile(step, backend=backend), ambient.capture(EVERY)
    for _ in range(2):
        with pytest.raises(Interrupt):
            compiled(torch.ones(2, 2))
        assert not before.differences()


@pytest.mark.parametrize("backend", BACKENDS)
def test_vmap_around_and_within(backend: str) -> None:
    layer, x = torch.nn.Linear(4, 4), torch.randn(3, 2, 4)

    def step(x):
        y = torch.vmap(layer)(x)
        bytejit.graph_break()
        return y + torch.vmap(torch.sin)(x)

    compiled, before = bytejit.compile(step, backend=backend), ambient.capture(EVERY)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), step(x))
        torch.testing.assert_close(torch.vmap(compiled)(x), torch.vmap(step)(x))
    assert not before.differences()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compile_that_fails_leaves_the_state(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception anywhere in the compiler, within the state that it has set for itself and for the program."""
    from bytejit.fake import tensor

    infer, left = tensor.infer, [0]

    def failing(*args):
        left[0] -= 1
        if left[0] < 0:
            raise Interrupt
        return infer(*args)

    def step(x):
        with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
            y = torch.mm(x, x)
            with torch.autograd.detect_anomaly(check_nan=False), torch.device("cpu"):
                return (y @ y).sin() + torch.zeros(2, 2)

    monkeypatch.setattr(tensor, "infer", failing)
    before = ambient.capture(EVERY)
    for n in range(12):
        left[0] = n
        with contextlib.suppress(Interrupt):
            bytejit.compile(step, backend=backend)(torch.ones(2, 2))
        assert not before.differences(), f"after {n} operations"
        bytejit.reset()
    assert left[0] >= 0, "the last one was to end well"
