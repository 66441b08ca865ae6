"""Launch compiled GPU kernels: all kernels between two library calls in one call of a compiled function.

Our own unit calls the CUDA driver, which it finds in the process: no headers, no toolkit. A row of kernels is a table of words
that is made once: functions, grids, threads, and the argument for each parameter. A call then only converts its arguments to
integers and calls the driver's launch.
"""

from __future__ import annotations

import array
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from bytejit.common import caches
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.options import Options

from .build import NoDriver
from .build_cpp import functions

UNIT = r"""
#include "cuda_nodes.h"
extern "C" {
void* dlopen(const char*, int);
void* dlsym(void*, const char*);
PyObject* PyErr_Format(PyObject*, const char*, ...);
PyObject* PyLong_FromVoidPtr(void*);
PyObject* PyErr_Occurred(void);
PyObject* PyErr_NoMemory(void);
char* PyBytes_AsString(PyObject*);
extern PyObject* PyExc_RuntimeError;
}
typedef long long Word;
typedef unsigned U;
struct Attribute { int id, pad; long long value[8]; };                                            // CUlaunchAttribute
struct How { U grid[3], block[3], shared; void* stream; Attribute* attributes; U count; };        // CUlaunchConfig
static int (*launch_kernel)(const How*, void*, void**, void**);
static int (*module_load)(void**, const void*);
static int (*module_function)(void**, void*, const char*);
static int (*module_unload)(void*);
static int (*function_set)(void*, int, int);
static int (*function_get)(int*, int, void*);
static int (*error_string)(int, const char**);
static PyObject* raise(int code, const char* what) {
    const char* text = "unknown error";
    if (error_string) error_string(code, &text);
    return PyErr_Format(PyExc_RuntimeError, "CUDA driver: %s: %s", what, text);
}
// open() -> 0: finds the driver. Raises RuntimeError where there is none.
static PyObject* open(PyObject*, PyObject* const*, bj_size) {
    void* cuda = dlopen("libcuda.so.1", 2);
    if (!cuda) return PyErr_Format(PyExc_RuntimeError, "CUDA driver: libcuda.so.1 cannot be loaded");
    struct { void** at; const char* name; } wanted[] = {
        {(void**)&launch_kernel, "cuLaunchKernelEx"}, {(void**)&module_load, "cuModuleLoadData"},
        {(void**)&module_function, "cuModuleGetFunction"}, {(void**)&module_unload, "cuModuleUnload"},
        {(void**)&function_set, "cuFuncSetAttribute"}, {(void**)&function_get, "cuFuncGetAttribute"},
        {(void**)&error_string, "cuGetErrorString"},
        {(void**)&bj::graph_nodes, "cuGraphGetNodes"}, {(void**)&bj::node_type, "cuGraphNodeGetType"},
        {(void**)&bj::node_memset, "cuGraphMemsetNodeGetParams"}, {(void**)&bj::node_before, "cuGraphNodeGetDependencies"},
        {(void**)&bj::node_after, "cuGraphNodeGetDependentNodes"}, {(void**)&bj::add_kernel, "cuGraphAddKernelNode"},
        {(void**)&bj::add_edges, "cuGraphAddDependencies"}, {(void**)&bj::destroy_node, "cuGraphDestroyNode"}};
    for (auto& w : wanted)
        if (!(*w.at = dlsym(cuda, w.name)))
            return PyErr_Format(PyExc_RuntimeError, "CUDA driver: no %s", w.name);
    return PyLong_FromLong(0);
}
// load(binary bytes, name bytes, shared bytes) -> the function's handle, in the current context
static PyObject* load(PyObject*, PyObject* const* a, bj_size) {
    void *module = nullptr, *function = nullptr;
    int code = module_load(&module, PyBytes_AsString(a[0]));
    if (code) return raise(code, "cuModuleLoadData");
    code = module_function(&function, module, PyBytes_AsString(a[1]));
    long long shared = bj::integer(a[2]);
    if (!code && shared > 48 * 1024) code = function_set(function, 8, (int)shared);
    if (code) {
        module_unload(module);
        return raise(code, "cuModuleGetFunction");
    }
    return PyLong_FromVoidPtr(function);
}
// attribute(function, number): 0 most threads of a block, 3 bytes of local memory, 4 registers
static PyObject* attribute(PyObject*, PyObject* const* a, bj_size) {
    int value = 0, code = function_get(&value, (int)bj::integer(a[1]), bj::pointer<void>(a[0]));
    return code ? raise(code, "cuFuncGetAttribute") : PyLong_FromLong(value);
}
// Memory of a call, on the stack where it is little. at: null where there is none.
template <class T, int N> struct Room {
    T few[N], *at;
    explicit Room(Word n) : at(n <= N ? few : (T*)__builtin_malloc(n * sizeof(T))) {}
    ~Room() { if (at != few) __builtin_free(at); }
};
// Table: launches, then each: function, 3 x grid (a size, or -1 - argument), threads, shared bytes, whether it waits itself for
// the kernel before it, parameters, then each parameter: argument, added, whether it must be a multiple of 16.
// launch(table, stream, *arguments) -> 0; 1 when an address is not a multiple of 16 as assumed: nothing was launched.
static PyObject* launch(PyObject*, PyObject* const* a, bj_size n) {
    const Word* table = bj::pointer<const Word>(a[0]);
    void* stream = bj::pointer<void>(a[1]);
    Word most = 0;
    const Word* w = table + 1;
    for (Word k = 0; k < table[0]; ++k, w += 8 + 3 * w[7]) most = w[7] > most ? w[7] : most;
    Room<Word, 256> values(n - 2), cells(most + 2);
    Room<void*, 256> places(most + 2);
    Word *value = values.at, *cell = cells.at;
    void** params = places.at;
    if (!value || !cell || !params) return PyErr_NoMemory();
    for (bj_size i = 2; i < n; ++i) value[i - 2] = (Word)bj::pointer<void>(a[i]);
    if (PyErr_Occurred()) return nullptr;
    w = table + 1;
    for (Word k = 0; k < table[0]; ++k, w += 8 + 3 * w[7])
        for (Word p = 0; p < w[7]; ++p)
            if (w[10 + 3 * p] && ((value[w[8 + 3 * p]] + w[9 + 3 * p]) & 15)) return PyLong_FromLong(1);
    w = table + 1;
    int code = 0;
    Attribute early = {6, 0, {1}};                     // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    How how = {{0, 0, 0}, {1, 1, 1}, 0, stream, &early, 0};
    void* state = PyEval_SaveThread();
    for (Word k = 0; k < table[0] && !code; ++k, w += 8 + 3 * w[7]) {
        for (int d = 0; d < 3; ++d) how.grid[d] = (U)(w[1 + d] >= 0 ? w[1 + d] : value[-1 - w[1 + d]]);
        how.block[0] = (U)w[4];
        how.shared = (U)w[5];
        how.count = k && w[6];                         // behind a library's kernel it gains nothing, in a recording it costs
        Word count = w[7];
        for (Word p = 0; p < count; ++p) {
            cell[p] = value[w[8 + 3 * p]] + w[9 + 3 * p];
            params[p] = &cell[p];
        }
        cell[count] = 0;                               // two null addresses: triton's own scratch, unused
        params[count] = params[count + 1] = &cell[count];
        if (how.grid[0] && how.grid[1] && how.grid[2]) code = launch_kernel(&how, (void*)w[0], params, nullptr);
    }
    PyEval_RestoreThread(state);
    return code ? raise(code, "cuLaunchKernelEx") : PyLong_FromLong(0);
}
// moved(table, *inputs) -> position of the first input that is not at its address in the table, or -1.
// Table: torch's dltensor_from_py_object, then an address for each input, -1 where any will do.
struct View { void* data; int device_type, device_index, rank; unsigned dtype; Word* sizes; Word* strides;
              unsigned long long offset; };   // DLTensor
static PyObject* moved(PyObject*, PyObject* const* a, bj_size n) {
    const Word* table = bj::pointer<const Word>(a[0]);
    int (*fill)(PyObject*, View*) = (int (*)(PyObject*, View*))table[0];
    for (bj_size i = 1; i < n; ++i) {
        if (table[i] == -1) continue;
        View v;
        if (fill(a[i], &v)) return nullptr;
        if ((Word)v.data + (Word)v.offset != table[i]) return PyLong_FromLong(i - 1);
    }
    return PyLong_FromLong(-1);
}
// memsets(graph, fill) -> how many memset nodes of a graph became kernels, or -1
static PyObject* memsets(PyObject*, PyObject* const* a, bj_size) {
    return PyLong_FromLong((long)bj::memsets_to_kernels(bj::pointer<void>(a[0]), bj::pointer<void>(a[1])));
}
static bj::Method methods[] = {{"moved", moved, 0x80, nullptr}, {"memsets", memsets, 0x80, nullptr},
    {"open", open, 0x80, nullptr}, {"load", load, 0x80, nullptr},
    {"attribute", attribute, 0x80, nullptr}, {"launch", launch, 0x80, "launches a row of kernels as a table says"}};
BJ_EXPORT(methods, 6)
"""
FILL = b""".version 7.0
.target sm_80
.address_size 64
.visible .entry fill(.param .u64 to, .param .u32 value, .param .u32 words) {
    .reg .b32 %r<6>; .reg .b64 %rd<4>; .reg .pred %p;
    ld.param.u64 %rd0, [to]; ld.param.u32 %r0, [value]; ld.param.u32 %r1, [words];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p, %r5, %r1;
    @%p ret;
    cvta.to.global.u64 %rd1, %rd0;
    mul.wide.u32 %rd2, %r5, 4;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r0;
    ret;
}
\0"""  # fill(address, word, words), one word a thread: the driver compiles it
EARLY = 90  # compute capability from which on a kernel may begin before the one in front of it has ended


@light_dataclass(frozen=True)
class Param:
    """One parameter of a kernel: argument `index` of the row's call, plus `added` bytes. aligned: the kernel was built
    for multiples of 16."""

    index: int
    added: int = 0
    aligned: bool = False


@light_dataclass(frozen=True)
class Loaded:
    """A kernel on a device. function: the driver's handle; threads: of a block; shared: bytes of shared memory; early: the
    kernel waits for the previous one by itself. So in a row it is launched before that one has ended, which takes the
    driver a third less time."""

    function: int
    threads: int
    shared: int
    early: bool = False


@functools.cache
def driver(options: Options) -> dict[str, Callable]:
    """The unit's functions, with the driver opened. Raises: NoCompiler, BuildFailed, NoDriver."""
    calls = functions(UNIT, options)
    try:
        calls["open"]()
    except RuntimeError as e:
        raise NoDriver(f"{e}: graphs on a GPU run through torch") from None
    return calls


def load_kernel(calls: dict[str, Callable], binary: Any) -> Loaded:
    """Load a `build_triton.Binary` into the current device's context. It stays loaded. Raises: RuntimeError (the driver's
    words)."""
    threads = binary.warps * 32
    function = calls["load"](binary.code, binary.name.encode(), binary.shared)
    if threads > calls["attribute"](function, 0):
        raise RuntimeError(f"CUDA driver: {binary.name} needs {threads} threads a block, more than its registers allow")
    return Loaded(function, threads, binary.shared, binary.early)


def loaded(calls: dict[str, Callable], binary: Any, key: str, device: int) -> Loaded:
    """`load_kernel` on the current device, once for a kernel, by its key. Raises: RuntimeError."""
    found = caches.GPU_KERNELS.get((key, device))
    if not isinstance(found, Loaded):
        found = caches.GPU_KERNELS[key, device] = load_kernel(calls, binary)
    return found


def memsets_to_kernels(calls: dict[str, Callable], graph: int, device: int) -> int:
    """Replace the small memsets of a CUDA graph (its handle; not yet instantiated) by kernels, on the current device.

    Returns how many were replaced; -1 where the driver does not show the graph's nodes."""
    at = ("fill", device)
    if at not in caches.GPU_KERNELS:
        caches.GPU_KERNELS[at] = calls["load"](FILL, b"fill", 0)
    return calls["memsets"](graph, caches.GPU_KERNELS[at])


def launch_table(rows: Sequence[tuple[Loaded, tuple, Sequence[Param]]]) -> array.array:
    """The table of a row of kernels: (kernel, grid, parameters) each; a negative grid size -1-i is argument i.

    Keep it alive as long as its address (`buffer_info()[0]`) is used.
    """
    words = [len(rows)]
    for kernel, grid, params in rows:
        words += [kernel.function, *grid, kernel.threads, kernel.shared, int(kernel.early), len(params)]
        for p in params:
            words += [p.index, p.added, int(p.aligned)]
    return array.array("q", words)


class TableCall(functools.partial):
    """A native function whose first argument is the address of a table, which lives as long as this does.

    The table is in the instance's namespace, not in a slot: a partial with an empty namespace is taken apart by a partial
    that is made of it, and its table would die."""

    table: array.array

    def __new__(cls, function: Callable, table: array.array) -> TableCall:
        made = super().__new__(cls, function, table.buffer_info()[0])
        made.table = table
        return made


def address_check(calls: dict[str, Callable], fill: int, addresses: Sequence[int | None]) -> Callable[..., int]:
    """moved(*inputs) -> the position of the first tensor that is not at its address (None: any will do), or -1. fill: as
    `tensor_check.exchange_fill` gives it. Cost: 0.1 us, and 20 ns an address."""
    return TableCall(calls["moved"], array.array("q", [fill, *(-1 if a is None else a for a in addresses)]))


def bind_alone(
    calls: dict[str, Callable], binary: Any, key: str, device: int, grid: tuple[int, int, int], params: Sequence[Param]
) -> Callable[..., int]:
    """run(stream, *arguments) of one kernel, loaded on a device. key, grid, params: as `loaded` and `launch_table` take them.
    Raises: RuntimeError."""
    with torch.cuda.device(device):
        kernel = loaded(calls, binary, key, device)
    return bind(calls, launch_table([(kernel, grid, params)]))


def bind(calls: dict[str, Callable], table: array.array) -> Callable[..., Any]:
    """run(stream, *arguments) of a table, which it keeps alive. Cost: 0.1 us, 30 ns an argument, and the driver's
    time for each kernel."""
    return TableCall(calls["launch"], table)
