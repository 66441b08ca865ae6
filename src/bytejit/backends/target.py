"""The interface of a target: what differs between kinds of devices. A class each; the CPU and a GPU stand beside each other.

    aten passes -> lower -> loop passes -> schedule -> plan passes -> emit -> launch -> replay

For a target of your own, write a subclass and call `bytejit.register_target("name", TheTarget)`. Graphs on devices of type
`name` compile for it, and `backend="name"` compiles any graph for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any

import torch

from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.emit.check import LibraryResults
from bytejit.codegen.loops.ir import Loops
from bytejit.codegen.loops.plan import Machine, Plan
from bytejit.codegen.passes import Pass
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.options import Options


@light_dataclass(frozen=True)
class Stats:
    """kernels: distinct kernel functions; runs: calls into compiled code; externs: (target, reason) of each library call;
    bytes: traffic of the kernels in one call; arena: bytes kept for internal buffers; cached: no compiler ran; launches: on a
    GPU, of kernels and library calls in one call. Units: bytes, seconds."""

    kernels: int
    runs: int
    externs: tuple[tuple[str, str], ...]
    bytes: int
    arena: int
    seconds: float
    cached: bool
    launches: int = 0

    @property
    def unfused(self) -> dict[str, int]:
        """Names and numbers of the ops that run through torch because they have no row."""
        found: dict[str, int] = {}
        for target, reason in self.externs:
            if reason == "no row":
                found[target] = found.get(target, 0) + 1
        return found


@light_dataclass(frozen=True)
class CompiledGraph:
    """call(*inputs): the graph's outputs. source: the kernels' text; call_source: Python text of `call`. library_results: what
    the first call sees of the results of libraries, where sizes are all known. numbers: the inputs that are numbers and that
    `call` looks at."""

    call: Callable[..., Any]
    source: str
    call_source: str
    stats: Stats
    files: tuple[str, ...] = field(default=(), repr=False)
    library_results: LibraryResults | None = field(default=None, repr=False)
    numbers: frozenset[int] = frozenset()

    def __repr__(self) -> str:
        s = self.stats
        return f"compiled graph: {s.kernels} kernels in {s.runs} runs, {len(s.externs)} externs, {s.seconds:.2f} s"


class Target:
    """One device and how graphs are compiled for it. suffix: of the kernels' file in the debug folder. host: the name of the
    target that computes what a graph does on the CPU before and after all else; "" where there is no such part. records:
    whether it replays recordings of a graph."""

    name: str = ""
    suffix: str = ".txt"
    host: str = ""
    records: bool = False
    aten_passes: tuple[Pass, ...] = ()  # the choice of libraries: (aten, Choices) -> aten
    joint_passes: tuple[Pass, ...] = ()  # the same, in place, for a graph of forward and backward before it is cut in two
    loop_passes: tuple[Pass, ...] = ()
    plan_passes: tuple[Pass, ...] = ()

    def __init__(self, device: torch.device, options: Options) -> None:
        self.device, self.options = device, options

    def unavailable(self) -> str:
        """Returns why there are no kernels for the device; "" when there are."""
        return ""

    def machine(self) -> Machine:
        """The device as `schedule` wants it."""
        return Machine(self.name)

    def numbers_in_memory(self) -> bool:
        """Whether kernels read numbers of the call from memory. Else the numbers are arguments, passed by value."""
        return False

    def prepare(self, aten: Aten) -> Aten:
        """The graph before it is cut in parts."""
        return aten

    def tuner(self) -> Any:
        """Returns the `kernels.tune.Tuner` that chooses among library calls."""
        from bytejit.kernels.tune import Tuner

        return Tuner(None, enabled=False)

    def prepare_libraries(self, aten: Aten) -> None:
        """Build what the choice of libraries may take."""

    def plan_key(self) -> tuple | None:
        """Returns what a plan depends on besides the graph and bytejit's own code; None: plans are not kept on disk."""
        return None

    def schedule(self, loops: Loops) -> Plan:
        """Decides how each kernel runs, and where buffers lie."""
        raise NotImplementedError

    def emit(self, plan: Plan) -> Any:
        """The kernels' text."""
        raise NotImplementedError

    def launch(self, plan: Plan, source: Any, aten: Aten) -> CompiledGraph:
        """Builds the text and binds it to a callable. Raises: NoCompiler, NoDriver, BuildFailed."""
        raise NotImplementedError

    def smaller(self, error: Exception) -> Target | None:
        """The target for a second attempt when kernels could not be built; None: the graph runs through torch. Raises: the
        error, where neither is possible."""
        raise error

    def replay(self, gm: torch.fx.GraphModule, aten: Aten, call: Callable) -> Callable:
        """The graph's callable, recorded and replayed where the device can do that."""
        return call
