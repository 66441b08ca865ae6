"""What differs between Python versions, as data: the only reader of sys.version_info in the tracer."""

from __future__ import annotations

import collections
import functools
import sys
from typing import Any

PY = sys.version_info[:2]

# LOAD_GLOBAL's and LOAD_ATTR's low bit: the NULL goes below the callable up to 3.12, above it from 3.13 on
NULL_BELOW = PY < (3, 13)
# 3.12+: LOAD_ATTR's low bit asks for a method load, LOAD_GLOBAL's for a NULL (3.11 has it on LOAD_GLOBAL only)
ATTR_METHOD_BIT = PY >= (3, 12)
# 3.13+: COMPARE_OP's bit 16 asks for an exact bool
COMPARE_BOOL_BIT = 16 if PY >= (3, 13) else 0
# 3.12+: FOR_ITER leaves the exhausted iterator for END_FOR to pop (3.13: END_FOR pops one, POP_TOP/POP_ITER the other)
FOR_ITER_KEEPS = PY >= (3, 12)
# 3.12: END_FOR pops two; 3.13+: one
END_FOR_POPS = 2 if PY == (3, 12) else 1
# 3.14+: a code object says whether its first constant is a docstring; before, the first constant is one or None
DOCSTRING_FLAG = 0x4000000 if PY >= (3, 14) else 0
# 3.14+: a function's annotations are made by a function, its __annotate__
ANNOTATES = PY >= (3, 14)
# 3.14+: what cannot be hashed is named with what it was to be: "cannot use 'list' as a dict key (unhashable type: 'list')"
NAMES_THE_KEY = PY >= (3, 14)
# 3.14+: list.index, deque.index and deque.remove no longer show the value that they did not find
SHOWS_MISSING = PY < (3, 14)
# 3.14+: what `in` cannot be asked of is "not a container or iterable"
CONTAINER = "a container or iterable" if PY >= (3, 14) else "iterable"
# 3.13+: what a slot that is not set says names the class with its module
FULL_NAMES_OF_SLOTS = PY >= (3, 13)
# 3.13+: what is said besides of an object that can have no other attributes; the error has the attribute's name then
NO_DICT = " and no __dict__ for setting new attributes" if PY >= (3, 13) else ""
# 3.14+: what is no context manager is named with its module and the method that it lacks, also for __enter__
NAMES_THE_ENTER = PY >= (3, 14)
# 3.14+: too many values of a list, tuple or dict are counted in the message
COUNTS_UNPACKED = PY >= (3, 14)
# 3.13+: a SimpleNamespace may be made from a mapping
NAMESPACE_ARGUMENTS = 1 if PY >= (3, 13) else 0
# until 3.12 classmethod(property(f)) reads as f(cls)
CLASSMETHODS_CHAIN = PY < (3, 13)
# 3.12+: sum() of floats carries along what the additions round off (3.14: of complex numbers, too)
SUM_COMPENSATES = PY >= (3, 12)
# 3.14+: map(strict=True), functools.reduce(initial=)
MAP_IS_STRICT = PY >= (3, 14)
REDUCE_NAMES_INITIAL = PY >= (3, 14)
# 3.13+: itertools.batched(strict=True)
BATCHED_NAMES = {"strict"} if PY >= (3, 13) else set[str]()
# 3.14+: in a partial's arguments, the placeholder of one that the call passes; before 3.14 no value equals it
PLACEHOLDER = getattr(functools, "Placeholder", object())
# 3.13+: generator.close() gives what the generator returns
CLOSE_RETURNS = PY >= (3, 13)
# what int() asks an object for; until 3.13 also __trunc__
INT_METHODS = ("__int__", "__index__", "__trunc__") if PY < (3, 14) else ("__int__", "__index__")
# 3.14+: a tuple that is made, and a call's *args, no longer ask how many items there are
TUPLES_ASK_LENGTHS = PY < (3, 14)
# 3.14+: complex() of a float, also of a subclass, takes its value without asking __float__
COMPLEX_ASKS_FLOATS = PY < (3, 14)


def _defaults_are_stored() -> bool:
    made: collections.defaultdict[str, int] = collections.defaultdict(lambda: made.update(k=1) or 2)
    return made["k"] == 1


# 3.14+, and late releases of 3.13: what a defaultdict makes is stored as by dict.setdefault: a subclass's __setitem__ is not
# asked, and what the factory put there itself stays
DEFAULTS_ARE_STORED = _defaults_are_stored()
# 3.14+: CALL_FUNCTION_EX always has a slot for the keyword arguments
CALL_EX_ALWAYS_HAS_KWARGS = PY >= (3, 14)


def newer(owner: object, *names: str) -> tuple[Any, ...]:
    """Returns the named functions of a module or class that this Python has: older ones lack some."""
    return tuple(getattr(owner, name) for name in names if hasattr(owner, name))
