"""The opcodes of the Python that runs, by what the rewriter asks of them; and their effects on the stack.

A name that this Python does not have is in none of the sets, so what differs between versions is which names there are.
"""

from __future__ import annotations

import dis
from functools import cache

OPNAME = dis.opname
OPMAP = {name: op for name, op in dis.opmap.items() if op < 256}  # 3.12 lists the compiler's pseudo opcodes as well
EXTENDED_ARG = OPMAP["EXTENDED_ARG"]
# 3.13 swapped what a call finds on the stack: NULL below the callable before, above it since. CALL_KW came with it.
NULL_ABOVE = "CALL_KW" in OPMAP


def opcodes(*names: str) -> frozenset[int]:
    """The opcodes of those names that this Python has."""
    return frozenset(OPMAP[name] for name in names if name in OPMAP)


# since 3.12 dis lists them: HAVE_ARGUMENT no longer parts the opcodes
WITH_ARGUMENT = frozenset(getattr(dis, "hasarg", range(dis.HAVE_ARGUMENT, 256)))
UNCONDITIONAL = opcodes("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
FINAL = opcodes("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE") | UNCONDITIONAL
LOOP_ENDS = opcodes("END_ASYNC_FOR").intersection(dis.hasjrel)  # since 3.14 it names its SEND, for monitors; no jump
JUMPS = frozenset(op for op in (*dis.hasjrel, *dis.hasjabs) if op < 256)
BACKWARD = LOOP_ENDS | frozenset(op for op in JUMPS if "BACKWARD" in OPNAME[op])
SENDS = opcodes("SEND")
CALLS = opcodes("CALL", "CALL_KW", "CALL_FUNCTION_EX")
CALL_INSIDE = opcodes("PRECALL", "CALL", "CALL_KW")  # illegal to stop before, when KW_NAMES or PRECALL came before
CALL_PREFIX = opcodes("KW_NAMES", "PRECALL")
AFTER_LOOP = opcodes("END_FOR", "POP_ITER")
# after these the interpreter has run user code whose result lies on the stack: a site follows
SITE_AFTER = CALLS | opcodes("BEFORE_WITH", "LOAD_SPECIAL")
# these touch only the frame: no region needs to stop just before or after one of them
PLAIN = opcodes(
    "LOAD_FAST", "LOAD_CONST", "STORE_FAST", "POP_TOP", "SWAP", "COPY", "NOP", "PUSH_NULL", "RESUME", "LOAD_CLOSURE",
    "STORE_DEREF", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "BUILD_TUPLE", "BUILD_LIST",
    "BUILD_SLICE", "BUILD_STRING", "MAKE_CELL", "COPY_FREE_VARS", "RETURN_GENERATOR", "IS_OP", "LOAD_FAST_LOAD_FAST",
    "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_CHECK", "EXTENDED_ARG",
    "LOAD_ASSERTION_ERROR", "PUSH_EXC_INFO", "POP_EXCEPT", "MAKE_FUNCTION", "SET_FUNCTION_ATTRIBUTE", "END_SEND",
    "LOAD_FAST_BORROW", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_SMALL_INT", "LOAD_COMMON_CONSTANT", "NOT_TAKEN",
)  # fmt: skip
# never raise, and stand where the exception table already names the handler outside the one being left or entered
NEVER_RAISE = opcodes("PUSH_EXC_INFO", "POP_EXCEPT", "SWAP", "COPY", "NOP")
METHOD_LOADS = opcodes("LOAD_METHOD")
ATTR, GLOBAL, SUPER = OPMAP["LOAD_ATTR"], OPMAP["LOAD_GLOBAL"], OPMAP.get("LOAD_SUPER_ATTR", -1)
ATTR_HAS_BIT = not METHOD_LOADS
CLEARING = OPMAP.get("LOAD_FAST_AND_CLEAR", -1)
STORE_FAST, PUSH_EXC_INFO, POP_EXCEPT = OPMAP["STORE_FAST"], OPMAP["PUSH_EXC_INFO"], OPMAP["POP_EXCEPT"]
STORES = opcodes("STORE_FAST", "STORE_FAST_STORE_FAST", "STORE_FAST_LOAD_FAST")
SLOT_PAIRS = opcodes("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")


@cache
def stack_effect(op: int, arg: int, jump: bool) -> int:
    """Slots that an instruction adds, on its jump or on its fall-through."""
    name = OPNAME[op]
    if name == "RETURN_GENERATOR":
        return 1  # what the first send() brings; 3.11 counts it elsewhere
    if name == "PRECALL":
        return 0  # 3.11 splits the effect of a call between PRECALL and CALL; here CALL has all of it
    if name == "CALL":
        return -1 - arg
    return dis.stack_effect(op, arg if op in WITH_ARGUMENT else None, jump=jump)


def has_argument(op: int) -> bool:
    """Does this operation read its argument?"""
    return op in WITH_ARGUMENT


def is_method_load(op: int, arg: int) -> bool:
    """Does the instruction load a method for a call, which the rewriter replaces by a plain load and a NULL?"""
    return op in METHOD_LOADS or (op == ATTR and ATTR_HAS_BIT and arg & 1 == 1) or (op == SUPER and arg & 1 == 1)
