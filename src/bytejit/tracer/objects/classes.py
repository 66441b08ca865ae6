"""Classes made in a region: `class` statements, type(name, bases, ns), metaclasses, descriptor objects.

A class made in the trace is stood for by a real class, built at trace time with stubs in place of its functions, so that
MRO, `isinstance`, slots and operators follow Python's own rules. No user code runs to build it: __set_name__,
__init_subclass__ and metaclasses are traced. The real class never leaves: the exit makes the class anew
(tracer/exits/classes.py) or, where that would run code of the program, the region ends before it.
"""

from __future__ import annotations

import abc
import builtins
import functools
import types
from collections.abc import Callable

from bytejit.common.quiet_reads import HEAP_TYPE, derives
from bytejit.common.registry import seen_as
from bytejit.guards.sources import InstanceDict, KnownSource
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.descriptions import words
from bytejit.tracer.core.frame import Frame
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import (
    NONE,
    CellVar,
    DictVar,
    FuncVar,
    InstanceVar,
    Known,
    PropertyVar,
    SeqVar,
    SuperVar,
    Var,
    expect,
)
from bytejit.tracer.objects.class_stubs import (
    NOT_IN_CLASSES,
    PLAIN_BASES,
    real_class,
    stub,
    wrapped,
)

from . import rebuilt_classes
from .class_facts import MISSING, NAMESPACE, WRITTEN, class_lookup, is_data_descriptor, overrides_lookup


class _Gone:
    """What a class made in a trace derives from once the trace is over, so that its bases forget it."""


@models(builtins.__build_class__)
def build_class(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Run the class body in the trace and call the metaclass. https://docs.python.org/3/reference/datamodel.html#metaclasses"""
    body, name, given = expect(t.values.real(args[0]), FuncVar), args[1], [t.values.real(a) for a in args[2:]]
    names: Var = DictVar({})
    if kind := rebuilt_classes.kind_of(t, given):
        run_body(t, body, names)
        return rebuilt_classes.of_body(t, kind, name, given, names, kwargs)
    bases, kwargs = resolve_bases(t, given), dict(kwargs)
    meta = metaclass_of(t, kwargs.pop("metaclass", None), bases)
    prepare, owner = class_lookup(type(meta), "__prepare__")
    if prepare is MISSING:
        prepare, owner = class_lookup(meta, "__prepare__")
    if isinstance(prepare, classmethod):
        names = t.values.real(
            t.calls.call(t.attributes.getattr(Known(meta), "__prepare__"), [name, SeqVar(bases, tuple)], kwargs)
        )
    if not isinstance(names, DictVar) or names.cls is not dict:
        raise Break("a class body whose namespace is no dict")
    if bases != given:
        t.subscript_writes.dict_set(names, Known("__orig_bases__"), SeqVar(given, tuple))
    cell = run_body(t, body, names)
    made = t.values.real(t.calls.call(Known(meta), [name, SeqVar(list(bases), tuple), names], kwargs))
    if isinstance(cell, CellVar) and cell.content is None:
        cell.content = made
    return made


def run_body(t: Tracer, body: FuncVar, names: Var) -> Var:
    """Run a class's body, whose names go into `names`; it returns the cell of its class, or None."""
    frame = Frame(body.code, body.globals, t.frame, body)
    frame.names = expect(names, DictVar)
    t.calls.set_up(frame, {}, body.closure)
    t.inlined[id(body.code)] = body.code
    return t.values.real(t.run(frame))


def resolve_bases(t: Tracer, given: list[Var]) -> list[Var]:
    """Bases with __mro_entries__ replaced by what it returns."""
    bases: list[Var] = []
    for b in given:
        if t.as_class(b) is not None:
            bases.append(b)
        elif t.attributes.find_special(b, "__mro_entries__") is None:
            raise Break(f"a class with {words(b)} as its base")
        else:
            bases += map(
                t.values.real,
                t.iteration.iterate(t.calls.call(t.attributes.getattr(b, "__mro_entries__"), [SeqVar(list(given), tuple)], {})),
            )
    return given if len(bases) == len(given) and all(a is b for a, b in zip(bases, given)) else bases


def metaclass_of(t: Tracer, asked: Var | None, bases: list[Var]) -> type:
    """The most derived metaclass. Raises: Raised(TypeError) on a conflict, Break for one that is no class."""
    kinds = [type(t.as_class(b)) for b in bases]
    meta = t.as_class(asked) if asked is not None else (kinds[0] if kinds else type)
    if meta is None:
        raise Break("a metaclass that is no class")
    for kind in kinds:
        if derives(kind, meta):
            meta = kind
        elif not derives(meta, kind):
            raise t.raised(
                TypeError(
                    "metaclass conflict: the metaclass of a derived class must be a (non-strict) "
                    "subclass of the metaclasses of all its bases"
                )
            )
    return meta


def make_class(t: Tracer, meta: type, name: Var, bases: Var, names: Var, kwargs: dict[str, Var]) -> Var:
    """type.__new__(meta, name, bases, names, **kwargs)."""
    if not isinstance(names, DictVar) or not isinstance(bases, SeqVar):
        raise Break("a class made from a namespace that is no dict")
    t.values.complete(names)
    items = {t.const(k): v for k, v in names.items.values()}
    real_bases = tuple(c for c in map(t.as_class, bases.items) if c is not None)
    odd = [key for key in items if key in NOT_IN_CLASSES]
    if odd:
        raise Break(f"a class with a {odd[0]} of its own")
    if overrides_lookup(meta) or any(overrides_lookup(type(b)) for b in real_bases):
        raise Break("a class of a metaclass that replaces how attributes of classes are read")
    if len(real_bases) != len(bases.items) or not all(
        b.__flags__ & HEAP_TYPE or b in PLAIN_BASES or issubclass(b, BaseException) for b in real_bases
    ):
        raise Break("a class with a base written in C")
    real = real_class(t, meta, t.const(name), real_bases, items)
    cell, names_cell = t.values.real(items.pop("__classcell__", NONE)), t.values.real(items.pop("__classdictcell__", NONE))
    contents = {k: wrapped(t, k, v) for k, v in items.items()}
    t.made_classes[real] = MadeClass(
        contents, t.limits.steps, real_bases, names_cell if isinstance(names_cell, CellVar) else None
    )
    t.effects.mutations += 1
    for key, value in contents.items():
        if key not in NAMESPACE(real):
            type.__setattr__(real, key, stub(t, value))
    if "__eq__" in items and "__hash__" not in items:
        type.__setattr__(real, "__hash__", None)
    result = Known(real)
    if isinstance(cell, CellVar):
        cell.content = result
    _announce(t, result, contents, kwargs)
    return result


class MadeClass:
    """A class of the trace: its namespace, its bases, and the step at which it was made. `names_cell`: the cell by which
    what the program wrote in the class's body sees its namespace (annotations of 3.14, type parameters)."""

    __slots__ = ("contents", "step", "bases", "names_cell")

    def __init__(self, contents: dict[str, Var], step: int, bases: tuple[type, ...], names_cell: CellVar | None) -> None:
        self.contents, self.step, self.bases, self.names_cell = contents, step, bases, names_cell


def _announce(t: Tracer, made: Known, contents: dict[str, Var], kwargs: dict[str, Var]) -> None:
    """__set_name__ of what the class holds, then __init_subclass__ of its bases."""
    for key, value in list(contents.items()):
        value = t.values.real(value)
        if isinstance(value, InstanceVar) and isinstance(class_lookup(value.cls, "__set_name__")[0], types.FunctionType):
            t.calls.call(t.attributes.special(value, "__set_name__"), [made, Known(key)], {})
    hook = class_lookup(made.obj, "__init_subclass__", made.obj)[0]
    if isinstance(hook, types.ClassMethodDescriptorType):
        if kwargs:
            raise t.raised(TypeError(f"{made.obj.__name__}.__init_subclass__() takes no keyword arguments"))
    else:
        t.calls.call(t.attributes.getattr(SuperVar(made.obj, made), "__init_subclass__"), [], kwargs)


@models(builtins.type)
def type_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if len(args) == 1 and not kwargs:
        return t.values.constant(seen_as(t.type_of(args[0])))
    if len(args) != 3:
        raise t.raised(TypeError("type() takes 1 or 3 arguments"))
    meta = metaclass_of(t, Known(type), [t.values.real(b) for b in t.iteration.iterate(args[1])])
    if meta is not type:
        return t.calls.call(Known(meta), args, kwargs)
    names = DictVar(dict(args[2].items)) if isinstance(args[2], DictVar) and args[2].complete else args[2]
    if isinstance(names, DictVar) and "__module__" not in names.items and t.frame is not None:
        t.subscript_writes.dict_set(names, Known("__module__"), Known(t.frame.globals.get("__name__")))
    return make_class(t, type, args[0], args[1], names, kwargs)


@models(type.__new__)
def type_new(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if len(args) != 4:
        raise Break("type.__new__ without name, bases and namespace")
    return make_class(t, first_class(t, args), args[1], args[2], args[3], kwargs)


def first_class(t: Tracer, args: list[Var]) -> type:
    """The class that a method of `type` is asked of. Raises: Break for an object that is none."""
    return t.class_of(args[0] if args else NONE, "a method of `type` called on what is no class")


ABC_INIT = getattr(abc, "_abc_init")  # what sets up a class with abstract methods


@models(type.__init__, ABC_INIT)
def nothing(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The stand-in of a class with abstract methods gets its set of them here."""
    cls = t.as_class(args[0]) if args else None
    if cls is not None and len(args) == 1 and cls in t.made_classes:
        ABC_INIT(cls)
    elif len(args) == 1:
        raise Break("an abstract class set up by hand")
    return NONE


@models(type.__call__)
def type_call(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.instantiation.make_instance(first_class(t, args), args[1:], kwargs)


@models(object.__dict__["__init_subclass__"])
def object_init_subclass(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if kwargs:
        raise t.raised(TypeError(f"{first_class(t, args).__name__}.__init_subclass__() takes no keyword arguments"))
    return NONE


@models(functools.total_ordering)
def total_ordering(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The library's own functions stored into a class made in the trace."""
    cls = t.as_class(args[0])
    if cls is None or cls not in t.made_classes:
        raise Break("functools.total_ordering of a class from outside")
    convert: dict[str, list] = getattr(functools, "_convert")
    roots = {op for op in convert if class_lookup(cls, op)[0] is not object.__dict__[op]}
    if not roots:
        raise t.raised(ValueError("must define at least one ordering operation: < > <= >="))
    for name, function in convert[max(roots)]:
        if name not in roots:
            function.__name__ = name  # as the library does, to its own function
            t.classes.type_setattr(expect(args[0], Known), name, t.values.constant(function))
    return args[0]


# ---- descriptor objects ------------------------------------------------------------------------------------------------------
def _descriptor_of(cls: type) -> None:
    """property(fget, fset, fdel, doc), staticmethod(f), classmethod(f)."""

    def make(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if cls is property:
            order = ("fget", "fset", "fdel", "doc")
            values = [*args, *[NONE] * (4 - len(args))]
            for name, value in kwargs.items():
                values[order.index(name)] = value
            return PropertyVar(property, values)
        return PropertyVar(cls, list(args))

    models(cls)(make)


for _cls in (property, staticmethod, classmethod):
    _descriptor_of(_cls)


def _changed(position: int) -> Callable:
    def change(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if not isinstance(args[0], PropertyVar):
            raise Break("a copy of a property from outside")
        values = list(args[0].args)
        values[position] = args[1]
        return PropertyVar(property, values)

    return change


for _i, _m in enumerate((property.getter, property.setter, property.deleter)):
    models(_m)(_changed(_i))


@models(functools.cached_property)
def cached_property(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """Traces a cached property without the lock of Python 3.11: the trace runs in one thread."""
    func = args[0] if args else kwargs["func"]
    made = t.instantiation.object_new(functools.cached_property)
    for name, value in (("func", func), ("attrname", NONE), ("__doc__", t.attributes.getattr(func, "__doc__"))):
        t.subscript_writes.dict_set(made.namespace, Known(name), value)
    return made


# ---- writing to classes ------------------------------------------------------------------------------------------------------
class Classes(Component):
    """The part of the tracer that changes classes. `looked_into`: those whose namespaces were asked for as a whole."""

    def __init__(self, t: Tracer) -> None:
        super().__init__(t)
        self.looked_into: set[type] = set()

    def namespace(self, cls: type) -> Var:
        """cls.__dict__, of a class that the trace has not changed. Raises: Break."""
        if cls in WRITTEN:
            raise Break(f"the namespace of {cls.__name__}, which the region has changed")
        self.looked_into.add(cls)
        return self.t.values.wrap(cls.__dict__, InstanceDict(KnownSource.of(cls)), guard=False)

    def class_setattr(self, v: Known, name: str, value: Var) -> None:
        """cls.name = value: into the class made here, or recorded for the exit. Raises: Break, Raised."""
        cls = v.obj
        setter, owner = class_lookup(type(cls), "__setattr__")
        if isinstance(setter, types.FunctionType):
            self.t.calls.call(self.t.attributes.class_value(owner, "__setattr__", setter), [v, Known(name), value], {})
            return
        self.type_setattr(v, name, value)

    def type_setattr(self, v: Known, name: str, value: Var) -> None:
        """type.__setattr__."""
        cls, made = v.obj, self.t.made_classes.get(v.obj)
        on_meta, owner = class_lookup(type(cls), name)
        if isinstance(on_meta, property) and on_meta.fset is not None:
            self.t.calls.call(self.t.attributes.lift(on_meta.fset, owner), [v, value], {})
            return
        own = on_meta is not MISSING and is_data_descriptor(on_meta)
        if own or made is None and name.startswith("__") or not cls.__flags__ & HEAP_TYPE:
            raise Break(f"setting {cls.__name__}.{name}")
        if made is None and cls in self.looked_into:
            raise Break(f"setting {cls.__name__}.{name} after its namespace was looked at")
        self.t.effects.mutations += 1
        if made is not None:
            made.contents[name] = value
            type.__setattr__(cls, name, stub(self.t, value))
            return
        WRITTEN.setdefault(cls, {})[name] = stub(self.t, value)
        self.t.effects.classes_written.setdefault(cls, {})[name] = value

    def change_class(self, v: InstanceVar, value: Var) -> None:
        """instance.__class__ = value, for an instance made in the trace."""
        cls = self.t.as_class(value)
        if cls is None:
            raise self.t.raised(TypeError(f"__class__ must be set to a class, not '{self.t.type_of(value).__name__}' object"))
        try:
            object.__setattr__(object.__new__(v.cls), "__class__", cls)  # past what the class itself does there
        except TypeError as e:
            raise self.t.raised(e) from None
        v.cls = cls
        self.t.effects.mutations += 1

    def forget_classes(self) -> None:
        """The trace is over: bases no longer list the stand-ins among their subclasses."""
        WRITTEN.clear()
        for cls in self.t.made_classes:
            try:
                type.__setattr__(cls, "__bases__", (_Gone,))
            except TypeError:
                pass  # another layout: the garbage collector takes it


@models(type.__setattr__)
def type_setattr(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    first_class(t, args)
    t.classes.type_setattr(expect(args[0], Known), t.const(args[1]), args[2])
    return NONE
