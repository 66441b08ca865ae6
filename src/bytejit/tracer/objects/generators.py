"""Exceptions thrown into generators that the trace runs, `yield from` included, and generators that it leaves in the middle."""

from __future__ import annotations

import builtins

from bytejit.tracer.core.frame import Frame
from bytejit.tracer.core.iterator_values import GenVar
from bytejit.tracer.core.signals import Break, CannotReconstruct, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, NULL, InstanceVar, Var
from bytejit.tracer.core.versions import CLOSE_RETURNS, FOR_ITER_KEEPS

from .class_facts import class_lookup

STOP_ITERATION_ERROR = 3  # the argument of CALL_INTRINSIC_1
YIELD_FROM = 2  # the lower two bits of RESUME's argument
NO_CODE = ("PUSH_EXC_INFO", "BUILD_TUPLE", "COPY", "POP_EXCEPT", "NOP")  # of a handler, beside the classes that it names


def throw(t: Tracer, gen: GenVar, thrown: Raised) -> tuple[bool, Var]:
    """Run a generator from where an exception is thrown into it: (False, yielded) or (True, returned). What it delegates to gets
    the exception first. Raises: Raised."""
    inner = delegate(t, gen)
    if inner is None:
        return t.calls.resume(gen, NONE, thrown=thrown)
    gen.running = True
    try:
        if issubclass(thrown.exc.cls, GeneratorExit):
            close_iterator(t, inner)
        elif isinstance(inner, GenVar) and not inner.steps:
            finished, value = throw(t, t.calls.moved(inner), thrown)
            if not finished:
                return False, value
            return go_on(t, gen, value)
        elif isinstance(inner, InstanceVar) and class_lookup(inner.cls, "throw")[1] is not None:
            raise Break("an exception thrown through `yield from` into an iterator of the program's own")
    except Raised as e:
        if issubclass(e.exc.cls, StopIteration) and not issubclass(thrown.exc.cls, GeneratorExit):
            return go_on(t, gen, t.attributes.getattr(e.exc, "value"))
        thrown = Raised(e.exc)  # without the traceback, which holds this frame
    finally:
        gen.running = False
    return t.calls.resume(gen, NONE, thrown=thrown)


def delegate(t: Tracer, gen: GenVar) -> Var | None:
    """The iterator that a suspended `yield from` delegates to."""
    if gen.running or gen.finished or not gen.started:
        return None
    frame = gen.frame
    ins = frame.decoded.ins[frame.ip]
    return t.values.real(frame.stack[-1]) if ins.op == "RESUME" and ins.arg & 3 == YIELD_FROM else None


def go_on(t: Tracer, gen: GenVar, value: Var) -> tuple[bool, Var]:
    """Continue after a `yield from` whose iterator has ended with a value."""
    frame = gen.frame
    send = next(i for i in range(frame.ip, -1, -1) if frame.decoded.ins[i].op == "SEND")
    if not FOR_ITER_KEEPS:
        frame.stack.pop()
    frame.ip, gen.running = frame.decoded.ins[send].jump, False
    return t.calls.resume(gen, value)


def close(t: Tracer, gen: GenVar) -> Var:
    """gen.close(), with what it gives. Raises: Raised."""
    gen = t.calls.moved(gen)
    if not gen.started or gen.finished:
        gen.finished = True
        return NONE
    try:
        finished, value = throw(t, gen, t.raised(GeneratorExit()))
    except Raised as e:
        if issubclass(e.exc.cls, (GeneratorExit, StopIteration)):
            return NONE
        raise
    if not finished:
        raise t.raised(RuntimeError("generator ignored GeneratorExit"))
    return value if CLOSE_RETURNS else NONE


def close_iterator(t: Tracer, v: Var) -> None:
    """Close the iterator that a closed generator delegates to, if it has a `close`."""
    if isinstance(v, GenVar):
        if not v.steps:
            close(t, v)
    elif (method := t.attributes.getattr(v, "close", NULL)) is not NULL:
        t.calls.call(method, [], {})


def passes_by(frame: Frame) -> bool:
    """Whether a suspended generator that is closed runs none of its own code: what catches there names other classes."""
    handler = frame.decoded.handlers[frame.ip - 1]
    while handler is not None:
        if (left := _raised_on(frame, handler[0])) is None:
            return False
        handler = frame.decoded.handlers[left]
    return True


def _raised_on(frame: Frame, at: int) -> int | None:
    """Where the handler that begins at an instruction raises GeneratorExit on; None when code of the program's runs before."""
    names: list[str] = []
    while True:
        ins = frame.decoded.ins[at]
        # 3.12 and later have two handlers of their own in each generator
        if ins.op in ("RERAISE", "CLEANUP_THROW") or (ins.op, ins.arg) == ("CALL_INTRINSIC_1", STOP_ITERATION_ERROR):
            return at
        at += 1
        if ins.op == "LOAD_GLOBAL":
            names.append(str(ins.val))
        elif ins.op == "CHECK_EXC_MATCH":
            test = frame.decoded.ins[at]
            if not names or not test.op.endswith("IF_FALSE") or not all(_another(frame, name) for name in names):
                return None
            at, names = test.jump, []
        elif ins.op not in NO_CODE:
            return None


def _another(frame: Frame, name: str) -> bool:
    """Whether a global name stands for a class of exceptions that GeneratorExit is none of."""
    cls = frame.globals.get(name, vars(builtins).get(name))
    return isinstance(cls, type) and not issubclass(GeneratorExit, cls)


def check_left(t: Tracer) -> None:
    """The region is over: Python closes a generator once nothing holds it, and one left within a `try` or `with` then runs code
    of the program's. Raises: CannotReconstruct."""
    for v in t.keep:
        if type(v) is GenVar and v.real is None and v.started and not v.finished and not v.running and not passes_by(v.frame):
            raise CannotReconstruct("a generator left within a try or with block", v.step, generator=True)
