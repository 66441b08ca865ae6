"""Handlers: building and unpacking containers and strings, comprehension appends, formatting, pattern matching."""

from __future__ import annotations

import collections.abc
from typing import Any

from bytejit.tracer.core import set_tables
from bytejit.tracer.core.exceptions import exception_var
from bytejit.tracer.core.frame import Frame, Ins
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.table import handles
from bytejit.tracer.core.texts import joined, text_of
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, NULL, DictVar, InstanceVar, Known, SeqVar, SetVar, Var
from bytejit.tracer.core.versions import NULL_BELOW
from bytejit.tracer.objects.containers import ELEMENT, elements, key_of, set_part
from bytejit.tracer.objects.made_dicts import MadeDict
from bytejit.tracer.objects.set_orders import note, operand_of, plain
from bytejit.tracer.objects.unread_texts import unread

from .call import as_tuple, shown


@handles("BUILD_TUPLE")
def build_tuple(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(SeqVar(f.popn(ins.arg), tuple))


@handles("BUILD_LIST")
def build_list(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(SeqVar(f.popn(ins.arg), list))


@handles("BUILD_SET")
def build_set(t: Tracer, f: Frame, ins: Ins) -> None:
    made = SetVar(elements(t, f.popn(ins.arg)))
    made.table = set_tables.of(set, made.items) if plain(made.items) else None
    f.push(made)


@handles("BUILD_MAP")
def build_map(t: Tracer, f: Frame, ins: Ins) -> None:
    flat = f.popn(2 * ins.arg)
    out = MadeDict(t)
    for key, value in zip(flat[::2], flat[1::2]):
        t.subscript_writes.dict_set(out, t.values.real(key), value)
    f.push(out)


@handles("BUILD_CONST_KEY_MAP")
def build_const_key_map(t: Tracer, f: Frame, ins: Ins) -> None:
    out = DictVar({})
    for key, value in zip(map(t.values.constant, t.const(t.pop(f))), f.popn(ins.arg)):
        t.subscript_writes.dict_set(out, key, value)
    f.push(out)


@handles("BUILD_STRING")
def build_string(t: Tracer, f: Frame, ins: Ins) -> None:
    parts = [t.values.real(v) for v in f.popn(ins.arg)]
    f.push(text_of(joined, parts) or unread(t, joined, parts) or Known(joined(*map(t.const, parts))))


@handles("LIST_TO_TUPLE")
def list_to_tuple(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(as_tuple(t.pop(f)))


def target_of(t: Tracer, f: Frame, ins: Ins) -> Any:
    """The container on the stack that is about to be filled. A region may start while it is half filled."""
    target = t.values.real(f.stack[-ins.arg])
    t.touch(target)
    return target


def set_of(t: Tracer, f: Frame, ins: Ins) -> SetVar:
    """`target_of` a set. Raises: Break for one from before the region whose items are not modelled."""
    target = target_of(t, f, ins)
    if not isinstance(target, SetVar):
        raise Break("a set from outside that is being filled")
    return target


@handles("LIST_EXTEND")
def list_extend(t: Tracer, f: Frame, ins: Ins) -> None:
    values = t.pop(f)
    target = target_of(t, f, ins)
    try:
        items = t.iteration.iterate(values, sized=True)
    except Raised:
        if t.iteration.has_iter(values):
            raise
        raise Raised(exception_var(TypeError(f"Value after * must be an iterable, not {t.type_of(values).__name__}"))) from None
    target.items.extend(items)


@handles("SET_UPDATE")
def set_update(t: Tracer, f: Frame, ins: Ins) -> None:
    values = t.pop(f)
    items, target = t.iteration.iterate(set_part(values)), set_of(t, f, ins)
    before = list(target.items)
    for v in items:
        target.items.setdefault(key_of(t, t.values.real(v), ELEMENT), v)
    note(t, target, "update", before, [operand_of(values)], None)


@handles("DICT_UPDATE")
def dict_update(t: Tracer, f: Frame, ins: Ins) -> None:
    other = t.pop(f)
    if (pairs := t.iteration.mapping_items(other)) is None:
        raise Raised(exception_var(TypeError(f"'{t.type_of(other).__name__}' object is not a mapping")))
    target = target_of(t, f, ins)
    for key, value in pairs:
        t.subscript_writes.dict_set(target, key, value)


@handles("DICT_MERGE")
def dict_merge(t: Tracer, f: Frame, ins: Ins) -> None:
    other = t.pop(f)
    target = target_of(t, f, ins)
    pairs = t.iteration.mapping_items(other)
    function = f.stack[-ins.arg - (2 if NULL_BELOW else 3)]
    if pairs is None:
        what = f"{shown(t, function)} argument after ** must be a mapping, not {t.type_of(other).__name__}"
        raise Raised(exception_var(TypeError(what)))
    for key, value in pairs:
        if t.type_of(key) is not str and issubclass(t.type_of(key), str):
            raise Break(f"a keyword that is a {t.type_of(key).__name__}, which compares in its own way")
        if key_of(t, key) in target.items:
            raise Raised(
                exception_var(TypeError(f"{shown(t, function)} got multiple values for keyword argument '{t.const(key)}'"))
            )
        t.subscript_writes.dict_set(target, key, value)


@handles("LIST_APPEND")
def list_append(t: Tracer, f: Frame, ins: Ins) -> None:
    value = f.pop_raw()
    target_of(t, f, ins).items.append(value)


@handles("SET_ADD")
def set_add(t: Tracer, f: Frame, ins: Ins) -> None:
    value, target = t.pop(f), set_of(t, f, ins)
    before = list(target.items)
    target.items.setdefault(key_of(t, value, ELEMENT), value)
    note(t, target, "add", before, [], None)


@handles("MAP_ADD")
def map_add(t: Tracer, f: Frame, ins: Ins) -> None:
    value, key = f.pop_raw(), t.pop(f)
    t.subscript_writes.dict_set(target_of(t, f, ins), key, value)


@handles("UNPACK_SEQUENCE")
def unpack_sequence(t: Tracer, f: Frame, ins: Ins) -> None:
    items = t.iteration.unpack(t.pop(f), ins.arg)
    f.stack.extend(reversed(items))


@handles("UNPACK_EX")
def unpack_ex(t: Tracer, f: Frame, ins: Ins) -> None:
    before, after = ins.arg & 0xFF, ins.arg >> 8
    given = t.pop(f)
    t.iteration.check_unpacked(given)
    items = t.iteration.rest(given, before)
    if len(items) < before + after:
        if after:
            message = f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        else:
            message = f"not enough values to unpack (expected at least {before}, got {len(items)})"
        raise Raised(exception_var(ValueError(message)))
    tail = items[len(items) - after :]
    middle = items[before : len(items) - after]
    f.stack.extend(reversed([*items[:before], SeqVar(middle, list), *tail]))


CONVERSIONS = {0: None, 1: str, 2: repr, 3: ascii}


@handles("FORMAT_VALUE")
def format_value(t: Tracer, f: Frame, ins: Ins) -> None:
    """3.11, 3.12: bits 0-1 say the conversion, bit 2 that a format spec is on the stack."""
    spec = t.pop(f) if ins.arg & 4 else Known("")
    value = t.pop(f)
    conversion = CONVERSIONS[ins.arg & 3]
    if conversion is not None:
        value = t.calls.call_python(conversion, [value])
    f.push(t.calls.call_python(format, [value, spec]))


@handles("CONVERT_VALUE")
def convert_value(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(t.calls.call_python(CONVERSIONS[ins.arg], [t.pop(f)]))


@handles("FORMAT_SIMPLE")
def format_simple(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(t.calls.call_python(format, [t.pop(f), Known("")]))


@handles("FORMAT_WITH_SPEC")
def format_with_spec(t: Tracer, f: Frame, ins: Ins) -> None:
    spec, value = t.pop(f), t.pop(f)
    f.push(t.calls.call_python(format, [value, spec]))


@handles("GET_LEN")
def get_len(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(Known(t.subscripts.length(t.values.real(f.stack[-1]))))


@handles("MATCH_MAPPING")
def match_mapping(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(t.values.constant(issubclass(t.type_of(t.values.real(f.stack[-1])), collections.abc.Mapping)))


@handles("MATCH_SEQUENCE")
def match_sequence(t: Tracer, f: Frame, ins: Ins) -> None:
    cls = t.type_of(t.values.real(f.stack[-1]))
    f.push(t.values.constant(issubclass(cls, collections.abc.Sequence) and not issubclass(cls, (str, bytes, bytearray))))


ABSENT = Known(object())  # what a mapping's `get` returns for a key that it lacks


@handles("MATCH_KEYS")
def match_keys(t: Tracer, f: Frame, ins: Ins) -> None:
    keys, subject = t.values.real(f.stack[-1]), t.values.real(f.stack[-2])
    out = []
    for key in t.iteration.iterate(keys):
        if isinstance(subject, InstanceVar):
            found = t.calls.call(t.attributes.getattr(subject, "get"), [key, ABSENT], {})
            if t.comparisons.is_same(found, ABSENT):
                f.push(NONE)
                return
            out.append(found)
            continue
        if not t.subscripts.contains(subject, t.values.real(key)):
            f.push(NONE)
            return
        out.append(t.subscripts.getitem(subject, t.values.real(key)))
    f.push(SeqVar(out, tuple))


# a class pattern with one position compares the subject itself
MATCH_SELF = frozenset({bool, bytearray, bytes, dict, float, frozenset, int, list, set, str, tuple})


def _check_patterns(t: Tracer, cls: Var, count: int, given: int) -> None:
    if given > count:
        what = f"{t.const(cls).__name__}() accepts {count} positional sub-pattern{'' if count == 1 else 's'} ({given} given)"
        raise t.raised(TypeError(what))


@handles("MATCH_CLASS")
def match_class(t: Tracer, f: Frame, ins: Ins) -> None:
    """The subject's attributes that a class pattern names, or None."""
    names, cls, subject = t.const(t.pop(f)), t.pop(f), t.pop(f)
    if not t.comparisons.truth(t.calls.call_python(isinstance, [subject, cls])):
        f.push(NONE)
        return
    out = []
    if ins.arg and t.as_class(cls) in MATCH_SELF:
        _check_patterns(t, cls, 1, ins.arg)
        out.append(subject)
    elif ins.arg:
        match_args = t.attributes.getattr(cls, "__match_args__", SeqVar([], tuple))
        if t.type_of(match_args) is not tuple:
            what = f"{t.const(cls).__name__}.__match_args__ must be a tuple (got {t.type_of(match_args).__name__})"
            raise t.raised(TypeError(what))
        args = [t.const(v) for v in t.iteration.iterate(match_args)]
        _check_patterns(t, cls, len(args), ins.arg)
        names = tuple(args[: ins.arg]) + tuple(names)
    for name in names:
        found = t.attributes.getattr(subject, name, NULL)
        if found is NULL:
            f.push(NONE)
            return
        out.append(found)
    f.push(SeqVar(out, tuple))
