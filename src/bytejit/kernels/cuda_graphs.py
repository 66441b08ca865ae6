"""A compiled graph is recorded once as a CUDA graph and replayed, with one launch in place of all.

Policies, by `Policy.how`:
    forced    reduce-overhead and the backends `cudagraphs`: recorded after two plain calls
    auto      the default: only where enqueuing takes most of a call's time; kept if timed faster

Inputs are read where they are when their addresses repeat (weights, what the allocator hands back); others are copied
into memory of the recording. Inputs that the graph writes are always used where they are. All recordings of a device and
stream share one memory pool for what lives only within them: any replay may overwrite it. So outputs lie outside the pool,
in memory of their recording, and stay valid (a graph may be called several times within one call of the program's function):
a recording whose outputs somebody still holds is not replayed, a second one takes turns with it, and a third hands out
copies. New gradients of a whole step do lie in the pool (`Recording.lent`): the next replay makes them anew, and a recording that
would write over those of a later one is made anew without. Each stream that calls come on has recordings of its own.
What cannot be recorded runs as it would without, counted under "cudagraphs" with the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bytejit.common import caches
from bytejit.common.holders import drop_lone_grads
from bytejit.guards.native_checker import exchange_fill
from bytejit.kernels.cuda_buffers import copied_apart, giver, on_cpu, static_of
from bytejit.kernels.cuda_recording import Recording

from .cuda_capture import (
    RECORDING,
    Outside,
    Pool,
    captured,
    instantiated,
    launcher,
    others_at_work,
    pool_of,
)
from .cuda_launch import address_check
from .recording_policy import Policy
from .warm_calls import end_warm_calls, warm_call

WARM = 2  # plain calls before anything is timed or recorded
TIMED = 3  # calls of each kind that are timed
BUSY = 0.25  # part of a call's time that enqueuing must take for `auto` to record and compare
GAIN = 0.95  # a replay must take less than this part of a plain call
HANDING = 2  # recordings whose outputs are handed out
RERECORDS = 6  # recordings made anew because addresses changed, after which it stays plain
SHAPES = 8  # combinations of sizes that get recordings of their own
STREAMS = 4  # streams that do
PUT_OFF = 8  # calls that find other threads at work, after which `auto` stays plain


def replayed(call: Callable, policy: Policy, make: Callable[[Callable, Policy], Replayer] | None = None) -> Callable:
    """`call`, replayed from a CUDA graph where that is possible and pays. make: the replayer; default: `Replayer`."""
    if policy.reason:
        policy.say(f"not recorded: {policy.reason}")
        return FirstStep(call, policy) if policy.warm and make is None else call
    return (make or Replayer)(call, policy)


@dataclass
class InputsState:
    """What is known for one combination of the inputs that are numbers."""

    calls: int = 0
    recordings: list[Recording] = field(default_factory=list)
    plain: float = float("inf")  # seconds of the fastest timed call
    replay: float = float("inf")
    timed: int = 0
    seen: list[tuple] = field(default_factory=list)  # addresses of the inputs in the last plain calls
    moved: set[int] = field(default_factory=set)  # inputs whose address did not repeat
    rerecords: int = 0
    put_off: int = 0  # calls that were not recorded because of other threads
    lends: bool = True  # gradients stay where a recording makes them
    verdict: str = ""  # why it stays plain


@dataclass
class Lane:
    """What is known for one stream that calls come on. lock: held by the call that looks after it; pool: kept alive."""

    stream: int
    lock: Any = field(default_factory=threading.Lock)
    sized: dict[tuple, InputsState] = field(default_factory=dict)
    pool: Pool | None = None


class Replayer:
    """Plain calls, then timing, then replays. One call at a time on each stream: another thread's call meanwhile runs plain."""

    def __init__(self, call: Callable, policy: Policy) -> None:
        self.call, self.policy = call, policy
        self.lanes: dict[int, Lane] = {}
        self.stream_of = torch._C._cuda_getCurrentRawStream
        self.numbers: tuple[int, ...] | None = None  # positions of the inputs that are numbers

    def __repr__(self) -> str:
        made = sum(len(s.recordings) for lane in self.lanes.values() for s in lane.sized.values())
        return f"Replayer({self.policy.how}, {made} recordings)"

    def __call__(self, *inputs: Any) -> Any:
        if torch._C._cuda_isCurrentStreamCapturing():
            self.policy.say("a call ran plain: within a CUDA graph that the program records")
            return self.call(*inputs)
        stream = self.stream_of(self.policy.device)
        lane = self.lanes.get(stream)
        if lane is None:
            if len(self.lanes) >= STREAMS:
                self.policy.say(f"a call ran plain: on more than {STREAMS} streams")
                return self.call(*inputs)
            lane = self.lanes.setdefault(stream, Lane(stream))
        if not lane.lock.acquire(False):
            return self.call(*inputs)
        try:
            return self.choose(lane, inputs)
        finally:
            lane.lock.release()

    def choose(self, lane: Lane, inputs: Sequence) -> Any:
        """A plain call, a timed one, or a replay."""
        key = self.key(inputs)
        if key is None:
            return self.call(*inputs)
        state = lane.sized.get(key)
        if state is None:
            if len(lane.sized) >= SHAPES:
                self.policy.say(f"a call ran plain: more than {SHAPES} combinations of sizes")
                return self.call(*inputs)
            state = lane.sized[key] = InputsState(moved=set(self.policy.fresh))
        if state.verdict:
            return self.call(*inputs)
        state.calls += 1
        if state.calls <= WARM:
            return self.note(state, inputs, self.plain(lane, inputs))
        measured = self.policy.how == "auto" or state.moved - self.policy.weights - self.policy.fresh
        if state.calls <= WARM + TIMED and measured:
            return self.time_plain(lane, state, inputs)
        return self.by_recording(lane, state, inputs)

    def key(self, inputs: Sequence) -> tuple | None:
        """The key of a recording: the inputs that are numbers. None: the call runs without a recording."""
        if self.numbers is None:  # which they are, the graph decides: a model has hundreds of inputs
            self.numbers = tuple(i for i, x in enumerate(inputs) if type(x) in (int, float))
        return tuple([x if type(x) is int else x.hex() for x in map(inputs.__getitem__, self.numbers)])

    def note(self, state: InputsState, inputs: Sequence, result: Any) -> Any:
        """Remember where the inputs of a plain call were, and who called."""
        caches.GPU_CALLERS.add(threading.get_ident())
        now = tuple(t.data_ptr() if isinstance(t, torch.Tensor) else None for t in inputs)
        if state.seen:
            state.moved |= {i for i, (a, b) in enumerate(zip(state.seen[-1], now)) if a != b}
        state.seen = [now]
        return result

    def plain(self, lane: Lane, inputs: Sequence) -> Any:
        """A call before anything is recorded."""
        if not self.policy.warm or RECORDING.locked():
            return self.call(*inputs)
        return warm_call(self.call, inputs, self.policy.device, lane.stream, self.policy.gradients)

    def time_plain(self, lane: Lane, state: InputsState, inputs: Sequence) -> Any:
        """A plain call, timed; `auto` gives up when the GPU, not the host, takes the time."""
        self.wait()
        start = time.perf_counter()
        result = self.plain(lane, inputs)
        queued = time.perf_counter() - start
        self.wait()
        total = time.perf_counter() - start
        state.plain = min(state.plain, total)
        if self.policy.how == "auto" and state.calls == WARM + TIMED and queued < BUSY * total:
            self.stays_plain(state, "launching takes little of its time")
        return self.note(state, inputs, result)

    def wait(self) -> None:
        """Until the stream is idle. The others are none of ours: on one of them another thread may be recording."""
        torch.cuda.current_stream(self.policy.device).synchronize()

    def stays_plain(self, state: InputsState, why: str) -> None:
        """Drop the recordings, for good."""
        state.verdict, state.recordings = why, []
        for stream in self.lanes:
            end_warm_calls(self.policy.device, stream)
        self.policy.say(f"not recorded: {why}")

    def check(self, addresses: Sequence[int | None]) -> Callable[..., int]:
        """Returns a function of the inputs. It returns the position of the first input whose address differs from the one
        that the recording reads, or -1."""
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
    def by_recording(self, lane: Lane, state: InputsState, inputs: Sequence) -> Any:
        """A replay of a recording that may be overwritten; made now if need be."""
        recording = next((r for r in state.recordings if not r.held(inputs)), None)
        if recording is not None:
            off = recording.moved(*inputs)
            if off >= 0:
                self.address_changed(state, inputs, off)
                recording = None
                if state.verdict:
                    return self.call(*inputs)
        if recording is None:
            recording = self.record(lane, state, inputs, copies=len(state.recordings) >= HANDING)
            if recording is None:
                return self.call(*inputs)
            state.recordings.append(recording)
        if not recording.pool.lock.acquire(False):
            return self.call(*inputs)
        try:
            if recording.would_spoil(inputs, self.policy.new_grads):
                return self.another_has_lent(state, recording, inputs)
            if state.timed < TIMED and state.plain < float("inf"):
                return self.time_replay(state, recording, inputs)
            return recording.replay(inputs)
        finally:
            recording.pool.lock.release()

    def another_has_lent(self, state: InputsState, recording: Recording, inputs: Sequence) -> Any:
        """A plain call, as a replay would write over gradients that a later recording made. The next one is recorded anew, where
        they are not, and lends nothing, so that two graphs whose gradients live at once do so once each."""
        state.recordings.remove(recording)
        state.lends = False
        self.policy.say("recorded again: gradients of another graph lay in its memory")
        return self.call(*inputs)

    def time_replay(self, state: InputsState, recording: Recording, inputs: Sequence) -> Any:
        """A replay, timed; after the last one the faster way is taken."""
        self.wait()
        start = time.perf_counter()
        result = recording.replay(inputs)
        self.wait()
        state.replay = min(state.replay, time.perf_counter() - start)
        state.timed += 1
        if state.timed == TIMED and state.replay > GAIN * state.plain:
            self.stays_plain(state, "a replay is no faster")
        return result

    def address_changed(self, state: InputsState, inputs: Sequence, first: int) -> None:
        """Drop all recordings: the next copies what moved, or reads weights where they are now."""
        moved = {i for r in state.recordings for i, a in enumerate(r.addresses) if a is not None and inputs[i].data_ptr() != a}
        state.moved |= moved or {first}
        state.recordings = []
        state.rerecords += 1
        self.policy.say("recorded again: an input's address changed")
        stuck = moved & self.policy.written
        if state.rerecords > RERECORDS or stuck and state.rerecords > 1:
            self.stays_plain(
                state, "the address of an input that is written keeps changing" if stuck else "addresses of inputs keep changing"
            )

    def record(self, lane: Lane, state: InputsState, inputs: Sequence, copies: bool) -> Recording | None:
        """Record the call on these inputs, without running it. None: it cannot be recorded (the reason is counted), or
        another thread records now."""
        if any(isinstance(t, torch.Tensor) and on_cpu(t) for t in inputs):
            self.stays_plain(state, "an input is on the CPU")
            return None
        if self.policy.how == "auto":
            at_work = others_at_work()
            state.put_off += at_work
            if len(caches.GPU_CALLERS) > 1 or state.put_off > PUT_OFF:
                self.stays_plain(state, "several threads use torch")
            if at_work or state.verdict:
                return None
        if not RECORDING.acquire(False):
            return None
        try:
            return self.recorded(lane, state, inputs, copies)
        except RuntimeError as e:  # no memory for copies of inputs, a capture that cannot be ended
            self.failed(lane, state, e)
            return None
        finally:
            RECORDING.release()

    def recorded(self, lane: Lane, state: InputsState, inputs: Sequence, copies: bool) -> Recording | None:
        """`record`, by one thread at a time."""
        policy = self.policy
        fixed = policy.weights | policy.written
        addresses, statics, given = [], {}, list(inputs)
        for i, t in enumerate(inputs):
            tensor = isinstance(t, torch.Tensor)
            copied = tensor and i in state.moved and i not in fixed
            addresses.append(t.data_ptr() if tensor and not copied else None)
            if copied:
                statics[i], given[i] = static_of(t)
        made = self.capture(lane, state, given)
        if made is None:
            return None
        graph, result, outside = made
        single = not isinstance(result, (tuple, list))
        outputs = (result,) if single else tuple(result)
        lent = self.copied(outputs)
        give = tuple(giver(o, given, copies or i in lent) for i, o in enumerate(outputs))
        recording = Recording(
            graph,
            policy.device,
            tuple(addresses),
            statics,
            outputs,
            give,
            single,
            self.check(addresses),
            outside.pool,
            kept=tuple(outside.made.values()),
            lent=outside.lent,
            fault=outside.fault,
            written=tuple(i for i in sorted(policy.written) if i < len(inputs)),
        )
        del result, outputs, made, outside
        recording.own_outputs(policy.new_grads, inputs)
        return recording

    def copied(self, outputs: Sequence) -> frozenset[int]:
        """The outputs that are handed out as copies by every recording: small ones beside gradients. Who keeps the loss of one
        step while the next one runs would keep the memory of its gradients."""
        grads = self.policy.gradients
        others = [t for o, t in enumerate(outputs) if o not in grads]
        if not grads or not copied_apart(others, [outputs[o] for o in grads]):
            return frozenset()
        return frozenset(range(len(outputs))) - grads

    def outside(self, lane: Lane, state: InputsState) -> Outside:
        """Chooses the stream and the pool of a recording's memory. New gradients stay there: the next replay makes them anew, and
        until then nothing else is in their place."""
        device = self.policy.device
        lane.pool = pool_of(device, lane.stream)
        lends = self.policy.gradients if state.lends else frozenset()
        return Outside(torch.cuda.current_stream(device), lane.pool, lends=lends)

    def capture(self, lane: Lane, state: InputsState, given: Sequence) -> tuple[Any, Any, Outside] | None:
        """(CUDA graph, what the call returned, what it has outside the pool), from a stream of our own. The memory that plain
        calls have left in the allocator's hands goes back to the device: a recording has its own."""
        device = self.policy.device
        outside = self.outside(lane, state)
        call = outside.through(self.call)
        if outside.lends:
            drop_lone_grads(given[i] for _, i in self.policy.new_grads)
        end_warm_calls(device, lane.stream)
        torch.cuda.empty_cache()
        result: list = []
        graph, failure = captured(
            lambda: result.append(outside.moved_out(call(*given), given)), device, outside.pool.handle, outside.pool.side
        )
        if failure is None:
            failure = instantiated(graph, device)
        if failure is not None:
            self.failed(lane, state, failure)
            return None
        self.policy.say("recorded")
        if outside.kept:
            outside.kept.clear()  # plain calls are rare from here on
        return graph, result[0], outside

    def failed(self, lane: Lane, state: InputsState, failure: Exception) -> None:
        """A recording failed: plain from here on. Its pool takes no more: torch's host allocator ends no failed capture."""
        caches.GRAPH_POOLS.pop((self.policy.device, lane.stream), None)
        lane.pool = None
        self.stays_plain(state, f"recording failed: {type(failure).__name__}: {str(failure)[:100]}")


class FirstStep(Replayer):
    """A training step that is not recorded: in most programs the one that makes the optimizer's state. Its first calls share
    memory with the recordings of the steps after it."""

    def choose(self, lane: Lane, inputs: Sequence) -> Any:
        state = lane.sized.setdefault((), InputsState())
        state.calls += 1
        if state.calls <= WARM:
            return self.plain(lane, inputs)
        end_warm_calls(self.policy.device, lane.stream)
        return self.call(*inputs)
