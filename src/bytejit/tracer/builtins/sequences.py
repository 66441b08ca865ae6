"""Models of list, tuple, deque and torch.Size: making them and their methods."""

from __future__ import annotations

import builtins
import collections
import functools
import math
import types
from collections.abc import Callable

import torch

from bytejit.compat import numpy_types
from bytejit.tracer.core.models import MODELS, models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, Known, SeqVar, TensorVar, Var
from bytejit.tracer.core.versions import SHOWS_MISSING, TUPLES_ASK_LENGTHS
from bytejit.tracer.objects import external_lists
from bytejit.tracer.objects.class_facts import class_attribute, is_named_tuple
from bytejit.tracer.objects.containers import base_of


@models(builtins.list)
def list_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return SeqVar(t.iteration.iterate(args[0], sized=True) if args else [], list)


@models(builtins.tuple)
def tuple_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if args and isinstance(args[0], SeqVar) and args[0].cls is tuple:
        return args[0]
    return SeqVar(t.iteration.iterate(args[0], sized=TUPLES_ASK_LENGTHS) if args else [], tuple)


@models(tuple.__new__)
def tuple_new(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    cls = t.as_class(args[0])
    if cls is None:
        raise Break("tuple.__new__ of no class")
    items = t.iteration.iterate(args[1], sized=TUPLES_ASK_LENGTHS) if len(args) > 1 else []
    if cls is tuple:
        return SeqVar(items, tuple)
    if is_named_tuple(cls):
        return SeqVar(items, cls)
    made = t.instantiation.object_new(cls)
    made.base = SeqVar(items, tuple)
    return made


@models(torch.Size)
def size_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    items = t.iteration.iterate(args[0], sized=TUPLES_ASK_LENGTHS) if args else []
    for i, v in enumerate(map(t.values.real, items)):
        if t.type_of(v) in numpy_types.NUMBERS:  # kept as they are
            raise Break("a torch.Size of NumPy's numbers")
        if not isinstance(v, TensorVar) and class_attribute(t.type_of(v), "__index__") is None:
            raise t.raised(TypeError(f"torch.Size() takes an iterable of 'int' (item {i} is '{t.type_of(v).__name__}')"))
    return SeqVar([v if issubclass(t.type_of(v), int) else Known(t.subscripts.index(v)) for v in items], torch.Size)


@models(collections.deque)
def deque_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    items = list(t.iteration.iterate(args[0])) if args else []
    limit = args[1] if len(args) > 1 else kwargs.get("maxlen", NONE)
    limit = t.const(limit)
    if not isinstance(limit, (int, types.NoneType)):
        raise Break("a deque whose length is no number")
    if limit is not None and limit < 0:
        raise t.raised(ValueError("maxlen must be non-negative"))
    return SeqVar(items if limit is None else items[max(0, len(items) - limit) :], collections.deque, maxlen=limit)


def on_sequence(*methods: Callable) -> Callable:
    """Register a method of lists or deques: handler(t, seq, args, kwargs), which changes `seq`."""

    def register(handler: Callable) -> Callable:
        def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
            seq = base_of(args[0])
            if not isinstance(seq, SeqVar):
                raise Break(f"{handler.__name__} of a {t.type_of(args[0]).__name__}")
            t.touch(seq)
            return handler(t, seq, args[1:], kwargs) or NONE

        for m in methods:
            MODELS[m] = run
        return handler

    return register


deque = collections.deque


@on_sequence(list.append, deque.append)
def append(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    external_lists.extend(seq, args[:1])


@on_sequence(deque.appendleft)
def appendleft(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    seq.items.insert(0, args[0])
    if seq.maxlen is not None and len(seq.items) > seq.maxlen:
        seq.items.pop()


@models(list.__iadd__, deque.__iadd__)
def iadd(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not t.iteration.has_iter(args[1]):
        raise t.raised(TypeError(f"'{t.type_of(args[1]).__name__}' object is not iterable"))
    MODELS[list.extend](t, args, {})
    return args[0]


@on_sequence(list.extend, deque.extend)
def extend(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    sized = issubclass(seq.cls, list)
    external_lists.extend(seq, list(seq.items) if base_of(args[0]) is seq else t.iteration.each(args[0], sized))


@on_sequence(deque.extendleft)
def extendleft(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    for item in list(seq.items) if base_of(args[0]) is seq else t.iteration.each(args[0]):
        appendleft(t, seq, [item], kwargs)


@on_sequence(list.insert, deque.insert)
def insert(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    place = t.subscripts.index(args[0])
    if seq.maxlen is not None and len(seq.items) >= seq.maxlen:
        raise t.fold_error(deque((), 0).insert, 0, 0)
    seq.items.insert(place, args[1])


@on_sequence(list.pop)
def pop(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    try:
        return t.values.real(seq.items.pop(t.subscripts.index(args[0]) if args else -1))
    except IndexError as e:
        raise t.raised(e) from None


@on_sequence(deque.pop)
def deque_pop(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not seq.items:
        raise t.raised(IndexError("pop from an empty deque"))
    return t.values.real(seq.items.pop())


@on_sequence(deque.popleft)
def popleft(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not seq.items:
        raise t.raised(IndexError("pop from an empty deque"))
    return t.values.real(seq.items.pop(0))


@on_sequence(deque.rotate)
def rotate(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    real = collections.deque(seq.items)
    real.rotate(t.subscripts.index(args[0]) if args else 1)
    seq.items[:] = real


@on_sequence(list.clear, deque.clear)
def clear(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    seq.items.clear()


@on_sequence(list.reverse, deque.reverse)
def reverse(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    seq.items.reverse()


@on_sequence(list.remove, deque.remove)
def remove(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    for i, item in enumerate(seq.items):
        if t.comparisons.equal(item, args[0]):
            del seq.items[i]
            return
    if seq.cls is list:
        raise t.raised(ValueError("list.remove(x): x not in list"))
    if not SHOWS_MISSING:
        raise t.raised(ValueError("deque.remove(x): x not in deque"))
    raise t.raised(ValueError(f"{t.const(t.calls.call_python(repr, [args[0]]))} is not in deque"))


@on_sequence(list.__setitem__, deque.__setitem__)
def list_setitem(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    t.subscript_writes.setitem(seq, args[0], args[1])


@on_sequence(list.__delitem__, deque.__delitem__)
def list_delitem(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    t.subscript_writes.delitem(seq, args[0])


@on_sequence(list.__init__)
def list_init(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> None:
    given = list(seq.items) if args and base_of(args[0]) is seq else None
    seq.items.clear()
    if args:
        extend(t, seq, [SeqVar(given, list) if given is not None else args[0]], kwargs)


@models(list.sort)
def list_sort(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Sorted by keys that are constants or modelled instances; comparisons run in the trace."""
    seq = base_of(args[0])
    if not isinstance(seq, SeqVar):
        raise Break(f"list.sort of a {t.type_of(args[0]).__name__}")
    t.touch(seq)
    key, reverse_ = kwargs.get("key", NONE), "reverse" in kwargs and t.comparisons.truth(kwargs["reverse"])
    keyed = [(item if t.comparisons.is_same(key, NONE) else t.calls.call(key, [item], {}), item) for item in seq.items]

    def compare(a: tuple[Var, Var], b: tuple[Var, Var]) -> int:
        t.limits.work_step()
        return -t.comparisons.truth(t.comparisons.compare("lt", a[0], b[0]))  # sorted() asks for nothing but `<`

    seq.items[:] = [item for _, item in sorted(keyed, key=functools.cmp_to_key(compare), reverse=reverse_)]
    return NONE


def _reader(*methods: Callable) -> Callable:
    def register(handler: Callable) -> Callable:
        for m in methods:
            MODELS[m] = lambda t, args, kwargs: handler(t, base_of(args[0]), args[1:], kwargs)
        return handler

    return register


@_reader(list.copy, deque.copy, deque.__copy__)
def copy(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return SeqVar(list(seq.items), seq.cls, maxlen=seq.maxlen)


@_reader(list.count, tuple.count, deque.count)
def count(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return Known(sum(t.comparisons.equal(v, args[0]) for v in seq.items))


def bound(t: Tracer, v: Var) -> int:
    """Where `index` begins or ends. Raises: Raised."""
    if not isinstance(v, (Known, TensorVar)) and class_attribute(t.type_of(v), "__index__") is None:
        raise t.raised(TypeError("slice indices must be integers or have an __index__ method"))
    if isinstance(v, Known) and not isinstance(v.obj, int):
        raise t.raised(TypeError("slice indices must be integers or have an __index__ method"))
    return t.subscripts.index(v)


@_reader(list.index, tuple.index, deque.index)
def index(t: Tracer, seq: SeqVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
    start, stop, _ = slice(*(bound(t, a) for a in args[1:]), *[None] * (3 - len(args))).indices(len(seq.items))
    for i in range(start, stop):
        if i >= len(seq.items):  # a comparison made it shorter
            break
        if t.comparisons.equal(seq.items[i], args[0]):
            return Known(i)
    what = (
        f"{seq.cls.__name__}.index(x): x not in {seq.cls.__name__}"
        if seq.cls in (list, deque)
        else "tuple.index(x): x not in tuple"
    )
    if SHOWS_MISSING and seq.cls in (list, deque):
        what = f"{t.const(t.calls.call_python(repr, [args[0]]))} is not in {seq.cls.__name__}"
    raise t.raised(ValueError(what))


@models(torch.Size.numel)
def size_numel(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.operators.fold(lambda: math.prod(t.const(args[0])))


@_reader(list.__getitem__, tuple.__getitem__, deque.__getitem__)
def base_getitem(t: Tracer, v: Var, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.subscripts.getitem(v, args[0])


@_reader(list.__len__, tuple.__len__, dict.__len__, set.__len__, deque.__len__, frozenset.__len__)
def base_len(t: Tracer, v: Var, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return Known(t.subscripts.length(v))


@_reader(
    list.__iter__,
    tuple.__iter__,
    dict.__iter__,
    set.__iter__,
    deque.__iter__,
    collections.OrderedDict.__iter__,
    frozenset.__iter__,
)
def base_iter(t: Tracer, v: Var, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.iteration.iter(v)


@_reader(list.__contains__, tuple.__contains__, dict.__contains__, set.__contains__, deque.__contains__, frozenset.__contains__)
def base_contains(t: Tracer, v: Var, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.values.constant(t.subscripts.contains(v, args[0]))


@_reader(list.__eq__, tuple.__eq__, dict.__eq__, set.__eq__, collections.OrderedDict.__eq__)
def base_eq(t: Tracer, v: Var, args: list[Var], kwargs: dict[str, Var]) -> Var:
    found = t.comparisons.in_c("__eq__", v, base_of(args[0]))
    return found if found is not None else t.values.constant(NotImplemented)
