"""Plans and the sources of their kernels as JSON: the fields of the classes in the table below, in a fixed form.

Reading makes these objects and nothing else: no name in the data is looked up, imported or called. What does not have the form
(a class or field that is not in the table, another type, a name that is none) raises Damaged.

Some of a plan is used as code later, so a plan is read from an entry of the disk cache only, whose seal says that this user
wrote it (`kernels/disk.py`): the text of kernels (`CppSource.units`, `TritonSource.text`) is compiled and run; names of buffers,
kernels and functions and keywords stand in the Python text of the call function (they are identifiers); an operator's name is
looked up among torch's (`codegen/ops/extern.py`); numbers are strides, offsets and sizes that kernels go by unchecked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import torch

from bytejit.codegen.cpu.emit import CppSource, UnitFunction
from bytejit.codegen.cuda.source import Arg, Launch, LaunchConfig, TritonSource
from bytejit.codegen.loops.ir import Buffer, Extern, Kernel, MutationCopy, Result, View
from bytejit.codegen.loops.plan import Call, ExternCall, Plan
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.plain_types import JSON_TYPES
from bytejit.common.where import Where


class NotKept(Exception):
    """A value cannot be written: a symbolic size, or a kind of value that is not in the table."""


class Damaged(Exception):
    """Data does not have the form."""


@light_dataclass(frozen=True)
class Codec:
    """Writes a kind of value as JSON, and reads it. pack raises NotKept, read raises Damaged. plain: the type of values that
    are their own JSON."""

    pack: Callable[[Any], Any]
    read: Callable[[Any], Any]
    plain: type | None = None


def exact(kind: type) -> Codec:
    """Values of one type, which JSON has."""

    def pack(value: Any) -> Any:
        if type(value) is not kind:
            raise NotKept(f"{type(value).__name__}, not {kind.__name__}")
        return value

    def read(data: Any) -> Any:
        if type(data) is not kind:
            raise Damaged(f"{data!r:.80} is no {kind.__name__}")
        return data

    return Codec(pack, read, kind)


def text(pattern: str) -> Codec:
    """Strings of a form."""
    fits = re.compile(pattern, re.ASCII).fullmatch

    def pack(value: Any) -> Any:
        if type(value) is not str or not fits(value):
            raise NotKept(f"{value!r:.80} is not of the form {pattern}")
        return value

    def read(data: Any) -> Any:
        if type(data) is not str or not fits(data):
            raise Damaged(f"{data!r:.80} is not of the form {pattern}")
        return data

    return Codec(pack, read)


def maybe(form: Codec) -> Codec:
    """None, or a value of a form."""
    pack, read = form.pack, form.read
    return Codec(lambda v: None if v is None else pack(v), lambda d: None if d is None else read(d))


def _items(data: Any, count: int | None = None) -> list:
    if type(data) is not list or count is not None and len(data) != count:
        raise Damaged(f"{data!r:.80} is no list" + ("" if count is None else f" of {count}"))
    return data


def many(form: Codec) -> Codec:
    """Tuples of values of one form."""
    each, plain = form.read, form.plain

    def pack(value: Any) -> list:
        if not isinstance(value, tuple):
            raise NotKept(f"{type(value).__name__}, not tuple")
        return [form.pack(v) for v in value]

    def read(data: Any) -> tuple:
        if type(data) is not list:
            raise Damaged(f"{data!r:.80} is no list")
        if plain is not None and {*map(type, data)} == {plain}:
            return tuple(data)
        return tuple([each(d) for d in data])

    return Codec(pack, read)


def row(*forms: Codec) -> Codec:
    """Tuples with a form for each place."""

    def pack(value: Any) -> list:
        if type(value) is not tuple or len(value) != len(forms):
            raise NotKept(f"{value!r:.80} is no tuple of {len(forms)}")
        return [f.pack(v) for f, v in zip(forms, value)]

    return Codec(pack, lambda data: tuple([f.read(d) for f, d in zip(forms, _items(data, len(forms)))]))


def table(key: Codec, value: Codec) -> Codec:
    """Dicts; keys are strings. Their order is kept."""

    def pack(found: Any) -> dict:
        if type(found) is not dict:
            raise NotKept(f"{type(found).__name__}, not dict")
        return {key.pack(k): value.pack(v) for k, v in found.items()}

    def read(data: Any) -> dict:
        if type(data) is not dict:
            raise Damaged(f"{data!r:.80} is no dict")
        return {key.read(k): value.read(v) for k, v in data.items()}

    return Codec(pack, read)


def record(cls: type, **forms: Codec) -> Codec:
    """Instances of a dataclass, as lists of its fields. Fields without a form are not kept: they come back as their defaults, or
    empty."""
    names = tuple(forms)
    known = {f.name: f for f in fields(cls)}
    rest = {n: () for n, f in known.items() if n not in forms and f.default is MISSING and f.default_factory is MISSING}
    if list(forms) != [n for n in known if n in forms]:
        raise TypeError(f"{cls.__name__}: forms are not in the order of its fields")
    readers, count = tuple(f.read for f in forms.values()), len(names)
    rest |= {n: f.default for n, f in known.items() if n not in forms and f.default is not MISSING}

    def pack(value: Any) -> list:
        if type(value) is not cls:
            raise NotKept(f"{type(value).__name__}, not {cls.__name__}")
        return [form.pack(getattr(value, name)) for name, form in forms.items()]

    def read(data: Any) -> Any:
        if type(data) is not list or len(data) != count:
            raise Damaged(f"{data!r:.80} is no list of {count}")
        made: Any = object.__new__(cls)  # a frozen class's own constructor takes three times as long
        made.__dict__.update(rest)
        made.__dict__.update(zip(names, [r(d) for r, d in zip(readers, data)]))
        return made

    return Codec(pack, read)


def either(**forms: tuple[type, Codec]) -> Codec:
    """Instances of one of several classes, each with a word that says which."""
    words = {cls: (word, form.pack) for word, (cls, form) in forms.items()}
    readers = {word: form.read for word, (_, form) in forms.items()}

    def pack(value: Any) -> list:
        if type(value) not in words:
            raise NotKept(f"{type(value).__name__} is none of {', '.join(c.__name__ for c in words)}")
        word, inner = words[type(value)]
        return [word, inner(value)]

    def read(data: Any) -> Any:
        word, inner = _items(data, 2)
        if type(word) is not str or word not in readers:
            raise Damaged(f"{word!r:.80} is none of {', '.join(readers)}")
        return readers[word](inner)

    return Codec(pack, read)


def named(kind: type) -> Codec:
    """Constants of torch, by their names."""
    known = {str(v).removeprefix("torch."): v for v in vars(torch).values() if isinstance(v, kind)}

    def read(data: Any) -> Any:
        if type(data) is not str or data not in known:
            raise Damaged(f"{data!r:.80} is no {kind.__name__}")
        return known[data]

    return Codec(lambda v: str(v).removeprefix("torch."), read)


# ---- the table ------------------------------------------------------------------------------------------------------------
INT, BOOL, STR, FLOAT = exact(int), exact(bool), exact(str), exact(float)
NAME = text(r"[A-Za-z_]\w*")
DEVICE = text(r"[a-z]+(:\d+)?")
OPERATOR = text(r"\w+\.\w+\.\w+")
INTS, NAMES = many(INT), many(NAME)
VIEW = record(View, buffer=NAME, shape=INTS, stride=INTS, offset=INT)


def _device() -> Codec:
    return Codec(lambda v: DEVICE.pack(str(v)), lambda d: torch.device(DEVICE.read(d)))


VALUE: Codec  # an argument of a library call: plain, a tensor's window, or a sequence of such
VALUES = Codec(lambda v: [VALUE.pack(x) for x in v], lambda d: [VALUE.read(x) for x in _items(d)])
REST = either(
    view=(View, VIEW),
    tuple=(tuple, Codec(VALUES.pack, lambda d: tuple(VALUES.read(d)))),
    list=(list, VALUES),
    complex=(complex, Codec(lambda v: [v.real, v.imag], lambda d: complex(*row(FLOAT, FLOAT).read(d)))),
    dtype=(torch.dtype, named(torch.dtype)),
    device=(torch.device, _device()),
    layout=(torch.layout, named(torch.layout)),
    format=(torch.memory_format, named(torch.memory_format)),
)
VALUE = Codec(lambda v: v if type(v) in JSON_TYPES else REST.pack(v), lambda d: d if type(d) in JSON_TYPES else REST.read(d))

PLACE = maybe(record(Where, file=STR, line=INT, function=STR, source=STR))
CALL = record(Call, kernel=record(Kernel, name=NAME, ops=many(STR)), reads=NAMES, writes=NAMES, free=NAMES)
EXTERN = record(
    Extern,
    name=STR,
    target=OPERATOR,
    args=many(VALUE),
    kwargs=many(row(NAME, VALUE)),
    outs=many(maybe(NAME)),
    into=BOOL,
    reason=STR,
    where=PLACE,
)
BUFFER = record(Buffer, name=NAME, shape=INTS, stride=INTS, dtype=NAME, kind=NAME, device=DEVICE, where=PLACE)
STEP = either(call=(Call, CALL), extern=(ExternCall, record(ExternCall, extern=EXTERN, free=NAMES)))
PLAN = record(
    Plan,
    inputs=many(maybe(NAME)),
    buffers=table(NAME, BUFFER),
    steps=many(STEP),
    outputs=many(record(Result, view=maybe(VIEW), const=VALUE)),
    mutations=many(record(MutationCopy, input=INT, position=INT, done=BOOL)),
    offsets=table(NAME, INT),
    arena=INT,
    target=NAME,
    slots=table(NAME, INT),
    slot_bytes=many(INTS),
    symbols=table(NAME, INT),
)
RUN = record(UnitFunction, steps=INTS, unit=INT, function=NAME, args=many(row(NAME, text(r"\w*"))), raises=BOOL)
CPP = record(CppSource, units=many(STR), runs=many(RUN), kernels=INT, bytes=INT)
CONFIG = record(LaunchConfig, constants=many(row(NAME, VALUE)), warps=INT, stages=INT, grid=INTS)
ARG = record(Arg, kind=NAME, name=text(r"\w*"), type=text(r"\*?\w+"), offset=INT)
LAUNCH = record(Launch, step=INT, kernel=NAME, args=many(ARG), config=CONFIG, alternatives=many(CONFIG), raises=BOOL)
TRITON = record(TritonSource, text=STR, launches=many(LAUNCH), scratch=INT, kernels=INT, bytes=INT)
BOTH = row(PLAN, either(cpp=(CppSource, CPP), triton=(TritonSource, TRITON)))


def pack(plan: Plan, source: CppSource | TritonSource) -> bytes:
    """A plan and its source; kernels without their nests and schedules, which only printers read. Raises: NotKept."""
    return json.dumps(BOTH.pack((plan, source)), separators=(",", ":")).encode()


def read(data: bytes) -> tuple[Plan, CppSource | TritonSource]:
    """Returns the plan and source that were packed. Raises: Damaged."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damaged(str(error)) from None
    return BOTH.read(found)
