"""Handlers: calls, functions, attributes, imports, classes."""

from __future__ import annotations

import builtins
from typing import Any

from bytejit.tracer.core.exceptions import exception_var, left_generator
from bytejit.tracer.core.frame import Frame, Ins
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.table import handles, refuse
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NULL, DictVar, FuncVar, InstanceVar, Known, MethodVar, SeqVar, Var
from bytejit.tracer.core.versions import ATTR_METHOD_BIT, CALL_EX_ALWAYS_HAS_KWARGS, NULL_BELOW, TUPLES_ASK_LENGTHS


@handles("KW_NAMES")
def kw_names(t: Tracer, f: Frame, ins: Ins) -> None:
    f.kwnames = f.code.co_consts[ins.arg]


def split(values: list[Var], kwnames: tuple) -> tuple[list[Var], dict[str, Var]]:
    """The flat arguments of a call as (positional, keyword)."""
    n = len(kwnames)
    return (values[:-n], dict(zip(kwnames, values[-n:]))) if n else (values, {})


@handles("CALL")
def call(t: Tracer, f: Frame, ins: Ins) -> None:
    names, f.kwnames = f.kwnames, ()
    args, kwargs = split(f.popn(ins.arg), names)
    f.push(t.calls.call(callee(f), args, kwargs))


def callee(f: Frame) -> Var:
    """Pop the callable and its NULL or self; a self goes into a MethodVar only in the layouts that push one."""
    second, first = f.pop_raw(), f.pop_raw()
    if NULL_BELOW:
        return second if first is NULL else _with_self(first, second)
    return first if second is NULL else _with_self(first, second)


def _with_self(func: Var, self_: Var) -> MethodVar:
    return MethodVar(func, self_)


@handles("CALL_KW")
def call_kw(t: Tracer, f: Frame, ins: Ins) -> None:
    names = t.const(t.pop(f))
    args, kwargs = split(f.popn(ins.arg), names)
    f.push(t.calls.call(callee(f), args, kwargs))


@handles("CALL_FUNCTION_EX")
def call_function_ex(t: Tracer, f: Frame, ins: Ins) -> None:
    has_kwargs = f.stack[-1] is not NULL if CALL_EX_ALWAYS_HAS_KWARGS else ins.arg & 1
    kwargs = {}
    if has_kwargs:
        mapping = t.pop(f)
        pairs = t.iteration.mapping_items(mapping)
        if pairs is None:
            raise Raised(exception_var(TypeError(f"Value after ** must be a mapping, not {t.type_of(mapping).__name__}")))
        for key, value in pairs:
            if not isinstance(t.const(key), str):
                raise Raised(exception_var(TypeError("keywords must be strings")))
            kwargs[t.const(key)] = value
    elif CALL_EX_ALWAYS_HAS_KWARGS:
        f.pop_raw()
    positional, function = t.pop(f), callee(f)
    try:
        args = t.iteration.iterate(positional, sized=TUPLES_ASK_LENGTHS)
    except Raised:
        if t.iteration.has_iter(positional):
            raise
        what = f"{shown(t, function)} argument after * must be an iterable, not {t.type_of(positional).__name__}"
        raise Raised(exception_var(TypeError(what))) from None
    f.push(t.calls.call(function, args, kwargs))


def shown(t: Tracer, function: Var) -> str:
    """The name of a callable in messages about its arguments. Raises: Break."""
    try:
        name, module = (t.const(t.attributes.getattr(function, n)) for n in ("__qualname__", "__module__"))
    except Raised:
        raise Break("a message that shows an object") from None
    return f"{name}()" if module in (None, "builtins") else f"{module}.{name}()"


@handles("MAKE_FUNCTION")
def make_function(t: Tracer, f: Frame, ins: Ins) -> None:
    """3.11, 3.12: flags 1 defaults, 2 keyword defaults, 4 annotations, 8 closure. 3.13+: SET_FUNCTION_ATTRIBUTE."""
    code = t.const(t.pop(f))
    func = FuncVar(code, f.globals, (), step=t.limits.steps)
    for flag in (8, 4, 2, 1):
        if ins.arg & flag:
            set_function_part(t, func, flag, f.pop_raw())
    f.push(func)


@handles("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(t: Tracer, f: Frame, ins: Ins) -> None:
    func = t.pop(f)
    assert isinstance(func, FuncVar), func
    set_function_part(t, func, ins.arg, f.pop_raw())
    f.push(func)


def set_function_part(t: Tracer, func: FuncVar, flag: int, part: Var) -> None:
    value: Any = t.values.real(part)
    if flag == 8:
        func.closure = tuple(value.items)
    elif flag == 2:
        func.kwdefaults = {k: v for k, (_, v) in value.items.items()}
    elif flag == 1:
        func.defaults = tuple(value.items) if isinstance(value, SeqVar) else tuple(t.values.constant(v) for v in value.obj)
    else:
        func.annotations = value


@handles("LOAD_ATTR")
def load_attr(t: Tracer, f: Frame, ins: Ins) -> None:
    value = t.attributes.getattr(t.pop(f), ins.val)
    if ATTR_METHOD_BIT and ins.arg & 1:
        f.push_callable(value)
    else:
        f.push(value)


@handles("LOAD_METHOD")
def load_method(t: Tracer, f: Frame, ins: Ins) -> None:
    f.stack.extend((NULL, t.attributes.getattr(t.pop(f), ins.val)))


@handles("LOAD_SUPER_ATTR")
def load_super_attr(t: Tracer, f: Frame, ins: Ins) -> None:
    """3.12+: super().name without making the super object; bit 0 method load, bit 1 two-argument super."""
    self_, cls, super_ = t.pop(f), t.pop(f), t.pop(f)
    obj = t.calls.call(super_, [cls, self_] if ins.arg & 2 else [cls, self_], {})
    value = t.attributes.getattr(obj, f.code.co_names[ins.arg >> 2])
    if ins.arg & 1:
        f.push_callable(value)
    else:
        f.push(value)


@handles("STORE_ATTR")
def store_attr(t: Tracer, f: Frame, ins: Ins) -> None:
    obj, value = t.pop(f), f.pop_raw()
    t.attribute_writes.setattr(obj, ins.val, value)


@handles("DELETE_ATTR")
def delete_attr(t: Tracer, f: Frame, ins: Ins) -> None:
    t.attribute_writes.delattr(t.pop(f), ins.val)


@handles("LOAD_SPECIAL")
def load_special(t: Tracer, f: Frame, ins: Ins) -> None:
    """3.14: __enter__, __exit__ and their async forms, as a method load."""
    name = ("__enter__", "__exit__", "__aenter__", "__aexit__")[ins.arg]
    if name.startswith("__a"):
        raise Break("an async with")
    f.stack.extend((t.attributes.special(t.pop(f), name), NULL))


@handles("LOAD_BUILD_CLASS")
def load_build_class(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(Known(builtins.__build_class__))


@handles("SETUP_ANNOTATIONS")
def setup_annotations(t: Tracer, f: Frame, ins: Ins) -> None:
    if f.names is None:
        raise Break("annotations of a module")
    if "__annotations__" not in f.names.items:
        t.names.namespace_set(f.names, "__annotations__", DictVar({}))


def as_tuple(made: Var) -> SeqVar:
    """The tuple of a list that was made for it."""
    assert isinstance(made, SeqVar), made
    return SeqVar(made.items, tuple)


@handles("CALL_INTRINSIC_1")
def call_intrinsic_1(t: Tracer, f: Frame, ins: Ins) -> None:
    """3.12+: 3 StopIteration error, 5 unary +, 6 list to tuple; printing, star imports and typing break."""
    if ins.arg == 5:
        f.push(t.operators.unary("pos", t.pop(f)))
    elif ins.arg == 6:
        f.push(as_tuple(t.pop(f)))
    elif ins.arg == 3:
        raise_from_generator(t, f)
    else:
        raise Break(f"the intrinsic {ins.val or ins.arg}")


def raise_from_generator(t: Tracer, f: Frame) -> None:
    """A StopIteration that leaves a generator becomes a RuntimeError."""
    exc = t.values.real(f.stack[-1])
    assert isinstance(exc, InstanceVar), exc
    if issubclass(exc.cls, StopIteration):
        f.stack[-1] = left_generator(exc)


refuse("a star import", "IMPORT_STAR")
refuse("an interactive expression", "PRINT_EXPR")
refuse("a template string", "BUILD_INTERPOLATION", "BUILD_TEMPLATE")
