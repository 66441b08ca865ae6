"""A traced frame: decoded instructions, stack, locals, cells; and the binding of call arguments to parameters."""

from __future__ import annotations

import inspect
import types
from functools import cached_property
from itertools import pairwise
from types import CodeType
from typing import Any

from bytejit.common.identity import IdentityMap
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.special_cases import NOT_THE_USERS
from bytejit.rewriter import decoder
from bytejit.rewriter.opcodes import OPNAME, has_argument

from .exceptions import exception_var
from .iterator_values import GenVar
from .signals import Break, Raised
from .values import NULL, CellVar, DictVar, FuncVar, Known, SeqVar, Var
from .versions import NULL_BELOW


@light_dataclass(frozen=True)
class Ins:
    """One instruction of the original code. `jump`: index of the jump's target in Decoded.ins, -1 without one."""

    op: str
    arg: int
    val: Any
    offset: int
    line: int
    jump: int
    index: int


@light_dataclass(frozen=True)
class Decoded:
    """A code object's instructions, and for each its handler in the exception table: (index, depth, lasti) or None."""

    ins: tuple[Ins, ...]
    index_at: dict[int, int]
    handlers: tuple
    body: int  # index of the first RESUME, where the set-up of cells ends

    def is_managers(self, handler: int) -> bool:
        """Whether the handler at an index is that of a `with`, which calls `__exit__` with the exception."""
        return self.ins[handler + 1].op == "WITH_EXCEPT_START"

    @cached_property
    def catches(self) -> bool:
        """Whether it has a handler that is not that of a `with`."""
        return any(a.op == "PUSH_EXC_INFO" and not self.is_managers(i) for i, (a, _) in enumerate(pairwise(self.ins)))


_decoded: IdentityMap[Decoded] = IdentityMap()  # owner: decode; size: one a living code; goes with the code


def decode(code: CodeType) -> Decoded:
    """Instructions without caches and EXTENDED_ARG. Cached per code object."""
    known = _decoded.get(code)
    if known is not None:
        return known
    raw, index_at = decoder.decode(code)
    lines = [position[0] for position in code.co_positions()]  # fewer than units where the line table ends early
    slots, ins, line = decoder.slot_names(code), [], code.co_firstlineno
    for i in raw:
        unit = i.offset >> 1
        line = (lines[unit] if unit < len(lines) else None) or line
        arg = i.arg if has_argument(i.op) else 0
        ins.append(Ins(OPNAME[i.op], arg, decoder.operand(code, i, slots), i.offset, line, i.target, i.index))
    handlers: list[tuple[int, int, bool] | None] = [None] * len(ins)
    for entry in decoder.try_ranges(code, index_at):
        for n in range(entry.start, entry.stop):
            handlers[n] = (entry.target, entry.depth, entry.lasti)
    body = next((i.index for i in ins if i.op == "RESUME"), 0)
    return _decoded.set(code, Decoded(tuple(ins), index_at, tuple(handlers), body))


class Frame:
    """One activation of a function in the trace."""

    __slots__ = (
        "decoded",
        "code",
        "ip",
        "stack",
        "locals",
        "cells",
        "globals",
        "users",
        "func",
        "parent",
        "kwnames",
        "depth",
        "handling",
        "generator",
        "returned",
        "suspended",
        "names",
        "inject",
    )
    returned: Var  # the value returned or yielded; set by RETURN and YIELD
    suspended: bool  # whether `returned` was yielded

    def __init__(self, code: CodeType, globals_: dict, parent: Frame | None, func: FuncVar | None = None) -> None:
        self.decoded, self.code, self.globals = decode(code), code, globals_
        self.users = not NOT_THE_USERS.runs(globals_)  # whether a line of this code is the user's
        self.ip = 0
        self.stack: list[Var] = []
        self.locals: dict[str, Var] = {}
        self.cells: dict[str, CellVar] = {}
        self.func, self.parent = func, parent
        self.kwnames: tuple[str, ...] = ()
        self.depth: int = parent.depth + 1 if parent else 0
        self.handling: list[Var] = []  # exceptions being handled, innermost last
        self.generator: GenVar | None = None
        self.names: DictVar | None = None  # class bodies: the namespace
        self.inject: Raised | None = None  # an exception thrown into a generator

    @property
    def line(self) -> int:
        ins = self.decoded.ins
        return ins[min(self.ip, len(ins) - 1)].line

    def push(self, v: Var) -> None:
        self.stack.append(v)

    def push_callable(self, v: Var) -> None:
        """Push what is to be called, with the NULL beside it that stands for no self."""
        self.stack.extend((NULL, v) if NULL_BELOW else (v, NULL))

    def injected(self) -> Raised:
        """The exception thrown into the generator; the frame holds it no longer, nor must the caller (see `unwind`)."""
        thrown, self.inject = self.inject, None
        assert thrown is not None, "nothing was thrown into the generator"
        return thrown

    def pop_raw(self) -> Var:
        return self.stack.pop()

    def popn(self, n: int) -> list[Var]:
        if not n:
            return []
        values = self.stack[-n:]
        del self.stack[-n:]
        return values


def type_error(message: str) -> Raised:
    return Raised(exception_var(TypeError(message)))


def bind(t: Any, func: FuncVar, args: list[Var], kwargs: dict[str, Var]) -> dict[str, Var]:
    """Arguments to parameter names, as CPython does it. Raises: Raised(TypeError) with CPython's own words."""
    code = func.code
    npos, nkw = code.co_argcount, code.co_kwonlyargcount
    names = code.co_varnames
    out: dict[str, Var] = {}
    varargs, varkw = code.co_flags & inspect.CO_VARARGS, code.co_flags & inspect.CO_VARKEYWORDS
    for name, value in zip(names[:npos], args):
        out[name] = value
    extra = args[npos:]
    total = npos + nkw
    if varargs:
        out[names[total]] = SeqVar(list(extra), tuple)
    rest: dict[str, Var] = {}
    for key, value in kwargs.items():
        if key in names[code.co_posonlyargcount : total]:
            if key in out:
                raise type_error(f"{func.qualname}() got multiple values for argument '{key}'")
            out[key] = value
        elif varkw:
            rest[key] = value
        else:
            _check_against_python(func, args, kwargs)
    if extra and not varargs:
        _check_against_python(func, args, kwargs)
    if varkw:
        out[names[total + (1 if varargs else 0)]] = DictVar({k: (Known(k), v) for k, v in rest.items()})
    defaults = func.defaults
    for i, name in enumerate(names[:npos]):
        if name not in out:
            at = i - (npos - len(defaults))
            if at < 0:
                _check_against_python(func, args, kwargs)
            out[name] = defaults[at]
    for name in names[npos:total]:
        if name not in out:
            if name not in func.kwdefaults:
                _check_against_python(func, args, kwargs)
            out[name] = func.kwdefaults[name]
    return out


def _check_against_python(func: FuncVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    """A call that does not fit its signature: let CPython word the TypeError, on an empty function with the same signature."""
    code = func.code
    body = compile("def f(): pass", "<signature>", "exec").co_consts[0]
    try:
        probe = types.FunctionType(
            code, {}, func.name, tuple([None] * len(func.defaults)) or None, tuple(types.CellType() for _ in code.co_freevars)
        )
        probe.__kwdefaults__ = {k: None for k in func.kwdefaults} or None
        probe.__qualname__ = func.qualname
        if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            probe(*([None] * len(args)), **{k: None for k in kwargs})
        else:
            # CPython binds before it runs the body: a generator function binds without running
            probe.__code__ = code.replace(
                co_flags=code.co_flags,
                co_code=body.co_code,
                co_stacksize=8,
                co_consts=(None,),
                co_exceptiontable=b"",
                co_cellvars=(),
                co_names=(),
            )
            probe(*([None] * len(args)), **{k: None for k in kwargs})
    except TypeError as e:
        raise Raised(exception_var(TypeError(*e.args))) from None
    except Exception as e:  # the function cannot be built on this Python: the original will raise by itself
        raise Break(f"a call of {func.qualname} that does not fit its parameters ({e})") from None
    raise Break(f"a call of {func.qualname} that does not fit its parameters")
