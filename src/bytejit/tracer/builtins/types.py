"""Models of the builtins that ask about types, attributes and identity."""

from __future__ import annotations

import abc
import builtins
import types
from collections.abc import Callable

import torch

from bytejit.common import special_cases
from bytejit.guards.references import Ref, module_of
from bytejit.guards.sources import CallOf, Item, KnownSource
from bytejit.tracer.core.constants import NotConstant, to_python
from bytejit.tracer.core.library_code import is_library
from bytejit.tracer.core.made_ids import IdVar
from bytejit.tracer.core.models import models
from bytejit.tracer.core.operations import OF_ONE_DTYPE
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import (
    FALSE,
    NONE,
    NULL,
    TRUE,
    FuncVar,
    InstanceVar,
    Known,
    Lazy,
    MethodVar,
    SeqVar,
    SuperVar,
    TensorVar,
    Var,
)
from bytejit.tracer.objects.argument_counts import describe
from bytejit.tracer.objects.changing_keys import picked_attribute
from bytejit.tracer.objects.class_facts import MRO, WRITTEN, class_attribute, class_lookup
from bytejit.tracer.objects.containers import own_hash, plain_key
from bytejit.tracer.objects.instantiation import solid_base
from bytejit.tracer.objects.protocols import has_members

NO_CLASS = (  # how each says that it was given no class
    "issubclass() arg 2 must be a class, a tuple of classes",
    "isinstance() arg 2 must be a type, a tuple of types",
)


@models(builtins.isinstance)
def isinstance_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    found = _is_a(t, t.type_of(args[0]), args[1], "__instancecheck__", args[0])
    if not found and isinstance(args[0], InstanceVar) and t.instance_attributes.says_class(args[0].cls):
        # a proxy names the class that it stands for
        said = t.as_class(t.values.real(t.attributes.getattr(args[0], "__class__", NONE)))
        found = said not in (None, args[0].cls) and _is_a(t, said, args[1], "__instancecheck__", args[0])
    return t.values.constant(found)


@models(builtins.issubclass)
def issubclass_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    cls = t.as_class(args[0])
    if cls is None:
        raise t.raised(TypeError("issubclass() arg 1 must be a class"))
    return t.values.constant(_is_a(t, cls, args[1], "__subclasscheck__", args[0]))


def _of_dtype(v: Var, of: type) -> bool:
    """Whether a value is a tensor of the dtype and device that a type such as torch.LongTensor stands for."""
    if not isinstance(v, TensorVar):
        return False
    if v.fake.device.type != "cpu" or v.fake.layout is not torch.strided:
        raise Break(f"a check for a {of.__name__} of a tensor that is not in the CPU's memory")
    return isinstance(torch.empty(0, dtype=v.fake.dtype), of)


def _is_a(t: Tracer, cls: type, classes: Var, hook: str, subject: Var) -> bool:
    if isinstance(classes, SeqVar) and issubclass(classes.cls, tuple):
        return any(_is_a(t, cls, t.values.real(c), hook, subject) for c in classes.items)
    of = t.as_class(classes)
    if of is None:
        if isinstance(classes, Known) and isinstance(classes.obj, types.UnionType):
            return any(_is_a(t, cls, t.values.constant(c), hook, subject) for c in classes.obj.__args__)
        if isinstance(classes, Known):
            try:
                return issubclass(cls, classes.obj)
            except TypeError as e:
                raise t.raised(TypeError(str(e).replace(*NO_CLASS)) if hook == "__instancecheck__" else e) from None
        raise t.raised(TypeError(f"{NO_CLASS[hook == '__instancecheck__']}, or a union"))
    if type(of) is OF_ONE_DTYPE and hook == "__instancecheck__":
        return _of_dtype(t.values.real(subject), of)
    if type(of) is not type and any(c in WRITTEN for c in MRO(of)):
        raise Break("a class check against a class that the region changed")
    check, owner = class_lookup(type(of), hook)
    if hook == "__instancecheck__" and owner is abc.ABCMeta:  # which asks for the class, by the metaclass's own method
        by_class, owner = class_lookup(type(of), "__subclasscheck__")
        if owner is not abc.ABCMeta:
            check, subject = by_class, t.values.constant(cls)
    if isinstance(check, types.FunctionType) and not special_cases.CLASS_CHECKS.made(owner):
        if of in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) or special_cases.TORCH_PACKAGES.made(type(of)):
            return _tensor_instance(t, subject, of, cls)
        return t.comparisons.truth(t.calls.call(t.values.constant(check), [t.values.constant(of), subject], {}))
    try:
        found = issubclass(cls, of)
    except TypeError as e:
        if not (hook == "__instancecheck__" and getattr(of, "_is_runtime_protocol", False)):
            raise t.raised(e) from None
        found = False
    if not found and hook == "__instancecheck__" and getattr(of, "_is_protocol", False):
        return has_members(t, subject, of)
    if isinstance(check, types.FunctionType) and of not in MRO(cls) and not is_library(module_of(of)):
        if not t.cannot_change(cls):  # `of.register(cls)` may come later, or its __subclasshook__ decides otherwise
            t.guard("ID_IS", CallOf(KnownSource.of(issubclass), (Ref(cls), Ref(of))), issubclass(cls, of))
    return found


def _tensor_instance(t: Tracer, subject: Var, of: type, cls: type) -> bool:
    if isinstance(subject, TensorVar):
        if subject.real is not None:
            return isinstance(subject.real, of)
        if of is torch.Tensor:
            return True
        if of is torch.nn.Parameter and subject.cls is of:
            return True
        return isinstance(subject.fake, of) if of not in (torch.nn.Parameter, torch.nn.Buffer) else False
    real = getattr(subject, "real", None)
    return isinstance(real, of) if real is not None else issubclass(cls, of)


@models(builtins.callable)
def callable_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v = args[0]
    if isinstance(v, (FuncVar, MethodVar)):
        return TRUE
    if isinstance(v, Known):
        return t.values.constant(callable(v.obj))
    return t.values.constant(class_attribute(t.type_of(v), "__call__") is not None)


def _attribute_name(t: Tracer, function: Callable, v: Var) -> str:
    """An attribute's name, as `function` is given it. Raises: Raised in its words where it is no string."""
    name = t.const(v)
    if not isinstance(name, str):
        raise t.fold_error(function, None, name, *([None] if function is setattr else []))
    return name


@models(builtins.getattr)
def getattr_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if (found := picked_attribute(t, t.values.real(args[0]), t.values.real(args[1]))) is not None:
        return found
    return t.attributes.getattr(args[0], _attribute_name(t, getattr, args[1]), args[2] if len(args) > 2 else None)


@models(builtins.hasattr)
def hasattr_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return t.values.constant(t.attributes.getattr(args[0], _attribute_name(t, hasattr, args[1]), NULL) is not NULL)


@models(builtins.setattr)
def setattr_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    t.attribute_writes.setattr(args[0], _attribute_name(t, setattr, args[1]), args[2])
    return NONE


@models(builtins.delattr)
def delattr_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    t.attribute_writes.delattr(args[0], _attribute_name(t, delattr, args[1]))
    return NONE


@models(object.__setattr__)
def object_setattr(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not isinstance(args[0], InstanceVar):
        raise Break("object.__setattr__ on a C object")
    t.attribute_writes.generic_setattr(args[0], t.const(args[1]), args[2])
    return NONE


@models(object.__delattr__)
def object_delattr(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not isinstance(args[0], InstanceVar):
        raise Break("object.__delattr__ on a C object")
    t.attribute_writes.generic_delattr(args[0], t.const(args[1]))
    return NONE


@models(object.__getattribute__)
def object_getattribute(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if isinstance(args[0], InstanceVar):
        return t.instance_attributes.generic_getattr(args[0], t.const(args[1]), fallback=False)
    return t.attributes.getattr(args[0], t.const(args[1]))


@models(object.__init__)
def object_init(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if len(args) != 1 or kwargs:
        check_excess(t.type_of(args[0]) if args else object, "__init__", "__new__")
    return NONE


def check_excess(cls: type, own: str, other: str) -> None:
    """`object`'s method `own` takes arguments only where a class replaced the method `other`, and not this one."""
    if class_attribute(cls, own) is not getattr(object, own) or class_attribute(cls, other) is getattr(object, other):
        raise Break(f"object.{own} called with arguments")


@models(BaseException.with_traceback)
def with_traceback(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not isinstance(args[0], InstanceVar):
        raise Break("BaseException.with_traceback of an object that is not an exception")
    t.attribute_writes.generic_setattr(args[0], "__traceback__", args[1])
    return args[0]


@models(object.__new__)
def object_new(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    cls = t.as_class(args[0]) if args else None
    if cls is None or solid_base(cls) is not object:
        raise Break(f"making a {describe(cls)} through object.__new__")
    if len(args) > 1 or kwargs:
        check_excess(cls, "__new__", "__init__")
    return t.instantiation.object_new(cls)


@models(object.__eq__)
def object_eq(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return TRUE if t.comparisons.is_same(args[0], args[1]) else t.values.constant(NotImplemented)


@models(object.__ne__)
def object_ne(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v = t.values.real(args[0])
    if class_attribute(t.type_of(v), "__eq__") is object.__eq__:
        return FALSE if t.comparisons.is_same(v, args[1]) else t.values.constant(NotImplemented)
    if isinstance(v, InstanceVar):
        equal = t.operators.try_special(v, "__eq__", [args[1]])
        return t.values.constant(NotImplemented if equal is None else not t.comparisons.truth(equal))
    return t.values.constant(not t.comparisons.truth(t.comparisons.compare("eq", v, args[1])))


@models(types.MethodType.__eq__)
def method_eq(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    alike = t.type_of(args[1]) is types.MethodType
    return t.comparisons.compare("eq", args[0], args[1]) if alike else t.values.constant(NotImplemented)


@models(types.MethodType.__ne__)
def method_ne(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    alike = t.type_of(args[1]) is types.MethodType
    return t.comparisons.compare("ne", args[0], args[1]) if alike else t.values.constant(NotImplemented)


@models(builtins.super)
def super_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not args:
        frame = t.present_frame
        if not frame.code.co_argcount:
            raise t.raised(RuntimeError("super(): no arguments"))
        if "__class__" not in frame.cells:
            raise t.raised(RuntimeError("super(): __class__ cell not found"))
        first = frame.code.co_varnames[0]
        held = frame.locals.get(first) or frame.cells[first].content, frame.cells["__class__"].content
        if held[0] is None or held[1] is None:
            raise Break("super() after the class or the first argument was deleted")
        args = [t.values.real(held[1]), t.values.real(held[0])]
    cls = t.as_class(args[0])
    if cls is None or len(args) < 2:
        raise Break("an unbound super()")
    real = args[1].obj if isinstance(args[1], Known) and isinstance(args[1].obj, type) else None
    if not (real is not None and cls in MRO(real)) and cls not in MRO(t.type_of(args[1])):
        raise Break(f"super() of a {cls.__name__} and an object that is not an instance of it")
    return SuperVar(cls, args[1])


@models(builtins.id)
def id_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    real = args[0].obj if isinstance(args[0], Known) else getattr(args[0], "real", None)
    if real is None and not isinstance(args[0], Known):
        t.keep.append(args[0])
        return IdVar(args[0])
    if args[0].source is not None:
        t.guard("ID_IS", args[0].source, real)
    return Known(id(real))


@models(builtins.hash)
def hash_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v = args[0]
    if isinstance(v, InstanceVar) and isinstance(class_attribute(v.cls, "__hash__"), types.FunctionType):
        return Known(own_hash(t, v))
    try:
        return t.operators.fold(hash, to_python(t, v))
    except NotConstant:
        plain_key(t, v)
        raise Break("hash() of an object") from None


@models(type.__dict__["__subclasses__"])
def subclasses(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The classes made below a class, as they are now: guarded one by one."""
    cls = t.as_class(args[0])
    if cls is None or len(args) != 1:
        raise Break("type.__subclasses__ of an unknown class")
    found: list[type] = cls.__subclasses__()
    source = CallOf(KnownSource.of(type.__subclasses__), (Ref(cls),))
    t.guard("LEN_IS", source, len(found))
    return SeqVar([Lazy(c, Item(source, i)) for i, c in enumerate(found)], list)
