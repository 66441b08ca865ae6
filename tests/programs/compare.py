"""Compare two worlds (arguments, result, observed state) that must look the same to a user.

Both are walked in step. Besides types and values the *shape of sharing* must agree: where two places of one world are
the same object, or two tensors share a storage, so must the two places of the other.
"""

import collections
import enum
import functools
import math
import types

import numpy as np
import torch

_ATOMS = (
    type(None),
    bool,
    int,
    str,
    bytes,
    type(Ellipsis),
    type(NotImplemented),
    range,
    slice,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)
_OPAQUE = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.MethodType,
    types.CodeType,
    types.MappingProxyType,
    property,
    classmethod,
    staticmethod,
    torch._C._TensorMeta,
    torch.Generator,
)


class Different(AssertionError):
    """The two worlds differ; says where and how."""


def type_name(obj) -> str:
    """A type's name: classes made by two runs of one factory are different objects of the same name."""
    t = type(obj)
    return f"{t.__module__}.{t.__qualname__}"


def own_attributes(t: torch.Tensor) -> dict:
    """Attributes that a program set on a tensor; torch.compile leaves marks of its own there."""
    return {k: v for k, v in t.__dict__.items() if not k.startswith("_dynamo")}


class Comparer:
    """Walks two worlds in step. `rtol`, `atol`: for floating tensors; 0, 0 asks for equal bits (NaN equals NaN)."""

    def __init__(self, rtol: float = 0.0, atol: float = 0.0):
        self.rtol, self.atol = rtol, atol
        self.seen: dict[int, int] = {}
        self.seen_back: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.storages_back: dict[int, int] = {}
        self.keep: list = []  # ids stay unique only while the objects live

    def same(self, a, b, where: str = "result") -> None:
        """Raise Different unless `a` (reference) and `b` (compiled) look the same."""
        if type_name(a) != type_name(b):
            raise Different(f"{where}: type {type_name(b)}, reference {type_name(a)} ({b!r} against {a!r})")
        if isinstance(a, _ATOMS) and type(a).__module__ in ("builtins", "torch"):
            if a != b:
                raise Different(f"{where}: {b!r}, reference {a!r}")
            return
        if isinstance(a, (float, complex)):
            self._number(a, b, where)
            return
        if self._known(a, b, where):
            return
        self.keep += [a, b]
        self._walk(a, b, where)

    def _known(self, a, b, where) -> bool:
        if isinstance(a, (tuple, frozenset, types.MethodType, np.generic)):  # identity of values is no promise
            return False
        if id(a) in self.seen or id(b) in self.seen_back:
            if self.seen.get(id(a)) != id(b):
                raise Different(f"{where}: objects are shared differently (identity lost or gained): {b!r}")
            return True
        self.seen[id(a)], self.seen_back[id(b)] = id(b), id(a)
        return False

    def _number(self, a, b, where) -> None:
        if a == b and not (isinstance(a, float) and math.copysign(1, a) != math.copysign(1, b)):
            return
        if a != a and b != b:
            return
        if self.rtol and abs(a - b) <= self.atol + self.rtol * abs(a):
            return
        raise Different(f"{where}: {b!r}, reference {a!r}")

    def _walk(self, a, b, where) -> None:
        if isinstance(a, torch.Tensor):
            self._tensor(a, b, where)
        elif isinstance(a, torch.nn.Module):
            self._module(a, b, where)
        elif isinstance(a, (np.ndarray, np.generic)):
            if a.dtype != b.dtype or a.shape != b.shape:
                raise Different(f"{where}: {b.dtype}{b.shape}, reference {a.dtype}{a.shape}")
            if a.flags.writeable != b.flags.writeable:
                raise Different(f"{where}: writeable {b.flags.writeable}, reference {a.flags.writeable}")
            if not np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"):
                raise Different(f"{where}: {b!r}, reference {a!r}")
        elif isinstance(a, BaseException):
            self.same(a.args, b.args, f"{where}.args")
            self._attributes(a, b, where)
        elif isinstance(a, enum.Enum):
            self._equal(a.name, b.name, where)
        elif isinstance(a, type) or isinstance(a, _OPAQUE):
            name = "__qualname__" if hasattr(a, "__qualname__") else "__class__"
            self._equal(str(getattr(a, name)), str(getattr(b, name)), where)
        elif isinstance(a, functools.partial):
            self.same((a.func, a.args, a.keywords), (b.func, b.args, b.keywords), where)
        else:
            self._container(a, b, where)

    def _container(self, a, b, where) -> None:
        if isinstance(a, dict):
            self._order(list(a), list(b), where)
            for (k, v), w in zip(a.items(), b.values()):
                self.same(v, w, f"{where}[{k!r}]")
        elif isinstance(a, (set, frozenset)):
            self._equal(len(a), len(b), where)
            if all(isinstance(v, (int, str, float, tuple, type(None))) for v in a):
                self._equal(a, b, where)
        elif isinstance(a, (list, tuple, collections.deque)):
            self._equal(len(a), len(b), f"len({where})")
            for i, (v, w) in enumerate(zip(a, b)):
                self.same(v, w, f"{where}[{i}]")
            if isinstance(a, collections.deque):
                self._equal(a.maxlen, b.maxlen, f"{where}.maxlen")
        elif hasattr(a, "__next__") or isinstance(a, (type({}.keys()), type({}.values()), type({}.items()))):
            self.same(list(a), list(b), f"list({where})")
        self._attributes(a, b, where)

    def _order(self, a, b, where) -> None:
        self._equal(len(a), len(b), f"len({where})")
        for i, (k, q) in enumerate(zip(a, b)):
            self.same(k, q, f"{where} key {i}")

    def _equal(self, a, b, where) -> None:
        if a != b:
            raise Different(f"{where}: {b!r}, reference {a!r}")

    def _attributes(self, a, b, where) -> None:
        if isinstance(getattr(a, "__dict__", None), dict):
            self.same(a.__dict__, b.__dict__, f"{where}.__dict__")
        for cls in type(a).__mro__:
            slots = cls.__dict__.get("__slots__", ())
            for s in (slots,) if isinstance(slots, str) else slots:
                if s not in ("__dict__", "__weakref__"):
                    self.same(getattr(a, s, "<unset>"), getattr(b, s, "<unset>"), f"{where}.{s}")

    def _module(self, a, b, where) -> None:
        for name in sorted(set(a.__dict__) | set(b.__dict__)):
            if "hook" in name or name.startswith("_compiled") or name == "forward":
                continue
            self.same(a.__dict__.get(name, "<unset>"), b.__dict__.get(name, "<unset>"), f"{where}.{name}")

    def _tensor(self, a, b, where) -> None:
        for what in ("dtype", "device", "layout", "requires_grad", "is_leaf"):
            self._equal(getattr(a, what), getattr(b, what), f"{where}.{what}")
        self._equal(tuple(a.shape), tuple(b.shape), f"{where}.shape")
        for asked in ("is_inference", "is_conj", "is_neg"):
            self._equal(getattr(a, asked)(), getattr(b, asked)(), f"{where}.{asked}()")
        if a.layout is torch.strided and not a.is_quantized:
            self._equal(a.stride(), b.stride(), f"{where}.stride()")
            self._equal(a.storage_offset(), b.storage_offset(), f"{where}.storage_offset()")
            self._storage(a, b, where)
        self._values(a.detach(), b.detach(), where)
        if a.requires_grad and a.is_leaf:
            self.same(a.grad, b.grad, f"{where}.grad")
        self.same(own_attributes(a), own_attributes(b), f"{where}.__dict__")

    def _storage(self, a, b, where) -> None:
        p, q = a.untyped_storage()._cdata, b.untyped_storage()._cdata
        if self.storages.setdefault(p, q) != q or self.storages_back.setdefault(q, p) != p:
            raise Different(f"{where}: shares its storage with other tensors than the reference does")

    def _values(self, a, b, where) -> None:
        if a.layout is not torch.strided:
            a, b = a.to_dense(), b.to_dense()
        if a.is_quantized:
            a, b = a.dequantize(), b.dequantize()
        floating = a.is_floating_point() or a.is_complex()
        if not floating or not self.rtol:
            same = torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) if floating else torch.equal(a, b)
        else:
            same = torch.allclose(a, b, rtol=self.rtol, atol=self.atol, equal_nan=True)
        if not same:
            raise Different(f"{where}: values differ:\n{b}\nreference\n{a}")
