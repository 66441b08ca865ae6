"""Checks of many tensors at once, in one call of a compiled function, through torch's DLPack exchange table.

A full check of a tensor from Python costs 150 to 250 ns, most of it in making shape and stride tuples. `__dlpack_c_exchange_api__`
is a stable C table (DLPack 1.3) by which a consumer looks at a tensor without owning it; a unit of our own calls it, so a check costs
a tenth. Nothing here imports the compiler: `install(build)` is given one by the pipeline. Without it, or on a torch without that table,
`usable` is False and guards stay in Python.
"""

from __future__ import annotations

import array
import ctypes
from typing import Any, Callable

import torch

# torch dtype -> DLPack (code, bits); dtypes that are not here are checked from Python
CODES = {
    torch.bool: (6, 8), torch.uint8: (1, 8), torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32), torch.int64: (0, 64),
    torch.float16: (2, 16), torch.float32: (2, 32), torch.float64: (2, 64), torch.bfloat16: (4, 16),
}
DEVICES = {"cpu": 1, "cuda": 2}
TYPES = (torch.Tensor, torch.nn.Parameter)
FILL_SLOT = 5     # word of DLPackExchangeAPI: version, prev_api, allocator, managed_from, to_py_object, dltensor_from_py_object

# Table of a check, int64 words: address of the fill function, then a tensor: type, device type, device index, dtype word,
# requires_grad (-1: not checked), rank, sizes, strides.
UNIT = r"""
#include "glue.h"
extern "C" {
PyObject* PyObject_Type(PyObject*);
PyObject* PyObject_GetAttr(PyObject*, PyObject*);
PyObject* PyBool_FromLong(long);
PyObject* PyUnicode_InternFromString(const char*);
}
struct View { void* data; int device_type, device_index, rank; unsigned dtype; long long* sizes; long long* strides;
              unsigned long long offset; };   // DLTensor
typedef int (*Fill)(PyObject*, View*);

// tensors_are(table, t0, t1, ...) -> bool. Raises what the exchange table raises (a tensor without strides).
static PyObject* tensors_are(PyObject*, PyObject* const* args, bj_size n) {
    static PyObject* flag = PyUnicode_InternFromString("requires_grad");
    static PyObject* yes = PyBool_FromLong(1);
    const long long* want = (const long long*)PyLong_AsVoidPtr(args[0]);
    Fill fill = (Fill)*want++;
    for (bj_size i = 1; i < n; ++i) {
        PyObject* type = PyObject_Type(args[i]);
        Py_DecRef(type);
        if ((long long)type != want[0]) return PyBool_FromLong(0);
        View v;
        if (fill(args[i], &v)) return nullptr;
        long long rank = want[5];
        if (v.device_type != want[1] || v.device_index != want[2] || v.dtype != want[3] || v.rank != rank) return PyBool_FromLong(0);
        if (want[4] >= 0) {
            PyObject* grad = PyObject_GetAttr(args[i], flag);
            if (!grad) return nullptr;
            Py_DecRef(grad);
            if ((grad == yes) != want[4]) return PyBool_FromLong(0);
        }
        want += 6;
        for (long long k = 0; k < rank; ++k)
            if (v.sizes[k] != want[k] || v.strides[k] != want[rank + k]) return PyBool_FromLong(0);
        want += 2 * rank;
    }
    return PyBool_FromLong(1);
}
static bj::Method methods[] = {{"tensors_are", tensors_are, 0x80, "whether tensors are as a table says"}};
BJ_EXPORT(methods, 1)
"""


class Checker:
    """The compiled check, built on first use. One per process: `CHECKER`."""

    def __init__(self) -> None:
        self._build: Callable[[str], dict[str, Callable]] | None = None
        self._call: Callable[..., bool] | None = None

    def install(self, build: Callable[[str], dict[str, Callable]] | None) -> None:
        """Give the compiler: C++ text -> its functions by name. None takes it away (checks are made from Python again)."""
        self._build, self._call = build, None

    @property
    def usable(self) -> bool:
        """Whether checks can be compiled: a compiler was given, and this torch has the exchange table."""
        return self._build is not None and exchange_fill() is not None

    def call(self) -> Callable[..., bool]:
        """`tensors_are(table address, *tensors) -> bool`. Cost: 60 ns, and about 25 a tensor. Raises what the build raises."""
        if self._call is None:
            self._call = self._build(UNIT)["tensors_are"]
        return self._call


CHECKER = Checker()


def exchange_fill() -> int | None:
    """Address of torch's `dltensor_from_py_object_no_sync`; None where torch has none or its version is not 1.x."""
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer(capsule, b"dlpack_exchange_api")
    major = ctypes.c_uint32.from_address(address).value
    return ctypes.c_void_p.from_address(address + 8 * FILL_SLOT).value if major == 1 else None


def row(check: Any) -> list[int] | None:
    """The words of a tensor's check (a TensorCheck); None when it must be made from Python.

    From Python: other types and dtypes, unchecked or symbolic sizes, sizes 0 and 1 (DLPack may name other strides there).
    """
    c = check
    if c.type not in TYPES or c.dtype not in CODES or c.device is None or c.device.type not in DEVICES or c.shape is None:
        return None
    if c.stride is None or None in c.shape or None in c.stride or any(s < 2 for s in c.shape) or not c.shape:
        return None
    if c.is_leaf is not None or c.storage_offset is not None or c.conj or c.neg:
        return None
    code, bits = CODES[c.dtype]
    flag = -1 if c.requires_grad is None else int(c.requires_grad)
    return [id(c.type), DEVICES[c.device.type], c.device.index or 0, code | bits << 8 | 1 << 16, flag, len(c.shape), *c.shape, *c.stride]


def table(rows: list[list[int]]) -> array.array:
    """The table of several tensors, in order. Keep it alive as long as its address (`buffer_info()[0]`) is used."""
    return array.array("q", [exchange_fill(), *(word for r in rows for word in r)])
