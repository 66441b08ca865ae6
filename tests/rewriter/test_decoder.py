"""The decoder beside Python's own `dis`, over the standard library's code."""

from __future__ import annotations

import bisect
import dis
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from bytejit.rewriter import decoder, opcodes

MODULES = """
argparse ast asyncio.base_events asyncio.tasks contextlib dataclasses dis enum inspect json.decoder logging _pydecimal pickle
subprocess typing
""".split()
# dis shows something else for these: nothing, or the function that converts
OTHERWISE = opcodes.opcodes("KW_NAMES", "FORMAT_VALUE", "CONVERT_VALUE")


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes(const)


def same(a: object, b: object) -> bool:
    return a is b or type(a) is type(b) and a == b


@pytest.mark.parametrize("module", MODULES)
def test_as_dis_has_it(module: str) -> None:
    file = importlib.util.find_spec(module).origin
    for code in codes(compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)):
        real = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
        ours, at = decoder.decode(code)
        starts, slots = [i.offset for i in real], decoder.slot_names(code)
        index = lambda offset: bisect.bisect_left(starts, offset)  # noqa: B023
        assert [(i.opcode, i.offset) for i in real] == [(i.op, i.offset) for i in ours]
        assert all(at[i.offset] == index(i.offset) for i in dis.get_instructions(code) if i.opname != "CACHE")
        for a, b in zip(real, ours, strict=True):
            if b.op in opcodes.LOOP_ENDS:
                assert b.arg == index(a.argval) and b.target == -1
                continue
            assert b.target == (index(a.argval) if b.op in opcodes.JUMPS else -1)
            if opcodes.has_argument(b.op) and b.op not in opcodes.JUMPS:
                want = str(a.argval).removeprefix("bool(").removesuffix(")") if b.op in decoder.COMPARISONS else a.argval
                assert a.arg == b.arg
                assert b.op in OTHERWISE or same(decoder.operand(code, b, slots), want), (a, b)
        ranges = [(t.start, t.stop, t.target, t.depth, t.lasti) for t in decoder.try_ranges(code, at)]
        assert ranges == [
            (index(e.start), index(e.end), index(e.target), e.depth, e.lasti) for e in dis._parse_exception_table(code)
        ]
