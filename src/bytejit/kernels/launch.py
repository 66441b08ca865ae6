"""Load a unit and call its functions: the hot path.

A unit's functions are builtin functions of the interpreter (METH_FASTCALL), made by the unit itself. A call with three pointers
and a size costs 50 ns; through cffi's dlopen 500 (integers), 1,340 (casts to void*), 570 (one packed struct); through ctypes
800. cffi loads the library, and passes it the OpenMP runtime that torch uses. It plays no part in a call.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What is called through cffi, and what its parser makes of it: tests/kernels/test_launch.py says how, and holds them equal.
C = (
    "void bj_fill(void*, void*, void*, void*); void GOMP_parallel(void*, void*, unsigned, unsigned);"
    "int omp_get_thread_num(void); int omp_get_num_threads(void);"
)
PARSED = {
    "_version": 0x2601,
    "_types": bytes.fromhex(
        "00000E0D0000000F00000F0D00000F0300000311000008010000080100"
        "00000F00000F0D0000031100000311000003110000031100"
        "00000F0000070100000001"
    ),
    "_globals": (
        *(b"\x00\x00\x02\x23GOMP_parallel", 0, b"\x00\x00\x08\x23bj_fill", 0),
        *(b"\x00\x00\x00\x23omp_get_num_threads", 0, b"\x00\x00\x00\x23omp_get_thread_num", 0),
    ),
}
OPENMP = ("libgomp", "libiomp5", "libomp")


@functools.cache
def _ffi() -> Any:
    """cffi's interface to the functions of `C`. To import its parser of C would take 30 ms in each process."""
    try:
        import _cffi_backend

        return _cffi_backend.FFI("bytejit", **PARSED)
    except (ImportError, TypeError, ValueError):  # a version of cffi that wants another form
        import cffi

        ffi = cffi.FFI()
        ffi.cdef(C)
        return ffi


@functools.cache
def openmp() -> tuple[Any, str]:
    """(cffi library, file) of the OpenMP runtime that is loaded in this process; (None, "") when there is none."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return None, ""
    files = dict.fromkeys(line.split(maxsplit=5)[5] for line in maps.splitlines() if line.count("/"))
    for name in OPENMP:
        for file in files:
            if Path(file).name.startswith(name) and ".so" in file:
                return _ffi().dlopen(file), file
    return None, ""


def load(file: str) -> dict[str, Callable]:
    """The functions of a built unit by name. The library stays loaded as long as the process."""
    ffi = _ffi()
    # the functions outlive every Python object here: the library must stay mapped until the process has ended
    library = ffi.dlopen(file, ffi.RTLD_NOW | getattr(os, "RTLD_NODELETE", 0))
    runtime, _ = openmp()
    hooks = (
        [ffi.NULL] * 3
        if runtime is None
        else [
            ffi.cast("void*", ffi.addressof(runtime, name))
            for name in ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        ]
    )
    made: list[Callable] = []
    library.bj_fill(ffi.cast("void*", id(made)), *hooks)
    _keep().append(library)
    return {f.__name__: f for f in made}


@functools.cache
def _keep() -> list:
    """Loaded libraries: cffi unloads one that is collected, and its functions with it."""
    return []
