"""Values in the words of messages: "a tensor", "the function f", "an object of the class C"."""

from __future__ import annotations

import collections
import types

from bytejit.common import special_cases
from bytejit.common.quiet_reads import HEAP_TYPE
from bytejit.common.text import without_records

from .iterator_values import GenVar, IterVar
from .range_values import RangeVar
from .read_values import ReadVar
from .texts import TextVar, UnreadText
from .values import (
    CellVar,
    DeferredVar,
    DictVar,
    DictView,
    FuncVar,
    InstanceVar,
    Known,
    Lazy,
    MethodVar,
    PropertyVar,
    SeqVar,
    SetVar,
    SliceVar,
    SuperVar,
    SymVar,
    TensorVar,
    TracebackVar,
    Var,
)

CONSTANTS = (type(None), bool, int, float, complex, str, bytes)
WORDS: dict[type[Var], str] = {
    CellVar: "a closure cell",
    DeferredVar: "a random number",
    ReadVar: "a tensor's value",
    GenVar: "a generator",
    IterVar: "an iterator",
    RangeVar: "a range whose bounds change between calls",
    SliceVar: "a slice with a tensor in it",
    SuperVar: "super()",
    SymVar: "a number that changes between calls",
    TensorVar: "a tensor",
    TextVar: "text made of a number that changes between calls",
    TracebackVar: "a traceback",
    UnreadText: "text made of a tensor's values",
}


def article(noun: str) -> str:
    """The noun with "a" or "an"."""
    return f"{'an' if noun[:1] in 'aeiouAEIOU' else 'a'} {noun}"


def words_of_object(obj: object) -> str:
    """A real object in a message."""
    if type(obj) in CONSTANTS:
        text = repr(obj)
        return text if len(text) <= 40 else f"{text[:37]}..."
    if isinstance(obj, type):
        return f"the class {obj.__name__}"
    if isinstance(obj, types.ModuleType):
        return f"the module {obj.__name__}"
    name = getattr(obj, "__qualname__", None)
    if callable(obj) and isinstance(name, str):
        return f"the function {without_records(name)}"
    return article(type(obj).__name__)


def words(v: Var) -> str:
    """A value of the program in a message."""
    if type(v) is Lazy:
        return words_of_object(v.obj) if v.var is None else words(v.var)
    if type(v) in WORDS:
        return WORDS[type(v)]
    if isinstance(v, Known):
        return words_of_object(v.obj)
    if isinstance(v, FuncVar):
        return f"the function {v.qualname}"
    if isinstance(v, MethodVar):
        return f"a method of {words(v.self)}"
    if isinstance(v, DictView):
        return f"the {v.kind} of {words(v.owner)}"
    if isinstance(v, (InstanceVar, SeqVar, DictVar, SetVar, PropertyVar)):
        return article(v.cls.__name__)
    return article(type_name) if (type_name := getattr(getattr(v, "cls", None), "__name__", "")) else "a value"


# subclasses of these make instances of themselves by copy() and operators, and messages name these with their module
OF_OWN_KIND = (collections.OrderedDict, collections.defaultdict, collections.deque)


def shown_name(cls: type) -> str:
    """A type's name as CPython's messages have it."""
    in_c = cls in OF_OWN_KIND or not cls.__flags__ & HEAP_TYPE and not special_cases.BUILTINS.made(cls)
    return f"{cls.__module__}.{cls.__name__}" if in_c else cls.__name__
