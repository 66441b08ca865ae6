"""The last statement of an exit: a return, or a jump to a resume point with the stack's values and the live locals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from bytejit.common.overriding import is_layer, runs_operations
from bytejit.guards.sources import Attr
from bytejit.tracer.core.frame import Ins
from bytejit.tracer.core.job import Job, Stop
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NULL, InstanceVar, Known, Lazy, SeqVar, TensorVar, Var
from bytejit.tracer.core.versions import CALL_EX_ALWAYS_HAS_KWARGS

CALLS = {"KW_NAMES", "PRECALL", "CALL", "CALL_KW", "CALL_FUNCTION_EX"}


@dataclass
class WayOut:
    """`values`: what goes along; `last`: the statement, of their expressions; `point`: None for a return; `env`: its names."""

    values: list[Var]
    last: Callable[[list[str]], str]
    point: int | None = None
    env: dict[str, object] = field(default_factory=dict)


def way_out(t: Tracer, job: Job, stop: Stop, compiled_callee: Callable | None) -> WayOut:
    """Decides how a trace that ended at `stop` goes on. compiled_callee: compiles the function in which a call breaks."""
    if stop.snapshot is None:
        assert stop.value is not None, "a region without a way out"
        return WayOut([stop.value], lambda texts: f"return ({texts[0]}, None)")
    snapshot = stop.snapshot
    ins = t.root_frame.decoded.ins[snapshot.ip]
    point = job.rewritten.points[job.rewritten.by_offset[ins.offset]]
    if len(snapshot.stack) != point.depth:
        raise AssertionError(f"stack {snapshot.stack} at {point}")
    stack = [v for i, v in enumerate(snapshot.stack) if i not in point.nulls]
    callee_at = callee_slot(t, ins, snapshot.stack) if stop.depth > 0 and compiled_callee is not None else None
    if callee_at is not None and stays_whole(t, t.values.real(snapshot.stack[callee_at]), snapshot.stack[callee_at + 1 :]):
        callee_at = None
    callee = snapshot.stack[callee_at] if callee_at is not None else None
    callee_index = next((i for i, v in enumerate(stack) if v is callee), None) if callee is not None else None
    unbound = Known(job.unbound)
    values = [unbound if v is NULL else v for v in stack]
    values += [snapshot.locals.get(name, unbound) for name in point.live]
    env = {"UNBOUND": job.unbound}
    if callee is not None:
        env["compiled_callee"] = compiled_callee

    def last(texts: list[str]) -> str:
        if callee_index is not None:
            texts = list(texts)
            texts[callee_index] = f"compiled_callee({texts[callee_index]})"
        return f"return (({''.join(x + ', ' for x in texts)}), {point.id})"

    return WayOut(values, last, point.id, env)


def stays_whole(t: Tracer, callee: Var, arguments: list[Var]) -> bool:
    """Whether within a call that broke no graph would hold work, which is guarded then: it takes quantised tensors and no others,
    or is one of a layer of torch's with tensors that run operations themselves."""
    given = [v for a in arguments for v in (a.items if isinstance(a, SeqVar) else (a,))]
    tensors = [v for v in given if isinstance(v, TensorVar) or isinstance(v, Lazy) and issubclass(type(v.obj), torch.Tensor)]
    unread = [v for v in tensors if isinstance(v, Lazy) and v.source is not None]
    if not tensors or len(unread) < len(tensors):
        return False
    quantised = all(v.obj.is_quantized for v in unread)
    if not quantised and not (
        isinstance(callee, InstanceVar) and is_layer(callee.real) and all(runs_operations(type(v.obj)) for v in unread)
    ):
        return False
    for v in unread:
        t.guard("TYPE_IS", v.source, type(v.obj))
        if quantised:
            t.guard("EQUALS", Attr(v.origin, "is_quantized"), True)
    return True


def callee_slot(t: Tracer, ins: Ins, stack: list[Var]) -> int | None:
    """Returns which stack slot holds the function of the call that starts at `ins`."""
    if ins.op not in CALLS:
        return None
    code, at = t.root_frame.decoded.ins, ins.index
    while code[at].op in ("KW_NAMES", "PRECALL"):
        at += 1
    call = code[at]
    if call.op == "CALL":
        n = call.arg
    elif call.op == "CALL_KW":
        n = call.arg + 1
    elif call.op == "CALL_FUNCTION_EX":
        n = 2 if CALL_EX_ALWAYS_HAS_KWARGS or call.arg & 1 else 1
    else:
        return None
    for slot in (len(stack) - n - 2, len(stack) - n - 1):  # the lower one, or NULL and the function
        if slot >= 0 and stack[slot] is not NULL:
            return slot
    return None
