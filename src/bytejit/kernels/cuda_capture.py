"""Recording a call as a CUDA graph: memory pools and streams of recordings, where outputs lie, what a failure leaves behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
import types
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from bytejit.common import caches, special_cases
from bytejit.common.errors import BytejitError
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
    it. side: the stream that they are recorded on; keeper: torch forgets a pool when its last recording goes."""

    handle: Any
    side: Any
    keeper: Any


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
    kernel checks. pool: holds all other memory. own: the pool is for this recording alone; then outputs stay in it."""

    def __init__(self, stream: Any, pool: Pool, own: bool = False) -> None:
        self.stream, self.pool, self.own = stream, pool, own
        self.made: dict[int, torch.Tensor] = {}
        self.fault: Any = None
        self.kept: dict | None = None  # the call's own memory, kept between plain calls

    def through(self, call: Callable) -> Callable:
        """`call` with what allocates its outputs (its defaults `new_...`) allocating here, and no memory kept (`pool`)."""
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
            elif n.startswith("new_") and not self.own:
                values[n] = self.maker(v)
        defaults = tuple(values.values())
        return types.FunctionType(code, call.__globals__, code.co_name, defaults, call.__closure__)

    def maker(self, plain: Callable) -> Callable:
        """An allocator like `plain`, outside the pool."""

        def make(*given: Any) -> torch.Tensor:
            with torch.cuda.stream(self.stream), allocating():
                t = plain(*given)
            self.made[t.untyped_storage()._cdata] = bytes_of(t)
            return t

        return make

    def moved_out(self, result: Any, given: Sequence) -> Any:
        """The result with every tensor that lies in the pool copied out of it. Tensors in one memory stay in one."""
        inputs = {t.untyped_storage()._cdata for t in given if isinstance(t, torch.Tensor)}
        moved: dict[int, torch.Tensor] = {}

        def out(t: Any) -> Any:
            if not isinstance(t, torch.Tensor) or t.untyped_storage()._cdata in inputs | self.made.keys():
                return t
            t = t.resolve_conj().resolve_neg()
            if self.own:
                return t
            whole = bytes_of(t)
            room = moved.get(t.untyped_storage()._cdata)
            if room is None:
                with torch.cuda.stream(self.stream), allocating():
                    room = torch.empty_like(whole)
                room.copy_(whole)
                moved[t.untyped_storage()._cdata] = room
            return window(room, t)

        return tuple(map(out, result)) if isinstance(result, (tuple, list)) else out(result)


def bytes_of(t: torch.Tensor) -> torch.Tensor:
    """The whole storage of a tensor, as bytes."""
    with torch.inference_mode(False), torch.no_grad():
        return t.detach().new_empty(0, dtype=torch.uint8).set_(t.untyped_storage())


def window(room: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A tensor in `room` with the dtype, sizes, strides and offset of `like`."""
    return like.detach().new_empty(0).set_(room.untyped_storage(), like.storage_offset(), like.shape, like.stride())
