"""Expressions of the loop IR: a DAG whose equal nodes are one object."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Container, Iterator
from typing import Any

from .index import values_in

NONE: frozenset[str] = frozenset()
MARKS = 256  # bits: a kernel loads fewer buffers


@functools.cache
def mark(buffer: str) -> int:
    """A bit for a buffer, which it shares with few others."""
    return 1 << zlib.crc32(buffer.encode()) % MARKS


class Expr:
    """A node of an expression DAG. Made by `Cons`, so that equal nodes of one graph are one object.

    kind   name          args          attr
    load   buffer        () or (mask,) coordinates: tuple of index expressions (codegen/loops/index.py)
    const  ""            ()            a Python bool, int or float (nan, inf included)
    op     row's name    operands      None, or what the row says (e.g. the label of a bound check)
    index  ""            ()            one index expression, read as a value (dtype i64)
    ref    reduction     ()            None (the `Reduce` of that name)

    A masked load whose mask (dtype b8) is false reads nothing and returns 0. Casts are the ops `to` (explicit:
    rounds) and `narrow` (the implicit rounding of a f16 or bf16 result: may be dropped where it is widened again).
    """

    __slots__ = ("kind", "name", "args", "dtype", "attr", "where", "needs", "refs", "marks", "simple", "_hash", "_loads")
    _hash: int

    def __init__(self, kind: str, name: str, args: tuple[Expr, ...], dtype: str, attr: Any = None, where: Any = None):
        self.kind, self.name, self.args, self.dtype, self.attr, self.where = kind, name, args, dtype, attr, where
        # what must be evaluated first: values inside indirect indices, then operands
        self.needs = (*values_in(attr), *args) if kind == "load" or kind == "index" else args
        self.refs: frozenset[str] = frozenset((name,)) if kind == "ref" else NONE  # names read at and below the node
        self.marks = mark(name) if kind == "load" else 0  # of the buffers that are loaded at and below the node
        for e in self.needs:
            if e.marks != self.marks:
                self.marks = self.marks | e.marks if self.marks else e.marks
            if e.refs:
                self.refs = self.refs | e.refs
        self._hash = hash((kind, name, tuple(a._hash for a in args), dtype, _const_key(attr)))
        self._loads: tuple[Expr, ...] | None = None
        self.simple = False  # a `Rewriter` has visited it, and no rule changes it

    @property
    def loads(self) -> tuple[Expr, ...]:
        """The loads at and below a node, each once, in the order of `walk`. Cached."""
        if self._loads is None:
            self._loads = tuple({id(e): e for e in self._find_loads()}.values())
        return self._loads

    def _find_loads(self) -> Iterator[Expr]:
        """The same, but a load may come more than once. Takes the cached loads of nodes below."""
        seen: set[int] = set()
        stack = [(self, False)]
        while stack:
            node, done = stack.pop()
            if done:
                yield node
            elif node._loads is not None:
                yield from node._loads
            elif id(node) not in seen:
                seen.add(id(node))
                if node.kind == "load":
                    stack.append((node, True))
                stack.extend((a, False) for a in reversed(node.needs) if id(a) not in seen)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Expr) and _same(self, other, set()))

    def __repr__(self) -> str:
        what = {
            "load": f"{self.name}{list(self.attr or ())}",
            "const": repr(self.attr),
            "index": f"index({self.attr})",
            "ref": f"ref {self.name}",
        }.get(self.kind)
        return f"{self.dtype} {what or f'{self.name}({len(self.args)} args)'}"

    @property
    def mask(self) -> Expr | None:
        """The mask of a load, or None."""
        return self.args[0] if self.kind == "load" and self.args else None


def _const_key(attr: Any) -> Any:
    """A key that tells 0.0, -0.0, 0 and False apart, which are equal by `==`, and by which nan equals itself."""
    return (type(attr).__name__, repr(attr)) if isinstance(attr, (bool, int, float)) else attr


def _same(a: Expr, b: Expr, seen: set[tuple[int, int]]) -> bool:
    """Structural equality; each pair of nodes is looked at once."""
    stack = [(a, b)]
    while stack:
        a, b = stack.pop()
        if a is b or (id(a), id(b)) in seen:
            continue
        if (a._hash, a.kind, a.name, a.dtype, len(a.args)) != (b._hash, b.kind, b.name, b.dtype, len(b.args)):
            return False
        if _const_key(a.attr) != _const_key(b.attr):
            return False
        seen.add((id(a), id(b)))
        stack.extend(zip(a.args, b.args))
    return True


class Cons:
    """Makes expression nodes, equal ones only once (hash consing). Each compile has its own, passed as an argument.

    A node keeps the first `where` that it was made with: the user's line that first computed the value.
    """

    __slots__ = ("table",)

    def __init__(self) -> None:
        self.table: dict[Any, Expr] = {}

    def make(self, kind: str, name: str, args: tuple[Expr, ...], dtype: str, attr: Any, where: Any) -> Expr:
        key = (kind, name, tuple(map(id, args)), dtype, _const_key(attr))
        node = self.table.get(key)
        if node is None:
            node = self.table[key] = Expr(kind, name, args, dtype, attr, where)
        return node

    def load(self, buffer: str, coords: tuple, dtype: str, mask: Expr | None = None, where: Any = None) -> Expr:
        return self.make("load", buffer, () if mask is None else (mask,), dtype, tuple(coords), where)

    def const(self, value: bool | int | float, dtype: str) -> Expr:
        return self.make("const", "", (), dtype, value, None)

    def op(self, name: str, args: tuple[Expr, ...], dtype: str, where: Any = None, attr: Any = None) -> Expr:
        return self.make("op", name, tuple(args), dtype, attr, where)

    def index(self, expr: Any, where: Any = None) -> Expr:
        return self.make("index", "", (), "i64", expr, where)

    def ref(self, name: str, dtype: str, where: Any = None) -> Expr:
        return self.make("ref", name, (), dtype, None, where)


def walk(roots: Iterator[Expr] | tuple[Expr, ...], leaves: Container[int] = ()) -> Iterator[Expr]:
    """Every node below `roots`, operands first, each once, in first-use order; values inside indirect indices too. leaves: ids of
    nodes whose operands do not count."""
    seen: set[int] = set()
    for root in roots:
        stack = [(root, False)]
        while stack:
            node, done = stack.pop()
            if done:
                yield node
                continue
            if id(node) in seen:
                continue
            seen.add(id(node))
            if not node.needs or id(node) in leaves:
                yield node
                continue
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.needs) if id(a) not in seen)
