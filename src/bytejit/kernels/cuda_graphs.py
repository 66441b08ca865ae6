"""A compiled graph recorded once as a CUDA graph and replayed: one launch in place of all of them.

Policies, by `Policy.how`:
    forced    reduce-overhead: recorded after two plain calls; outputs are valid until the next call
    safe      the backends `cudagraphs`: recorded likewise; outputs stay valid
    auto      the default: only where enqueuing takes most of a call's time; outputs stay valid; kept if timed faster

Inputs are read where they are when their addresses repeat (weights, what the allocator hands back); others are copied
into memory of the recording. Inputs that the graph writes are always used where they are. All recordings of a device and
stream share one memory pool for what lives only within them: any replay may overwrite it. So outputs lie outside the pool,
in memory of their recording, and stay valid because a recording whose outputs somebody still holds is not replayed: a
second one takes turns with it, and a third hands out copies.
What cannot be recorded runs as it would without, counted under "cudagraphs" with the reason.
"""
from __future__ import annotations

import gc
import threading
import time
import types
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .. import caches
from ..errors import BytejitError
from ..options import config
from ..registry import count
from ..tensor_check import exchange_fill
from .cuda_launch import address_check, driver, memsets_to_kernels

WARM = 2                   # plain calls before anything is timed or recorded
TIMED = 3                  # calls of each kind that are timed
BUSY = 0.25                # part of a call's time that enqueuing must take for `auto` to record and compare
GAIN = 0.95                # a replay must take less than this part of a plain call
HANDING = 2                # recordings whose outputs are handed out
RERECORDS = 6              # recordings made anew because addresses changed, after which it stays plain
SHAPES = 8                 # combinations of sizes that get recordings of their own


@dataclass(frozen=True)
class Policy:
    """What is known of a graph before it runs. weights: inputs whose addresses rarely change; written: inputs that it
    writes; random: it draws random numbers; reason: why it cannot be recorded, "" when it may; tell: is told what becomes
    of it, the same words as the counters."""
    how: str
    device: int
    weights: frozenset[int] = frozenset()
    written: frozenset[int] = frozenset()
    random: bool = False
    reason: str = ""
    tell: Callable[[str], None] | None = field(default=None, compare=False)

    def say(self, what: str) -> None:
        """Count what became of the graph's recording, and tell it."""
        count("cudagraphs", what)
        if self.tell is not None:
            self.tell(what)


@dataclass
class Recording:
    """One CUDA graph. addresses: of inputs read in place (None: copied, or no tensor); statics: input -> its copy here;
    outputs: what the call answered; give: how each is handed out."""
    graph: Any
    addresses: tuple[int | None, ...]
    statics: dict[int, torch.Tensor]
    outputs: tuple
    give: tuple[Callable[[Any, Sequence], Any], ...]
    single: bool
    moved: Callable[..., int]              # (*inputs) -> the first that is not where it was, or -1
    copies: bool = False
    storages: tuple[int, ...] = ()
    idle: tuple[int, ...] = ()

    def __repr__(self) -> str:
        direct = sum(a is not None for a in self.addresses)
        return f"recording: {direct} inputs in place, {len(self.statics)} copied, {len(self.outputs)} outputs"

    def held(self) -> bool:
        """Whether somebody still has an output."""
        use = torch._C._storage_Use_Count
        return any(use(s) > n for s, n in zip(self.storages, self.idle))

    def replay(self, inputs: Sequence) -> Any:
        """Run it on these inputs; the outputs as the call answers them."""
        if self.statics:
            torch._foreach_copy_(list(self.statics.values()), [inputs[i] for i in self.statics])
        self.graph.replay()
        if self.single:
            return self.give[0](self.outputs[0], inputs)
        return tuple(g(o, inputs) for g, o in zip(self.give, self.outputs))


def replayed(call: Callable, policy: Policy) -> Callable:
    """`call`, replayed from a CUDA graph where that is possible and pays."""
    if policy.reason:
        policy.say(f"not recorded: {policy.reason}")
        return call
    made = Replayer(call, policy)

    def run(*inputs: Any) -> Any:
        return made(inputs)
    run.replayer = made
    run.writes_last = getattr(call, "writes_last", False)
    return run


@dataclass
class Sized:
    """What is known for one combination of the inputs that are numbers."""
    calls: int = 0
    recordings: list[Recording] = field(default_factory=list)
    plain: float = float("inf")            # seconds of the fastest timed call
    replay: float = float("inf")
    timed: int = 0
    seen: list[tuple] = field(default_factory=list)      # addresses of the inputs in the last plain calls
    moved: set[int] = field(default_factory=set)         # inputs whose address did not repeat
    rerecords: int = 0
    verdict: str = ""                      # why it stays plain


class Replayer:
    """Plain calls, then timing, then replays. One call at a time: another thread's call meanwhile runs plain."""

    def __init__(self, call: Callable, policy: Policy) -> None:
        self.call, self.policy = call, policy
        self.sized: dict[tuple, Sized] = {}
        self.lock = threading.Lock()
        self.stream_of = torch._C._cuda_getCurrentRawStream
        self.stream: int | None = None

    def __repr__(self) -> str:
        return f"Replayer({self.policy.how}, {sum(len(s.recordings) for s in self.sized.values())} recordings)"

    def __call__(self, inputs: Sequence) -> Any:
        stream = self.stream_of(self.policy.device)
        if self.stream is None:
            self.stream = stream
        if stream != self.stream or torch._C._cuda_isCurrentStreamCapturing():
            self.policy.say("a call ran plain: on another stream")
            return self.call(*inputs)
        if not self.lock.acquire(False):
            return self.call(*inputs)
        try:
            return self.choose(inputs)
        finally:
            self.lock.release()

    def choose(self, inputs: Sequence) -> Any:
        """A plain call, a timed one, or a replay."""
        key = tuple(x if type(x) is int else x.hex() for x in inputs if type(x) in (int, float))
        state = self.sized.get(key)
        if state is None:
            if len(self.sized) >= SHAPES:
                self.policy.say(f"a call ran plain: more than {SHAPES} combinations of sizes")
                return self.call(*inputs)
            state = self.sized[key] = Sized()
        if state.verdict:
            return self.call(*inputs)
        state.calls += 1
        if state.calls <= WARM:
            return self.note(state, inputs, self.call(*inputs))
        measured = self.policy.how == "auto" or state.moved - self.policy.weights
        if state.calls <= WARM + TIMED and measured:
            return self.time_plain(state, inputs)
        return self.by_recording(state, inputs)

    def note(self, state: Sized, inputs: Sequence, answer: Any) -> Any:
        """Remember where the inputs of a plain call were."""
        now = tuple(t.data_ptr() if isinstance(t, torch.Tensor) else None for t in inputs)
        if state.seen:
            state.moved |= {i for i, (a, b) in enumerate(zip(state.seen[-1], now)) if a != b}
        state.seen = [now]
        return answer

    def time_plain(self, state: Sized, inputs: Sequence) -> Any:
        """A plain call, timed; `auto` gives up when the GPU, not the host, takes the time."""
        torch.cuda.synchronize(self.policy.device)
        start = time.perf_counter()
        answer = self.call(*inputs)
        queued = time.perf_counter() - start
        torch.cuda.synchronize(self.policy.device)
        total = time.perf_counter() - start
        state.plain = min(state.plain, total)
        if self.policy.how == "auto" and state.calls == WARM + TIMED and queued < BUSY * total:
            self.stays_plain(state, "launching takes little of its time")
        return self.note(state, inputs, answer)

    def stays_plain(self, state: Sized, why: str) -> None:
        """Give the recordings up."""
        state.verdict, state.recordings = why, []
        self.policy.say(f"not recorded: {why}")

    def check(self, addresses: Sequence[int | None]) -> Callable[..., int]:
        """What finds an input that is not where a recording reads it."""
        fill, calls = exchange_fill(), launcher()
        if fill is not None and calls is not None:
            return address_check(calls, fill, addresses)

        def moved(*inputs: Any) -> int:
            for i, (t, address) in enumerate(zip(inputs, addresses)):
                if address is not None and t.data_ptr() != address:
                    return i
            return -1
        return moved

    # ---- recordings -----------------------------------------------------------------------------------------------
    def by_recording(self, state: Sized, inputs: Sequence) -> Any:
        """A replay of a recording that may be overwritten; made now if need be."""
        recording = next((r for r in state.recordings if r.copies or not self.keeps or not r.held()), None)
        if recording is not None:
            off = recording.moved(*inputs)
            if off >= 0:
                self.address_changed(state, inputs, off)
                recording = None
                if state.verdict:
                    return self.call(*inputs)
        if recording is None:
            recording = self.record(state, inputs, copies=len(state.recordings) >= HANDING)
            if recording is None:
                return self.call(*inputs)
            state.recordings.append(recording)
        if state.timed < TIMED and state.plain < float("inf"):
            return self.time_replay(state, recording, inputs)
        return recording.replay(inputs)

    @property
    def keeps(self) -> bool:
        """Whether outputs stay valid after the next call."""
        return self.policy.how != "forced"

    def time_replay(self, state: Sized, recording: Recording, inputs: Sequence) -> Any:
        """A replay, timed; after the last one the faster way is taken."""
        torch.cuda.synchronize(self.policy.device)
        start = time.perf_counter()
        answer = recording.replay(inputs)
        torch.cuda.synchronize(self.policy.device)
        state.replay = min(state.replay, time.perf_counter() - start)
        state.timed += 1
        if state.timed == TIMED and state.replay > GAIN * state.plain:
            self.stays_plain(state, "a replay is no faster")
        return answer

    def address_changed(self, state: Sized, inputs: Sequence, first: int) -> None:
        """Drop all recordings: the next copies what moved, or reads weights where they are now."""
        moved = {i for r in state.recordings for i, a in enumerate(r.addresses)
                 if a is not None and inputs[i].data_ptr() != a}
        state.moved |= moved or {first}
        state.recordings = []
        state.rerecords += 1
        self.policy.say("recorded again: an input's address changed")
        stuck = moved & self.policy.written
        if state.rerecords > RERECORDS or stuck and state.rerecords > 1:
            self.stays_plain(state, "the address of an input that is written keeps changing" if stuck
                             else "addresses of inputs keep changing")

    def record(self, state: Sized, inputs: Sequence, copies: bool) -> Recording | None:
        """Record the call on these inputs, without running it. None: it cannot be recorded (the reason is counted)."""
        policy = self.policy
        fixed = policy.weights | policy.written
        addresses, statics, given = [], {}, list(inputs)
        for i, t in enumerate(inputs):
            tensor = isinstance(t, torch.Tensor)
            if tensor and t.device.type != "cuda":
                self.stays_plain(state, "an input is on the CPU")
                return None
            copied = tensor and i in state.moved and i not in fixed
            addresses.append(t.data_ptr() if tensor and not copied else None)
            if copied:
                statics[i] = given[i] = self.static_of(t)
        made = self.capture(state, given)
        if made is None:
            return None
        graph, answer = made
        single = not isinstance(answer, (tuple, list))
        outputs = (answer,) if single else tuple(answer)
        give = tuple(giver(o, given, copies) for o in outputs)
        recording = Recording(graph, tuple(addresses), statics, outputs, give, single, self.check(addresses), copies)
        del answer, outputs, made
        if not copies:
            owned = [o for o, g in zip(recording.outputs, give) if g is alias]
            recording.storages = tuple({o.untyped_storage()._cdata for o in owned})
            recording.idle = tuple(torch._C._storage_Use_Count(s) for s in recording.storages)
        return recording

    def static_of(self, t: torch.Tensor) -> torch.Tensor:
        """Memory for the copy of an input."""
        with torch.inference_mode(False), torch.no_grad():
            return torch.empty(span_of(t), dtype=t.dtype, device=t.device).as_strided(t.shape, t.stride())

    def capture(self, state: Sized, given: Sequence) -> tuple[Any, Any] | None:
        """(CUDA graph, what the call answered), from a stream of our own."""
        device = self.policy.device
        current = torch.cuda.current_stream(device)
        pool, side = pool_of(device, self.stream)
        outside = Outside(current)
        call = outside.through(self.call)
        answer: list = []
        graph, failure = captured(lambda: answer.append(outside.settled(call(*given), given)), device, pool, side)
        if failure is None:
            failure = instantiated(graph, device)
        if failure is not None:
            caches.GRAPH_POOLS.pop((device, self.stream), None)       # torch's host allocator does not end a failed capture in it
            self.stays_plain(state, f"recording failed: {type(failure).__name__}: {str(failure)[:100]}")
            return None
        self.policy.say("recorded")
        if outside.kept:
            outside.kept.clear()            # plain calls are rare from here on
        return graph, answer[0]


# ---- capture ----------------------------------------------------------------------------------------------------------
def captured(run: Callable[[], Any], device: int, pool: Any, side: Any) -> tuple[Any, Exception | None]:
    """(CUDA graph of what run() launches, not yet instantiated; what went wrong), recorded from the stream `side`."""
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    current = torch.cuda.current_stream(device)
    side.wait_stream(current)
    failure = None
    collecting = gc.isenabled()
    gc.disable()                       # a CUDA graph that dies now would spoil this one
    try:
        with torch.cuda.device(device), torch.cuda.stream(side):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                run()
            except Exception as e:      # a synchronising op, or one that must not be captured: the capture must end
                failure = e
            try:
                graph.capture_end()
            except RuntimeError as e:
                failure = failure or e
                leave_capture(device, pool)
    finally:
        if collecting:
            gc.enable()
    current.wait_stream(side)
    return graph, failure


def leave_capture(device: int, pool: Any) -> None:
    """What torch leaves undone when a capture fails: its allocator and random numbers are as before from here on."""
    torch._C._cuda_endAllocateToPool(device, pool)
    generator = torch.cuda.default_generators[device]
    generator.graphsafe_set_state(generator.clone_state())


def instantiated(graph: Any, device: int) -> Exception | None:
    """Make a captured graph ready to be replayed, its small memsets as kernels. Answers what went wrong."""
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


# ---- memory -----------------------------------------------------------------------------------------------------------
def pool_of(device: int, stream: int) -> tuple[Any, Any]:
    """(memory pool, stream to record on) of all recordings that are replayed on a stream of a device."""
    key = (device, stream)
    if key not in caches.GRAPH_POOLS:
        pool, side, keeper = torch.cuda.graph_pool_handle(), torch.cuda.Stream(device), torch.cuda.CUDAGraph()
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.device(device), torch.cuda.stream(side):
            keeper.capture_begin(pool=pool, capture_error_mode="thread_local")
            torch.empty(1, device=f"cuda:{device}").zero_()
            keeper.capture_end()
        caches.GRAPH_POOLS[key] = pool, side, keeper      # torch forgets a pool when its last recording goes
    return caches.GRAPH_POOLS[key][:2]


class Outside:
    """While a call is recorded: its outputs in memory of the allocator's own, not of the pool."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.made: set[int] = set()
        self.kept: dict | None = None           # the call's own memory, kept between plain calls

    def through(self, call: Callable) -> Callable:
        """`call` with what allocates its outputs (its defaults `new_...`) allocating here, and no memory kept (`pool`)."""
        if getattr(call, "__defaults__", None) is None:
            return call
        code = call.__code__
        names = code.co_varnames[code.co_argcount - len(call.__defaults__):code.co_argcount]
        values = dict(zip(names, call.__defaults__))
        self.kept = values.get("pool")
        defaults = tuple(self.maker(v) if n.startswith("new_") else defaultdict(list) if n == "pool" else v
                         for n, v in values.items())
        return types.FunctionType(code, call.__globals__, code.co_name, defaults, call.__closure__)

    def maker(self, plain: Callable) -> Callable:
        """An allocator like `plain`, outside the pool."""
        def make(shape: tuple, stride: tuple) -> torch.Tensor:
            with torch.cuda.stream(self.stream):
                t = plain(shape, stride)
            self.made.add(t.untyped_storage()._cdata)
            return t
        return make

    def settled(self, answer: Any, given: Sequence) -> Any:
        """The answer with every tensor that lies in the pool copied out of it."""
        inputs = {t.untyped_storage()._cdata for t in given if isinstance(t, torch.Tensor)}

        def out(t: Any) -> Any:
            if not isinstance(t, torch.Tensor) or t.untyped_storage()._cdata in inputs | self.made:
                return t
            with torch.cuda.stream(self.stream):
                room = torch.empty(span_of(t), dtype=t.dtype, device=t.device)
            room.copy_(t.as_strided((span_of(t),), (1,)))
            return room.as_strided(t.shape, t.stride(), 0)
        return tuple(map(out, answer)) if isinstance(answer, (tuple, list)) else out(answer)


# ---- outputs ------------------------------------------------------------------------------------------------------------
def alias(output: torch.Tensor, inputs: Sequence) -> torch.Tensor:
    """The recording's own memory, as a tensor of the caller's."""
    return output.detach()


def fresh(output: torch.Tensor, inputs: Sequence) -> torch.Tensor:
    """A copy with the same strides, of all that lies between the first and the last element."""
    return output.as_strided((span_of(output),), (1,)).clone().as_strided(output.shape, output.stride(), 0)


def span_of(t: torch.Tensor) -> int:
    """Elements from the first to the last."""
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride())) if t.numel() else 0


def itself(output: Any, inputs: Sequence) -> Any:
    """What is no tensor."""
    return output


def giver(output: Any, given: Sequence, copies: bool) -> Callable[[Any, Sequence], Any]:
    """How an output of a recording made on `given` is handed out for other inputs."""
    if not isinstance(output, torch.Tensor):
        return itself
    storage = output.untyped_storage()._cdata
    for i, t in enumerate(given):
        if output is t:
            return lambda _, inputs: inputs[i]
        if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata == storage:
            shape, stride, offset = output.shape, output.stride(), output.storage_offset() - t.storage_offset()
            return lambda _, inputs: inputs[i].as_strided(shape, stride, inputs[i].storage_offset() + offset)
    return fresh if copies else alias
