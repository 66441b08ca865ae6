"""Facts about real classes: their attributes, read without code of a metaclass, and whether a library defines them."""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.quiet_reads import MRO, NAMESPACE
from bytejit.guards.class_lookups import MISSING, ClassLookups, Lookup, find, searched
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.versions import DOCSTRING_FLAG

# owner: the one trace that runs; what it stored into classes from outside: class -> name -> stub (see tracer/objects/classes.py)
WRITTEN: dict[type, dict[str, object]] = {}
# and what it looked for in classes: class, name, the class after which; value and owner. By addresses: a class's hash may be
# the program's
LOOKED_UP: dict[tuple[int, str, int], tuple[type, str, type | None, Any, type | None]] = {}
# special methods that the interpreter calls, whatever the class has there: `__bool__ = None` is a TypeError, and not a class
# without one. `__hash__` and `__contains__` are asked for None first, where they are looked up
CALLED = frozenset(
    f"__{name}__"
    for name in (
        "bool len iter next reversed length_hint getitem setitem delitem missing call enter exit getattr getattribute setattr "
        "delattr index int float complex round trunc floor ceil repr str bytes format dir sizeof fspath copy deepcopy neg pos "
        "invert abs eq ne lt le gt ge"
    ).split()
) | frozenset(
    f"__{kind}{name}__"
    for kind in ("", "r", "i")
    for name in "add sub mul truediv floordiv mod divmod pow matmul lshift rshift and or xor".split()
)

# torch's own, which the tracer knows: a program may put others in their place
MODULE_GETATTR, MODULE_SETATTR = torch.nn.Module.__getattr__, torch.nn.Module.__setattr__
MODULE_DELATTR = torch.nn.Module.__delattr__


def class_lookup(cls: type, name: str, after: type | None = None) -> tuple[Any, Any]:
    """(value, owner) of a class attribute by MRO, after `after` when given; (MISSING, None) without one. What it returns is
    guarded. Raises: Break for a special method that a class took away."""
    found = find(cls, name, after)
    if found[0] is None and name in CALLED:
        raise Break(f"{cls.__name__}.{name}, which is None")
    key = (id(cls), name, id(after))
    if key not in LOOKED_UP:
        LOOKED_UP[key] = (cls, name, after, *found)
    return WRITTEN and _written(cls, name, after) or found


def _written(cls: type, name: str, after: type | None) -> tuple[Any, type] | None:
    """Returns what the trace stored into a class of the MRO before the one that has the name; None where it did not."""
    for c in searched(cls, after):
        if c in WRITTEN and name in WRITTEN[c]:
            return WRITTEN[c][name], c
        if name in NAMESPACE(c):
            return None
    return None


def replaces_lookup(obj: object) -> bool:
    """Whether an object's class, or the class that the object is, has a metaclass with code of its own for what the tracer
    asks of classes."""
    return overrides_lookup(type(type(obj))) or issubclass(type(obj), type) and overrides_lookup(type(obj))


def overrides_lookup(meta: type) -> bool:
    """Whether a metaclass has code of its own for what the tracer asks of classes: attributes, hash, and equality."""
    return meta is not type and (
        any(class_lookup(meta, name)[0] is not NAMESPACE(object)[name] for name in ("__hash__", "__eq__"))
        or any(
            type(NAMESPACE(c).get(name)) in (types.FunctionType, property)
            for c in MRO(meta)
            if c not in (type, object)
            for name in ("__getattribute__", "__dict__", "__mro__", "__class__")
        )
    )


def hides_dict(cls: type) -> bool:
    """Whether reading `__dict__` of an instance runs code of the program, so that its own namespace cannot be had."""
    found = class_lookup(cls, "__dict__")[0]
    return found is not MISSING and type(found) not in (types.GetSetDescriptorType, types.MemberDescriptorType)


def is_slot(found: object, name: str) -> bool:
    """Whether what a class has under a special name is what C has there: object's, or that of a class written in C."""
    return isinstance(found, types.WrapperDescriptorType) and found.__name__ == name


def is_data_descriptor(value: object) -> bool:
    return any(class_lookup(type(value), hook)[1] is not None for hook in ("__set__", "__delete__"))


def guards_of_lookups(fixed: Callable[[type], bool]) -> list[tuple[type, ClassLookups]]:
    """Returns the lookups of the trace by class, for guards. fixed: whether a class cannot change, or is the trace's own: then
    its bases are guarded instead."""
    found: dict[int, tuple[type, dict]] = {}

    def add(cls: type, name: str, after: type | None, value: Any, owner: type | None) -> None:
        one = found.setdefault(id(cls), (cls, {}))[1]
        one.setdefault((name, id(after)), Lookup.of(name, after, value, owner))

    for cls, name, after, value, owner in LOOKED_UP.values():
        if not fixed(cls):
            add(cls, name, after, value, owner)
            continue
        for base in MRO(cls)[1:]:
            if not fixed(base):
                add(base, name, None, *find(base, name))
    return [(cls, ClassLookups.of(cls, names.values())) for cls, names in found.values()]


def docstring(code: types.CodeType) -> str | None:
    """The docstring of a function's code."""
    first = code.co_consts[0] if code.co_consts else None
    return first if isinstance(first, str) and (not DOCSTRING_FLAG or code.co_flags & DOCSTRING_FLAG) else None


# names in every class of named tuples, and names that Python or `typing` adds and no operator asks for
_OF_NAMED_TUPLES = frozenset(NAMESPACE(collections.namedtuple("_OfAll", "a"))) | {
    *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__orig_bases__"),
    *("__firstlineno__", "__static_attributes__", "__type_params__", "__parameters__", "__str__", "__format__"),
    "__classdictcell__",  # since Python 3.14, in a class whose annotations are evaluated late
}


def is_named_tuple(cls: type) -> bool:
    """Whether a class is a named tuple without special methods of its own: operators take its instances for tuples."""
    names = NAMESPACE(cls)
    if "_fields" not in names or names.get("__slots__") != () or MRO(cls)[1:] != (tuple, object):
        return False
    return not any(n not in _OF_NAMED_TUPLES and (n[:2] == n[-2:] == "__" or hasattr(tuple, n)) for n in names)


@functools.cache
def structseq_fields(cls: Any) -> dict[str, int]:
    """Place of each field of a C struct sequence (torch.return_types.*, os.stat_result), those past its items included."""
    if not cls.n_unnamed_fields:
        return {n: i for i, n in enumerate(cls.__match_args__)}
    members = [n for n in dir(cls) if isinstance(getattr(cls, n), types.MemberDescriptorType)]
    probe = cls(range(cls.n_fields))
    return {n: getattr(probe, n) for n in members}


def class_attribute(cls: type, name: str) -> Any:
    """A class attribute found by MRO, unbound; None without one."""
    found = class_lookup(cls, name)[0]
    return None if found is MISSING else found
