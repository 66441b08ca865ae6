"""Recording a call as a CUDA graph: memory pools and streams of recordings, where outputs lie, what a failure leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
import types
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from bytejit.common import caches, special_cases
from bytejit.common.boxed import Boxed
from bytejit.common.errors import BytejitError
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.options import config

from .cuda_launch import driver, memsets_to_kernels
from .replaceable import Replaceable

# Held while a call is recorded: whoever finds it held runs its call plain. torch's allocator and random numbers know of a
# recording in the whole process.
RECORDING = threading.Lock()


def others_at_work() -> bool:
    """Whether another thread is within the program's code that uses torch. While this one records, torch refuses it random
    numbers, and the driver refuses to wait for the device (and ends the recording). Threads of torch's own do neither."""
    for ident, top in sys._current_frames().items():
        frame: types.FrameType | None = top
        while ident != threading.get_ident() and frame is not None:
            own = special_cases.OWN.frame(frame)
            if "torch" in frame.f_globals and not own:
                return True
            frame = frame.f_back
    return False


# ---- memory -----------------------------------------------------------------------------------------------------------
@dataclass
class Pool:
    """Memory of what lives only within the recordings that are replayed on one stream of a device: any replay may overwrite
    it, but what was still in use there when the replayed one was recorded. side: the stream that they are recorded on; keeper:
    torch forgets a pool when its last recording goes; recordings: how many were made; lent: gradients in it that the program
    may have; lock: held while one is replayed."""

    handle: Any
    side: Any
    keeper: Any
    recordings: int = 0
    lent: list[LentGradients] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)


@light_dataclass(frozen=True)
class LentGradients:
    """Gradients that lie in a pool. number: of the recording that makes them, in the order of recordings; memory: theirs, not
    kept alive; held: asks that recording whether somebody has one, and not only as `.grad` of parameters that are given; others:
    streams that the program says work on them."""

    number: int
    memory: tuple[StorageWeakRef, ...]
    held: weakref.WeakMethod
    others: list[torch.Stream]

    def alive(self) -> bool:
        """Whether their memory is in use."""
        return any(not m.expired() for m in self.memory)

    def in_the_way(self, replaced: Sequence[torch.Tensor]) -> bool:
        """Whether the program would miss them after a call that gives new gradients to some parameters."""
        held = self.held()
        return self.alive() if held is None else held(replaced)


def pool_of(device: int, stream: int) -> Pool:
    """The pool of a device and stream. It lives as long as somebody holds it. Raises: RuntimeError (no memory)."""
    pool = caches.GRAPH_POOLS.get((device, stream))
    if not isinstance(pool, Pool):
        handle, side = torch.cuda.graph_pool_handle(), side_of(device, stream)
        keeper, failure = captured(lambda: torch.empty(1, device=f"cuda:{device}").zero_(), device, handle, side)
        if failure is not None:
            raise failure
        pool = caches.GRAPH_POOLS[device, stream] = Pool(handle, side, keeper)
    return pool


def side_of(device: int, stream: int) -> Any:
    """The stream to record on. It is none of torch's 32 streams, which programs get in turn: a library's workspace
    belongs to a stream, and nothing else may use that of recordings."""
    key = (device, stream)
    if key not in caches.GRAPH_STREAMS:
        made = ctypes.c_void_p()
        with torch.cuda.device(device):
            torch.cuda.current_stream().query()  # the thread has the device's context from here on
            code = ctypes.CDLL("libcuda.so.1").cuStreamCreate(ctypes.byref(made), 1)  # 1: not blocked by the default stream
        caches.GRAPH_STREAMS[key] = torch.cuda.Stream(device) if code else torch.cuda.ExternalStream(made.value, device)
    return caches.GRAPH_STREAMS[key]


# ---- capture ----------------------------------------------------------------------------------------------------------
def captured(run: Callable[[], Any], device: int, pool: Any, side: Any) -> tuple[Any, Exception | None]:
    """(CUDA graph of what run() launches, not yet instantiated; what went wrong), recorded from the stream `side`."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    current = torch.cuda.current_stream(device)
    side.wait_stream(current)
    failure = None
    collecting = gc.isenabled()
    gc.disable()  # a CUDA graph that dies now would spoil this one
    try:
        with torch.cuda.device(device), torch.cuda.stream(side):
            try:
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            except RuntimeError as e:  # no memory for what torch keeps of it, a pool that another capture left open
                leave_capture(device, pool)
                return graph, e
            try:
                run()
            except Exception as e:  # a synchronising op, or one that must not be captured
                failure = e
            finally:  # after an interrupt, too
                ended = end_of(graph, device, pool)
            failure = failure or ended
    finally:
        if collecting:
            gc.enable()
    current.wait_stream(side)
    return graph, failure


def end_of(graph: Any, device: int, pool: Any) -> Exception | None:
    """End a capture. Returns what went wrong in it; the state is then as before the capture."""
    try:
        with warnings.catch_warnings():  # the capture is empty: what it should hold has raised
            warnings.simplefilter("ignore")
            graph.capture_end()
    except RuntimeError as e:
        leave_capture(device, pool)
        return e
    return None


def leave_capture(device: int, pool: Any) -> None:
    """Finish what torch leaves undone when a capture fails: its random number generator stays in capture mode until a capture
    succeeds. A new generator state would help, but recordings that draw hold the existing one."""
    with contextlib.suppress(RuntimeError):  # a capture that could not even begin has not taken the pool
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(torch.cuda.Stream(device)):
        graph.capture_begin(capture_error_mode="thread_local")
        torch.empty(1, device=f"cuda:{device}").zero_()
        graph.capture_end()


def instantiated(graph: Any, device: int) -> Exception | None:
    """Instantiate a captured graph, with kernels for its small memsets. Returns what went wrong."""
    calls = launcher()
    try:
        if calls is not None:
            with torch.cuda.device(device):
                memsets_to_kernels(calls, graph.raw_cuda_graph(), device)
        graph.instantiate()
    except RuntimeError as e:
        return e
    return None


def launcher() -> dict[str, Callable] | None:
    """The launcher's functions; None where it cannot be built: recordings do without."""
    try:
        return driver(config.current)
    except BytejitError:
        return None


RELAXED = 2  # the driver's name for it: a thread that captures may allocate memory


@contextlib.contextmanager
def allocating() -> Iterator[None]:
    """Within a capture, allow memory outside the capture's pool. The driver forbids `cudaMalloc` to a thread that captures, and
    torch's allocator lifts that only for the capture's own memory."""
    exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    mode = ctypes.c_int(RELAXED)
    exchange(ctypes.byref(mode))
    try:
        yield
    finally:
        exchange(ctypes.byref(mode))


# ---- outputs ----------------------------------------------------------------------------------------------------------
class Outside:
    """Allocates the outputs of a call that is being recorded outside the pool, by torch's allocator. made: that memory, by
    storage. Keep it as long as the recording is replayed: it also holds values that the call makes and does not return
    (values that it writes into an input at its end). fault: reports an index out of range that a kernel found; None if no
    kernel checks. pool: holds all other memory. own: the pool is for this recording alone; then outputs stay in it. lends:
    positions of outputs that stay in the pool; lent: their memory."""

    def __init__(self, stream: Any, pool: Pool, own: bool = False, lends: frozenset[int] = frozenset()) -> None:
        self.stream, self.pool, self.own, self.lends = stream, pool, own, lends
        self.made: dict[int, torch.Tensor] = {}
        self.lent: frozenset[int] = frozenset()
        self.fault: Any = None
        self.kept: dict | None = None  # the call's own memory, kept between plain calls

    def through(self, call: Callable) -> Callable:
        """`call` with what allocates its outputs (its defaults `new_...`) allocating here, and no memory kept (`pool`), not even
        that of old gradients."""
        if isinstance(call, Boxed):
            return Boxed(self.through(call.boxed))
        if isinstance(call, Replaceable):
            call = call.now
        if not isinstance(call, types.FunctionType) or call.__defaults__ is None:
            return call
        code = call.__code__
        names = code.co_varnames[code.co_argcount - len(call.__defaults__) : code.co_argcount]
        values = dict(zip(names, call.__defaults__))
        self.kept, self.fault = values.get("pool"), values.get("fault")
        for n, v in values.items():
            if n == "pool":
                values[n] = defaultdict(list)
            elif n == "current_stream":
                values[n] = partial(int, self.stream.cuda_stream)
            elif n == "old_grads":
                values[n] = self.finder(v)
            elif n.startswith("new_"):
                values[n] = self.maker(v, gradient=n.endswith("_grad"))
        defaults = tuple(values.values())
        return types.FunctionType(code, call.__globals__, code.co_name, defaults, call.__closure__)

    def finder(self, plain: Callable) -> Callable:
        """What looks for old gradients whose memory new ones may have: new ones that stay in the pool need none."""
        return no_memory if self.lends else plain

    def maker(self, plain: Callable, gradient: bool) -> Callable:
        """An allocator like `plain`, outside the pool."""
        if self.own or gradient and self.lends:
            return plain

        def make(*given: Any) -> torch.Tensor:
            with torch.cuda.stream(self.stream), allocating():
                t = plain(*given)
            self.made[t.untyped_storage()._cdata] = bytes_of(t)
            return t

        return make

    def moved_out(self, result: Any, given: Sequence) -> Any:
        """The result with every tensor that lies in the pool copied out of it, but for those that are lent. Tensors in one memory
        stay in one."""
        inputs = storages_of(given)
        outputs = result if isinstance(result, (tuple, list)) else (result,)
        others = storages_of(o for i, o in enumerate(outputs) if i not in self.lends)
        self.lent = storages_of(outputs) - others - inputs - self.made.keys()
        moved: dict[int, torch.Tensor] = {}
        staying = inputs | self.made.keys() | self.lent

        def out(t: Any) -> Any:
            if not isinstance(t, torch.Tensor) or t.untyped_storage()._cdata in staying:
                return t
            t = t.resolve_conj().resolve_neg()
            if self.own:
                return t
            whole = bytes_of(t)
            room = moved.get(t.untyped_storage()._cdata)
            if room is None:
                room = self.room(whole)
                room.copy_(whole)
                moved[t.untyped_storage()._cdata] = room
            return window(room, t)

        return tuple(map(out, result)) if outputs is result else out(result)

    def room(self, whole: torch.Tensor) -> torch.Tensor:
        """Memory outside the pool like that of a tensor."""
        with torch.cuda.stream(self.stream), allocating():
            return torch.empty_like(whole)


def no_memory(parameters: Sequence[torch.Tensor], stream: int) -> dict:
    """Finds no old gradients whose memory new ones may have."""
    return {}


def storages_of(tensors: Iterable[Any]) -> frozenset[int]:
    """The memory (its `_cdata`) of those that are tensors."""
    return frozenset(t.untyped_storage()._cdata for t in tensors if isinstance(t, torch.Tensor))


def bytes_of(t: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, as bytes."""
    with torch.inference_mode(False), torch.no_grad():
        return t.detach().new_empty(0, dtype=torch.uint8).set_(t.untyped_storage())


def window(room: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor in `room` with the dtype, sizes, strides and offset of `like`."""
    return like.detach().new_empty(0).set_(room.untyped_storage(), like.storage_offset(), like.shape, like.stride())
