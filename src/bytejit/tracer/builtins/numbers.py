"""Models of numbers, strings and the operator module."""

from __future__ import annotations

import builtins
import functools
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from bytejit.compat import numpy_types
from bytejit.shapes.symbols import is_symbolic
from bytejit.tracer.core.constants import NotConstant, is_own_class, to_python
from bytejit.tracer.core.descriptions import shown_name, words
from bytejit.tracer.core.models import MODELS, models
from bytejit.tracer.core.numpy_values import TensorArrayVar
from bytejit.tracer.core.range_values import RangeVar
from bytejit.tracer.core.read_values import Decides
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.texts import is_open, joined_by, text_of
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, DictVar, InstanceVar, Known, SeqVar, SetVar, SymVar, TensorVar, Var
from bytejit.tracer.core.versions import COMPLEX_ASKS_FLOATS, INT_METHODS, newer
from bytejit.tracer.objects.class_facts import class_attribute
from bytejit.tracer.objects.comparisons import COMPARISONS
from bytejit.tracer.objects.external_lists import length
from bytejit.tracer.objects.operators import FUNCTIONS, IN_PLACE, UNARY
from bytejit.tracer.objects.own_methods import is_plain_instance, own_method, stand_in
from bytejit.tracer.objects.plain_parts import in_text
from bytejit.tracer.objects.unread_texts import container_text, unread
from bytejit.tracer.sizes.called_anew import call_anew


@models(builtins.len)
def len_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if isinstance(args[0], TensorVar) and (n := t.numbers.tensor_length(args[0])) is not None:
        return n
    if (n := call_anew(t, len, args) if is_open(args[0]) else length(t, args[0])) is not None:
        return n
    return Known(t.subscripts.length(args[0]))


@models(builtins.bool)
def bool_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    try:
        return t.values.constant(bool(args) and t.comparisons.truth(args[0]))
    except Break as e:
        v = args[0]
        read = t.reads.read(v, bool, e.reason) if isinstance(v, TensorVar) and type(e) is Decides else t.reads.kept(bool, [v])
        if read is None:
            raise
        return read


SAY: dict[str, type] = {"__int__": int, "__index__": int, "__float__": float, "__complex__": complex}


def _number_or_text(t: Tracer, v: Var) -> Any:
    if not is_plain_instance(v):
        return to_python(t, v)
    if isinstance(v.base, Known) and isinstance(v.base.obj, (str, bytes)) and own_method(v.cls, "__repr__"):
        raise Break(f"a number read from a {v.cls.__name__}, which an error would show in its own way")
    return stand_in(v)


def _said(t: Tracer, v: InstanceVar, cls: type, special: tuple[str, ...]) -> Var | None:
    """The number that an instance says it is, by the first of these methods that it has. None where C says it."""
    if cls is complex and isinstance(v.base, Known) and isinstance(v.base.obj, str):
        return None  # read before any method is asked
    if cls is complex and isinstance(v.base, Known) and isinstance(v.base.obj, float) and not COMPLEX_ASKS_FLOATS:
        special = special[:1]
    name = next((n for n in special if class_attribute(v.cls, n) is not None), None)
    if name is None or not own_method(v.cls, name):
        return None
    said = t.values.real(t.calls.call(t.attributes.special(v, name), [], {}))
    if t.type_of(said) is not SAY.get(name):  # an error, or a warning, in words of Python's own
        raise Break(f"what {v.cls.__name__}.{name} returned")
    return said if SAY[name] is cls else MODELS[cls](t, [said], {})


def _number(cls: type, special: tuple[str, ...]) -> None:
    def make(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if args and type(args[0]) is TensorArrayVar and t.traced_arrays.tensor(args[0]).fake.dim() == 0:
            args = [t.traced_arrays.tensor(args[0]), *args[1:]]
        if args and isinstance(args[0], TensorVar):
            why = f"{cls.__name__}() of a tensor needs its value"
            if len(args) == 1:
                return t.reads.number(args[0], cls, why)
            raise Break(why)
        if args and isinstance(v := args[0], InstanceVar) and len(args) == 1 and (said := _said(t, v, cls, special)) is not None:
            return said
        try:
            named = {k: _number_or_text(t, v) for k, v in kwargs.items()}
            return t.calls.folded(cls, [_number_or_text(t, a) for a in args], named)
        except NotConstant:
            if isinstance(args[0], (SeqVar, DictVar, SetVar)):
                return t.operators.fold(cls, [] if not isinstance(args[0], DictVar) else {})
            raise Break(f"{cls.__name__}() of {words(args[0])}") from None

    MODELS[cls] = make


_number(int, INT_METHODS)
_number(float, ("__float__", "__index__"))
_number(complex, ("__complex__", "__float__", "__index__"))


def _asked(t: Tracer, v: Var, method: str, args: list[Var], says: str) -> Var:
    """Calls an instance's special method. says: the text of the TypeError where its class has no such method."""
    found = t.attributes.find_special(v, method)
    if found is None:
        raise t.raised(TypeError(says.format(shown_name(t.type_of(v)))))
    return t.calls.call(found, args, {})


@models(builtins.abs)
def abs_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if isinstance(args[0], TensorVar):
        return t.tensors.call_tensor_op(abs, args, {})
    if type(args[0]) is TensorArrayVar:
        return t.traced_arrays.call(operator.abs, args, {})
    if isinstance(args[0], InstanceVar):
        return _asked(t, args[0], "__abs__", [], "bad operand type for abs(): '{}'")
    return t.operators.fold(abs, t.const(args[0]))


@models(builtins.round)
def round_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    of, *digits = [*args, *kwargs.values()]
    if not args or len(digits) > 1 or kwargs.keys() - {"ndigits"}:
        raise Break("round() called with other arguments than a number and ndigits")
    if isinstance(of, (InstanceVar, TensorVar)):  # torch's tensors have no __round__
        asked = [d for d in digits if not t.comparisons.is_same(d, NONE)]
        return _asked(t, of, "__round__", asked, "type {} doesn't define __round__ method")
    return t.operators.fold(round, *map(t.const, (of, *digits)))


@models(builtins.divmod)
def divmod_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    a, b = args
    constants = [x for x in (a, b) if isinstance(x, Known) and type(x) is not SymVar]
    own = any(is_own_class(x.obj) for x in constants)  # its metaclass may have the operator
    if len(constants) == 2 and not own:
        return t.operators.fold(divmod, *(x.obj for x in constants))
    if own or not all(isinstance(x, (Known, SymVar)) for x in (a, b)):
        return t.operators.binary("divmod", a, b)
    return SeqVar([t.operators.binary("floordiv", a, b), t.operators.binary("mod", a, b)], tuple)


@models(builtins.pow)
def pow_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if len(args) == 2 and not kwargs:
        return t.operators.binary("pow", args[0], args[1])
    if any(isinstance(a, InstanceVar) for a in (*args, *kwargs.values())):
        raise Break("pow() of an instance and a modulus")
    return t.operators.fold(functools.partial(pow, **{k: t.const(v) for k, v in kwargs.items()}), *map(t.const, args))


def _container_text(t: Tracer, v: Var) -> Var:
    """repr() of a list, tuple, dict or set whose items have a repr that runs in the trace."""
    one = lambda x: t.calls.call_python(repr, [t.values.real(x)])  # noqa: E731
    if isinstance(v, DictVar) and v.cls is dict:
        t.values.complete(v)
        pairs = [one(x) for pair in v.items.values() for x in pair]
        return container_text(pairs, lambda p: "{" + ", ".join(map(": ".join, zip(p[::2], p[1::2]))) + "}", t)
    if isinstance(v, SeqVar) and v.cls in (list, tuple):
        ends = "[]" if v.cls is list else "()" if len(v.items) != 1 else ("(", ",)")
        return container_text([*map(one, v.items)], lambda p: f"{ends[0]}{', '.join(p)}{ends[1]}", t)
    raise Break(f"repr() of {words(v)}")


def _own_text(t: Tracer, v: Var, methods: tuple[str, ...]) -> Var | None:
    """The text that code of the program makes of an instance, or of a class that has a metaclass. None where it has none."""
    if not isinstance(v, InstanceVar) and not (type(v) is Known and is_own_class(v.obj)):
        return None
    for name in methods:
        found = class_attribute(t.type_of(v), name)
        if isinstance(found, types.FunctionType):
            return _text_of_method(t, v, name, [])
        if found is type.__repr__ and isinstance(v, Known):
            return t.operators.fold(found, v.obj)
        if found is not object.__str__:  # which asks for the repr
            break
    return None


def _text_of_method(t: Tracer, v: Var, name: str, args: list[Var]) -> Var:
    """The text that a special method of the program's returns."""
    text = t.values.real(t.calls.call(t.attributes.special(v, name), args, {}))
    if not issubclass(t.type_of(text), str):  # an error, in words of Python's own
        raise Break(f"what {t.type_of(v).__name__}.{name} returned")
    return text


def _text(function: Callable, methods: tuple[str, ...]) -> None:
    def make(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if not args:
            return Known("")
        v = args[0]
        if (found := _own_text(t, v, methods)) is not None:
            return found
        if isinstance(v, InstanceVar):
            if isinstance(v.base, Known) and isinstance(v.base.obj, (int, str, float)):
                return t.operators.fold(function, v.base.obj, *(to_python(t, a) for a in args[1:]))
            if issubclass(v.cls, BaseException):
                method = class_attribute(v.cls, methods[0])
                if t.calls.has_handler(method):
                    return t.calls.call_python(method, [v])
            raise Break(f"{function.__name__}() of a {v.cls.__name__}")
        if (found := text_of(function, args)) is not None:
            return found
        try:
            real = to_python(t, v, classes=True)
        except NotConstant:
            if len(args) == 1 and (unmade := unread(t, function, args)) is not None:
                return unmade
            if isinstance(v, (SeqVar, DictVar, SetVar)) and len(args) == 1:
                return _container_text(t, v)
            raise Break(f"{function.__name__}() of {words(v)}") from None
        return t.operators.fold(function, real, *(t.const(a) for a in args[1:]))

    MODELS[function] = make


_text(str, ("__str__", "__repr__"))
_text(repr, ("__repr__",))


def _escaped(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode("ascii")


@models(ascii)
def ascii_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """repr(), escaped."""
    text = MODELS[repr](t, args, kwargs)
    return text_of(_escaped, [text]) or unread(t, _escaped, [text]) or t.operators.fold(_escaped, t.const(text))


@models(builtins.format)
def format_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v, spec = args[0], args[1] if len(args) > 1 else Known("")
    if isinstance(v, InstanceVar) or type(v) is Known and is_own_class(v.obj):
        if isinstance(class_attribute(t.type_of(v), "__format__"), types.FunctionType):
            return _text_of_method(t, v, "__format__", [spec])
        if issubclass(t.type_of(v), numpy_types.SCALAR):
            raise Break(f"format() of a {t.type_of(v).__name__}, a C object")
        if t.const(spec) == "":
            return t.calls.call_python(str, [v])
        if is_plain_instance(v):
            return t.calls.folded(format, [stand_in(v), t.const(spec)], {})
    if isinstance(v, TensorVar):
        text = t.const(spec)
        if v.fake.dim() == 0 and (known := t.tensor_values.python_value(v, lambda real: format(real, text))) is not None:
            return known
        why = "formatting a tensor needs its value"
        plain = v.fake.dim() == 0 and t.type_of(v) is torch.Tensor  # such a one is formatted as its number
        number = t.reads.read(v, torch.Tensor.item, why) if plain else None
        if number is not None and (filled := text_of(format, [number, spec])) is not None:
            return filled
        if (unmade := unread(t, format, [v, spec])) is not None:
            return unmade
        raise Break(why)
    if (found := text_of(format, [v, spec]) or unread(t, format, [v, spec])) is not None:
        return found
    try:
        return t.operators.fold(format, to_python(t, v, classes=True), t.const(spec))
    except NotConstant:
        if t.const(spec) == "":
            return t.calls.call_python(str, [v])
        raise Break(f"format() of {words(v)}") from None


def _joined(t: Tracer, v: Var) -> Var:
    """Returns the iterable of which join() takes its parts. Raises: Raised with the text of join for what cannot be iterated."""
    if isinstance(v, SeqVar):
        return v
    try:
        return t.iteration.iter(v)
    except Raised as e:
        if not issubclass(e.exc.cls, TypeError):
            raise
    raise t.raised(TypeError("can only join an iterable"))


@models(str.join, bytes.join)
def join(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    parts = [t.values.real(v) for v in t.iteration.iterate(_joined(t, args[1]), sized=True)]
    given = [t.values.real(args[0]), *parts] if t.type_of(args[0]) is str else []
    found = text_of(joined_by, given) or unread(t, joined_by, given)
    return found or t.operators.fold(t.const(args[0]).join, [t.const(v) for v in parts])


@models(str.format)
def str_format(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if isinstance(args[0], InstanceVar):
        raise Break("a format in a subclass of str")  # where nothing is put in, it is the result
    values = [t.values.real(a) for a in args]
    named = {k: t.values.real(a) for k, a in kwargs.items()}
    filled = text_of(str.format, values, named) or unread(t, str.format, values, named)
    if filled is not None:
        return filled
    text = t.const(args[0])
    row = [in_text(t, v) for v in args[1:]]
    others = {k: in_text(t, v) for k, v in kwargs.items()}
    return t.operators.fold(lambda: text.format(*row, **others))


@models(str.format_map)
def format_map(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if isinstance(args[0], InstanceVar):
        raise Break("a format in a subclass of str")
    text, given = t.const(args[0]), in_text(t, args[1])
    return t.operators.fold(lambda: text.format_map(given))


@models(builtins.slice)
def slice_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.subscripts.slice([NONE, args[0], NONE] if len(args) == 1 else [*args, NONE][:3])


@models(builtins.range)
def range_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    bounds = [t.subscripts.open_index(a) for a in args[:2]]
    if not any(map(is_symbolic, bounds)):
        return t.operators.fold(range, *bounds, *(t.subscripts.index(a) for a in args[2:]))
    start, stop = bounds if len(bounds) == 2 else (0, *bounds)
    step = t.subscripts.index(args[2]) if len(args) > 2 else 1
    if step == 0:
        raise t.raised(ValueError("range() arg 3 must not be zero"))
    return RangeVar(start, stop, step)


# ---- the operator module ---------------------------------------------------------------------------------------------
_f: Any
for _name, _f in FUNCTIONS.items():
    if _f not in MODELS:  # divmod has its own
        MODELS[_f] = lambda t, args, kwargs, name=_name: t.operators.binary(name, *args)
for _name, _f in IN_PLACE.items():
    MODELS[_f] = lambda t, args, kwargs, name=_name: t.operators.binary(name, *args, in_place=True)
for _name, _f in UNARY.items():
    MODELS[_f] = lambda t, args, kwargs, name=_name: t.operators.unary(name, *args)
for _name, _f in COMPARISONS.items():
    MODELS[_f] = lambda t, args, kwargs, name=_name: t.comparisons.compare(name, *args)
MODELS[operator.getitem] = lambda t, args, kwargs: t.subscripts.getitem(*args)
MODELS[operator.not_] = lambda t, args, kwargs: t.values.constant(not t.comparisons.truth(args[0]))
MODELS[operator.truth] = lambda t, args, kwargs: t.values.constant(t.comparisons.truth(args[0]))
MODELS[operator.is_] = lambda t, args, kwargs: t.values.constant(t.comparisons.is_same(*args))
MODELS[operator.is_not] = lambda t, args, kwargs: t.values.constant(not t.comparisons.is_same(*args))
MODELS[operator.contains] = lambda t, args, kwargs: t.values.constant(t.subscripts.contains(*args))
MODELS[operator.index] = lambda t, args, kwargs: Known(t.subscripts.index(args[0]))
MODELS[operator.setitem] = lambda t, args, kwargs: t.subscript_writes.setitem(*args) or NONE
MODELS[operator.delitem] = lambda t, args, kwargs: t.subscript_writes.delitem(*args) or NONE
for _none, _is in zip(newer(operator, "is_none", "is_not_none"), (True, False)):
    MODELS[_none] = lambda t, args, kwargs, is_=_is: t.values.constant(t.comparisons.is_same(args[0], NONE) is is_)
