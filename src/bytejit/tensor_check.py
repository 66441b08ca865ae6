"""Checks of many tensors, or of many dicts, at once: one call of a compiled function.

A full check of a tensor from Python costs 150 to 250 ns, most of it in making shape and stride tuples. torch gives
`__dlpack_c_exchange_api__`, a stable C table (DLPack 1.3) by which a consumer looks at a tensor without owning it. A
unit of our own calls it, so a check costs a tenth. Nothing here imports the compiler: `install(build)` is given one
by the pipeline. Without it, or on a torch without that table, `usable` is False and guards are checked from Python.
"""

from __future__ import annotations

import array
import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from .errors import BytejitError
from .registry import count

# torch dtype -> DLPack (code, bits); dtypes that are not here are checked from Python
CODES = {
    torch.bool: (6, 8), torch.uint8: (1, 8), torch.int8: (0, 8), torch.int16: (0, 16), torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.float16: (2, 16), torch.float32: (2, 32), torch.float64: (2, 64), torch.bfloat16: (4, 16),
}
DEVICES = {"cpu": 1, "cuda": 2}
TYPES = (torch.Tensor, torch.nn.Parameter)
# word of DLPackExchangeAPI: version, prev_api, allocator, managed_from, to_py_object, dltensor_from_py_object
FILL_SLOT = 5

# Table of a check, int64 words: address of the fill function, then a tensor: type, device type, device index, dtype
# word, requires_grad (-1: not checked), rank, sizes, strides.
UNIT = r"""
#include "glue.h"
extern "C" {
PyObject* PyObject_Type(PyObject*);
PyObject* PyObject_GetAttr(PyObject*, PyObject*);
PyObject* PyBool_FromLong(long);
PyObject* PyUnicode_InternFromString(const char*);
PyObject* PyDict_GetItemWithError(PyObject*, PyObject*);
bj_size PyDict_Size(PyObject*);
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
        if (v.device_type != want[1] || v.device_index != want[2]) return PyBool_FromLong(0);
        if (v.dtype != want[3] || v.rank != rank) return PyBool_FromLong(0);
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

// dicts_are(table, d0, d1, ...) -> bool. Table: address of `dict`, then a dict: counts of absent keys, of empty
// dicts, of identical
// values; the absent keys; (key, exact type) of empty dicts; (key, value).
static PyObject* dicts_are(PyObject*, PyObject* const* args, bj_size n) {
    const long long* want = (const long long*)PyLong_AsVoidPtr(args[0]);
    long long plain = *want++;
    for (bj_size i = 1; i < n; ++i) {
        PyObject* type = PyObject_Type(args[i]);
        Py_DecRef(type);
        if ((long long)type != plain) return PyBool_FromLong(0);
        long long absent = want[0], empty = want[1], same = want[2];
        want += 3;
        for (; absent > 0; --absent, ++want)
            if (PyDict_GetItemWithError(args[i], (PyObject*)want[0])) return PyBool_FromLong(0);
        for (; empty > 0; --empty, want += 2) {
            PyObject* inner = PyDict_GetItemWithError(args[i], (PyObject*)want[0]);
            if (!inner) return PyBool_FromLong(0);
            PyObject* kind = PyObject_Type(inner);
            Py_DecRef(kind);
            if ((long long)kind != want[1] || PyDict_Size(inner) != 0) return PyBool_FromLong(0);
        }
        for (; same > 0; --same, want += 2)
            if ((long long)PyDict_GetItemWithError(args[i], (PyObject*)want[0]) != want[1]) return PyBool_FromLong(0);
    }
    return PyBool_FromLong(1);
}
static bj::Method methods[] = {{"tensors_are", tensors_are, 0x80, "whether tensors are as a table says"},
                               {"dicts_are", dicts_are, 0x80, "whether dicts hold what a table says"}};
BJ_EXPORT(methods, 2)
"""


class Checker:
    """The compiled check, built on first use. One per process: `CHECKER`."""

    def __init__(self) -> None:
        self._build: Callable[[str], dict[str, Callable]] | None = None
        self._calls: dict[str, Callable[..., bool]] | None = None
        self._exact: bool | None = None

    def install(self, build: Callable[[str], dict[str, Callable]] | None) -> None:
        """Give the compiler: C++ text -> its functions by name. None takes it away (checks are made from Python
        again)."""
        self._build, self._calls = build, None

    @property
    def installed(self) -> bool:
        """Whether a compiler was given."""
        return self._build is not None

    @property
    def usable(self) -> bool:
        """Whether checks can be compiled: a compiler was given and works, and this torch has the exchange table.
        Builds on first use."""
        if self._calls is None and self._build is not None and exchange_fill() is not None:
            try:
                self._calls = self._build(UNIT)
            # no compiler, or one that refuses the unit: as right from Python, only slower
            except BytejitError as error:
                self._build = None
                count("fallbacks", f"guards are checked from Python: {type(error).__name__}")
        return self._calls is not None

    def call(self, name: str) -> Callable[..., bool]:
        """`tensors_are(table address, *tensors) -> bool`, `dicts_are(table address, *dicts) -> bool`, where `usable`.

        Cost: 60 ns, and about 30 a tensor, 10 a key.
        """
        return self._calls[name]

    def exact(self) -> bool:
        """Whether the exchange table gives the strides of sizes 0 and 1 as `stride()` does. Some versions put 1
        there."""
        if self._exact is None:
            flat = torch.zeros(8)
            odd = [flat.as_strided((2, 1), (1, 5)), flat.as_strided((2, 0), (3, 7)), torch.zeros(())]
            rows = [[id(torch.Tensor), 1, 0, 2 | 32 << 8 | 1 << 16, -1, t.dim(), *t.shape, *t.stride()] for t in odd]
            words = table(rows)      # in a local: the call reads its memory
            self._exact = self.call("tensors_are")(words.buffer_info()[0], *odd)
        return self._exact


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


def row(check: Any, neg_possible: bool = False) -> list[int] | None:
    """The words of a tensor's check (a TensorCheck); None when it must be made from Python.

    From Python: other types and dtypes, unchecked or symbolic sizes, what may be lazily negated (`is_neg`), and sizes
    0 and 1
    where this torch's table gives other strides for them than `stride()`.
    """
    c = check
    if c.type not in TYPES or c.dtype not in CODES or c.device is None or c.device.type not in DEVICES:
        return None
    if c.shape is None or c.stride is None or None in c.shape or None in c.stride or neg_possible:
        return None
    if any(s < 2 for s in c.shape) and not CHECKER.exact():
        return None
    if c.is_leaf is not None or c.storage_offset is not None or c.conj or c.neg:
        return None
    code, bits = CODES[c.dtype]
    flag = -1 if c.requires_grad is None else int(c.requires_grad)
    head = [id(c.type), DEVICES[c.device.type], c.device.index or 0, code | bits << 8 | 1 << 16, flag, len(c.shape)]
    return [*head, *c.shape, *c.stride]


def table(rows: list[list[int]]) -> array.array:
    """The table of several tensors, in order. Keep it alive as long as its address (`buffer_info()[0]`) is used."""
    return array.array("q", [exchange_fill(), *(word for r in rows for word in r)])


@dataclass
class DictWants:
    """What one dict (an object's `__dict__`) must hold: for `dict_table`."""

    absent: list[str] = field(default_factory=list)
    empty: list[tuple[str, type]] = field(default_factory=list)     # exact type: dict or OrderedDict
    same: list[tuple[str, Any]] = field(default_factory=list)       # by identity

    def words(self) -> list[int]:
        """Words of the table. Keys and values must be kept alive by whoever keeps the table."""
        found = [len(self.absent), len(self.empty), len(self.same), *map(id, self.absent)]
        for key, value in (*self.empty, *self.same):
            found += [id(key), id(value)]
        return found


def dict_table(wants: list[DictWants]) -> array.array:
    """The table of several dicts, in order. Keep it, and `wants`, alive as long as its address is used."""
    return array.array("q", [id(dict), *(word for w in wants for word in w.words())])
