"""The probe "layouts": memory is laid out as compiled guards read it.

They read an object's type from its second word, a dict's keys and values from its tables, and tensors through the table of C
functions that torch hands out (DLPack's exchange API, version 1.x). A wrong guess here may end the process that makes it: on
versions that the suite never ran on a child makes it.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import itertools

import torch

from . import torch_functions

FILL_SLOT = 5  # word of the table: version, prev_api, allocator, managed_from, to_py_object, dltensor_from_py_object
CODES = {  # torch dtype -> DLPack (code, bits); dtypes that are not here are checked from Python
    torch.bool: (6, 8),
    torch.uint8: (1, 8),
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.bfloat16: (4, 16),
}


class DLTensor(ctypes.Structure):
    """DLPack's struct of that name."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_index", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    ]


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


class _Python:
    """A class that is written in Python."""


def objects() -> None:
    """The second word of an object is its type. Raises: AssertionError."""
    for x in (object(), 1.5, {}, _Python, _Python(), torch.zeros(1), torch.nn.Parameter(torch.zeros(1)), objects, [], "x"):
        assert ctypes.c_void_p.from_address(id(x) + 8).value == id(type(x)), f"the second word of a {type(x).__name__}"


def read_dict(found: dict, place: int) -> list[tuple[int, int]] | None:
    """The addresses of a dict's keys and values, as compiled guards read them, in the order of its tables; None for a dict that
    they do not read, as some key is no string. `place`: where the first value is in the values of a dict that shares its keys,
    in bytes."""
    keys, values = (ctypes.c_void_p * 6).from_address(id(found))[4:]
    assert keys is not None
    head, count = (ctypes.c_uint8 * 12).from_address(keys), ctypes.c_int64.from_address(keys + 24).value
    if not head[10]:
        return None
    assert head[9] < 24 and 0 <= count <= 1 << head[8]
    entries = (ctypes.c_void_p * (2 * count)).from_address(keys + 32 + (1 << head[9]))
    second = (ctypes.c_void_p * count).from_address(values + place) if values else entries[1::2]
    return [(k, v) for k, v in zip(entries[::2], second) if v and k]


def sample_dicts() -> list[dict]:
    """Dicts of every kind, size and history. The modules among them draw no random numbers when they are made, and register
    nothing: the program's hooks would see it."""
    one, two, less = _Python(), _Python(), _Python()
    for i in range(9):
        for x in (one, two, less)[: 3 if i < 6 else 2]:
            setattr(x, f"a{i}", object())
    delattr(two, "a3")
    delattr(less, "a0")
    large = {f"k{i}": object() for i in range(300)}
    holes = {k: v for k, v in large.items()}
    for i in range(0, 300, 7):
        del holes[f"k{i}"]
    module = torch.nn.Module()
    module._parameters.update(weight=None, bias=None)
    made = [
        {},
        {"a": 1},
        large,
        holes,
        {**large},
        {1: 2, "a": 3},
        collections.OrderedDict(a=1, b=2),
        module._parameters,
    ]
    return [*made, *(x.__dict__ for x in (one, two, less, module, torch.nn.Softplus(), torch.nn.ReLU()))]


@functools.cache
def dict_values() -> int | None:
    """Where in the values of a dict that shares its keys the first is, in bytes; None where dicts are not laid out as compiled
    guards read them. Costs 1 ms, once."""
    if dict.__basicsize__ != 48:
        return None
    for place in (0, 8):
        try:
            fits = all(
                ctypes.c_int64.from_address(id(d) + 16).value == len(d)
                and ((read := read_dict(d, place)) is None or set(read) == {(id(k), id(v)) for k, v in d.items()})
                and (read is not None or any(type(k) is not str for k in d))
                for d in sample_dicts()
            )
        except AssertionError:
            return None
        if fits:
            return place
    return None


def samples() -> list[torch.Tensor]:
    """Tensors of all dtypes that guards read natively, and of every shape that is special."""
    base = torch.zeros(4, 6, 5)
    shapes = [
        base,
        base.transpose(0, 2),
        base[1:, ::2],
        base[:, None],
        torch.zeros(()),
        torch.zeros(0, 3),
        torch.zeros(1, 1).expand(4, 1),
        base.as_strided((3, 2), (1, 7), 2),
        torch.zeros(1, 2, 3, 4, 5, 6),
    ]
    return [
        *shapes,
        torch.nn.Parameter(torch.zeros(3, 2)),
        torch.zeros(2, requires_grad=True).view(1, 2),
        *(torch.zeros(2, 3, dtype=dtype) for dtype in CODES),
    ]


def tensors() -> None:
    """torch's table fills a DLTensor as it says, and refuses what has no strides. Raises: AssertionError."""
    address = exchange_fill()
    assert address is not None, "torch hands out no table of version 1"
    fill = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))(address)
    for x, _ in itertools.product(samples(), range(3)):
        view = DLTensor()
        assert fill(x, ctypes.byref(view)) == 0
        found = (view.data, view.device_type, view.rank, (view.code, view.bits), view.lanes)
        assert found == (x.data_ptr() or None, 1, x.dim(), CODES[x.dtype], 1), f"{found} of {x.shape} {x.dtype}"
        assert [view.sizes[i] for i in range(x.dim())] == list(x.shape), x.shape
        wrong = [i for i in range(x.dim()) if view.strides[i] != x.stride(i) and x.shape[i] > 1 and x.numel()]
        assert not wrong, f"strides of {x.shape}: {[view.strides[i] for i in range(x.dim())]}, not {x.stride()}"


def main() -> None:
    """Run all checks of this module, and what may read wrong memory where it is not laid out so. Raises: AssertionError."""
    objects()
    dict_values()
    tensors()
    torch_functions.check()
