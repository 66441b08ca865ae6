"""What all tests share: internal faults raise, every test starts with nothing compiled, golden files, visible skips."""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import os
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT / "src", ROOT / "benchmarks", ROOT):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
# before bytejit reads its environment; processes that tests start inherit it all. Kernels of earlier runs are used
# again: they are found by their content. An internal fault raises, so that no fallback hides it; every pass is checked.
os.environ.setdefault("BYTEJIT_CACHE_DIR", str(ROOT / ".pytest_cache" / "bytejit"))
os.environ.setdefault("BYTEJIT_SUPPRESS_ERRORS", "0")
os.environ.setdefault("BYTEJIT_CHECK_PASSES", "1")
# Threads that wait for work would keep the cores from the other processes of the run: 5 times as long on 2 cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))

import torch  # noqa: E402

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read once, when triton is first imported
    # a seed is kept, with the stack of the call, for each kind of device that may be used later: 0.3 ms and more each time
    for devices in (torch.cuda.random, torch.xpu.random, torch.mtia):
        devices._lazy_call = lambda *args, **kwargs: None

import bytejit  # noqa: E402
from bytejit.kernels.tune import Choice, Tuner  # noqa: E402

with contextlib.suppress(ImportError):  # a GPU machine's Python may lack it
    import hypothesis

    # the same examples in every run, however slow it is; `python -m tests.fuzz` draws others
    hypothesis.settings.register_profile(
        "same", derandomize=True, database=None, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("same")

THREADED = ("codegen", "kernels")  # tests in these folders run with two threads
GOLDEN = ROOT / "tests" / "golden"
# much work in few tests: begun first where several processes share the files, or one works on them alone at the end
LONG = (
    "test_examples.py",
    "test_fuzz.py",
    "test_wheel.py",
    "test_interrupts_random.py",
    "test_interrupts_each.py",
    "test_soak.py",
)
CHOICES = os.environ.get("BYTEJIT_TEST_CHOICES", "0")  # another number: other libraries and layouts are chosen


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-golden", action="store_true", help="write the golden files anew")
    parser.addoption("--all-combinations", action="store_true", help="tests marked `pairs` with all combinations of parameters")
    parser.addoption("--all-ambient", action="store_true", help="all programs of tests/programs/test_ambient.py")


def pytest_collection(session: pytest.Session) -> None:
    """No collection of garbage while modules are imported: a sixth of that time, and all that they make stays."""
    gc.disable()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """What a module draws while it is imported is the same in every run."""
    if isinstance(collector, pytest.Module):
        torch.manual_seed(zlib.crc32(collector.path.name.encode()))


def pairs_of(item: pytest.Item) -> set[tuple]:
    """Each two of the values that a test is given."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    return set(itertools.combinations([(name, id(value)) for name, value in sorted(params.items(), key=lambda p: p[0])], 2))


def covering(items: list[pytest.Item]) -> set[pytest.Item]:
    """As few of the tests of a function as hold each pair of values that is held by any of them."""
    held = {item: pairs_of(item) for item in items}
    left, chosen = set().union(*held.values()), set()
    while left:
        best = max(items, key=lambda item: len(held[item] & left))
        chosen.add(best)
        left -= held[best]
    return chosen or set(items)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--all-combinations"):
        marked: dict[tuple, list[pytest.Item]] = {}
        for item in items:
            if item.get_closest_marker("pairs"):
                marked.setdefault((item.parent, item.originalname), []).append(item)
        dropped = {item for group in marked.values() for item in set(group) - covering(group)}
        config.hook.pytest_deselected(items=[item for item in items if item in dropped])
        items[:] = [item for item in items if item not in dropped]
    if hasattr(config, "workerinput"):  # of pytest-xdist, which hands out whole files in this order: `make test`
        many = Counter(item.path for item in items)
        rank = {name: i for i, name in enumerate(LONG)}
        items.sort(key=lambda item: (rank.get(item.path.name, len(LONG)), -many[item.path]))
    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What the modules of tests hold is not gone through by each collection of garbage, and there are fewer collections: a
    compile makes more objects than Python lets gather, of which most are gone when the next one begins."""
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)


# Libraries look at the end whether all of theirs is gone. Not sooner: pytest collects garbage twice when a session ends.
atexit.register(gc.unfreeze)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Names of tests hold no address: they are the same in every process that collects them."""
    text = str(val) if isinstance(val, (type, Callable)) else ""
    return getattr(val, "__name__", argname) if " at 0x" in text else None


@pytest.fixture(autouse=True)
def language_is_patched_once() -> None:
    """Triton's interpreter goes through all of its language at each call of a function of a kernel, a fifth of its time; what is
    patched already stays as it is."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    patch = getattr(interpreter, "_patch_lang", None)
    if patch is None or hasattr(patch, "all_of_it"):
        return
    tl, new_scope = interpreter.tl, getattr(interpreter, "_LangPatchScope", type(None))

    def unless_done(fn: Callable) -> object:
        seen = [lang for lang in (tl, tl.core) if any(value is lang for value in fn.__globals__.values())]
        done = seen and not any(tl.core.is_builtin(lang.load) for lang in seen)
        return new_scope() if done else patch(fn)

    unless_done.all_of_it = patch
    interpreter._patch_lang = unless_done


@pytest.fixture(autouse=True)
def threads_of_torch(request: pytest.FixtureRequest) -> None:
    """One thread, but where the loops of kernels themselves are tested."""
    torch.set_num_threads(2 if request.path.parent.name in THREADED else 1)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing compiled or counted before a test, one random seed, default options; options set in it end with it."""
    bytejit.reset()
    torch.manual_seed(0)
    with bytejit.config.patch():
        yield


@pytest.fixture(autouse=True)
def flags_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flags of torch's libraries, also where torch's own testing modules, which other tests import, have forbidden it."""
    monkeypatch.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)


def by_lot(self, op, specs, candidates, cold=(), attrs="", **sample):
    """`Tuner.choose` without a clock: each candidate runs once, and the operation's text says which is taken."""
    if not self.enabled:
        return None
    operands = self._operands(specs, frozenset())[0]
    strides, errors = {}, {}
    with torch.no_grad():
        for candidate in candidates:
            try:
                given = candidate.prepare(*operands) if candidate.prepare else operands
                strides[candidate.name] = tuple(candidate.call(*given).stride())
            except (RuntimeError, NotImplementedError) as error:
                if candidate is candidates[0]:
                    raise
                errors[candidate.name] = str(error)
    drawn = zlib.crc32(f"{CHOICES} {op} {attrs} {list(specs)}".encode()) % len(strides)
    name = "own" if op == "graph" else list(strides)[drawn]  # a graph is compiled: a test of its timing is marked
    return Choice(name, strides[name], dict.fromkeys(strides, 1e-3) | {name: 5e-4}, errors)


@pytest.fixture(autouse=True)
def choices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries are chosen by lot, the same way on every machine, unless the test is about timing."""
    if "timed" not in request.keywords:
        monkeypatch.setattr(Tuner, "choose", by_lot)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden("relu_sum/3_loops.txt", text)` compares a text with the stored file; `make golden` writes it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        text = text if text.endswith("\n") else text + "\n"
        if request.config.getoption("--write-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert path.exists(), f"no golden file {name}: run `make golden` and review what it writes"
        assert text == path.read_text(), f"{name} differs: if the new text is right, run `make golden`"

    return compare
