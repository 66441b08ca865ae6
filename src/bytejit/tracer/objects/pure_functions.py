"""Built-in functions without effects, which are run while tracing when their arguments are constants."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import torch

from bytejit.common import special_cases
from bytejit.common.special_cases import module_of
from bytejit.tracer.core.constants import VALUE_TYPES, is_constant, is_placement

PURE_MODULES = {"math", "cmath", "_operator", "operator", "_struct", "itertools", "time_none", "_stat", "binascii", "unicodedata"}
PURE_BUILTINS = {
    abs,
    all,
    any,
    ascii,
    bin,
    bool,
    bytes,
    callable,
    chr,
    complex,
    dict,
    divmod,
    float,
    format,
    frozenset,
    hash,
    hex,
    int,
    len,
    list,
    max,
    min,
    oct,
    ord,
    pow,
    range,
    repr,
    reversed,
    round,
    set,
    slice,
    sorted,
    str,
    sum,
    tuple,
    bytes.maketrans,
    sys.intern,
    os.fspath,
    str.maketrans,
}
PURE_OF_TORCH = {torch._C._infer_size}
MANAGER_METHODS = ("__enter__", "__exit__")  # torch.device is a constant, and a manager that sets global state


def is_pure(obj: Any) -> bool:
    """Whether a C callable on constant arguments has no effect and always the same result."""

    if isinstance(obj, type):
        return (
            obj in PURE_BUILTINS
            or obj in VALUE_TYPES
            or obj in (torch.device, torch.Size, torch.finfo, torch.iinfo, torch.dtype)
            or is_placement(obj)
        )
    try:
        if obj in PURE_BUILTINS or obj in PURE_OF_TORCH:
            return True
    except TypeError:
        return False
    if special_cases.PLACEMENT_METHODS.made(obj):
        return True
    owner = getattr(obj, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType):
        if obj.__name__ in MANAGER_METHODS:
            return False
        return is_constant(owner) or owner in (int, float, str, bytes, dict, complex, frozenset)
    if isinstance(obj, (types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType)):
        return getattr(obj, "__objclass__", None) in (
            int,
            float,
            str,
            bytes,
            complex,
            bool,
            tuple,
            frozenset,
            range,
            type(None),
            object,
        )
    return module_of(obj) in PURE_MODULES
