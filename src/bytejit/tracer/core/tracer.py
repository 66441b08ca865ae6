"""The tracer: evaluates the original bytecode from a point on, symbolically, until it returns or has to stop."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.errors import Bug
from bytejit.common.interrupts import SIGNALS
from bytejit.common.quiet_reads import FLAGS, HEAP_TYPE
from bytejit.common.where import Where
from bytejit.fake.tensor import FakeMode
from bytejit.guards.guard_set import GuardSet
from bytejit.guards.sources import Source
from bytejit.rewriter.resume_points import Point
from bytejit.tracer.core.frame import Ins

from .constants import NotConstant, to_python
from .effects import Effects
from .exceptions import exception_var, with_context
from .frame import Frame
from .iterator_values import IterVar
from .job import Job, Snapshot
from .limits import Limits
from .models import STEPPED
from .numpy_values import ArrayVar
from .python_types import python_type
from .read_values import refuse_reads
from .signals import Break, Raised
from .sizes import DrawnTensor, Feed
from .table import HANDLERS, REFUSED, RETURN
from .values import NONE, DeferredVar, InstanceVar, Known, Lazy, SeqVar, TensorVar, Var


class ExitHere(Exception):
    """The region ends at the requested step."""


class Tracer:
    """One trace. `region.run_region` returns a Stop; graph, inputs, guards and effects are then read off the tracer.

    Its parts, each a `Component` (`assembly.PARTS`), are attributes: `t.values`, `t.operators`, `t.sizes`, ...
    """

    def __init__(self, job: Job, stop_at: int | None = None) -> None:
        self.job, self.stop_at = job, stop_at
        self.effects, self.limits = Effects(), Limits(self, job.time_limit)
        self.parts: list = [self.limits]  # the components, each of which has this tracer
        self.graph = torch.fx.Graph()
        self.graph_leaves = False  # whether this graph is the entry's own, not one within it
        self.guards = GuardSet()
        self.inputs: list[TensorVar | Feed | DrawnTensor] = []
        self.by_id: dict[int, Var] = {}
        self.by_fake: dict[int, TensorVar] = {}
        self.memo: dict = {}
        self.keep: list = []
        self.keyed: dict[int, Var] = {}  # keys that are objects from outside, objects/identities.py
        self.arrays: dict[int, ArrayVar] = {}
        self.stores: dict = {}
        self.places: dict[tuple, Where] = {}
        self.state_first: dict = {}  # the same as the region begins with it, and whether a guard says so
        self.nesting = 0  # autocast blocks that it has entered less those that it has left
        self.cached_calls: list[tuple] = []  # calls of cached functions whose results the caches hold, objects/caching.py
        self.symbolic_calls: list[tuple] = []  # those with symbolic numbers, their results, how deep the trace is in one
        self.symbolic_results: dict[tuple, Var] = {}
        self.inside_cached = 0
        self.trying: dict | None = None  # their results while the body of one is run only to see what it does
        self.devices: list[torch.device] = []  # device managers entered in the region
        self.inference: list[tuple] = []  # inference modes entered in it: (manager, grad mode set before)
        self.looked_into: list[IterVar] = []  # iterators from outside, see tracer/objects/external_iterators.py
        self.fetched: list[Lazy] = []  # values from outside that may no longer exist when they are fetched again
        self.levels: list = []  # the function transforms that the trace is within, torch/transform_levels.py
        self.escaped: dict[int, int] = {}  # tensors of function transforms that are over -> step, torch/transforms.py
        self.claimed: dict[int, object] = {}  # iterator -> the enumerate or zip that draws from it
        self.checkpoints = False  # whether a part of the graph is a checkpoint's
        self.region = 0  # a number for the region, where it enters inference mode
        self.deferred_calls: list[DeferredVar] = []
        self.locked: list[InstanceVar] = []  # locks that the region took, and those that it holds
        self.holding: list[InstanceVar] = []
        self.by_value = False
        self.modules: dict[Source, Any] = {}  # source of a module's parameter, buffer or submodule -> the module
        self.asked = False  # whether the program asked if it is compiled: the region is right only as compiled code
        self.stale: frozenset = frozenset()  # locals of the root that nothing reads, which may hold objects
        self.lost = False  # the root's own reference to an object from outside is gone
        self.raised_at: dict[int, Where] = {}
        self.inlined: dict[int, types.CodeType] = {}
        self.made_classes: dict = {}
        self.rebuilt_classes: dict[type, tuple] = {}  # classes that the library made of constants, objects/rebuilt_classes.py
        self.stubs: dict[int, object] = {}
        self.part_of: dict[int, Var] = {}
        self.handled = sys.exc_info()[1]  # what the compiled frame or a caller of it is handling
        self.frame: Frame | None = None
        self.root: Frame | None = None
        self.own_cells: dict = {}
        self.snapshot: Snapshot | None = None
        self.reads_grad = self.grad_matters = self.grad_at_start = torch.is_grad_enabled()
        self.fake_mode = FakeMode()
        self.break_depth = 0
        self.external_ranges: list[int] = []  # of managers made outside that are open: the steps at which they were entered
        self.ranges = 0  # the region's number among those that open ranges of a profiler
        self.catches = False  # whether an exception of the program's own code in the graph may be caught in the region
        self.tried = False  # whether an error of an operation may be
        self.break_where: Where | None = None
        self.guards.add_state()

    # ---- small services --------------------------------------------------------------------------------------------------
    def guard(self, kind: str, source: Source | None, value: Any = None) -> None:
        if source is not None:
            if kind == "ALIAS":
                value = (value, True)
            self.guards.add(kind, source, value, self.tensors.where() if self.frame is not None else None)

    def cannot_change(self, cls: type) -> bool:
        """Whether a class is one of the trace's own, or written in C and closed."""
        return not FLAGS(cls) & HEAP_TYPE or cls in self.made_classes or cls in self.rebuilt_classes

    def pop(self, f: Frame) -> Var:
        v = f.stack.pop()
        return self.values.real(v) if type(v) is Lazy else v

    def const(self, v: Var) -> Any:
        """The real value of a constant. Raises: Break."""
        try:
            return to_python(self, v, classes=True)
        except NotConstant as e:
            refuse_reads(v)
            raise Break(f"a value that exists only when the graph runs was needed ({e})") from None

    def raised(self, real: BaseException) -> Raised:
        return Raised(exception_var(real))

    def stop(self, value: Var) -> Raised:
        """The StopIteration of a generator that returned."""
        e = self.raised(StopIteration())
        e.exc.slots.update(value=value, args=SeqVar([] if self.comparisons.is_same(value, NONE) else [value], tuple))
        return e

    def next_value(self, v: Var) -> Var | None:
        """next(v), or None at the end. Raises: Raised(StopIteration) with what a generator or an own `__next__` says."""
        item = self.iteration.step(self.values.real(v))
        return self.values.real(item) if item is not None else None

    def fold_error(self, function: Callable, *args: object, **kwargs: object) -> Raised:
        """Returns the exception of a call that Python refuses, in the words of this Python: they differ between versions."""
        try:
            function(*args, **kwargs)
        except Exception as e:
            return self.raised(e)
        raise AssertionError(f"{function} did not raise")

    def touch(self, v: Var) -> None:
        """Note that v is about to change. The exit writes the change back to an object from outside."""
        self.effects.mutations += 1
        self.effects.touched[id(v)] = v
        if v.source is not None:
            self.effects.dirty[id(v)] = v

    def type_of(self, v: Var) -> type:
        """The Python type of the object that a value stands for."""
        return python_type(self.values.real(v))

    def as_class(self, v: Var) -> type | None:
        v = self.values.real(v)
        return v.obj if isinstance(v, Known) and isinstance(v.obj, type) else None

    def class_of(self, v: Var, unlike: str) -> type:
        """The class that v is. Raises: Break(unlike)."""
        if (cls := self.as_class(v)) is None:
            raise Break(unlike)
        return cls

    def as_exception(self, v: Var, message: str) -> InstanceVar:
        """An exception class or instance, as raise takes it."""
        v = self.values.real(v)
        cls = self.as_class(v)
        if cls is not None and issubclass(cls, BaseException):
            v = self.values.real(self.calls.call(v, [], {}))
        if not isinstance(v, InstanceVar) or not issubclass(v.cls, BaseException):
            raise self.raised(TypeError(message))
        if v.real is not None:
            raise Break("an exception object from outside raised")
        return v

    def current_exception(self, f: Frame | None) -> Var | None:
        while f is not None:
            if f.handling:
                return self.values.real(f.handling[-1])
            f = f.parent
        return None

    def not_inlined(self, fn: Callable) -> str:
        return self.job.not_inlined(fn)

    # ---- the loop ------------------------------------------------------------------------------------------------------------
    def run(self, frame: Frame) -> Var:
        """Evaluate a frame until it returns (or yields: frame.suspended). Raises: Raised, Break."""
        outer, self.frame = self.frame, frame
        frame.suspended = False
        ins_list, is_root = frame.decoded.ins, frame is self.root
        try:
            if frame.inject is not None:
                self.unwind(frame, frame.ip - 1, frame.injected())
            while True:
                ins = ins_list[frame.ip]
                self.limits.instructions += 1
                if SIGNALS.pending:
                    SIGNALS.deliver()
                if is_root:
                    self.at_root(frame, ins)
                handler = HANDLERS.get(ins.op)
                if handler is None:
                    raise Break(REFUSED.get(ins.op, f"the opcode {ins.op}"))
                try:
                    to = handler(self, frame, ins)
                except Raised as e:
                    self.unwind(frame, ins.index, e)
                    continue
                if to is None:
                    frame.ip += 1
                elif to >= 0:
                    frame.ip = to
                elif to == RETURN:
                    return frame.returned
                else:
                    frame.ip += 1
                    frame.suspended = True
                    return frame.returned
        except (Break, Raised) as e:
            if isinstance(e, Raised):
                self.raised_at.setdefault(id(e.exc), self.tensors.where())
            if isinstance(e, Break) and self.break_where is None:
                self.break_where, self.break_depth = self.tensors.where(), frame.depth
            raise
        finally:
            self.frame = outer

    def unwind(self, frame: Frame, index: int, e: Raised) -> None:
        """Go to the handler of an exception raised at instruction `index`, or raise on."""
        e.__traceback__ = e.__context__ = None  # frames of the tracer that may hold e: see below
        if id(e.exc) not in self.raised_at:
            self.raised_at[id(e.exc)] = self.tensors.where()
            self.keep.append(e.exc)
            e.exc.step = e.exc.step or self.limits.steps
        if e.exc.slots.get("__traceback__") is NONE:  # it gets one anew
            del e.exc.slots["__traceback__"]
        current = self.current_exception(frame)
        if isinstance(current, InstanceVar):
            with_context(e.exc, current)
        handler = frame.decoded.handlers[index]
        if handler is None or frame.code in STEPPED:  # 3.12 and later wrap a StopIteration in each generator's own handler
            try:
                raise e
            finally:
                del e  # its traceback holds this frame: a circle that would keep the program's objects until a collection
        target, depth, lasti = handler
        del frame.stack[depth:]
        if lasti:
            frame.push(Known(index))
        frame.push(e.exc)
        frame.ip = target
        self.effects.mutations += 1

    def at_root(self, frame: Frame, ins: Ins) -> None:
        """Bookkeeping at the root frame's instructions: the last legal place to leave the region."""
        self.limits.visited.add(ins.offset)
        point_id = self.job.rewritten.by_offset.get(ins.offset)
        if point_id is None or frame.kwnames:
            return
        if self.holding:  # the original code would hold the lock
            return
        if frame.cells != self.own_cells:  # an inlined comprehension has cells of its own: no exit is possible here
            return
        point = self.job.rewritten.points[point_id]
        if getattr(point, "handlers", ()) != getattr(self.start, "handlers", ()) or len(frame.handling):
            return
        self.limits.steps += 1
        self.limits.first_step.setdefault(frame.ip, self.limits.steps)
        self.snapshot = Snapshot(self.limits.steps, frame.ip, list(frame.stack), dict(frame.locals), self.effects.mutations)
        if self.limits.steps == self.stop_at:
            raise ExitHere
        self.limits.check_time()

    @property
    def root_frame(self) -> Frame:
        """The frame of the code that is compiled. Raises: Bug before the region is set up."""
        if self.root is None:
            raise Bug("there is no region yet")
        return self.root

    @property
    def present_frame(self) -> Frame:
        """The frame that is being evaluated. Raises: Bug."""
        if self.frame is None:
            raise Bug("nothing is being traced")
        return self.frame

    @property
    def start(self) -> Point:
        return self.job.rewritten.points[self.job.point]
