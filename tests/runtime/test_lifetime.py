"""What compiling keeps alive: nothing of the user's. And how the recompile limit counts."""

from __future__ import annotations

import collections
import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import bytejit
from bytejit.common import registry
from bytejit.runtime import function
from bytejit.runtime.dispatch import SiteState
from bytejit.tracer.core import frame


@pytest.fixture(autouse=True)
def collects_only_its_own() -> Iterator[None]:
    """What other tests left is not looked at: a collection takes a tenth of the time."""
    gc.freeze()
    yield
    gc.unfreeze()


@bytejit.disable
def opaque(x: torch.Tensor) -> torch.Tensor:
    return x


def helper(net: nn.Module, y: torch.Tensor) -> torch.Tensor:
    return (opaque(y) + 1) * 2


class Net(nn.Module):
    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.lin = nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.lin(x)
        if y.sum() > 0:  # a break: the function has several sites
            y = y + 1
        return helper(self, y)  # a break in a callee: it runs compiled


def call_module(x: torch.Tensor, net: nn.Module) -> torch.Tensor:
    return net(x) + 1


def one_tensor(backend: str) -> list[object]:
    x = torch.randn(3, 5)
    bytejit.compile(lambda x: x * 2, backend=backend)(x)
    return [x]


def tensors_of_a_function_that_stays(backend: str) -> list[object]:
    net, x = Net(), torch.randn(3, 4)
    STAYS[backend](x, net)
    return [net, net.lin, net.lin.weight, x]


def compiled_module(backend: str) -> list[object]:
    net, x = Net(), torch.randn(3, 4)
    compiled = bytejit.compile(net, backend=backend)
    compiled(x)
    return [net, net.lin.weight, x, compiled, type(compiled)]


def closures(backend: str) -> list[object]:
    k = torch.randn(4)

    def inner(x: torch.Tensor) -> torch.Tensor:
        return opaque(x) * k

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x) + k

    bytejit.compile(outer, backend=backend)(torch.randn(4))
    STAYS[backend](torch.randn(4), outer)
    return [k, inner, outer]


def reports_and_marks(backend: str) -> list[object]:
    net, x = Net(), torch.randn(2, 4)
    disabled, runs = bytejit.disable(net), bytejit.run(net.forward)
    bytejit.explain(bytejit.compile(net, backend=backend), x)
    bytejit.export(lambda x: net.lin(x), x)
    return [net, disabled, runs]


STAYS: dict[str, Callable] = {}


@pytest.mark.parametrize("make", [one_tensor, tensors_of_a_function_that_stays, compiled_module, closures, reports_and_marks])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.cxx)])
def test_nothing_of_the_users_is_kept_alive(make: Callable, backend: str) -> None:
    STAYS.setdefault(backend, bytejit.compile(call_module, backend=backend))
    with torch.no_grad():
        refs = [weakref.ref(thing) for thing in make(backend)]
    gc.collect()
    kept = [ref() for ref in refs if ref() is not None]
    assert not kept, [(type(thing).__name__, [type(r) for r in gc.get_referrers(thing)]) for thing in kept]


def test_compiling_again_and_again_does_not_grow() -> None:
    net, x = Net(), torch.randn(2, 4)

    def sizes() -> tuple[int, ...]:
        with torch.no_grad():
            bytejit.compile(net, backend="eager")(x)
            bytejit.compile(lambda x: x + 1, backend="eager")(x)
        for _ in range(5):  # what dies lets others go when it is finalized
            gc.collect()
        tables = (function.HANDLES, function.ORIGINALS, frame._decoded, registry.MARKS["disable"])
        return tuple(map(len, tables))

    sizes()
    first = sizes()
    assert [sizes() for _ in range(3)] == [first] * 3


def test_a_code_without_functions_runs_on() -> None:
    """The compiled function goes while its code still runs."""

    def gen(x: torch.Tensor):
        yield x + 1
        gc.collect()
        yield x + 2

    running = bytejit.compile(gen, backend="eager")(torch.zeros(1))
    assert [t.item() for t in running] == [1.0, 2.0]


def test_the_limit_counts_for_each_module_apart() -> None:
    class Times(nn.Module):
        def __init__(self, n: int) -> None:
            super().__init__()
            self.n = n

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = opaque(x * self.n)
            return y + self.n

    nets, x = [Times(n) for n in range(12)], torch.randn(3)  # one forward, 12 constants: more than recompile_limit

    def f(x: torch.Tensor, net: nn.Module) -> torch.Tensor:
        opaque(x)
        return net(x)

    compiled = bytejit.compile(f, backend="eager")
    with torch.no_grad():
        for _ in range(2):
            for net in nets:
                torch.testing.assert_close(compiled(x, net), net(x))
    assert bytejit.counters.total("fallbacks") == 0


def test_the_limit_stops_one_module_and_not_the_others() -> None:
    seen: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        seen.append(1)
        return gm.forward

    f = bytejit.compile(call_module, backend=backend, dynamic=False, options={"recompile_limit": 3})
    first, second = nn.Flatten(), nn.Flatten()
    with pytest.warns(RuntimeWarning, match="compiled 3 times; .* in the original code.*what kept changing: .*dtype|shape|was"):
        for n in range(1, 7):
            f(torch.ones(n, n, n), first)
    assert len(seen) == 3 + 3  # at the start, and behind the call, whose own site has a limit of its own
    before = len(seen)
    f(torch.ones(9, 9, 9), second)
    assert len(seen) == before + 1


def test_a_call_beyond_the_limit_sets_up_no_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    f = bytejit.compile(call_module, backend="eager", dynamic=False, options={"recompile_limit": 2})
    first, second = nn.Flatten(), nn.Flatten()
    with pytest.warns(RuntimeWarning, match="runs in the original code"):
        for n in range(1, 6):
            f(torch.ones(n, n, n), first)
    tried: list[SiteState] = []
    monkeypatch.setattr(SiteState, "_compile_alone", lambda state, args: tried.append(state))
    x = torch.ones(9, 9, 9)
    assert torch.equal(f(x, first), call_module(x, first)) and not tried
    f(x, second)
    assert tried


def test_a_plain_function_stops_at_the_limit() -> None:
    f = bytejit.compile(lambda x, n: x * n, backend="eager", options={"recompile_limit": 3}, dynamic=False)
    x = torch.ones(2)
    with pytest.warns(RuntimeWarning, match="what kept changing: n was"):
        for n in range(10):
            assert torch.equal(f(x, float(n)), x * n)
    assert bytejit.counters.total("graphs") == 3
    assert bytejit.counters["fallbacks"]


def test_a_module_without_work_does_not_stop_its_siblings() -> None:
    class Part(nn.Module):
        def __init__(self, hidden: bool) -> None:
            super().__init__()
            self.hidden = hidden

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.hidden:
                return opaque(x)
            return opaque(x.sin() * 2)

    def f(x: torch.Tensor, parts: nn.ModuleList) -> torch.Tensor:
        for part in parts:
            x = part(x)
        return x

    parts, x = nn.ModuleList([Part(True), Part(True), Part(False)]), torch.ones(3)
    compiled = bytejit.compile(f, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(x, parts), x.sin() * 2)
    assert bytejit.counters.total("graphs") == 1
    parts.pop(0)
    gc.collect()
    assert torch.equal(compiled(x, parts), x.sin() * 2)


def test_a_trace_keeps_nothing_until_the_next_collection() -> None:
    """Generators, iterators and containers from outside that a trace looked into go with their last name."""

    class Held:
        pass

    def each(held):
        yield from held

    def f(x, many):
        first = [type(h).__name__ for h in each(many)]
        try:
            a, b = iter(many)
        except ValueError:
            first.append("three")
        return opaque(x + 1), first

    compiled = bytejit.compile(f, backend="eager")
    gc.collect()
    gc.disable()
    try:
        many = [Held(), Held(), Held()]
        died = [weakref.ref(h) for h in many]
        assert compiled(torch.ones(2), many)[1] == ["Held"] * 3 + ["three"]
        del many
        assert [r() for r in died] == [None] * 3
    finally:
        gc.enable()


def each_of(held):
    try:
        yield held
    except ValueError:
        yield 2


def raises_deep(n, held):
    return raises_deep(n - 1, held) if n else held.missing


def handles(held):
    try:
        return raises_deep(3, held)
    except AttributeError:
        return 1


def throws(held):
    g = each_of(held)
    next(g)
    try:
        g.throw(KeyError(1))
    except KeyError:
        return 2


def throws_too_early(held):
    try:
        each_of(held).throw(ValueError)
    except ValueError:
        return 3


def closes(held):
    g = each_of(held)
    next(g)
    g.close()
    return 4


def suppresses(held):
    with contextlib.suppress(KeyError):
        {}[held]
    return 5


def holds_itself(held):
    many = [held]
    many.append(many)
    held.own = 1
    return len(many)


def makes_a_closure(held):
    def count(n):
        return count(n - 1) + 1 if n else len([held])

    return count(3)


@pytest.mark.parametrize("f", [handles, throws, throws_too_early, closes, suppresses])
def test_exceptions_met_by_a_trace_keep_nothing_until_the_next_collection(f: Callable) -> None:
    class Held:
        pass

    compiled = bytejit.compile(f, backend="eager")
    gc.collect()
    gc.disable()
    try:
        held = Held()
        died = weakref.ref(held)
        assert compiled(held) == f(Held())
        del held
        assert died() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("f", [handles, throws, throws_too_early, closes, suppresses, holds_itself, makes_a_closure])
def test_a_region_without_tensors_leaves_no_garbage(f: Callable) -> None:
    """A program may count what a collection finds."""

    class Held:
        pass

    held = Held()
    f(held)
    bytejit.compile(f, backend="eager")(held)  # what is made once, in torch.fx and here
    bytejit.reset()
    compiled = bytejit.compile(f, backend="eager")
    gc.collect()
    gc.disable()
    try:
        f(held)
        plain = gc.collect()
        compiled(held)
        assert gc.collect() <= plain
    finally:
        gc.enable()


def test_a_number_of_the_users_own_type_is_not_asked_to_convert_itself() -> None:
    class Count(int):
        def __int__(self):
            raise AssertionError("asked by the compiler")

    class Name(str):
        __str__ = __int__ = Count.__int__

    compiled = bytejit.compile(lambda x, n, s: (x * n, s + "b"), backend="eager")
    for n in (2, 2, 3):
        assert torch.equal(compiled(torch.ones(2), Count(n), Name("a"))[0], torch.ones(2) * n)
    assert compiled(torch.ones(2), Count(3), Name("c"))[1] == "cb"
    assert not bytejit.counters["faults"]


@pytest.mark.parametrize("times, most", [(1, 2), (3, 32)])
def test_code_whose_objects_keep_dying_stops_at_a_limit(times: int, most: int) -> None:
    """A key made in each call, with equality of its own, and looked up behind a graph break: no entry ever fits again, and none
    is left to be counted. Where entries fit several times in their call, more of them are made"""
    seen: list[int] = []

    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            return self is other

    def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        seen.append(1)
        return gm.forward

    def f(x: torch.Tensor, table: dict, key: Key) -> torch.Tensor:
        opaque(x)
        return x * table[key]

    def step() -> None:
        key = Key()
        table = {key: 2.0}
        for _ in range(times):
            assert torch.equal(compiled(x, table, key), x * 2)

    compiled, x = bytejit.compile(f, backend=backend, options={"recompile_limit": 1}), torch.ones(2)
    said = f"compiled {most} times; .*what kept changing: objects that it was compiled for died"
    with pytest.warns(RuntimeWarning, match=said):
        for _ in range(40):
            step()
    assert len(seen) == most


@pytest.mark.parametrize("times, most", [(1, 3), (3, 8)])
@pytest.mark.parametrize("kind", ["class", "named tuple", "function"])
def test_classes_made_in_each_call_stop_early(kind: str, times: int, most: int) -> None:
    """Entries are of a class that no later call has. Where they fit several times in their call, the limit
    holds as ever."""
    seen: list[int] = []

    def backend(gm: torch.fx.GraphModule, inputs: list) -> Callable:
        seen.append(1)
        return gm.forward

    def made() -> object:
        if kind == "named tuple":
            return collections.namedtuple("Pair", "factor other")(2.0, 1)

        class Made(torch.autograd.Function if kind == "function" else object):  # type: ignore[misc]
            factor = 2.0

            @staticmethod
            def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
                return x * 2.0

        return Made if kind == "function" else Made()

    def function(x: torch.Tensor, it: object) -> torch.Tensor:
        return it.apply(x)  # where nothing requires gradients its forward sets the grad mode

    def f(x: torch.Tensor, it: object) -> torch.Tensor:
        return x * it.factor

    compiled, x, kept = bytejit.compile(function if kind == "function" else f, backend=backend), torch.ones(2), []
    with pytest.warns(RuntimeWarning, match=f"compiled {most} times"):
        for _ in range(20):
            kept.append(it := made())
            for _ in range(times):
                assert torch.equal(compiled(x, it), x * 2)
    assert most <= len(seen) <= 2 * most  # at the function's start, and at a site behind it


def test_classes_made_in_each_call_stop_all_sites() -> None:
    """Where one site has stopped for it, each other one compiles once more."""
    seen: list[int] = []

    def f(x: torch.Tensor, it: object, n: int) -> torch.Tensor:
        if n == 1:
            return x
        if n == 2:
            return x + 1
        with torch.no_grad():
            y = x * it.factor
        return y

    compiled = bytejit.compile(f, backend=lambda gm, inputs: seen.append(1) or gm.forward)
    with pytest.warns(RuntimeWarning, match="compiled 3 times"):
        for _ in range(20):
            compiled(torch.ones(2), type("Made", (), {"factor": 2.0})(), 3)
    assert len(seen) <= 10  # at five sites, or seven


def test_one_code_for_two_functions_is_analysed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has sites of its own: what one has compiled does not run in the other."""
    made: list[str] = []
    rewrite = function.rewrite
    monkeypatch.setattr(function, "FORMER", collections.deque(maxlen=4))
    monkeypatch.setattr(function, "rewrite", lambda code: made.append(code.co_name) or rewrite(code))

    def counted(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = x * 2 if n > 1 else x + 1
        return x

    x, graphs = torch.ones(3), {True: 0, False: 0}
    for fullgraph in (True, False):

        def backend(gm: torch.fx.GraphModule, inputs: list, mode: bool = fullgraph) -> Callable:
            graphs[mode] += 1
            return gm.forward

        fns = [bytejit.compile(counted, backend=backend, fullgraph=fullgraph) for _ in range(2)]
        for fn in fns:
            assert fn(x, 1).tolist() == [2, 2, 2] and fn(x, 2).tolist() == [4, 4, 4]
        assert graphs[fullgraph] == 2
    assert made == ["counted"] and graphs == {True: 2, False: 2}
    codes = {fn.__code__ for fn in fns}
    cells = [c for c in function.FORMER[0].cells if c]
    assert len(codes) == 1 and not cells and function.FORMER[0].code not in codes
