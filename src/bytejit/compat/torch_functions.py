"""Functions and state of torch's libraries, by address: for what takes longer through Python than all else in a call.

`makers()` are those that make a tensor of the CPU: two of libtorch's stable C functions, and the one with which torch hands its
tensors to Python. They return errors as numbers, so no exception of C++ meets code that knows none. `flag()` is the function
behind one of torch's Python functions that return a piece of its state. `KEYED` are those whose result follows from the dispatch
keys that are included and excluded in this thread: two words, which `keys_library()` has.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import torch

MAKE, DROP = "aoti_torch_empty_strided", "aoti_torch_delete_tensor_object"
WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"
FLAGS: dict[Callable[[], object], tuple[str, str]] = {  # torch's function -> the library and the function behind it
    torch.is_grad_enabled: ("libc10.so", "_ZN3c108GradMode10is_enabledEv"),
    torch.is_inference_mode_enabled: ("libc10.so", "_ZN3c1013InferenceMode10is_enabledEv"),
    torch._C._len_torch_function_stack: ("libtorch_cpu.so", "_ZN2at4impl22PythonTorchFunctionTLS9stack_lenEv"),
}
KEYED: tuple[Callable[[], object], ...] = (
    torch._C._is_any_autocast_enabled,
    torch._C._len_torch_dispatch_stack,
    torch._C._functorch.maybe_current_level,
    torch._C._is_tracing,
)
KEYS = "_ZN3c104impl26raw_local_dispatch_key_setE"  # of each thread: the keys included, and those excluded
DTYPE = "aoti_torch_dtype_{}"  # the functions that return the numbers of dtypes


@functools.cache
def _library(name: str) -> ctypes.CDLL | None:
    """A library that this process has loaded with torch."""
    try:
        return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
    except OSError:
        return None


def address(library: str, name: str) -> int | None:
    """Where a function of a library is; None where there is none of that name."""
    found = getattr(_library(library), name, None)
    return ctypes.cast(found, ctypes.c_void_p).value if found is not None else None


@functools.cache
def makers() -> tuple[int, int, int] | None:
    """Addresses of MAKE, DROP and WRAP; None where one is missing."""
    made, drop = (address("libtorch_cpu.so", name) for name in (MAKE, DROP))
    wrap = address("libtorch_python.so", WRAP)
    return None if made is None or drop is None or wrap is None else (made, drop, wrap)


def flag(getter: Callable[[], object]) -> int | None:
    """The address of the function behind one of torch's; None where it is not known."""
    found = FLAGS.get(getter)
    return None if found is None else address(*found)


@functools.cache
def keys_library() -> int | None:
    """The handle, as `dlopen` returns it, of the library that has KEYS; None where it is not there."""
    library = _library("libc10.so")
    return None if library is None or _keys() is None else library._handle


def _keys() -> tuple[int, int] | None:
    """This thread's dispatch keys, included and excluded."""
    library = _library("libc10.so")
    try:
        found = (ctypes.c_uint64 * 2).in_dll(library, KEYS) if library is not None else None
    except ValueError:
        return None
    return None if found is None else (found[0], found[1])


def number_of(dtype: torch.dtype) -> int | None:
    """A dtype's number in torch's C++; None where its library does not say it."""
    ask = getattr(_library("libtorch_cpu.so"), DTYPE.format(str(dtype).removeprefix("torch.")), None)
    return None if ask is None else int(ask())


def made(dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """A tensor from `makers`, called through ctypes: a trial of what compiled code does with them."""
    found, number = makers(), number_of(dtype)
    assert found is not None and number is not None, f"no number of {dtype}"
    words, handle = ctypes.c_int64 * len(shape), ctypes.c_void_p()
    make = ctypes.CFUNCTYPE(ctypes.c_int32)(found[0])
    make.argtypes = (ctypes.c_int64, words, words, *(ctypes.c_int32,) * 3, ctypes.c_void_p)
    assert make(len(shape), words(*shape), words(*stride), number, 0, 0, ctypes.byref(handle)) == 0
    wrap = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p)(found[2])
    result = wrap(handle)
    assert ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(found[1])(handle) == 0
    return result


def check() -> None:
    """What is here is as this module says, where torch has it. Raises: AssertionError."""
    check_flags()
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16) if makers() is not None else ():
        for shape, stride in (((2, 3), (1, 2)), ((), ()), ((0, 4), (4, 1))):
            x = made(dtype, shape, stride)
            found = (type(x), x.dtype, tuple(x.shape), x.stride(), x.requires_grad, x._version, x.device.type)
            assert found == (torch.Tensor, dtype, shape, stride, False, 0, "cpu"), found


def check_flags() -> None:
    """The functions behind torch's return what it returns, and its modes change the thread's keys. Raises: AssertionError."""
    functorch, plain = torch._C._functorch, _keys()
    for manager in (
        torch.no_grad,
        torch.inference_mode,
        torch.enable_grad,
        lambda: torch.autocast("cpu"),
    ):
        with manager():
            for getter in FLAGS:
                if (at := flag(getter)) is not None:
                    found = ctypes.CFUNCTYPE(ctypes.c_ubyte)(at)()
                    assert found == getter(), f"{FLAGS[getter]} returns {found}"
            moved = manager is torch.inference_mode or torch._C._is_any_autocast_enabled()
            assert plain is None or (_keys() != plain) == moved, f"keys {_keys()}, {plain} without"
    assert _keys() == plain and functorch.maybe_current_level() is None
