"""Branches on a tensor where one side only raises: `if not valid.all(): raise ...`, `assert y.min() > 0`.

The trace goes on with the other side, and the graph asserts the condition. Where it does not hold, the graph raises, its
effects are undone, and the original code runs. That code raises its own error, which its callers may catch. On other devices
than the CPU such a branch breaks the graph. `torch._check_tensor_all` is such a branch, too.
"""

from __future__ import annotations

from typing import Any

import torch

from bytejit.rewriter.opcodes import FINAL, OPNAME
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.frame import Decoded, Frame
from bytejit.tracer.core.models import models, replaces
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, Known, TensorVar, Var

MESSAGE = "a check of the program's fails"  # nobody sees this text: the original code raises
JUMPS_IF = {"TRUE": True, "FALSE": False}
BEFORE_JUMP = frozenset({"TO_BOOL", "COMPARE_OP"})  # since 3.13 they ask for the truth that the jump reads
NO_WAY_ON = frozenset(OPNAME[op] for op in FINAL)
MOST_INSTRUCTIONS = 500  # of the side that raises


class Checks(Component):
    """The tracer's part that turns branches into assertions."""

    def checked_truth(self, v: TensorVar) -> bool | None:
        """The truth that is assumed for a tensor from here on and asserted by the graph; None where no side of the branch only
        raises."""
        if v.node is None or v.fake.device.type != "cpu" or v.fake.numel() != 1:
            return None
        frame = self.t.frame
        raising = side_that_raises(frame) if frame is not None else None
        if raising is None:
            return None
        condition = self.t.tensors.call_tensor_op(torch.logical_not, [v], {}) if raising else v
        self.t.tensors.call_tensor_op(torch.ops.aten._assert_async.msg, [condition, Known(MESSAGE)], {})
        return not raising


@models(torch._assert_async)
def assert_async(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The program's own: where it fails on the CPU, the graph is undone and the original code raises in its words."""
    condition = args[0] if args else None
    if not isinstance(condition, TensorVar) or condition.fake.device.type != "cpu" or condition.fake.numel() != 1:
        raise Break("torch._assert_async of a value that is not a one-element tensor on the CPU")
    t.tensors.call_tensor_op(torch.ops.aten._assert_async.msg, [condition, Known(MESSAGE)], {})
    return NONE


@replaces(torch._check_tensor_all_with)
def check_all(error_type: type[Exception], cond: Any, message: object = None) -> None:
    """Such a branch. Where the error is certain, the model of torch._check_with breaks the graph and torch's own code raises."""
    if not torch.is_tensor(cond) or cond.dtype != torch.bool or not cond.all():
        raise torch._check_with(error_type, False, message)


def side_that_raises(frame: Frame) -> bool | None:
    """For which truth of the value that the frame's instruction asks about it can only raise; None for both, or neither. The
    branch may be a caller's: `if not valid(x): raise ...`, where `valid` ends in `return bool(...)`. (A caller of something else
    that calls it, as `any`, may be taken for it: the check then fails, and the original code runs.)"""
    index = frame.ip
    while frame.parent is not None and returns_call(frame, index):
        frame = frame.parent
        index = frame.ip + (not returns_call(frame, frame.ip))
    decoded = frame.decoded
    while decoded.ins[index].op in BEFORE_JUMP:
        index += 1
    head, _, kind = decoded.ins[index].op.rpartition("_IF_")
    if head not in ("POP_JUMP", "POP_JUMP_FORWARD") or kind not in JUMPS_IF:
        return None
    jumping, going_on = only_raises(decoded, decoded.ins[index].jump), only_raises(decoded, index + 1)
    if jumping == going_on:
        return None
    return JUMPS_IF[kind] if jumping else not JUMPS_IF[kind]


def returns_call(frame: Frame, index: int) -> bool:
    """Whether a call's result is returned as it is."""
    ins = frame.decoded.ins
    return ins[index].op == "CALL" and ins[index + 1].op == "RETURN_VALUE"


def only_raises(decoded: Decoded, start: int) -> bool:
    """Whether every way from an instruction on ends in a `raise` that its function does not catch."""
    todo, seen = [start], set()
    while todo:
        index = todo.pop()
        if index in seen:
            continue
        seen.add(index)
        ins = decoded.ins[index]
        if ins.op in ("RAISE_VARARGS", "RERAISE"):
            if (handler := decoded.handlers[index]) is not None and not decoded.is_managers(handler[0]):
                todo.append(handler[0])
            continue
        if ins.op.startswith(("RETURN", "YIELD", "SEND")) or len(seen) > MOST_INSTRUCTIONS:
            return False
        if ins.jump >= 0:
            if ins.jump <= index:
                return False
            todo.append(ins.jump)
        if ins.op not in NO_WAY_ON:
            todo.append(index + 1)
    return True
