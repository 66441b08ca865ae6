"""Kinds of guards: what a trace read from outside and baked in. A guard is a source, a kind, and the value seen while tracing.

Each kind is one row of KINDS, which says all of it: the check as Python text and as a step of compiled code, the value
that is kept, which other guards it makes redundant, and the message when it fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any, Protocol

import torch

from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.overriding import overrides
from bytejit.common.where import short_path
from bytejit.compat import class_versions, torch_functions

from .checks import (
    class_text,
    computed_text,
    distinct_text,
    equals_as_text,
    equals_text,
    function_text,
    id_is_text,
    keys_text,
    set_items_text,
    state_text,
    type_is_text,
)
from .class_lookups import UNKNOWN, ClassCheck, ClassLookups
from .conditions import Distinct, expression_text
from .global_state import GlobalState
from .native_checker import row as tensor_words
from .references import Ref, SourcePrinter, class_can_change, plain
from .source import Source
from .sources import KnownSource, Scope
from .tensor_checks import TensorCheck, neg_possible, tensor_checks

TYPE_IS = "TYPE_IS"  # value: the exact type
ID_IS = "ID_IS"  # value: the object itself
EQUALS = "EQUALS"  # value: a plain constant; strict about types (1, True, 1.0), signs of zero, nan
EQUALS_AS = "EQUALS_AS"  # value: (int, float, str, ...; what an instance of a subclass of it is when made that)
BOOL = "BOOL"  # value: bool(x)
LEN_IS = "LEN_IS"  # value: len(x)
DICT_KEYS = "DICT_KEYS"  # value: tuple of keys, in order
DICT_ABSENT = "DICT_ABSENT"  # value: a key that is not there
PRESENT = "PRESENT"  # what can be fetched, whatever it is
ATTR_ABSENT = "ATTR_ABSENT"  # value: an attribute name that hasattr denies
SET_ITEMS = "SET_ITEMS"  # value: tuple of items in iteration order, or a frozenset when the order was not read
TENSOR = "TENSOR"  # value: TensorCheck
EXPR = "EXPR"  # value: SizeCondition
ALIAS = "ALIAS"  # value: (other source, whether they are the same object)
DISTINCT = "DISTINCT"  # value: Distinct, whose first source is the guard's own
GLOBAL_STATE = "GLOBAL_STATE"  # source: GlobalState(name); value: what it was
FUNCTION = "FUNCTION"  # value: the function (its code, number of defaults, names of keyword defaults)
CLASS = "CLASS"  # value: ClassLookups; source: the class
VALUE = "VALUE"  # value: ComputedItems, whose first source is the guard's own


class NoStep(Exception):
    """Raised by a row's `step`: compiled code cannot check this guard, Python does."""


class StepWriter(Protocol):
    """The table of compiled checks that a row's `step` writes for (`GuardProgram`). What it returns are words of a step."""

    def fetched(self, source: Source) -> int:
        """The slot that holds a source's value. Raises: NoStep where compiled code cannot fetch it."""
        ...

    def object(self, ref: Ref) -> int:
        """The slot that holds an object known by identity."""
        ...

    def address(self, obj: Any) -> int:
        """The address of an object that lives as long as the table. Raises: Bug for one that is held weakly."""
        ...

    def type_of(self, source: Source) -> type | None:
        """The exact type of a source's value, where other guards hold it."""
        ...


@light_dataclass(frozen=True, slots=True)
class GuardKind:
    """One kind of guard. The functions are given the value that the guard keeps."""

    check: Callable[[SourcePrinter, str, Any], str]  # (printer, text of what is there now, value) -> the check as Python
    says: str  # when it fails, over {name}, {want} and {got}
    seen: str = "{x}"  # expression for {got}; "" shows nothing
    shown: Callable[[Any], str] | None = None  # the value as text: {want}; None: its repr
    once: bool = True  # the check has the text of what is there now once (else it is fetched into a local first)
    last: bool = False  # checked after all others
    later: bool = False  # may be checked once more after the call, where it reads globals only
    keep: Callable[[Any], Any] = lambda value: value  # what was seen -> the value that a guard keeps, objects as Ref
    apart: Callable[[Any], Any] = lambda value: False  # tells those on one source apart; by default there is one
    others: Callable[[Any], Iterable[Source]] = lambda value: ()  # sources that the check reads besides the guard's own
    sure: Callable[[Source], bool] = lambda source: False  # on this source it cannot fail: no guard is added
    implies: Callable[[Any, str], bool] = lambda value, kind: False  # a guard of another kind on the same source is redundant
    # the step of compiled code: an op of native_checker.OPS and its words, or () where fetching is the check
    step: Callable[[StepWriter, Source, Any], tuple] | None = None


# ---- what is kept, and what tells guards apart


def by_value(value: Any) -> Any:
    """For `apart`: guards with different values are different guards."""
    return (type(value), value)


def _object(value: Any) -> Any:
    return value if value is None or value is Ellipsis or type(value) is bool else Ref(value)


def _plain_or_ref(value: Any) -> Any:
    return value if isinstance(value, Ref) or plain(value) else Ref(value)


def _items(value: Any) -> Any:
    return value if isinstance(value, frozenset) else tuple(map(_plain_or_ref, value))


def _function_facts(value: Any) -> tuple:
    """What a function is now: its code can be replaced."""
    if type(value) is tuple:
        return value
    return value.__code__, len(value.__defaults__ or ()), tuple(value.__kwdefaults__ or ())


def _code_text(value: tuple) -> str:
    """A function's code in a message: its name and place, without its address."""
    code = value[0]
    if not isinstance(code, CodeType):
        return repr(code)
    return f"{code.co_qualname} at {short_path(code.co_filename)}:{code.co_firstlineno}"


# ---- what cannot fail, and what makes others redundant


def _type_is_sure(source: Source) -> bool:
    return isinstance(source, Scope) or (isinstance(source, KnownSource) and not class_can_change(source.ref.get()))


def _identity_implies(value: Any, kind: str) -> bool:
    if kind == TYPE_IS:  # an instance of a Python class can be given another __class__ later
        return not isinstance(value, Ref) or not class_can_change(value.get())
    return kind == EQUALS and not isinstance(value, Ref)


def _items_imply(value: Any, kind: str) -> bool:
    """A set's items in their order are more than its items."""
    return kind in (LEN_IS, DICT_ABSENT) or kind == SET_ITEMS and isinstance(value, tuple)


# ---- steps of compiled code


def _weak(value: Any) -> bool:
    return isinstance(value, Ref) and value.weak


def _type_step(to: StepWriter, source: Source, value: Ref) -> tuple:
    x = to.fetched(source)
    return ("CLASS_IS", x, to.object(value)) if _weak(value) else ("TYPE_IS", x, to.address(value))


def _id_step(to: StepWriter, source: Source, value: Any) -> tuple:
    x = to.fetched(source)
    return ("ALIAS", x, to.object(value), 1) if _weak(value) else ("IS", x, to.address(value), 1)


def _equals_step(to: StepWriter, source: Source, value: Any) -> tuple:
    singletons = value is None or value is Ellipsis or type(value) is bool
    by_identity = singletons or isinstance(value, (torch.dtype, torch.layout, torch.memory_format))
    x = to.fetched(source)
    return ("IS", x, to.address(value), 1) if by_identity else ("EQUALS", x, to.address(value))


def _keys_step(to: StepWriter, source: Source, keys: tuple) -> tuple:
    if any(type(k) is not str for k in keys):
        raise NoStep
    x = to.fetched(source)
    return ("KEYS", x, to.address(list(keys))) if keys else ("TRUE", x, 0)


def _absent_step(to: StepWriter, source: Source, key: Any) -> tuple:
    x = to.fetched(source)
    if _weak(key):
        raise NoStep
    return "HAS", x, to.address(sys.intern(key) if type(key) is str else key), 0


def _present_step(to: StepWriter, source: Source, value: None) -> tuple:
    to.fetched(source)
    return ()


def _tensor_step(to: StepWriter, source: Source, value: TensorCheck) -> tuple:
    words = None if overrides(value.type) else tensor_words(value, neg_possible(value))
    if words is None:
        raise NoStep
    return "TENSOR", to.fetched(source), *words


def _distinct_step(to: StepWriter, source: Source, value: Distinct) -> tuple:
    return "DISTINCT", len(value.changed), len(value.others), *map(to.fetched, value.sources)


def _function_step(to: StepWriter, source: Source, value: tuple) -> tuple:
    code, count, keys = value
    if keys or to.type_of(source) is not FunctionType:
        raise NoStep
    return "FUNCTION", to.fetched(source), to.address(code), count


def _state_step(to: StepWriter, source: Source, value: Any) -> tuple:
    getter = source.getter if isinstance(source, GlobalState) else None
    by_identity = value is None or type(value) is bool or (type(value) is int and value == 0) or type(value) is torch.dtype
    if getter is None or not by_identity:
        raise NoStep
    if (flag := torch_functions.flag(getter)) is not None:
        return "FLAG", flag, int(value)
    library = torch_functions.keys_library() if getter in torch_functions.KEYED and not value else None
    if library is not None:
        return "KEYED", to.address(getter), to.address(value), library, 0, 0, 0
    return "STATE", to.address(getter), to.address(value)


def _class_step(to: StepWriter, source: Source, value: ClassLookups) -> tuple:
    x = to.fetched(source)
    return "CLASS", x, class_versions.place() or 0, UNKNOWN, to.address(ClassCheck(value).again)


WAS = "{name} was {want}, is {got}"

KINDS: dict[str, GuardKind] = {
    TYPE_IS: GuardKind(
        type_is_text,
        "{name} was a {want}, is a {got}",
        seen="type({x})",
        later=True,
        keep=_object,
        sure=_type_is_sure,
        step=_type_step,
    ),
    ID_IS: GuardKind(
        id_is_text,
        "{name} is another object: was {want}, is {got}",
        later=True,
        keep=_object,
        sure=lambda source: isinstance(source, (KnownSource, Scope)),
        implies=_identity_implies,
        step=_id_step,
    ),
    EQUALS: GuardKind(
        equals_text,
        WAS,
        once=False,
        later=True,
        implies=lambda value, kind: kind in (TYPE_IS, BOOL, LEN_IS),
        step=_equals_step,
    ),
    EQUALS_AS: GuardKind(equals_as_text, WAS),
    BOOL: GuardKind(
        lambda at, x, value: x if value else f"not {x}",
        "bool({name}) was {want}, is {got}",
        seen="bool({x})",
        later=True,
        step=lambda to, source, value: ("TRUE", to.fetched(source), int(value)),
    ),
    LEN_IS: GuardKind(
        lambda at, x, value: f"len({x}) == {value}",
        "len({name}) was {want}, is {got}",
        seen="len({x})",
        later=True,
        step=lambda to, source, value: ("LEN", to.fetched(source), value),
    ),
    DICT_KEYS: GuardKind(
        keys_text,
        "keys of {name} were {want}, are {got}",
        seen="[*{x}]",
        later=True,
        keep=_items,
        implies=lambda value, kind: kind in (LEN_IS, DICT_ABSENT),
        step=_keys_step,
    ),
    DICT_ABSENT: GuardKind(
        lambda at, x, value: f"{at.literal(value)} not in {x}",
        "{name} has got the key {want}",
        seen="",
        later=True,
        keep=_plain_or_ref,
        apart=by_value,
        step=_absent_step,
    ),
    PRESENT: GuardKind(lambda at, x, value: f"[{x}]", "{name} cannot be fetched", seen="", step=_present_step),
    ATTR_ABSENT: GuardKind(
        lambda at, x, value: f"not hasattr({x}, {value!r})",
        "{name} has got the attribute {want}",
        seen="",
        later=True,
        apart=by_value,
    ),
    SET_ITEMS: GuardKind(
        set_items_text,
        "items of {name} were {want}, are {got}",
        once=False,
        keep=_items,
        apart=lambda value: isinstance(value, frozenset),
        implies=_items_imply,
    ),
    TENSOR: GuardKind(
        lambda at, x, value: " and ".join(tensor_checks(at, x, value)),
        WAS,
        once=False,
        implies=lambda value, kind: kind == TYPE_IS,
        step=_tensor_step,
    ),
    EXPR: GuardKind(
        lambda at, x, value: f"({expression_text(at, value)})",
        "{want} no longer holds",
        seen="",
        apart=by_value,
        others=lambda value: [source for _, source in value.names],
    ),
    ALIAS: GuardKind(
        lambda at, x, value: f"{x} is {'' if value[1] else 'not '}{at.source(value[0])}",
        "whether {name} {want} changed",
        seen="",
        shown=lambda value: f"is {'' if value[1] else 'not '}{value[0].name()}",
        apart=by_value,
        others=lambda value: value[:1],
        step=lambda to, source, value: ("ALIAS", to.fetched(source), to.fetched(value[0]), int(value[1])),
    ),
    DISTINCT: GuardKind(
        distinct_text,
        "{name} and {want} have become one object",
        seen="",
        apart=by_value,
        others=lambda value: value.sources[1:],
        step=_distinct_step,
    ),
    GLOBAL_STATE: GuardKind(state_text, WAS, step=_state_step),
    FUNCTION: GuardKind(
        function_text,
        "{name} has another code or other defaults",
        shown=_code_text,
        once=False,
        keep=_function_facts,
        step=_function_step,
    ),
    CLASS: GuardKind(class_text, "{name} has changed, of which these were looked for: {want}", seen="", step=_class_step),
    VALUE: GuardKind(  # right only for tensors that have been checked, and dear
        computed_text,
        "what was computed from {name} was {want}, is another",
        last=True,
        apart=by_value,
        others=lambda value: value.sources[1:],
    ),
}
