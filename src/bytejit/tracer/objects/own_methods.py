"""Which classes answer an operation by code of the program, and what stands for their instances where C code asks.

An instance of the program's subclass of int, float, str... has a built-in part, its `base`. Operations written in C see that
part only where the class has no method of its own for them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard

from bytejit.tracer.core.constants import is_constant
from bytejit.tracer.core.descriptions import OF_OWN_KIND, words
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import DictVar, InstanceVar, Known, SeqVar, SetVar, Var, is_object

from .class_facts import CALLED, class_attribute

NUMBERS = (int, float, complex)
CONVERTIBLE = (*NUMBERS, str, bytes)
IN_C = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.BuiltinFunctionType,
)
OF_TEXT = frozenset(("__str__", "__repr__", "__format__"))
OF_NUMBERS = ("__float__", "__index__", "__int__", "__trunc__")
OF_MAPPINGS = ("__iter__", "keys", "__getitem__")
OF_SEQUENCES = ("__len__", "__iter__", "__getitem__")
# what C code may ask of an object that it is given; its text, its attributes and whether it is called are asked elsewhere
ASKED = tuple(
    sorted(
        (CALLED | {"__hash__", "__contains__"})
        - OF_TEXT
        - {f"__{name}__" for name in "call enter exit getattr getattribute setattr delattr dir sizeof copy deepcopy".split()}
    )
)


def own_method(cls: type, name: str) -> bool:
    """Whether what a class has under a special name is code of the program or of a library, and not of a class in C."""
    found = class_attribute(cls, name)
    return found is not None and not isinstance(found, IN_C)


def answers(v: Var, names: Iterable[str] = ASKED) -> bool:
    """Whether a value is an instance whose class answers one of these operations itself."""
    return isinstance(v, InstanceVar) and any(own_method(v.cls, name) for name in names)


def is_number(v: Var) -> TypeGuard[InstanceVar]:
    """Whether a value is an instance of a subclass of a built-in number, which C code takes for that number."""
    return isinstance(v, InstanceVar) and isinstance(v.base, Known) and isinstance(v.base.obj, NUMBERS)


def is_sequence(v: Var) -> TypeGuard[InstanceVar]:
    """Whether a value is an instance of a subclass of a sequence of Python's."""
    return isinstance(v, InstanceVar) and (
        isinstance(v.base, SeqVar) or isinstance(v.base, Known) and isinstance(v.base.obj, (str, bytes))
    )


@functools.lru_cache(maxsize=256)
def _stand_in_class(name: str, qualname: str, module: Any, base: type) -> type:
    return type(name, (base,), {"__module__": module, "__qualname__": qualname, "__bytejit_stand_in__": True})


def is_plain_instance(v: Var) -> TypeGuard[InstanceVar]:
    """Whether a value is an instance of a subclass of a number, of str or of bytes."""
    return isinstance(v, InstanceVar) and isinstance(v.base, Known)


def stand_in(v: InstanceVar, cls: type | None = None) -> Any:
    """An object that C code takes for an instance without methods of its own: the built-in part, under the class's name. cls:
    of an empty one. It knows what it stands for."""
    known = v.base if isinstance(v.base, Known) else None
    base = cls or type(known.obj if known is not None else None)
    made_of = _stand_in_class(v.cls.__name__, v.cls.__qualname__, v.cls.__module__, base)
    made = made_of(known.obj) if known is not None else made_of()
    made.__dict__["var"] = v
    return made


def stands_for(value: object) -> InstanceVar | None:
    """The value for which an object stands; None for any other object."""
    return value.__dict__["var"] if "__bytejit_stand_in__" in type(value).__dict__ else None  # type: ignore[no-any-return]


def plain_part(v: InstanceVar) -> Any:
    """Returns what stands for an instance as an argument of C code that is folded. Raises: Break where its class answers
    itself."""
    if answers(v):
        raise Break(f"C code that may ask a {v.cls.__name__}, which has methods of its own")
    return stand_in(v)


def _sample(t: Tracer, v: Var) -> Any:
    """An object of the type of a value, for the words of an error. Raises: KeyError where there is none."""
    v = t.values.real(v)
    if isinstance(v, InstanceVar):
        return stand_in(v, next(c for c in v.cls.__mro__ if c in EMPTY))
    if isinstance(v, (SeqVar, DictVar, SetVar)) and v.cls in EMPTY:
        return v.cls()
    if type(v) is Known and is_constant(v.obj):
        return v.obj
    raise KeyError(v)


EMPTY = frozenset((list, tuple, dict, set, frozenset, object, *CONVERTIBLE, *OF_OWN_KIND))


def refused(t: Tracer, function: Callable, *args: Var) -> Raised | None:
    """The error of a call that takes no values of these types, in Python's words. None where there are no samples of them.
    Raises: Break where the samples do not raise it."""
    try:
        given = [_sample(t, a) for a in args]
    except KeyError:
        return None
    try:
        function(*given)
    except TypeError as e:
        return t.raised(e)
    except Exception:
        pass
    raise Break(f"an operation on {words(args[0])} and {words(args[-1])} that is not modelled")


def c_operator(t: Tracer, method: str, left: Var, right: Var) -> Var | None:
    """Calls the operator in C of one constant with another; None where it declines."""
    if not (isinstance(left, Known) and isinstance(right, Known)):
        return None
    if class_attribute(type(left.obj), method) is None or own_method(type(left.obj), method):
        return None
    result = t.operators.fold(getattr(type(left.obj), method), left.obj, right.obj)
    return None if is_object(result, NotImplemented) else result
