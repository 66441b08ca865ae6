"""Says which guard of an entry failed, and which numbers have changed. Used when a site compiles again."""

from __future__ import annotations

import enum
from typing import Any

import torch

from bytejit.common import special_cases
from bytejit.common.errors import Bug
from bytejit.common.overriding import answers_as_torch
from bytejit.common.plain_types import OPEN_TYPES
from bytejit.common.text import first_line
from bytejit.compat import numpy_types

from .changing_sources import length_of
from .equality import same
from .global_state import GlobalState
from .guard_set import Guard
from .item_sources import DictItem, TupleItem
from .kinds import DICT_KEYS, DISTINCT, EQUALS, ID_IS, KINDS, LEN_IS, TENSOR, TYPE_IS
from .sources import Attr, InstanceDict, Ref, Source, SourcePrinter, TensorSize, TensorStride
from .tensor_checks import TensorCheck

OVERRIDES = GlobalState("function_enabled")  # off while a site compiles: said to have changed only where nothing else has
NUMBERS = frozenset({int, float, *numpy_types.NUMBERS})
PLAIN = NUMBERS | OPEN_TYPES | {str}  # values that may become open ones


def explain_failure(params: list[str], rows: list[Guard], args: tuple) -> str:
    """The first guard that fails on these arguments, with the value seen; "no guard fails" when all hold."""
    frame = dict(zip(params, args))
    for guard in sorted(rows, key=lambda g: g.source == OVERRIDES):
        if _is_dead(guard):
            return f"what {guard.source.name()} was compared with is dead: {guard.value!r}{_line(guard)}"
        at = SourcePrinter()
        text = guard.source.expr(at)
        try:
            value = eval(text, {**at.env, **frame})
        except Exception as error:
            return f"{guard.source.name()} cannot be fetched: {type(error).__name__}: {_said(error)}{_line(guard)}"
        try:
            check = KINDS[guard.kind].check(at, "_x", guard.value)
            holds = eval(check, {**at.env, **frame, "_x": value})
        except Exception as error:
            return f"{guard!r}: the check raised {type(error).__name__}: {error}"
        if not holds:
            return (_one_object(guard, frame) if guard.kind == DISTINCT else _explain(guard, value)) + _line(guard)
    return "no guard fails"


def _said(error: Exception) -> str:
    """The first line of an error's text. That of a KeyError is the key's `repr`: code of the program's, or a tensor's values."""
    key = error.args[0] if isinstance(error, KeyError) and error.args else ""
    return first_line(error) if type(key) in (str, *NUMBERS) else f"a {type(key).__name__}"


def fails_by_class(params: list[str], rows: list[Guard], args: tuple) -> bool:
    """Whether the first guard that fails wants a class, or an instance of it, and there is another of the same name: the program
    has made it anew."""
    frame = dict(zip(params, args))
    for guard in rows:
        if _fits(guard, frame):
            continue
        wanted = guard.value.get() if isinstance(guard.value, Ref) else guard.value
        if guard.kind not in (TYPE_IS, ID_IS) or not isinstance(wanted, type):
            return False
        at = SourcePrinter()
        try:
            value = eval(guard.source.expr(at), {**at.env, **frame})
        except Exception:  # not there any more
            return False
        found = type(value) if guard.kind == TYPE_IS else value
        return isinstance(found, type) and (found.__module__, found.__qualname__) == (wanted.__module__, wanted.__qualname__)
    return False


def between_modules(params: list[str], rows: list[Guard], args: tuple) -> tuple[set[Source], set[Source]]:
    """What tells calls on modules of one class from each other, and may be only a key. Returns integers that the modules hold as
    attributes and that are others in these arguments, and lengths of containers that are others."""
    frame, numbers, lengths = dict(zip(params, args)), set[Source](), set[Source]()
    for guard in rows:
        source = guard.source
        if guard.kind in (LEN_IS, DICT_KEYS) and not _fits(guard, frame):
            lengths.add(length_of(source))
        if guard.kind != EQUALS or type(guard.value) is not int or not isinstance(source, DictItem):
            continue
        if not isinstance(source.base, InstanceDict):
            continue
        at = SourcePrinter()
        try:
            owner = eval(source.base.base.expr(at), {**at.env, **frame})
            value = dict.get(object.__getattribute__(owner, "__dict__"), source.key)
        except Exception:  # not there any more
            continue
        if issubclass(type(owner), torch.nn.Module) and type(value) is int and value != guard.value:
            numbers.add(source)
    return numbers, lengths


def _is_dead(guard: Guard) -> bool:
    """Whether an object that the guard names is dead."""
    named = guard.value if type(guard.value) is tuple else (guard.value,)
    return any(isinstance(ref, Ref) and ref.weak and ref.get() is None for ref in named)


def changed_numbers(params: list[str], rows: list[Guard], args: tuple) -> dict[Source, int]:
    """What differs between these arguments and the values that an entry guards: sizes, strides, numbers, texts and objects.
    Symbolic ones count if a condition on them fails. Returns {source: old size}; a source is a TensorSize, a TensorStride
    or that of the value itself. The old size is 0 if it was not a size above 1.

    Nothing is read of an object of another class than the entry's: that may be code of the program."""
    frame = dict(zip(params, args))
    found: dict[Source, int] = {}
    unlike: set[Source] = set()
    for guard in rows:
        if not unlike.isdisjoint(_way_to(guard)):
            continue
        if _is_of_another_class(guard, frame):
            unlike.add(guard.source)
        if guard.kind == "EXPR" and not _fits(guard, frame):
            found.update((source, 0) for _, source in guard.value.names if source not in found)
        if guard.kind in (LEN_IS, DICT_KEYS) and not _fits(guard, frame):
            found[length_of(guard.source)] = 0
        if guard.kind not in (TENSOR, ID_IS) and (guard.kind != EQUALS or not _may_change(guard.value)):
            continue
        at = SourcePrinter()
        try:
            value = eval(guard.source.expr(at), {**at.env, **frame})
        except Exception:  # not there any more: nothing is known of its size
            continue
        if guard.kind == ID_IS:
            if isinstance(guard.value, Ref) and not guard.value.is_(value):
                found[guard.source] = 0
        elif guard.kind == EQUALS:
            found.update(dict.fromkeys(_differing_items(guard.source, guard.value, value), 0))
        elif (
            isinstance(value, torch.Tensor)
            and answers_as_torch(type(value))
            and value.layout is torch.strided
            and value.dim() == len(guard.value.shape)
        ):
            found.update(_changed_dims(guard.source, guard.value.shape, guard.value.stride, value))
    return found


def _way_to(guard: Guard) -> set[Source]:
    """What is read to check a guard, but the value of one that names a class or an object: what its value is fetched through."""
    todo = [*guard.source.bases()] if guard.kind in (TYPE_IS, ID_IS, TENSOR) else [guard.source]
    todo += [of for _, of in guard.value.names] if guard.kind == "EXPR" else []
    found: set[Source] = set()
    while todo:
        source = todo.pop()
        if source not in found:
            found.add(source)
            todo += source.bases()
    return found


def _is_of_another_class(guard: Guard, frame: dict[str, Any]) -> bool:
    """Whether a guard names a class, or an object, and there is an object of another class."""
    wanted = guard.value.get() if isinstance(guard.value, Ref) else guard.value
    if guard.kind == ID_IS:
        wanted = type(wanted)
    elif guard.kind == TENSOR:
        wanted = guard.value.type
    elif guard.kind != TYPE_IS:
        return False
    at = SourcePrinter()
    try:
        return type(eval(guard.source.expr(at), {**at.env, **frame})) is not wanted
    except Exception:  # not there any more
        return True


def _fits(guard: Guard, frame: dict[str, Any]) -> bool:
    at = SourcePrinter()
    text = KINDS[guard.kind].check(at, guard.source.expr(at), guard.value)
    try:
        return bool(eval(text, {**at.env, **frame}))
    except Exception:  # a tensor that has no such dimension: another guard fails too
        return True


def _may_change(value: Any) -> bool:
    """Whether it is a number, a text or another plain value, or a tuple with one in it."""
    return type(value) in PLAIN or any(map(_may_change, _parts(value).values()))


def _parts(value: Any) -> dict[int | str, Any]:
    """The parts of a tuple by place, of a slice by name."""
    if isinstance(value, tuple):
        return dict(enumerate(value))
    return {n: getattr(value, n) for n in ("start", "stop", "step")} if type(value) is slice else {}


def _differing_items(source: Source, was: Any, now: Any) -> set[Source]:
    """Sources of what differs: plain values, also those within tuples and slices, with what they lie in below the top."""
    if type(was) is not type(now):
        return set()
    if type(was) in PLAIN:
        return {source} if not same(was, now) else set()
    parts, others, found = _parts(was), _parts(now), set[Source]()
    if parts.keys() == others.keys():
        for key, part in parts.items():
            at = TupleItem(source, key) if isinstance(key, int) else Attr(source, key)
            inside = _differing_items(at, part, others[key])
            found |= inside | {at} if inside else inside
    return found


def _changed_dims(source: Source, shape: tuple, stride: tuple, value: torch.Tensor) -> dict[Source, int]:
    """Sizes that differ; a stride that differs where it cannot be for a size of the same tensor."""
    sizes: dict[Source, int] = {
        TensorSize(source, i): b if b > 1 else 0 for i, (a, b) in enumerate(zip(value.shape, shape)) if b >= 0 and a != b
    }
    steps = {
        TensorStride(source, i): 0 for i, (a, b) in enumerate(zip(value.stride(), stride)) if b is not None and b >= 0 and a != b
    }
    return sizes | steps


def _line(guard: Guard) -> str:
    return f" ({guard.where})" if guard.where else ""


def _one_object(guard: Guard, frame: dict[str, Any]) -> str:
    """Returns, as text, which two sources of a `Distinct` are one object."""
    seen: dict[int, Source] = {}
    for i, source in enumerate(guard.value.sources):
        at = SourcePrinter()
        key = id(eval(source.expr(at), {**at.env, **frame}))
        if key in seen:
            return KINDS[DISTINCT].says.format(name=seen[key].name(), want=source.name())
        if i < len(guard.value.changed):
            seen[key] = source
    raise Bug(f"{guard!r} holds")


def _explain(guard: Guard, value: Any) -> str:
    row = KINDS[guard.kind]
    want = row.shown(guard.value) if row.shown else guard.value
    got: Any = ""
    if row.seen:
        try:
            got = eval(row.seen.format(x="_x"), {"_x": value})
        except Exception as error:
            got = f"{type(error).__name__}: {error}"
    return row.says.format(name=guard.source.name(), want=_show(want), got=_show(got))


def _show(value: Any) -> str:
    if isinstance(value, type):
        return value.__qualname__
    if isinstance(value, torch.Tensor):
        if not answers_as_torch(type(value)):
            return f"a {type(value).__qualname__}"
        if value.layout is not torch.strided or value.is_nested:
            return f"a {value.layout} tensor"
        return repr(TensorCheck.of(value))
    if type(value) is str:
        return value if len(value) < 200 else value[:200] + "..."
    if not _has_plain_repr(value):
        return f"a {type(value).__qualname__}"
    try:
        text = repr(value)
    except Exception as error:
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    return text if len(text) < 200 else text[:200] + "..."


def _has_plain_repr(value: Any) -> bool:
    """Whether repr(value) runs no code of the program, which may have effects or take long."""
    if type(value) in (list, tuple, set, frozenset, dict):
        inside = [*value, *value.values()] if type(value) is dict else [*value]
        return len(inside) < 100 and all(map(_has_plain_repr, inside))
    return special_cases.PLAIN_TEXT.made(type(value)) or issubclass(type(value), enum.Enum)
