"""Sites at run time: order of entries, misses, arming, threads."""

import contextlib
import pickle
import sys
import threading
import types
from unittest import mock

import pytest
import torch

from bytejit.rewriter.trampoline import rewrite
from bytejit.runtime.dispatch import Sites, SiteState, compiling
from bytejit.runtime.entry import MISS, Entry, own_exit


def add(x, y):
    total = x + y
    if total > 10:
        total = abs(total)
    return total


def with_sites(fn, compile):
    rewritten = rewrite(fn.__code__)
    sites = Sites(rewritten, compile)
    sites.arm_start()
    return types.FunctionType(rewritten.code, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__), sites


def for_type(kind, log=None):
    """An entry that fits when x is of a type."""

    def entry(x, y):
        if type(x) is not kind:
            return MISS
        if log is not None:
            log.append(kind)
        return (kind.__name__, x, y), None

    return Entry(entry)


def test_compiles_once_a_type_and_returns():
    compiled = []

    def compile(state, args):
        compiled.append(args)
        return for_type(type(args[0]))

    f, sites = with_sites(add, compile)
    assert [f(1, 2), f(3, 4), f(1.5, 2), f(2, 2), f(2.5, 1)] == [
        ("int", 1, 2), ("int", 3, 4), ("float", 1.5, 2), ("int", 2, 2), ("float", 2.5, 1)]  # fmt: skip
    assert compiled == [(1, 2), (1.5, 2)]
    state = sites.state(sites.rewritten.start)
    assert len(state.entries) == 2 and state.misses == state.compiles == 2


def test_a_site_that_gave_up_is_not_compiled_for_what_fits_no_entry():
    compiled = []

    def compile(state, args):
        compiled.append(args)
        return for_type(type(args[0]))

    f, sites = with_sites(add, compile)
    assert f(1, 2) == ("int", 1, 2)
    sites.given_up = lambda point, args: point == sites.rewritten.start
    assert f(1.5, 2) == 3.5 and f(1, 2) == ("int", 1, 2)
    assert compiled == [(1, 2)]


def test_entry_that_hits_twice_in_a_row_moves_to_the_front():
    f, sites = with_sites(add, lambda state, args: for_type(type(args[0])))
    state = sites.state(sites.rewritten.start)
    for x in (1, 1.5, 1j):
        f(x, 0)
    int_entry = state.entries[2]
    f(1, 0)
    assert state.entries[0] is not int_entry
    f(1, 0)
    assert state.entries[0] is int_entry and len(state.entries) == 3
    assert [f(x, 0)[0] for x in (1j, 1, 1.5)] == ["complex", "int", "float"]


def test_nothing_to_compile_goes_idle_and_arms_what_follows():
    asked = []
    f, sites = with_sites(add, lambda state, args: asked.append((state.point.id, args)))
    assert f(1, 2) == 3
    start = sites.rewritten.start
    assert [k for k, _ in asked][:1] == [start] and not sites.state(start).armed
    assert len(asked) == 2 and asked[1][1] == (3,)  # the end of the `if`
    assert f(7, 8) == 15
    assert len(asked) > 2 and asked[2][1] == (15,)
    assert f(7, 8) == 15 and f(1, 1) == 2
    count = len(asked)
    assert f(7, 8) == 15 and f(1, 1) == 2 and len(asked) == count  # every site has given up


def test_exit_to_another_point_goes_on_there():
    def compile(state, args):
        r = state.rewritten
        store = next(p for p in r.points if p.depth == 1 and p.values == 1 and not p.live)
        return Entry(lambda x, y: ((x * 100,), store.id))

    f, _ = with_sites(add, compile)
    assert f(-1, 2) == -100 and f(5, 5) == 500


def test_entry_that_does_not_fit_its_own_arguments_runs_the_original():
    f, sites = with_sites(add, lambda state, args: Entry(lambda x, y: MISS))
    assert f(1, 2) == 3


def test_error_in_compile_propagates_and_releases():
    def compile(state, args):
        assert compiling()
        raise RuntimeError("compiler")

    f, _ = with_sites(add, compile)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="compiler"):
            f(1, 2)
        assert not compiling()


def test_own_exit_lets_the_original_raise():
    def compile(state, args):
        def entry(x, y):
            try:
                raise ArithmeticError("in the graph")
            except ArithmeticError:
                return own_exit(state.point.id, (x, y))

        return Entry(entry)

    f, _ = with_sites(add, compile)
    assert f(1, 2) == 3
    with pytest.raises(TypeError, match="unsupported operand"):
        f(1, "a")


def test_recursion_while_compiling_runs_the_original():
    depth = []

    def compile(state, args):
        depth.append(f(20, 1))
        return for_type(int)

    f, _ = with_sites(add, compile)
    assert f(1, 2) == ("int", 1, 2) and depth == [21]


def test_other_threads_run_the_original_while_one_compiles():
    started, go = threading.Event(), threading.Event()

    def compile(state, args):
        started.set()
        assert go.wait(300)
        return for_type(int)

    f, sites = with_sites(add, compile)
    results = []
    thread = threading.Thread(target=lambda: results.append(f(1, 2)))
    thread.start()
    assert started.wait(300)
    assert f(3, 4) == 7
    go.set()
    thread.join(300)
    assert results == [("int", 1, 2)] and f(3, 4) == ("int", 3, 4)
    assert sites.state(sites.rewritten.start).compiles == 1


def test_many_threads():
    f, _ = with_sites(add, lambda state, args: for_type(type(args[0])))
    wrong = []

    def work(x):
        for _ in range(300):
            got = f(x, 1)
            if got not in ((type(x).__name__, x, 1), x + 1):
                wrong.append(got)

    threads = [threading.Thread(target=work, args=(x,)) for x in (1, 1.5, True, 1j)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_freeze_remove_reset():
    compiled = []

    def compile(state, args):
        compiled.append(args)
        return for_type(type(args[0]))

    f, sites = with_sites(add, compile)
    state = sites.state(sites.rewritten.start)
    f(1, 2)
    state.freeze()
    assert f(1.5, 2) == 3.5 and f(1, 2) == ("int", 1, 2) and len(compiled) == 1
    state.remove(state.entries[0])
    assert f(1, 2) == 3 and state.entries == ()
    sites.reset()
    assert f(1.5, 2) == ("float", 1.5, 2) and len(compiled) == 2
    state = sites.state(sites.rewritten.start)
    state.idle()
    assert f(1.5, 2) == 3.5
    state.arm()
    assert f(1.5, 2) == ("float", 1.5, 2) and len(compiled) == 2


def test_closures_pass_cells_and_own_exit_leaves_them():
    def outer():
        count = 0

        def f(x):
            nonlocal count
            count += 1
            return count + x

        return f

    seen = []
    plain = outer()
    f, _ = with_sites(plain, lambda state, args: seen.append(args))
    assert f(1) == 2 and f(1) == 3
    assert seen[0][0] == 1 and type(seen[0][1]) is types.CellType


def test_a_point_that_is_no_site_is_refused():
    r = rewrite(add.__code__)
    with pytest.raises(ValueError, match="is no site"):
        SiteState(r, next(p for p in r.points if not p.site), lambda state, args: None)


def test_names_and_identity():
    assert repr(MISS) == "MISS" and pickle.loads(pickle.dumps(MISS)) is MISS
    f, sites = with_sites(add, lambda state, args: None)
    assert repr(sites) == f"sites of add: 1 of {len(sites.rewritten.sites)} armed"
    assert repr(sites.state(sites.rewritten.start)).startswith("armed site 0")


def test_nothing_is_compiled_while_a_debugger_follows() -> None:
    import bytejit

    files, seen = set(), []

    def follow(frame, event, arg):
        files.add(frame.f_code.co_filename)
        return follow

    def f(x):
        y = x + 1
        return y * 2

    fn = bytejit.optimize(lambda gm, ex: seen.append(gm) or gm)(f)
    x = torch.ones(2)
    before = sys.gettrace()
    sys.settrace(follow)
    try:
        result = fn(x)
    finally:
        sys.settrace(before)
    assert torch.equal(result, f(x)) and not seen
    assert not any("/bytejit/tracer/" in name for name in files)
    assert torch.equal(fn(x), result) and len(seen) == 1


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="sys.monitoring came with 3.12")
def test_nothing_is_compiled_while_a_tool_is_told_of_each_line() -> None:
    import bytejit

    files, seen = set(), []
    monitoring, tool = sys.monitoring, 4

    def f(x):
        y = x + 1
        return y * 2

    fn = bytejit.optimize(lambda gm, ex: seen.append(gm) or gm)(f)
    x = torch.ones(2)
    monitoring.use_tool_id(tool, "a debugger")
    try:
        monitoring.register_callback(tool, monitoring.events.LINE, lambda code, line: files.add(code.co_filename))
        monitoring.set_events(tool, monitoring.events.LINE)
        result = fn(x)
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, monitoring.events.LINE, None)
        monitoring.free_tool_id(tool)
    assert __file__ in files and not any("/bytejit/tracer/" in name for name in files) and not seen
    assert torch.equal(result, f(x))
    assert torch.equal(fn(x), result) and len(seen) == 1


def test_nothing_is_compiled_while_builtins_are_replaced() -> None:
    import builtins

    import bytejit

    real, seen = builtins.len, []

    def f(x, items):
        builtins.len = lambda v: real(v) + 10
        try:
            n = len(items)
        finally:
            builtins.len = real
        return x * n, len(items)

    fn = bytejit.optimize(lambda gm, ex: seen.append(gm) or gm)(f)
    for _ in range(2):
        got, n = fn(torch.ones(2), [1, 2])
        assert got.tolist() == [12.0, 12.0] and n == 2 and builtins.len is real


@pytest.mark.parametrize("name", ["os.getcwd", "os.path.abspath", "time.monotonic", "linecache.getline", "builtins.open"])
def test_nothing_is_compiled_while_a_function_that_the_compiler_calls_is_replaced(name: str) -> None:
    compiled = []
    f, _ = with_sites(add, lambda state, args: compiled.append(args) or for_type(int))
    with mock.patch(name):
        assert f(1, 2) == 3
    assert compiled == [] and f(1, 2) == ("int", 1, 2) and len(compiled) == 1


def test_a_program_close_to_its_recursion_limit_runs_uncompiled() -> None:
    """The limit that a compile sets back could not be set where the depth is above it."""
    compiled, limit = [], sys.getrecursionlimit()
    f, _ = with_sites(add, lambda state, args: compiled.append(args) or for_type(int))

    def close(n: int) -> int:
        if n:
            return close(n - 1)
        depth = 0
        while depth < limit:
            try:
                sys.setrecursionlimit(depth + 1)
                break
            except RecursionError:
                depth += 1
        try:
            return f(1, 2)
        finally:
            sys.setrecursionlimit(limit)

    with contextlib.suppress(RecursionError):  # the function itself may not fit
        assert close(30) == 3
    assert compiled == [] and f(1, 2) == ("int", 1, 2)
