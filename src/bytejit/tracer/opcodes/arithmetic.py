"""Handlers: operators, comparison, truth and jumps on truth."""

from __future__ import annotations

from bytejit.tracer.core.frame import Frame, Ins
from bytejit.tracer.core.table import handles
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FALSE, NONE, TRUE
from bytejit.tracer.core.versions import COMPARE_BOOL_BIT

BINARY = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "truediv",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "@": "matmul",
    "<<": "lshift",
    ">>": "rshift",
    "&": "and",
    "|": "or",
    "^": "xor",
}
SYMBOLS = ["+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^"]  # CPython's NB_ order


@handles("BINARY_OP")
def binary_op(t: Tracer, f: Frame, ins: Ins) -> None:
    if ins.arg == 26:  # 3.14: NB_SUBSCR
        binary_subscr(t, f, ins)
        return
    right, left = t.pop(f), t.pop(f)
    in_place = ins.arg >= len(SYMBOLS)
    f.push(t.operators.binary(BINARY[SYMBOLS[ins.arg % len(SYMBOLS)]], left, right, in_place))


@handles("BINARY_SUBSCR")
def binary_subscr(t: Tracer, f: Frame, ins: Ins) -> None:
    key, container = t.pop(f), t.pop(f)
    f.push(t.subscripts.getitem(container, key))


@handles("STORE_SUBSCR")
def store_subscr(t: Tracer, f: Frame, ins: Ins) -> None:
    key, container, value = t.pop(f), t.pop(f), f.pop_raw()
    t.subscript_writes.setitem(container, key, value)


@handles("DELETE_SUBSCR")
def delete_subscr(t: Tracer, f: Frame, ins: Ins) -> None:
    key, container = t.pop(f), t.pop(f)
    t.subscript_writes.delitem(container, key)


@handles("BINARY_SLICE")
def binary_slice(t: Tracer, f: Frame, ins: Ins) -> None:
    stop, start, container = f.pop_raw(), f.pop_raw(), t.pop(f)
    f.push(t.subscripts.getitem(container, t.subscripts.slice([start, stop, NONE])))


@handles("STORE_SLICE")
def store_slice(t: Tracer, f: Frame, ins: Ins) -> None:
    stop, start, container, value = f.pop_raw(), f.pop_raw(), t.pop(f), f.pop_raw()
    t.subscript_writes.setitem(container, t.subscripts.slice([start, stop, NONE]), value)


@handles("BUILD_SLICE")
def build_slice(t: Tracer, f: Frame, ins: Ins) -> None:
    parts = f.popn(ins.arg)
    f.push(t.subscripts.slice(parts if len(parts) == 3 else [*parts, NONE]))


@handles("UNARY_POSITIVE")
def unary_positive(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(t.operators.unary("pos", t.pop(f)))


@handles("UNARY_NEGATIVE")
def unary_negative(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(t.operators.unary("neg", t.pop(f)))


@handles("UNARY_INVERT")
def unary_invert(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(t.operators.unary("invert", t.pop(f)))


@handles("UNARY_NOT")
def unary_not(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(FALSE if t.comparisons.truth(t.pop(f)) else TRUE)


@handles("TO_BOOL")
def to_bool(t: Tracer, f: Frame, ins: Ins) -> None:
    value = t.pop(f)
    f.push(TRUE if t.comparisons.truth(value) else FALSE)


COMPARE = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}


@handles("COMPARE_OP")
def compare_op(t: Tracer, f: Frame, ins: Ins) -> None:
    right, left = t.pop(f), t.pop(f)
    symbol = str(ins.val).removeprefix("bool(").removesuffix(")")
    result = t.comparisons.compare(COMPARE[symbol], left, right)
    f.push((TRUE if t.comparisons.truth(result) else FALSE) if ins.arg & COMPARE_BOOL_BIT else result)


@handles("IS_OP")
def is_op(t: Tracer, f: Frame, ins: Ins) -> None:
    right, left = f.pop_raw(), f.pop_raw()
    f.push(TRUE if t.comparisons.is_same(left, right) != bool(ins.arg) else FALSE)


@handles("CONTAINS_OP")
def contains_op(t: Tracer, f: Frame, ins: Ins) -> None:
    container, item = t.pop(f), t.pop(f)
    f.push(TRUE if t.subscripts.contains(container, item) != bool(ins.arg) else FALSE)


@handles("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP", "JUMP_NO_INTERRUPT")
def jump(t: Tracer, f: Frame, ins: Ins) -> int | None:
    if ins.jump <= ins.index:
        t.limits.loop_step(f, ins)
    return ins.jump


@handles("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_IF_FALSE")
def pop_jump_if_false(t: Tracer, f: Frame, ins: Ins) -> int | None:
    return branch(t, f, ins, False)


@handles("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_IF_TRUE")
def pop_jump_if_true(t: Tracer, f: Frame, ins: Ins) -> int | None:
    return branch(t, f, ins, True)


def branch(t: Tracer, f: Frame, ins: Ins, wanted: bool) -> int | None:
    if t.comparisons.truth(t.pop(f)) is wanted:
        if ins.jump <= ins.index:
            t.limits.loop_step(f, ins)
        return ins.jump
    return None


@handles("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(t: Tracer, f: Frame, ins: Ins) -> int | None:
    return or_pop(t, f, ins, False)


@handles("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(t: Tracer, f: Frame, ins: Ins) -> int | None:
    return or_pop(t, f, ins, True)


def or_pop(t: Tracer, f: Frame, ins: Ins, wanted: bool) -> int | None:
    if t.comparisons.truth(t.values.real(f.stack[-1])) is wanted:
        return ins.jump
    f.stack.pop()
    return None


@handles("JUMP_IF_FALSE", "JUMP_IF_TRUE")
def jump_if(t: Tracer, f: Frame, ins: Ins) -> int | None:
    if t.comparisons.truth(t.values.real(f.stack[-1])) is (ins.op == "JUMP_IF_TRUE"):
        return ins.jump
    return None


@handles("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_IF_NONE")
def pop_jump_if_none(t: Tracer, f: Frame, ins: Ins) -> int | None:
    return ins.jump if t.comparisons.is_same(f.pop_raw(), NONE) else None


@handles("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", "POP_JUMP_IF_NOT_NONE")
def pop_jump_if_not_none(t: Tracer, f: Frame, ins: Ins) -> int | None:
    return None if t.comparisons.is_same(f.pop_raw(), NONE) else ins.jump
