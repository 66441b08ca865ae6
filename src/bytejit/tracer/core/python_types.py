"""The Python type of a modelled value."""

from __future__ import annotations

import types

import torch

from bytejit.compat import numpy_types

from .iterator_values import GenVar, IterVar
from .made_ids import IdVar
from .models import REPLACED
from .numpy_values import ArrayVar, TensorArrayVar
from .open_values import OpenVar
from .range_values import RangeVar
from .texts import TextVar, UnreadText
from .values import (
    CellVar,
    DeferredVar,
    DictVar,
    DictView,
    FuncVar,
    InstanceVar,
    Known,
    MethodVar,
    PropertyVar,
    SeqVar,
    SetVar,
    SliceVar,
    SuperVar,
    SymVar,
    TensorVar,
    TracebackVar,
    Var,
)

PYTHON_TYPES = {
    IdVar: int,
    ArrayVar: numpy_types.ARRAY,
    CellVar: types.CellType,
    FuncVar: types.FunctionType,
    MethodVar: types.MethodType,
    SliceVar: slice,
    GenVar: types.GeneratorType,
    SuperVar: super,
    TracebackVar: types.TracebackType,
}
# what a method written in C is once it is bound
BOUND_TYPES = {
    types.MethodDescriptorType: types.BuiltinMethodType,
    types.ClassMethodDescriptorType: types.BuiltinMethodType,
    types.BuiltinFunctionType: types.BuiltinMethodType,
    types.WrapperDescriptorType: types.MethodWrapperType,
}
ITERATOR_TYPES: dict[str, type] = {
    "seq": type(iter([])),
    "reversed": type(reversed([])),
    "reversed items": reversed,
    "dict": type(iter({})),
    "range": type(iter(range(0))),
    "enumerate": enumerate,
    "zip": zip,
    "map": map,
    "filter": filter,
}


def python_type(v: Var) -> type:
    """The type of the object that a value stands for, which is not `Lazy`."""
    if type(v) is SymVar:
        return int if isinstance(v.value, torch.SymInt) else float
    if isinstance(v, OpenVar):
        return type(v.real)
    if type(v) in (TextVar, UnreadText):
        return str
    if type(v) is RangeVar:
        return range
    if isinstance(v, Known):
        return type(v.obj)
    if isinstance(v, TensorVar):
        return torch.Tensor if v.cls is None else v.cls
    if isinstance(v, (SeqVar, DictVar, DictView, SetVar, InstanceVar, PropertyVar, TensorArrayVar)):
        return v.cls
    if isinstance(v, IterVar):
        if v.kind == "external":
            return type(v.state["real"])
        return v.state.get("cls") or ITERATOR_TYPES.get(v.kind, types.GeneratorType)
    if isinstance(v, DeferredVar):
        return v.kind
    if isinstance(v, GenVar) and v.call is not None:
        instead = REPLACED.get(v.call[0].code)
        instead = getattr(instead, "__self__", instead)  # itertools.chain, of its from_iterable
        return instead if isinstance(instead, type) else types.GeneratorType
    if isinstance(v, MethodVar) and isinstance(v.func, Known):
        return BOUND_TYPES.get(type(v.func.obj), types.MethodType)
    return PYTHON_TYPES[type(v)]
