"""Models of iterators, generators and the builtins that consume them."""

from __future__ import annotations

import builtins
import collections
import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from bytejit.tracer.core.iterator_values import GenVar, IterVar
from bytejit.tracer.core.models import MODELS, models
from bytejit.tracer.core.read_values import ReadVar
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import (
    FALSE,
    NONE,
    TRUE,
    DictVar,
    DictView,
    InstanceVar,
    Known,
    SeqVar,
    SetVar,
    SymVar,
    TensorVar,
    Var,
)
from bytejit.tracer.core.versions import SUM_COMPENSATES
from bytejit.tracer.objects import generators, iterators
from bytejit.tracer.objects.class_facts import MISSING, class_lookup
from bytejit.tracer.objects.containers import base_of
from bytejit.tracer.sizes.called_anew import call_anew

from .sequences import list_sort


@models(builtins.iter)
def iter_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if len(args) == 2:
        if not t.comparisons.truth(t.calls.call_python(callable, [args[0]])):
            raise t.fold_error(iter, None, None)
        return IterVar("callable", {"function": args[0], "sentinel": args[1]}, t.limits.steps)
    return t.iteration.iter(args[0])


BUILT_IN_ITERATORS = {
    type(made)
    for made in (
        *map(iter, ([], (), "", b"", range(0), set(), {}.keys(), {}.values(), {}.items())),
        *(reversed([]), reversed({}), enumerate(()), zip(), map(len, ()), filter(None, ())),
    )
}


@models(builtins.next)
def next_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    try:
        item = t.next_value(args[0])
    except Raised as e:
        if len(args) > 1 and issubclass(e.exc.cls, StopIteration):
            return args[1]
        raise
    if item is None:
        if len(args) > 1:
            return args[1]
        raise t.raised(StopIteration())
    return item


@models(*(cls.__next__ for cls in BUILT_IN_ITERATORS))
def next_method(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """`iter(x).__next__()`, which the library binds to a name where it is called often."""
    if len(args) != 1 or kwargs:
        raise Break("__next__ with arguments")
    return next_(t, args, kwargs)


@models(builtins.enumerate)
def enumerate_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    start = args[1] if len(args) > 1 else kwargs.get("start", Known(0))
    first = t.values.real(start)
    if type(first) is SymVar and t.type_of(first) is int:
        return IterVar("enumerate", {"of": t.iteration.iter(args[0]), "at": 0, "first": first}, t.limits.steps)
    return IterVar("enumerate", {"of": t.iteration.iter(args[0]), "at": t.subscripts.index(start)}, t.limits.steps)


@models(builtins.zip)
def zip_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return IterVar("zip", {"of": [t.iteration.iter(a) for a in args], "strict": _strict(t, kwargs)}, t.limits.steps)


def _strict(t: Tracer, kwargs: dict[str, Var]) -> bool:
    """The one argument by name of zip and map. Raises: Break for another, so that the call itself raises."""
    if kwargs.keys() - {"strict"}:
        raise Break("an argument by name that is not `strict`")
    return "strict" in kwargs and t.comparisons.truth(kwargs["strict"])


@models(builtins.map)
def map_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    iterators = [t.iteration.iter(a) for a in args[1:]]
    return IterVar("map", {"function": args[0], "of": iterators, "strict": _strict(t, kwargs)}, t.limits.steps)


@models(builtins.filter)
def filter_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return IterVar("filter", {"function": args[0], "of": t.iteration.iter(args[1])}, t.limits.steps)


@models(builtins.reversed)
def reversed_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v = args[0]
    cls = t.type_of(v)
    own = class_lookup(cls, "__reversed__")[0]
    in_program = isinstance(own, types.FunctionType) or isinstance(v, InstanceVar) and v.base is None and own is not MISSING
    if in_program and isinstance(v, (InstanceVar, TensorVar)):
        return t.calls.call(t.attributes.special(v, "__reversed__"), [], {})
    if isinstance(v, SeqVar):
        kept = iterators.of_deque(v) if v.cls is collections.deque else {}
        return IterVar("reversed", {"seq": v, "at": len(v.items) - 1, **kept}, t.limits.steps)
    if own is MISSING and class_lookup(cls, "__getitem__")[0] is MISSING:
        raise t.raised(TypeError(f"'{cls.__name__}' object is not reversible"))
    if isinstance(v, InstanceVar) and own is MISSING:
        return IterVar("reversed items", {"of": v, "at": t.subscripts.length(v) - 1}, t.limits.steps)
    items = list(reversed(t.iteration.iterate(base_of(v))))
    state = {"seq": SeqVar(items, list), "at": 0}
    if isinstance(v, (DictVar, DictView)):
        owner = v if isinstance(v, DictVar) else v.owner
        state |= iterators.sized(owner, "dictionary changed size during iteration")
        empty: Any = collections.OrderedDict() if issubclass(owner.cls, collections.OrderedDict) else {}
        real = reversed(getattr(empty, v.kind)() if isinstance(v, DictView) else empty)
        state |= {"again": (reversed, [v]), "was": list(owner.items), "cls": type(real)}
    return IterVar("seq", state, t.limits.steps)


def generator_of(v: Var) -> GenVar:
    """The generator behind a value, as one that the tracer runs. Raises: Break."""
    if not isinstance(v, GenVar):
        raise Break("a method of a generator called on another object")
    return v


@models(types.GeneratorType.send)
def generator_send(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    finished, value = t.calls.resume(generator_of(args[0]), args[1])
    if finished:
        raise t.stop(value)
    return value


@models(types.GeneratorType.__next__)
def generator_next(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return generator_send(t, [args[0], NONE], {})


@models(types.GeneratorType.__iter__)
def generator_iter(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return args[0]


@models(types.GeneratorType.throw)
def generator_throw(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    exc = args[1] if len(args) < 3 or t.comparisons.is_same(args[2], NONE) else args[2]
    exc = t.as_exception(
        exc, f"exceptions must be classes or instances deriving from BaseException, not {t.type_of(exc).__name__}"
    )
    finished, value = generators.throw(t, t.calls.moved(args[0]), Raised(exc))
    if finished:
        raise t.stop(value)
    return value


@models(types.GeneratorType.close)
def generator_close(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return generators.close(t, generator_of(args[0]))


@models(builtins.any)
def any_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    iterator = t.iteration.iter(args[0])
    while (item := t.iteration.next(iterator)) is not None:
        if t.comparisons.truth(item):
            return TRUE
    return FALSE


@models(builtins.all)
def all_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    iterator = t.iteration.iter(args[0])
    while (item := t.iteration.next(iterator)) is not None:
        if not t.comparisons.truth(item):
            return FALSE
    return TRUE


@models(builtins.sum)
def sum_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    total = t.values.real(args[1] if len(args) > 1 else kwargs.get("start", Known(0)))
    iterator = t.iteration.iter(args[0])
    if isinstance(total, Known) and isinstance(total.obj, (str, bytes)):
        raise t.fold_error(sum, [], total.obj)
    numbers: list[Var] = [total] if _is_number(total) else []  # not added yet: Python adds them in a way of its own
    while (item := t.iteration.next(iterator)) is not None:
        item = t.values.real(item)
        if numbers and all(map(_is_number, (numbers[0], item))):
            numbers.append(item)
            continue
        total, numbers = _sum_of_numbers(t, numbers) if numbers else total, []
        total = t.operators.binary("add", total, item)
    return _sum_of_numbers(t, numbers) if numbers else total


def _is_number(v: Var) -> bool:
    return type(v) in (SymVar, ReadVar) or type(v) is Known and type(v.obj) in (int, float, complex, bool)


def _sum(*numbers: Any) -> Any:
    return sum(numbers[1:], numbers[0])


def _sum_of_numbers(t: Tracer, numbers: list[Var]) -> Var:
    """Their sum as Python's `sum` computes it. Of more than two floats (or complex numbers) that need not be what adding them one
    by one gives: since 3.12 (3.14) it carries along what the additions round off."""
    if len(numbers) > 1 and all(type(v) is Known for v in numbers):
        return t.operators.fold(_sum, *(t.const(v) for v in numbers))
    if (found := t.reads.total(_sum, numbers)) is not None:
        return found
    added = [v for v in numbers if type(v) is SymVar or t.const(v) or t.type_of(v) is not int]
    if len(added) > 2 and SUM_COMPENSATES and any(t.type_of(v) is float for v in added):
        if (found := call_anew(t, _sum, numbers)) is not None:
            return found
    return functools.reduce(functools.partial(t.operators.binary, "add"), numbers)


def extreme_of_tensors(t: Tracer, name: str, items: list) -> Var | None:
    """min or max of numbers some of which are tensors of one element whose values only the graph knows: a selection by the
    same comparisons, in their order. None where it is not asked for, or the items differ in more than their values.

    Only where a break is no choice (nopython): the program may get a tensor where it would have got a number of Python's.
    """
    items = [t.values.real(v) for v in items]
    tensors = [v for v in items if isinstance(v, TensorVar)]
    if not t.job.measure or not tensors or len(items) < 2 or any(t.tensor_values.tensor_value(v) is not None for v in tensors):
        return None
    like = tensors[0].fake
    if any(v.fake.shape != like.shape or v.fake.dtype != like.dtype or v.fake.device != like.device for v in tensors):
        return None
    if like.numel() != 1 or any(
        not isinstance(v, TensorVar) and not (isinstance(v, Known) and type(v.obj) in (int, float)) for v in items
    ):
        return None
    if not like.dtype.is_floating_point and any(isinstance(v, Known) and type(v.obj) is float for v in items):
        return None
    full = [v if isinstance(v, TensorVar) else t.tensors.call_tensor_op(torch.full_like, [tensors[0], v], {}) for v in items]
    best = full[0]
    for item in full[1:]:
        best = t.tensors.call_tensor_op(torch.where, [t.comparisons.compare(name, item, best), item, best], {})
    return best


def _of_measured(t: Tracer, function: Callable, symbolic: Callable, items: list[Var]) -> Var | None:
    """min or max of numbers of which the graph measures one: a symbol, or what the exit computes. None for other values."""
    try:
        return t.numbers.on_numbers(symbolic, *items)
    except Break:
        if (kept := t.reads.kept(function, [*map(t.values.real, items)])) is None:
            raise
        return kept


def _extreme(function: Callable, name: str, symbolic: Callable) -> None:
    def pick(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if len(args) > 1 and "default" in kwargs:
            raise t.fold_error(function, 0, 0, default=0)
        items = t.iteration.each(args[0]) if len(args) == 1 else list(args)
        key = kwargs.get("key", NONE)
        if plain := t.comparisons.is_same(key, NONE):
            items = list(items)
            if (read := t.reads.call(function, [*map(t.values.real, items)])) is not None:
                return read
            if any(map(t.measures.is_measured, items)) and (found := _of_measured(t, function, symbolic, items)) is not None:
                return found
            if (found := extreme_of_tensors(t, name, items)) is not None:
                return found
        best: Var | None = None
        best_key: Var = NONE
        for item in items:
            k = item if plain else t.calls.call(key, [item], {})
            if best is None or t.comparisons.truth(t.comparisons.compare(name, k, best_key)):
                best, best_key = item, k
        if best is None and "default" in kwargs:
            return kwargs["default"]
        if best is None:
            raise t.fold_error(function, [])
        return t.values.real(best)

    MODELS[function] = pick


_extreme(builtins.max, "gt", lambda *numbers: functools.reduce(torch.sym_max, numbers))
_extreme(builtins.min, "lt", lambda *numbers: functools.reduce(torch.sym_min, numbers))


@models(builtins.sorted)
def sorted_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v = args[0]
    if isinstance(v, SetVar) and v.real is not None and id(v) in t.effects.touched and {*map(type, v.items)} in ({int}, {str}):
        t.guard("SET_ITEMS", v.origin, tuple(v.real))
        out = SeqVar(list(v.items.values()), list)  # whatever their order is
    else:
        out = SeqVar(t.iteration.iterate(v, sized=True), list)
    list_sort(t, [out], kwargs)
    return out


@models(functools.reduce)
def reduce_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not t.iteration.has_iter(args[1]):
        raise t.fold_error(functools.reduce, max, 0)
    if kwargs.keys() - {"initial"}:
        raise Break("an argument of reduce by name that is not `initial`")
    iterator = t.iteration.iter(args[1])
    given = [*args[2:], *kwargs.values()]
    total = given[0] if given else t.iteration.next(iterator)
    if total is None:
        raise t.fold_error(functools.reduce, max, ())
    while (item := t.iteration.next(iterator)) is not None:
        total = t.calls.call(args[0], [total, item], {})
    return t.values.real(total)
