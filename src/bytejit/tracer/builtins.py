"""Models of builtins: type questions, containers' methods, iterators, attribute functions, global state of torch."""
from __future__ import annotations

import builtins
import collections
import functools
import operator
import types

import torch

from .attrs import class_lookup
from .calls import HANDLERS, describe, models
from .containers import NotConstant, key_of, to_python
from .operators import COMPARISONS, FUNCTIONS, IN_PLACE, UNARY, class_attribute
from .signals import Break, Raised
from .values import (
    FALSE,
    NONE,
    NULL,
    TRUE,
    DictVar,
    DictView,
    FuncVar,
    InstanceVar,
    IterVar,
    Known,
    MethodVar,
    SeqVar,
    SetVar,
    SuperVar,
    TensorVar,
    Var,
)


# ---- types and attributes --------------------------------------------------------------------------------------------
@models(builtins.isinstance)
def isinstance_(t, args, kwargs):
    return t.constant(_is_a(t, t.type_of(args[0]), args[1], "__instancecheck__", args[0]))


@models(builtins.issubclass)
def issubclass_(t, args, kwargs):
    cls = t.as_class(args[0])
    if cls is None:
        raise t.raised(TypeError("issubclass() arg 1 must be a class"))
    return t.constant(_is_a(t, cls, args[1], "__subclasscheck__", args[0]))


def _is_a(t, cls: type, classes: Var, hook: str, subject: Var) -> bool:
    if isinstance(classes, SeqVar):
        return any(_is_a(t, cls, t.real(c), hook, subject) for c in classes.items)
    of = t.as_class(classes)
    if of is None:
        if isinstance(classes, Known) and isinstance(classes.obj, types.UnionType):
            return any(_is_a(t, cls, t.constant(c), hook, subject) for c in classes.obj.__args__)
        if isinstance(classes, Known):
            try:
                return issubclass(cls, classes.obj)
            except TypeError as e:
                raise t.raised(e) from None
        raise t.raised(TypeError("isinstance() arg 2 must be a type, a tuple of types, or a union"))
    check = class_lookup(type(of), hook)[0]
    if isinstance(check, types.FunctionType) and type(of).__module__ not in ("abc", "typing", "enum"):
        if of in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or type(of).__module__.startswith("torch"):
            return _tensor_instance(t, subject, of, cls)
        return t.truth(t.call(t.constant(check), [t.constant(of), subject], {}))
    if type(of).__module__ == "typing" and getattr(of, "_is_protocol", False) and hook == "__instancecheck__":
        real = getattr(subject, "real", None)
        if real is None:
            return issubclass(cls, of)
        return isinstance(real, of)
    try:
        return issubclass(cls, of)
    except TypeError as e:
        raise t.raised(e) from None


def _tensor_instance(t, subject, of, cls) -> bool:
    if isinstance(subject, TensorVar):
        if subject.real is not None:
            return isinstance(subject.real, of)
        if of is torch.Tensor:
            return True
        return isinstance(subject.fake, of) if of not in (torch.nn.Parameter, torch.nn.Buffer) else False
    real = getattr(subject, "real", None)
    return isinstance(real, of) if real is not None else issubclass(cls, of)


@models(builtins.callable)
def callable_(t, args, kwargs):
    v = args[0]
    if isinstance(v, (FuncVar, MethodVar)):
        return TRUE
    if isinstance(v, Known):
        return t.constant(callable(v.obj))
    return t.constant(class_attribute(t.type_of(v), "__call__") is not None)


@models(builtins.getattr)
def getattr_(t, args, kwargs):
    name = t.const(args[1])
    if not isinstance(name, str):
        raise t.raised(TypeError(f"attribute name must be string, not '{type(name).__name__}'"))
    return t.getattr(args[0], name, args[2] if len(args) > 2 else None)


@models(builtins.hasattr)
def hasattr_(t, args, kwargs):
    return t.constant(t.getattr(args[0], t.const(args[1]), NULL) is not NULL)


@models(builtins.setattr)
def setattr_(t, args, kwargs):
    t.setattr(args[0], t.const(args[1]), args[2])
    return NONE


@models(builtins.delattr)
def delattr_(t, args, kwargs):
    t.delattr(args[0], t.const(args[1]))
    return NONE


@models(object.__setattr__)
def object_setattr(t, args, kwargs):
    if not isinstance(args[0], InstanceVar):
        raise Break("object.__setattr__ on a C object")
    t.generic_setattr(args[0], t.const(args[1]), args[2])
    return NONE


@models(object.__delattr__)
def object_delattr(t, args, kwargs):
    t.generic_delattr(args[0], t.const(args[1]))
    return NONE


@models(object.__getattribute__)
def object_getattribute(t, args, kwargs):
    if isinstance(args[0], InstanceVar):
        return t.generic_getattr(args[0], t.const(args[1]), fallback=False)
    return t.getattr(args[0], t.const(args[1]))


@models(object.__init__)
def object_init(t, args, kwargs):
    return NONE


@models(BaseException.with_traceback)
def with_traceback(t, args, kwargs):
    return args[0]


@models(object.__new__)
def object_new(t, args, kwargs):
    cls = t.as_class(args[0])
    if cls is None or cls.__flags__ & (1 << 9) == 0 and cls is not object:
        raise Break(f"making a {describe(cls)}")
    return t.object_new(cls)


@models(object.__eq__)
def object_eq(t, args, kwargs):
    return TRUE if t.is_same(args[0], args[1]) else t.constant(NotImplemented)


@models(object.__ne__)
def object_ne(t, args, kwargs):
    return t.constant(not t.truth(t.compare("eq", args[0], args[1])))


@models(builtins.super)
def super_(t, args, kwargs):
    if not args:
        frame = t.frame
        if "__class__" not in frame.cells:
            raise t.raised(RuntimeError("super(): __class__ cell not found"))
        first = frame.code.co_varnames[0]
        obj = frame.locals.get(first) or frame.cells[first].content
        args = [t.real(frame.cells["__class__"].content), t.real(obj)]
    cls = t.as_class(args[0])
    if cls is None or len(args) < 2:
        raise Break("an unbound super()")
    return SuperVar(cls, args[1])


@models(builtins.vars)
def vars_(t, args, kwargs):
    if not args:
        raise Break("vars() of a function")
    return t.getattr(args[0], "__dict__")


@models(builtins.id)
def id_(t, args, kwargs):
    real = args[0].obj if isinstance(args[0], Known) else getattr(args[0], "real", None)
    if real is None:
        raise Break("id() of a value made in the region")
    if args[0].source is not None:
        t.guard("ID_IS", args[0].source, real)
    return Known(id(real))


@models(builtins.hash)
def hash_(t, args, kwargs):
    v = args[0]
    if isinstance(v, InstanceVar) and isinstance(class_attribute(v.cls, "__hash__"), types.FunctionType):
        return t.call(t.special(v, "__hash__"), [], {})
    try:
        return t.fold(hash, to_python(t, v))
    except NotConstant:
        key_of(t, v)
        raise Break("hash() of an object") from None


# ---- numbers and strings ---------------------------------------------------------------------------------------------
@models(builtins.len)
def len_(t, args, kwargs):
    return Known(t.length(args[0]))


@models(builtins.bool)
def bool_(t, args, kwargs):
    return t.constant(bool(args) and t.truth(args[0]))


def _number(cls, special):
    def make(t, args, kwargs):
        if args and isinstance(args[0], TensorVar):
            raise Break(f"{cls.__name__}() of a tensor needs its value")
        if args and isinstance(args[0], InstanceVar):
            if isinstance(args[0].base, Known):
                args = [args[0].base, *args[1:]]
            else:
                for name in special:
                    if class_attribute(args[0].cls, name) is not None:
                        return t.call(t.special(args[0], name), [], {})
        try:
            make = functools.partial(cls, **{k: to_python(t, v) for k, v in kwargs.items()})
            return t.fold(make, *(to_python(t, a) for a in args))
        except NotConstant:
            if isinstance(args[0], (SeqVar, DictVar, SetVar)):
                return t.fold(cls, [] if not isinstance(args[0], DictVar) else {})
            raise Break(f"{cls.__name__}() of {args[0]!r}") from None
    HANDLERS[cls] = make


_number(int, ("__int__", "__index__", "__trunc__"))
_number(float, ("__float__", "__index__"))
_number(complex, ("__complex__", "__float__"))


@models(builtins.abs)
def abs_(t, args, kwargs):
    if isinstance(args[0], TensorVar):
        return t.call_tensor_op(abs, args, {})
    if isinstance(args[0], InstanceVar):
        return t.call(t.special(args[0], "__abs__"), [], {})
    return t.fold(abs, to_python(t, args[0]))


@models(builtins.round)
def round_(t, args, kwargs):
    if isinstance(args[0], TensorVar):
        return t.call_tensor_op(torch.Tensor.round, args[:1], {"decimals": args[1]} if len(args) > 1 else kwargs)
    if isinstance(args[0], InstanceVar):
        return t.call(t.special(args[0], "__round__"), args[1:], {})
    return t.fold(round, *(to_python(t, a) for a in args))


@models(builtins.divmod)
def divmod_(t, args, kwargs):
    a, b = args
    if isinstance(a, Known) and isinstance(b, Known):
        return t.fold(divmod, a.obj, b.obj)
    return SeqVar([t.binary("floordiv", a, b), t.binary("mod", a, b)], tuple)


@models(builtins.pow)
def pow_(t, args, kwargs):
    if len(args) == 2 and not kwargs:
        return t.binary("pow", *args)
    return t.fold(pow, *(to_python(t, a) for a in args), *(to_python(t, v) for v in kwargs.values()))


def _container_text(t, v) -> Var:
    """repr() of a list, tuple, dict or set whose items have a repr that runs in the trace."""
    one = lambda x: t.const(t.call_python(repr, [t.real(x)]))  # noqa: E731
    if isinstance(v, DictVar) and v.cls is dict:
        t.complete(v)
        return Known("{" + ", ".join(f"{one(k)}: {one(x)}" for k, x in v.items.values()) + "}")
    if isinstance(v, SeqVar) and v.cls in (list, tuple):
        inside = ", ".join(map(one, v.items))
        return Known(f"[{inside}]" if v.cls is list else f"({inside}{',' * (len(v.items) == 1)})")
    raise Break(f"repr() of {v!r}")


def _text(function, methods):
    def make(t, args, kwargs):
        if not args:
            return Known("")
        v = args[0]
        if isinstance(v, InstanceVar) and not (isinstance(v.base, Known) and isinstance(v.base.obj, (int, str, float))):
            for name in methods:
                if isinstance(class_attribute(v.cls, name), types.FunctionType):
                    return t.call(t.special(v, name), [], {})
            if issubclass(v.cls, BaseException):
                method = class_attribute(v.cls, methods[0])
                if t.has_handler(method):
                    return t.call_python(method, [v])
            raise Break(f"{function.__name__}() of a {v.cls.__name__}")
        try:
            real = to_python(t, v, classes=True)
        except NotConstant:
            if function is not ascii and isinstance(v, (SeqVar, DictVar, SetVar)) and len(args) == 1:
                return _container_text(t, v)
            raise Break(f"{function.__name__}() of {v!r}") from None
        return t.fold(function, real, *(to_python(t, a) for a in args[1:]))
    HANDLERS[function] = make


_text(str, ("__str__", "__repr__"))
_text(repr, ("__repr__",))
_text(ascii, ("__repr__",))


@models(builtins.format)
def format_(t, args, kwargs):
    v, spec = args[0], args[1] if len(args) > 1 else Known("")
    if isinstance(v, InstanceVar):
        if isinstance(class_attribute(v.cls, "__format__"), types.FunctionType):
            return t.call(t.special(v, "__format__"), [spec], {})
        if isinstance(v.base, Known):
            v = v.base
        elif t.const(spec) == "":
            return t.call_python(str, [v])
    if isinstance(v, TensorVar):
        raise Break("formatting a tensor needs its value")
    try:
        return t.fold(format, to_python(t, v, classes=True), t.const(spec))
    except NotConstant:
        if t.const(spec) == "":
            return t.call_python(str, [v])
        raise Break(f"format() of {v!r}") from None


@models(str.join, bytes.join)
def join(t, args, kwargs):
    return t.fold(t.const(args[0]).join, [t.const(v) for v in t.iterate(args[1])])


@models(str.format)
def str_format(t, args, kwargs):
    try:
        return t.fold(lambda: t.const(args[0]).format(*(to_python(t, a, classes=True) for a in args[1:]),
                                                      **{k: to_python(t, v, classes=True) for k, v in kwargs.items()}))
    except NotConstant:
        raise Break("str.format of an object or a tensor") from None


# ---- making containers and iterators ---------------------------------------------------------------------------------
@models(builtins.list)
def list_(t, args, kwargs):
    return SeqVar(list(t.iterate(args[0])) if args else [], list)


@models(builtins.tuple)
def tuple_(t, args, kwargs):
    if args and isinstance(args[0], SeqVar) and args[0].cls is tuple:
        return args[0]
    return SeqVar(list(t.iterate(args[0])) if args else [], tuple)


@models(tuple.__new__)
def tuple_new(t, args, kwargs):
    cls = t.as_class(args[0])
    items = list(t.iterate(args[1])) if len(args) > 1 else []
    if cls is tuple:
        return SeqVar(items, tuple)
    if hasattr(cls, "_fields") and cls.__dict__.get("__slots__") == () and cls.__mro__[1] is tuple:
        return SeqVar(items, cls)
    made = t.object_new(cls)
    made.base = SeqVar(items, tuple)
    return made


@models(torch.Size)
def size_(t, args, kwargs):
    items = [Known(t.index(v)) for v in t.iterate(args[0])] if args else []
    return SeqVar(items, torch.Size)


@models(collections.deque)
def deque_(t, args, kwargs):
    items = list(t.iterate(args[0])) if args else []
    limit = args[1] if len(args) > 1 else kwargs.get("maxlen", NONE)
    limit = t.const(limit)
    return SeqVar(items if limit is None else items[max(0, len(items) - limit):], collections.deque, maxlen=limit)


def _set_of(cls):
    def make(t, args, kwargs):
        return SetVar({key_of(t, t.real(v)): t.real(v) for v in t.iterate(args[0])} if args else {}, cls)
    HANDLERS[cls] = make


_set_of(set)
_set_of(frozenset)


def fill_dict(t, d, args, kwargs):
    if args:
        pairs = t.mapping_items(args[0])
        if pairs is None:
            pairs = []
            for n, entry in enumerate(t.iterate(args[0])):
                if not t.has_iter(entry):
                    raise t.raised(TypeError(f"cannot convert dictionary update sequence element #{n} to a sequence"))
                pair = t.iterate(entry)
                if len(pair) != 2:
                    raise t.raised(ValueError(f"dictionary update sequence element #{n} has length {len(pair)}; 2 is required"))
                pairs.append((t.real(pair[0]), pair[1]))
        for k, v in pairs:
            t.dict_set(d, k, v)
    for name, v in kwargs.items():
        t.dict_set(d, Known(name), v)
    return d


def _dict_of(cls):
    def make(t, args, kwargs):
        return fill_dict(t, DictVar({}, cls), args, kwargs)
    HANDLERS[cls] = make


_dict_of(dict)
_dict_of(collections.OrderedDict)


@models(collections.defaultdict)
def defaultdict_(t, args, kwargs):
    return fill_dict(t, DictVar({}, collections.defaultdict, factory=args[0] if args else NONE), args[1:], kwargs)


@models(types.MappingProxyType)
def mappingproxy(t, args, kwargs):
    if not isinstance(args[0], DictVar):
        raise Break("a mapping proxy of an object")
    return args[0]


@models(builtins.slice)
def slice_(t, args, kwargs):
    return t.slice([NONE, args[0], NONE] if len(args) == 1 else [*args, NONE][:3])


@models(builtins.range)
def range_(t, args, kwargs):
    return t.fold(range, *(t.index(a) for a in args))


@models(builtins.iter)
def iter_(t, args, kwargs):
    if len(args) == 2:
        return IterVar("callable", {"function": args[0], "sentinel": args[1]}, t.steps)
    return t.iter(args[0])


@models(builtins.next)
def next_(t, args, kwargs):
    item = t.next_value(args[0])
    if item is None:
        if len(args) > 1:
            return args[1]
        raise t.raised(StopIteration())
    return item


@models(builtins.enumerate)
def enumerate_(t, args, kwargs):
    start = args[1] if len(args) > 1 else kwargs.get("start", Known(0))
    return IterVar("enumerate", {"of": t.iter(args[0]), "at": t.index(start)}, t.steps)


@models(builtins.zip)
def zip_(t, args, kwargs):
    strict = "strict" in kwargs and t.truth(kwargs["strict"])
    return IterVar("zip", {"of": [t.iter(a) for a in args], "strict": strict}, t.steps)


@models(builtins.map)
def map_(t, args, kwargs):
    return IterVar("map", {"function": args[0], "of": [t.iter(a) for a in args[1:]]}, t.steps)


@models(builtins.filter)
def filter_(t, args, kwargs):
    return IterVar("filter", {"function": args[0], "of": t.iter(args[1])}, t.steps)


@models(builtins.reversed)
def reversed_(t, args, kwargs):
    v = args[0]
    if isinstance(v, InstanceVar) and class_attribute(v.cls, "__reversed__") is not None and v.base is None:
        return t.call(t.special(v, "__reversed__"), [], {})
    if isinstance(v, InstanceVar) and v.base is None:
        items = [t.getitem(v, Known(i)) for i in reversed(range(t.length(v)))]
        return IterVar("seq", {"seq": SeqVar(items), "at": 0}, t.steps)
    if isinstance(v, SeqVar):
        return IterVar("reversed", {"seq": v, "at": len(v.items) - 1}, t.steps)
    items = list(reversed(t.iterate(v)))
    return IterVar("seq", {"seq": SeqVar(items), "at": 0}, t.steps)


@models(functools.partial)
def partial(t, args, kwargs):
    made = InstanceVar(functools.partial, step=t.steps)
    inner = args[0]
    if isinstance(inner, InstanceVar) and inner.cls is functools.partial and inner.real is None:
        args = [inner.slots["func"], *inner.slots["args"].items, *args[1:]]
        kwargs = {**{k: v for k, (_, v) in inner.slots["keywords"].items.items()}, **kwargs}
    made.slots.update(func=args[0], args=SeqVar(list(args[1:]), tuple),
                      keywords=DictVar({k: (Known(k), v) for k, v in kwargs.items()}))
    return made


@models(types.MethodType)
def method_type(t, args, kwargs):
    return MethodVar(args[0], args[1])


@models(types.FunctionType.__get__)
def function_get(t, args, kwargs):
    return args[0] if t.is_same(args[1], NONE) else MethodVar(args[0], args[1])


@models(types.GeneratorType.send)
def generator_send(t, args, kwargs):
    finished, value = t.resume(args[0], args[1])
    if finished:
        raise t.stop(value)
    return value


@models(types.GeneratorType.__next__)
def generator_next(t, args, kwargs):
    return generator_send(t, [args[0], NONE], {})


@models(types.GeneratorType.__iter__)
def generator_iter(t, args, kwargs):
    return args[0]


@models(types.GeneratorType.throw)
def generator_throw(t, args, kwargs):
    exc = args[1] if len(args) < 3 or t.is_same(args[2], NONE) else args[2]
    exc = t.as_exception(exc, "exceptions must be classes or instances deriving from BaseException, not "
                         f"{t.type_of(exc).__name__}")
    finished, value = t.resume(args[0], NONE, thrown=Raised(exc))
    if finished:
        raise t.stop(value)
    return value


@models(types.GeneratorType.close)
def generator_close(t, args, kwargs):
    gen = args[0]
    if not gen.started or gen.finished:
        gen.finished = True
        return NONE
    try:
        finished, _ = t.resume(gen, NONE, thrown=t.raised(GeneratorExit()))
    except Raised as e:
        if issubclass(e.exc.cls, (GeneratorExit, StopIteration)):
            return NONE
        raise
    if not finished:
        raise t.raised(RuntimeError("generator ignored GeneratorExit"))
    return NONE


@models(builtins.any)
def any_(t, args, kwargs):
    iterator = t.iter(args[0])
    while (item := t.next(iterator)) is not None:
        if t.truth(item):
            return TRUE
    return FALSE


@models(builtins.all)
def all_(t, args, kwargs):
    iterator = t.iter(args[0])
    while (item := t.next(iterator)) is not None:
        if not t.truth(item):
            return FALSE
    return TRUE


@models(builtins.sum)
def sum_(t, args, kwargs):
    total = args[1] if len(args) > 1 else kwargs.get("start", Known(0))
    iterator = t.iter(args[0])
    while (item := t.next(iterator)) is not None:
        total = t.binary("add", t.real(total), t.real(item))
    return total


def _extreme(function, name):
    def pick(t, args, kwargs):
        items = t.iterate(args[0]) if len(args) == 1 else list(args)
        key = kwargs.get("key", NONE)
        if not items:
            if "default" in kwargs:
                return kwargs["default"]
            raise t.fold_error(function, [])
        best, best_key = None, None
        for item in items:
            k = item if t.is_same(key, NONE) else t.call(key, [item], {})
            if best is None or t.truth(t.compare(name, k, best_key)):
                best, best_key = item, k
        return t.real(best)
    HANDLERS[function] = pick


_extreme(builtins.max, "gt")
_extreme(builtins.min, "lt")


@models(builtins.sorted)
def sorted_(t, args, kwargs):
    out = SeqVar(list(t.iterate(args[0])), list)
    list_sort(t, [out], kwargs)
    return out


@models(functools.reduce)
def reduce_(t, args, kwargs):
    iterator = t.iter(args[1])
    if len(args) > 2:
        total = args[2]
    else:
        total = t.next(iterator)
        if total is None:
            raise t.raised(TypeError("reduce() of empty iterable with no initial value"))
    while (item := t.next(iterator)) is not None:
        total = t.call(args[0], [total, item], {})
    return t.real(total)


# ---- list and deque methods ------------------------------------------------------------------------------------------
def base_of(v: Var) -> Var:
    """The built-in part of a subclass instance; the value itself otherwise."""
    return v.base if isinstance(v, InstanceVar) and v.base is not None else v


def on_sequence(*methods):
    """Register a method of lists or deques: handler(t, seq, args, kwargs); `seq` is touched when `writes`."""
    def register(handler, writes=True):
        def run(t, args, kwargs):
            seq = base_of(args[0])
            if not isinstance(seq, SeqVar):
                raise Break(f"{handler.__name__} of a {t.type_of(args[0]).__name__}")
            t.touch(seq)
            return handler(t, seq, args[1:], kwargs) or NONE
        for m in methods:
            HANDLERS[m] = run
        return handler
    return register


deque = collections.deque


@on_sequence(list.append, deque.append)
def append(t, seq, args, kwargs):
    seq.items.append(args[0])
    if seq.maxlen is not None and len(seq.items) > seq.maxlen:
        del seq.items[0]


@on_sequence(deque.appendleft)
def appendleft(t, seq, args, kwargs):
    seq.items.insert(0, args[0])
    if seq.maxlen is not None and len(seq.items) > seq.maxlen:
        seq.items.pop()


@on_sequence(list.extend, deque.extend, list.__iadd__)
def extend(t, seq, args, kwargs):
    items = t.iterate(args[0])
    seq.items.extend(items)
    if seq.maxlen is not None:
        del seq.items[:max(0, len(seq.items) - seq.maxlen)]


@on_sequence(deque.extendleft)
def extendleft(t, seq, args, kwargs):
    seq.items[:0] = t.iterate(args[0])[::-1]
    if seq.maxlen is not None:
        del seq.items[seq.maxlen:]


@on_sequence(list.insert, deque.insert)
def insert(t, seq, args, kwargs):
    seq.items.insert(t.index(args[0]), args[1])


@on_sequence(list.pop)
def pop(t, seq, args, kwargs):
    try:
        return t.real(seq.items.pop(t.index(args[0]) if args else -1))
    except IndexError as e:
        raise t.raised(e) from None


@on_sequence(deque.pop)
def deque_pop(t, seq, args, kwargs):
    if not seq.items:
        raise t.raised(IndexError("pop from an empty deque"))
    return t.real(seq.items.pop())


@on_sequence(deque.popleft)
def popleft(t, seq, args, kwargs):
    if not seq.items:
        raise t.raised(IndexError("pop from an empty deque"))
    return t.real(seq.items.pop(0))


@on_sequence(deque.rotate)
def rotate(t, seq, args, kwargs):
    real = collections.deque(seq.items)
    real.rotate(t.index(args[0]) if args else 1)
    seq.items[:] = real


@on_sequence(list.clear, deque.clear)
def clear(t, seq, args, kwargs):
    seq.items.clear()


@on_sequence(list.reverse, deque.reverse)
def reverse(t, seq, args, kwargs):
    seq.items.reverse()


@on_sequence(list.remove, deque.remove)
def remove(t, seq, args, kwargs):
    for i, item in enumerate(seq.items):
        if t.equal(item, args[0]):
            del seq.items[i]
            return
    raise t.raised(ValueError("list.remove(x): x not in list" if seq.cls is list else "deque.remove(x): x not in deque"))


@on_sequence(list.__setitem__, deque.__setitem__)
def list_setitem(t, seq, args, kwargs):
    t.setitem(seq, args[0], args[1])


@on_sequence(list.__delitem__, deque.__delitem__)
def list_delitem(t, seq, args, kwargs):
    t.delitem(seq, args[0])


@on_sequence(list.__init__)
def list_init(t, seq, args, kwargs):
    seq.items[:] = t.iterate(args[0]) if args else []


@models(list.sort)
def list_sort(t, args, kwargs):
    """Sorted by keys that are constants or modelled instances; comparisons run in the trace."""
    seq = base_of(args[0])
    t.touch(seq)
    key, reverse_ = kwargs.get("key", NONE), "reverse" in kwargs and t.truth(kwargs["reverse"])
    keyed = [(item if t.is_same(key, NONE) else t.call(key, [item], {}), item) for item in seq.items]

    def compare(a, b):
        if t.truth(t.compare("lt", a[0], b[0])):
            return -1
        return 1 if t.truth(t.compare("lt", b[0], a[0])) else 0
    seq.items[:] = [item for _, item in sorted(keyed, key=functools.cmp_to_key(compare), reverse=reverse_)]
    return NONE


def _reader(*methods):
    def register(handler):
        for m in methods:
            HANDLERS[m] = lambda t, args, kwargs: handler(t, base_of(args[0]), args[1:], kwargs)
        return handler
    return register


@_reader(list.copy, deque.copy, deque.__copy__)
def copy(t, seq, args, kwargs):
    return SeqVar(list(seq.items), seq.cls, maxlen=seq.maxlen)


@_reader(list.count, tuple.count, deque.count)
def count(t, seq, args, kwargs):
    return Known(sum(t.equal(v, args[0]) for v in seq.items))


@_reader(list.index, tuple.index, deque.index)
def index(t, seq, args, kwargs):
    start, stop, _ = slice(*(t.index(a) for a in args[1:]), *([None] * (3 - len(args[1:])))).indices(len(seq.items)) \
        if len(args) > 2 else (t.index(args[1]) if len(args) > 1 else 0, len(seq.items), 1)
    for i in range(start, stop):
        if t.equal(seq.items[i], args[0]):
            return Known(i)
    what = {"list": "list.index(x): x not in list"}.get(seq.cls.__name__, "tuple.index(x): x not in tuple")
    if seq.cls is list and isinstance(args[0], Known):
        what = f"{args[0].obj!r} is not in list"
    raise t.raised(ValueError(what))


@models(torch.Size.numel)
def size_numel(t, args, kwargs):
    import math
    return t.fold(lambda: math.prod(t.const(v) for v in args[0].items))


@_reader(list.__getitem__, tuple.__getitem__, deque.__getitem__, dict.__getitem__, collections.OrderedDict.__getitem__)
def base_getitem(t, v, args, kwargs):
    return t.getitem(v, args[0])


@_reader(list.__len__, tuple.__len__, dict.__len__, set.__len__, deque.__len__, frozenset.__len__)
def base_len(t, v, args, kwargs):
    return Known(t.length(v))


@_reader(list.__iter__, tuple.__iter__, dict.__iter__, set.__iter__, deque.__iter__, collections.OrderedDict.__iter__,
         frozenset.__iter__)
def base_iter(t, v, args, kwargs):
    return t.iter(v)


@_reader(list.__contains__, tuple.__contains__, dict.__contains__, set.__contains__, deque.__contains__, frozenset.__contains__)
def base_contains(t, v, args, kwargs):
    return t.constant(t.contains(v, args[0]))


@_reader(list.__eq__, tuple.__eq__, dict.__eq__, set.__eq__, collections.OrderedDict.__eq__)
def base_eq(t, v, args, kwargs):
    return t.compare("eq", v, base_of(args[0]))


# ---- dict methods ----------------------------------------------------------------------------------------------------
OD = collections.OrderedDict


def dict_methods(name):
    """The method of that name of every dict kind (the kinds that override it have their own descriptor)."""
    return {d for d in (getattr(c, name, None) for c in (dict, OD, collections.defaultdict)) if d is not None
            and not isinstance(d, types.FunctionType)}


def on_dict(*names):
    def register(handler):
        for name in names:
            for m in dict_methods(name):
                HANDLERS[m] = lambda t, args, kwargs: handler(t, _dict_base(t, args[0]), args[1:], kwargs) or NONE
        return handler
    return register


def _dict_base(t, v):
    d = base_of(v)
    if not isinstance(d, DictVar):
        raise Break(f"a dict method of a {t.type_of(v).__name__}")
    return d


@on_dict("get")
def dict_get(t, d, args, kwargs):
    found = t.lookup(d, key_of(t, args[0]))
    return t.real(found if found is not None else (args[1] if len(args) > 1 else kwargs.get("default", NONE)))


@on_dict("setdefault")
def setdefault(t, d, args, kwargs):
    found = t.lookup(d, key_of(t, args[0]))
    if found is None:
        found = args[1] if len(args) > 1 else NONE
        t.dict_set(d, args[0], found)
    return t.real(found)


@on_dict("pop")
def dict_pop(t, d, args, kwargs):
    key = key_of(t, args[0])
    found = t.lookup(d, key)
    default = args[1] if len(args) > 1 else kwargs.get("default")
    if found is None:
        if default is not None:
            return default
        return t.dict_item(DictVar({}), args[0])
    t.dict_del(d, key)
    return t.real(found)


@on_dict("popitem")
def popitem(t, d, args, kwargs):
    t.complete(d)
    if not d.items:
        raise t.raised(KeyError("popitem(): dictionary is empty" if d.cls is dict else "dictionary is empty"))
    last = t.truth(args[0]) if args else t.truth(kwargs["last"]) if "last" in kwargs else True
    key = list(d.items)[-1 if last else 0]
    k, v = d.items[key]
    t.dict_del(d, key)
    return SeqVar([k, v], tuple)


@on_dict("update", "__init__", "__ior__")
def dict_update(t, d, args, kwargs):
    if d.cls is collections.defaultdict and args and not isinstance(base_of(args[0]), (DictVar, SeqVar)):
        d.factory, args = args[0], args[1:]
    fill_dict(t, d, args, kwargs)


@on_dict("clear")
def dict_clear(t, d, args, kwargs):
    t.complete(d)
    for key in list(d.items):
        t.dict_del(d, key)


@on_dict("copy", "__copy__")
def dict_copy(t, d, args, kwargs):
    t.complete(d)
    return DictVar(dict(d.items), d.cls if d.cls is not types.MappingProxyType else dict, factory=d.factory)


@on_dict("__setitem__")
def dict_setitem(t, d, args, kwargs):
    t.dict_set(d, args[0], args[1])


@on_dict("__delitem__")
def dict_delitem(t, d, args, kwargs):
    t.delitem(d, args[0])


@on_dict("__or__")
def dict_or(t, d, args, kwargs):
    return t.binary("or", d, base_of(args[0]))


@models(OD.move_to_end)
def move_to_end(t, args, kwargs):
    d = _dict_base(t, args[0])
    t.complete(d)
    key = key_of(t, args[1])
    if key not in d.items:
        t.dict_item(DictVar({}), args[1])
    t.touch(d)
    entry = d.items.pop(key)
    last = t.truth(args[2] if len(args) > 2 else kwargs.get("last", TRUE))
    d.items = {**d.items, key: entry} if last else {key: entry, **d.items}
    return NONE


@models(dict.fromkeys)
def fromkeys(t, args, kwargs):
    out = DictVar({})
    for v in t.iterate(args[0]):
        t.dict_set(out, t.real(v), args[1] if len(args) > 1 else NONE)
    return out


for _kind in ("keys", "values", "items"):
    def _view(t, args, kwargs, kind=_kind):
        d = _dict_base(t, args[0])
        t.complete(d)
        return DictView(d, kind)
    for _m in dict_methods(_kind):
        HANDLERS[_m] = _view
del _kind, _m, _view
for _m in (types.MappingProxyType.get, types.MappingProxyType.keys, types.MappingProxyType.items, types.MappingProxyType.values):
    HANDLERS[_m] = HANDLERS[getattr(dict, _m.__name__)]


# ---- set methods -----------------------------------------------------------------------------------------------------
def on_set(*names, writes=False):
    def register(handler):
        for name in names:
            for cls in (set, frozenset):
                if hasattr(cls, name):
                    def run(t, args, kwargs):
                        s = base_of(args[0])
                        if isinstance(s, Known):
                            s = SetVar({k: t.constant(k) for k in s.obj}, type(s.obj))
                        if writes:
                            t.touch(s)
                        result = handler(t, s, args[1:])
                        return NONE if result is None else result
                    HANDLERS[getattr(cls, name)] = run
        return handler
    return register


@on_set("add", writes=True)
def set_add(t, s, args):
    s.items.setdefault(key_of(t, args[0]), args[0])


@on_set("discard", writes=True)
def set_discard(t, s, args):
    s.items.pop(key_of(t, args[0]), None)


@on_set("remove", writes=True)
def set_remove(t, s, args):
    if s.items.pop(key_of(t, args[0]), None) is None:
        t.dict_item(DictVar({}), args[0])


@on_set("clear", writes=True)
def set_clear(t, s, args):
    s.items.clear()


@on_set("update", writes=True)
def set_update(t, s, args):
    for other in args:
        for v in t.iterate(other):
            s.items.setdefault(key_of(t, t.real(v)), t.real(v))


@on_set("pop", writes=True)
def set_pop(t, s, args):
    if not s.items:
        raise t.raised(KeyError("pop from an empty set"))
    first = key_of(t, t.iterate(s)[0])
    return s.items.pop(first)


@on_set("copy")
def set_copy(t, s, args):
    return SetVar(dict(s.items), s.cls)


@on_set("union")
def set_union(t, s, args):
    out = dict(s.items)
    for other in args:
        out.update({key_of(t, t.real(v)): v for v in t.iterate(other)})
    return SetVar(out, s.cls)


@on_set("intersection")
def set_intersection(t, s, args):
    out = dict(s.items)
    for other in args:
        keys = t.as_set(other).items
        out = {k: v for k, v in out.items() if k in keys}
    return SetVar(out, s.cls)


@on_set("difference")
def set_difference(t, s, args):
    out = dict(s.items)
    for other in args:
        keys = t.as_set(other).items
        out = {k: v for k, v in out.items() if k not in keys}
    return SetVar(out, s.cls)


@on_set("symmetric_difference")
def set_symmetric_difference(t, s, args):
    other = t.as_set(args[0]).items
    out = {k: v for k, v in s.items.items() if k not in other}
    out.update({k: v for k, v in other.items() if k not in s.items})
    return SetVar(out, s.cls)


@on_set("issubset")
def issubset(t, s, args):
    return t.constant(set(s.items) <= set(t.as_set(args[0]).items))


@on_set("issuperset")
def issuperset(t, s, args):
    return t.constant(set(s.items) >= set(t.as_set(args[0]).items))


@on_set("isdisjoint")
def isdisjoint(t, s, args):
    return t.constant(set(s.items).isdisjoint(t.as_set(args[0]).items))


@on_set("difference_update", writes=True)
def difference_update(t, s, args):
    s.items = set_difference(t, s, args).items


@on_set("intersection_update", writes=True)
def intersection_update(t, s, args):
    s.items = set_intersection(t, s, args).items


# ---- the operator module ---------------------------------------------------------------------------------------------
for _name, _f in FUNCTIONS.items():
    HANDLERS[_f] = lambda t, args, kwargs, name=_name: t.binary(name, *args)
for _name, _f in IN_PLACE.items():
    HANDLERS[_f] = lambda t, args, kwargs, name=_name: t.binary(name, *args, in_place=True)
for _name, _f in UNARY.items():
    HANDLERS[_f] = lambda t, args, kwargs, name=_name: t.unary(name, *args)
for _name, _f in COMPARISONS.items():
    HANDLERS[_f] = lambda t, args, kwargs, name=_name: t.compare(name, *args)
HANDLERS[operator.getitem] = lambda t, args, kwargs: t.getitem(*args)
HANDLERS[operator.not_] = lambda t, args, kwargs: t.constant(not t.truth(args[0]))
HANDLERS[operator.truth] = lambda t, args, kwargs: t.constant(t.truth(args[0]))
HANDLERS[operator.is_] = lambda t, args, kwargs: t.constant(t.is_same(*args))
HANDLERS[operator.is_not] = lambda t, args, kwargs: t.constant(not t.is_same(*args))
HANDLERS[operator.contains] = lambda t, args, kwargs: t.constant(t.contains(*args))
HANDLERS[operator.index] = lambda t, args, kwargs: Known(t.index(args[0]))
HANDLERS[operator.setitem] = lambda t, args, kwargs: t.setitem(*args) or NONE
HANDLERS[operator.delitem] = lambda t, args, kwargs: t.delitem(*args) or NONE
