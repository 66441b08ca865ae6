"""Code objects as generators, minifiers and `code.replace` make them: compiled or left alone, never an error."""

from __future__ import annotations
import __future__

import ast
import builtins
import traceback
import types
from collections.abc import Callable

import pytest
import torch

import bytejit
from bytejit.rewriter.trampoline import rewrite

SOURCES = {
    "plain": "def f(x, k=2): return (x * k).relu() + 1",
    "branches": "def f(x, k=2):\n    for i in range(k):\n        if i % 2: x = x + i\n        else: x = x.sin()\n    return x",
    "breaks": "def f(x, k=2):\n    y = x * k\n    print(end='')\n    if y.sum() > 0: y = y + 1\n    return y",
    "handles": "def f(x, k=2):\n    try:\n        y = x * k\n        [][k]\n    except IndexError as e:\n        y = x - k\n"
    "    finally: x = x + 1\n    return y + x",
    "closure": "def f(x, k=2):\n    def g(y): return y * k + x\n    return [g(v) for v in (x, x + 1)][1]",
    "long": "def f(x, k=2):\n" + "".join(f"    x = x + {i}\n" for i in range(100)) + "    return x",
}
CHANGES: dict[str, Callable[[types.CodeType], dict]] = {
    "no line table": lambda c: {"co_linetable": b""},
    "no line table, line 0": lambda c: {"co_linetable": b"", "co_firstlineno": 0},
    "line 0": lambda c: {"co_firstlineno": 0},
    "a huge line": lambda c: {"co_firstlineno": 2**31 - 1000},
    "half a line table": lambda c: {"co_linetable": entries(c.co_linetable, 0.5)},
    "a line table of another": lambda c: {"co_linetable": CHANGES_OF.co_linetable},
    "no columns": lambda c: {"co_linetable": lines_only(len(c.co_code) // 2)},
    "no locations": lambda c: {"co_linetable": nothing(len(c.co_code) // 2)},
    "no file": lambda c: {"co_filename": ""},
    "an odd file": lambda c: {"co_filename": "\udcff\n/none"},
    "a file with NUL": lambda c: {"co_filename": "a\0b"},
    "a folder for a file": lambda c: {"co_filename": "/"},
    "odd names": lambda c: {"co_name": "1 + é\n", "co_qualname": "a.<b>.{c}.'\""},
    "no name": lambda c: {"co_name": "", "co_qualname": ""},
    "a keyword for a name": lambda c: {"co_name": "class", "co_qualname": "def"},
    "odd locals": lambda c: {
        "co_varnames": tuple(f".{n} 1" for n in c.co_varnames),
        "co_cellvars": tuple(f".{n} 1" for n in c.co_cellvars),
    },
    "more constants": lambda c: {"co_consts": (*c.co_consts, [1], {}, object(), c)},
    "a deep stack": lambda c: {"co_stacksize": c.co_stacksize + 500},
}


def CHANGES_OF() -> int:  # its line table is shorter than those of the others
    return 1


CHANGES_OF = CHANGES_OF.__code__


def entries(table: bytes, share: float) -> bytes:
    """The first entries of a line table."""
    starts = [i for i, b in enumerate(table) if b & 0x80]
    return table[: starts[int(len(starts) * share)]]


def nothing(units: int) -> bytes:
    """A line table that says of no unit where it stands."""
    return b"".join(bytes([0x80 | 15 << 3 | min(8, units - at) - 1]) for at in range(0, units, 8))


def lines_only(units: int) -> bytes:
    """A line table that puts all units on the first line, without columns."""
    return b"".join(bytes([0x80 | 13 << 3 | min(8, units - at) - 1, 0]) for at in range(0, units, 8))


def made(source: str, change: Callable[[types.CodeType], dict]) -> types.FunctionType:
    space = {"torch": torch}
    exec(compile(source, "<odd>", "exec"), space)
    f = space["f"]
    return types.FunctionType(f.__code__.replace(**change(f.__code__)), space, "f", f.__defaults__)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("source", SOURCES)
def test_changed_code(source: str, change: str) -> None:
    """A code object that runs compiles, or runs as it is"""
    f = made(SOURCES[source], CHANGES[change])
    try:
        expected = f(torch.arange(4.0)), f(torch.ones(4), 3)
    except Exception:
        pytest.skip("does not run")
    c = bytejit.compile(f, backend="eager")
    for _ in range(2):
        assert torch.equal(c(torch.arange(4.0)), expected[0]) and torch.equal(c(torch.ones(4), 3), expected[1])
    bytejit.explain(f, torch.ones(4))
    assert bytejit.counters["graphs"] and not bytejit.counters["faults"]


@pytest.mark.parametrize("change", CHANGES)
def test_errors_of_changed_code(change: str) -> None:
    """An exception passes through with the lines that eager gives"""
    f = made("def f(x, k=2):\n    y = x + 1\n    return y.reshape(k,\n        7)", CHANGES[change])
    seen = []
    for g in (f, bytejit.compile(f, backend="eager")):
        try:
            g(torch.ones(3))
        except RuntimeError as e:
            seen.append(
                (str(e), [(line, f.f_code.co_name, f.f_code.co_filename) for f, line in traceback.walk_tb(e.__traceback__)][1:])
            )
    assert len(seen) == 2 and seen[0] == seen[1]


@pytest.mark.parametrize("change", ["no line table", "no locations", "odd names", "an odd file"])
def test_inlined_and_twin(change: str) -> None:
    """Callees are such code too: inlined, and compiled where the call breaks"""
    callee = made("def f(x, k=2):\n    y = x * k\n    if y.sum() > 0: y = y + 1\n    return y", CHANGES[change])
    inner = made("def f(x, k=2): return x + k", CHANGES[change])

    def f(x: torch.Tensor) -> torch.Tensor:
        return callee(inner(x)) * 2

    c = bytejit.compile(f, backend="eager")
    for _ in range(2):
        assert torch.equal(c(torch.ones(2)), f(torch.ones(2)))


@pytest.mark.parametrize("flags", [0, __future__.annotations.compiler_flag, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT])
@pytest.mark.parametrize("optimize", [-1, 0, 1, 2])
def test_compiled_with_flags(flags: int, optimize: int) -> None:
    space = {"torch": torch}
    source = "def f(x: 'a b c', *, k=1) -> 'd e':\n    'doc'\n    assert k\n    return x * k if __debug__ else x"
    exec(builtins.compile(source, "", "exec", flags, True, optimize), space)
    f = space["f"]
    assert torch.equal(bytejit.compile(f, backend="eager")(torch.ones(2), k=3), f(torch.ones(2), k=3))


def test_code_of_a_module_body_and_of_a_class() -> None:
    """A function made of code that is no function's runs as it is"""
    module = compile("y = x + 1", "<odd>", "exec")
    space = {"x": torch.ones(2)}
    bytejit.compile(types.FunctionType(module, space), backend="eager")()
    assert torch.equal(space["y"], torch.full((2,), 2.0))


def test_generated_ast_with_odd_positions() -> None:
    """Every node claims another place"""
    tree = ast.parse("def f(x):\n    y = x + 1\n    y = y * 2\n    return y.sum() if y is not None else x")
    for n, node in enumerate(ast.walk(tree)):
        if hasattr(node, "lineno"):
            node.lineno, node.end_lineno = 1000 - 37 * (n % 20), 5000
            node.col_offset, node.end_col_offset = n * 300 % 7000, 1
    space = {}
    exec(compile(tree, "<odd>", "exec"), space)
    f = space["f"]
    assert torch.equal(bytejit.compile(f, backend="eager")(torch.ones(2)), f(torch.ones(2)))


def covered(table: bytes) -> int:
    """How many code units a line table covers: entries begin with a byte of 128 or more."""
    return sum((byte & 7) + 1 for byte in table if byte & 128)


@pytest.mark.parametrize("column", [100, 120, 127, 128, 200, 255, 256, 300])
@pytest.mark.parametrize("lines", [1, 2, 3])
def test_lines_with_many_columns(column: int, lines: int) -> None:
    """The line table covers the code and no more: CPython writes a number for each unit of it, for profilers."""
    one = "    note = '" + "a" * (column - 12) + "'; x = torch.sin(x + k) * len(note)" + "\n" * lines
    source = "def f(x, k=2):\n" + one * 3 + "    print(end='')\n" + one + "    return x\n"
    f = made(source, lambda code: {})
    want = bytejit.disable(f)(torch.ones(2))
    compiled = bytejit.compile(f, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), want)
    code = rewrite(f.__code__).code
    assert covered(code.co_linetable) == len(code.co_code) // 2
    assert {line for *_, line in f.__code__.co_lines()} <= {line for *_, line in code.co_lines()}
