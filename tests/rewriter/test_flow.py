"""What the analysis says of stack, locals, handlers and places to resume."""

import dis
import inspect
import sys

import pytest

from bytejit.rewriter import opcodes
from bytejit.rewriter.flow import MAYBE, NULL, OBJ, analyse, reachable
from bytejit.rewriter.resume_points import find_points


def flow_at(fn, opname, nth=0):
    flow = analyse(fn.__code__)
    found = [ins for ins in flow.instrs if dis.opname[ins.op] == opname]
    return flow, found[nth].index


def live_at(flow, i):
    return {name for slot, name in enumerate(flow.code.co_varnames) if flow.live[i] >> slot & 1}


def bound_at(flow, i):
    return {name for slot, name in enumerate(flow.code.co_varnames) if flow.states[i].must >> slot & 1}


def every_function():
    """Functions of some stdlib modules: much real code."""
    import argparse  # noqa: E401
    import asyncio.tasks
    import collections
    import contextlib
    import json.decoder
    import typing
    import unittest.mock

    for module in (argparse, asyncio.tasks, collections, contextlib, inspect, json.decoder, typing, unittest.mock, dis):
        work = [module.__loader__.get_code(module.__name__)]
        while work:
            code = work.pop()
            work += [c for c in code.co_consts if inspect.iscode(c)]
            if code.co_flags & inspect.CO_OPTIMIZED:
                yield code


def test_instructions_are_those_of_dis():
    checked = 0
    for code in every_function():
        flow = analyse(code)
        expected = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
        assert [(i.offset, i.op) for i in flow.instrs] == [(i.offset, i.opcode) for i in expected]
        for mine, theirs in zip(flow.instrs, expected, strict=True):
            if theirs.opcode in dis.hasjrel:
                named = mine.arg if theirs.opcode in opcodes.LOOP_ENDS else mine.target
                assert flow.instrs[named].start == theirs.argval, theirs
        checked += 1
    assert checked > 500


def test_depths_fit_and_points_are_legal():
    for code in every_function():
        flow = analyse(code)
        assert max(len(s.stack) for s in flow.states if s) <= code.co_stacksize
        points = find_points(flow)
        assert [p.id for _, p in points] == list(range(len(points)))
        assert points[0][1].site and points[0][1].depth == 0
        for i, point in points:
            assert flow.instrs[i].start == point.offset
            assert list(point.live) == sorted(point.live)
            assert dis.opname[flow.instrs[i].op] not in ("END_FOR", "POP_ITER", "CACHE", "RESUME")
            assert point.depth - len(point.nulls) == point.values >= 0
            assert point.depth < 100 and all(0 <= s < point.depth for s in point.nulls + point.maybes)


def test_what_loops_can_be_reached_from_itself():
    looping = 0
    for code in every_function():
        flow = analyse(code)
        if len(flow.instrs) > 300:  # the slow way that it is compared with grows with the square
            continue
        itself = {i for i, after in enumerate(flow.after) if i in reachable(flow.after, list(after))}
        assert flow.looping == itself, code.co_qualname
        looping += bool(itself)
    assert looping > 50


def test_points_before_and_after_what_may_break():
    def f(x, y):
        z = x.a(y, k=1)[y] + y
        return z

    flow = analyse(f.__code__)
    offsets = {p.offset for _, p in find_points(flow)}
    for opname in ("LOAD_ATTR", "LOAD_METHOD", "BINARY_SUBSCR", "BINARY_OP"):
        for ins in flow.instrs:
            if dis.opname[ins.op] == opname:
                assert {ins.start, flow.instrs[ins.index + 1].start} <= offsets, ins
    call = next(ins for ins in flow.instrs if dis.opname[ins.op] in ("CALL", "CALL_KW"))
    first = call.index
    while flow.instrs[first - 1].op in opcodes.CALL_PREFIX:
        first -= 1
    assert flow.instrs[first].start in offsets and flow.instrs[call.index + 1].start in offsets
    assert not offsets & {flow.instrs[i].start for i in range(first + 1, call.index + 1)}  # a call is one unit


def test_null_of_a_call():
    def f(x):
        return g(x)  # noqa: F821

    flow, i = flow_at(f, "LOAD_FAST_BORROW" if "LOAD_FAST_BORROW" in dis.opmap else "LOAD_FAST")
    null_first = bytes([NULL, OBJ])
    assert flow.states[i].stack == (null_first[::-1] if sys.version_info >= (3, 13) else null_first)


def test_liveness_sees_loops_and_handlers():
    def f(a, b, c, n):
        for i in range(n):
            try:
                a = b
                a.foo
            except ValueError:
                return c
            c = i
        return a

    flow, i = flow_at(f, "FOR_ITER")
    assert live_at(flow, i) == {"a", "b", "c"}
    flow, i = flow_at(f, "LOAD_ATTR")
    assert live_at(flow, i) >= {"b", "c"}


def test_readers_of_the_frame_keep_all_locals_alive():
    def f(a, b):
        locals()
        return 1

    flow, i = flow_at(f, "LOAD_GLOBAL")
    assert live_at(flow, i) == {"a", "b"}


def test_surely_assigned():
    def f(a):
        if a:
            x = 1
        else:
            y = 2  # noqa: F841
        g()  # noqa: F821
        del a
        return x

    flow, i = flow_at(f, "LOAD_GLOBAL")
    assert bound_at(flow, i) == {"a"} and live_at(flow, i) == {"a", "x"}
    assert bound_at(flow, len(flow.instrs) - 1) == set() or "a" not in bound_at(flow, len(flow.instrs) - 1)


def test_handlers_nest():
    def f():
        try:
            g()  # noqa: F821
        except ValueError:
            try:
                h()  # noqa: F821
            except TypeError:
                k()  # noqa: F821
            m()  # noqa: F821

    flow = analyse(f.__code__)
    at = {flow.code.co_names[ins.arg >> 1]: len(flow.states[ins.index].handlers)
          for ins in flow.instrs if dis.opname[ins.op] == "LOAD_GLOBAL"}  # fmt: skip
    assert {name: at[name] for name in "ghkm"} == {"g": 0, "h": 1, "k": 2, "m": 1}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="comprehensions are inlined since 3.12")
def test_inlined_comprehension():
    def f(n):
        one = [x for x in range(n)]
        if n:
            x = 2
        two = [x for x in one]
        return two, [y for y in one], x

    flow, i = flow_at(f, "FOR_ITER", 0)
    assert NULL in flow.states[i].stack and MAYBE not in flow.states[i].stack
    flow, i = flow_at(f, "FOR_ITER", 1)
    assert MAYBE in flow.states[i].stack
    assert live_at(flow, flow.first) == {"n"}


@pytest.mark.skipif(sys.version_info < (3, 12), reason="comprehensions are inlined since 3.12")
def test_nothing_resumes_while_a_cell_is_put_aside():
    def f(n):
        return [lambda: k for k in range(n)]

    flow, i = flow_at(f, "FOR_ITER")
    assert not any(p.offset == flow.instrs[i].start for _, p in find_points(flow))


def test_generator_starts_after_its_resume():
    def f(n):
        x = yield n
        yield x

    flow = analyse(f.__code__)
    assert dis.opname[flow.instrs[flow.first - 1].op] == "RESUME" and flow.states[flow.first].stack == b""
    after = [p for i, p in find_points(flow) if dis.opname[flow.instrs[i - 1].op] == "RESUME"]
    assert [p.depth for p in after] == [0, 1, 1] and all(p.site for p in after)
