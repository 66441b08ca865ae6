"""Which real objects are known by identity, and how a real mapping is read."""

from __future__ import annotations

import collections
import collections.abc
import contextvars
import types
import weakref
from typing import Any

import torch

from bytejit.compat import numpy_types

BY_REFERENCE = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
    property,
    types.MethodWrapperType,
    staticmethod,
    classmethod,
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    types.GenericAlias,
    *numpy_types.FUNCTION_TYPES,
    type(collections.abc.Callable[[int], int]),
    types.UnionType,
    contextvars.ContextVar,
)
BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
UNBOUND = (types.MethodDescriptorType, types.WrapperDescriptorType)
IN_SETS = (*BY_REFERENCE, types.FunctionType)  # known by identity in a set
# singletons compared by identity: a guard `is` is cheaper than `==` and as strict
SINGLETONS = (type(None), bool, type(Ellipsis), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format)


def is_reference(obj: object) -> bool:
    """Whether it is a weak reference to an object that is equal to itself only."""
    if not isinstance(obj, weakref.ReferenceType) or (of := obj()) is None:
        return False
    return (type(of).__hash__, type(of).__eq__) == (object.__hash__, object.__eq__)


def real_items(d: Any) -> list[tuple]:
    """The pairs of a real mapping in its own order, past what a subclass overrides: no key is compared with another."""
    if isinstance(d, collections.OrderedDict):  # dict.items would tell the order before move_to_end
        return list(collections.OrderedDict.items(d))
    return list(dict.items(d) if isinstance(d, dict) else d.items())
