"""Handlers: iteration, generators, with, exceptions. Exception-table unwinding is in tracer/core/tracer.py."""

from __future__ import annotations

from typing import NoReturn

from bytejit.tracer.core.exceptions import chain, exception_var, matches
from bytejit.tracer.core.frame import Frame, Ins
from bytejit.tracer.core.iterator_values import GenVar
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.table import YIELD, handles, refuse
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FALSE, NONE, NULL, TRUE, InstanceVar, Known, is_object
from bytejit.tracer.core.versions import END_FOR_POPS, FOR_ITER_KEEPS


@handles("GET_ITER")
def get_iter(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(t.iteration.iter(t.values.real(t.pop(f))))


@handles("GET_YIELD_FROM_ITER")
def get_yield_from_iter(t: Tracer, f: Frame, ins: Ins) -> None:
    value = t.pop(f)
    f.push(value if isinstance(value, GenVar) else t.iteration.iter(t.values.real(value)))


@handles("FOR_ITER")
def for_iter(t: Tracer, f: Frame, ins: Ins) -> int | None:
    """3.11 pops the exhausted iterator and jumps; 3.12+ jumps with it (and, there, a NULL-like result) to END_FOR."""
    item = t.iteration.next(t.values.real(f.stack[-1]))
    if item is not None:
        f.push(item)
        return None
    if FOR_ITER_KEEPS:
        if END_FOR_POPS == 2:
            f.push(NULL)
            return ins.jump
        f.push(NULL)
        return ins.jump
    f.stack.pop()
    return ins.jump


@handles("END_FOR")
def end_for(t: Tracer, f: Frame, ins: Ins) -> None:
    for _ in range(END_FOR_POPS):
        f.stack.pop()


@handles("YIELD_VALUE")
def yield_value(t: Tracer, f: Frame, ins: Ins) -> int | None:
    if f.generator is None:
        raise Break("a yield of the compiled generator itself")
    f.returned = f.pop_raw()
    return YIELD


@handles("SEND")
def send(t: Tracer, f: Frame, ins: Ins) -> int | None:
    """`yield from`: [iterator, sent] -> [iterator, yielded], or at the end the result and a jump."""
    value = f.pop_raw()
    finished, result = t.iteration.send(t.values.real(f.stack[-1]), value)
    if not finished:
        f.push(result)
        return None
    if FOR_ITER_KEEPS:  # 3.12+: END_SEND pops the iterator below the result
        f.push(result)
        return ins.jump
    f.stack[-1] = result
    return ins.jump


@handles("END_SEND")
def end_send(t: Tracer, f: Frame, ins: Ins) -> None:
    del f.stack[-2]


@handles("RETURN_GENERATOR")
def return_generator(t: Tracer, f: Frame, ins: Ins) -> None:
    """A generator's frame is made suspended (tracer/objects/calls.py): its body starts with the value None on the stack."""
    f.push(NONE)


@handles("BEFORE_WITH")
def before_with(t: Tracer, f: Frame, ins: Ins) -> None:
    manager = t.pop(f)
    enter = t.attributes.special(manager, "__enter__")
    exit_ = t.attributes.special(manager, "__exit__")
    f.push(exit_)
    f.push(t.calls.call(enter, [], {}))


@handles("WITH_EXCEPT_START")
def with_except_start(t: Tracer, f: Frame, ins: Ins) -> None:
    """[exit, lasti, prev, exc] (3.14: exit, NULL, lasti, prev, exc) -> the same and exit's result."""
    exc = t.values.real(f.stack[-1])
    exit_ = f.stack[-4] if f.stack[-4] is not NULL else f.stack[-5]
    f.push(t.calls.call(exit_, [Known(t.type_of(exc)), exc, t.attributes.getattr(exc, "__traceback__")], {}))


@handles("PUSH_EXC_INFO")
def push_exc_info(t: Tracer, f: Frame, ins: Ins) -> None:
    exc = f.pop_raw()
    f.push(t.current_exception(f) or NONE)
    f.push(exc)
    f.handling.append(exc)


@handles("POP_EXCEPT")
def pop_except(t: Tracer, f: Frame, ins: Ins) -> None:
    f.pop_raw()
    if not f.handling:
        raise Break("the end of a handler that was entered outside the region")
    f.handling.pop()


@handles("CHECK_EXC_MATCH")
def check_exc_match(t: Tracer, f: Frame, ins: Ins) -> None:
    cls, exc = t.pop(f), t.values.real(f.stack[-1])
    f.push(TRUE if matches(t, exc, cls) else FALSE)


@handles("RERAISE")
def reraise(t: Tracer, f: Frame, ins: Ins) -> NoReturn:
    exc = t.pop(f)
    if not isinstance(exc, InstanceVar):
        raise Break("an exception from outside the region raised again")
    raise Raised(exc)


@handles("RAISE_VARARGS")
def raise_varargs(t: Tracer, f: Frame, ins: Ins) -> NoReturn:
    """0: raise again; 1: raise it; 2: raise it from a cause."""
    if ins.arg == 0:
        current = t.current_exception(f)
        if current is None:
            if f.parent is None or f.parent.depth == 0:
                raise Break("a raise of an exception from outside the region")
            raise Raised(exception_var(RuntimeError("No active exception to reraise")))
        raise Raised(current)
    cause = t.pop(f) if ins.arg == 2 else None
    exc = t.as_exception(t.pop(f), "exceptions must derive from BaseException")
    if id(exc) in t.part_of:
        raise Break("a part of an exception group raised by name")
    if cause is not None:
        if not is_object(cause, None):
            cause = t.as_exception(cause, "exception causes must derive from BaseException")
        exc.slots["__cause__"] = cause
        exc.slots["__suppress_context__"] = TRUE
    chain(exc, t.current_exception(f))
    raise Raised(exc)


@handles("CLEANUP_THROW")
def cleanup_throw(t: Tracer, f: Frame, ins: Ins) -> None:
    """An exception thrown into `yield from`: StopIteration gives its value, all else goes on."""
    exc = t.values.real(f.stack[-1])
    if not issubclass(t.type_of(exc), StopIteration):
        raise Raised(exc)
    del f.stack[-3:]
    f.stack.extend((NONE, t.attributes.getattr(exc, "value")))


refuse("async code", "GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR", "ASYNC_GEN_WRAP")
refuse(
    "an opcode of the interpreter's own",
    "INTERPRETER_EXIT",
    "RESERVED",
    "EXIT_INIT_CHECK",
    "ENTER_EXECUTOR",
    "LOAD_FAST_CHECK_",
    "JUMP_BACKWARD_JIT_",
    "ANNOTATIONS_PLACEHOLDER",
    "SETUP_CLEANUP",
    "SETUP_FINALLY",
    "SETUP_WITH",
    "POP_BLOCK",
)
