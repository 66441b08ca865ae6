"""Operators whose implementation is the program's own Python, and what that code may see and change.

A graph calls such an operator where the program does, but the region's other effects come at its end, and what the region reads
of Python objects was read before the graph ran. So the graph breaks before a call whose code may see what the region has
changed, and before the region reads what such code may have written. It also breaks before a call within `try` whose code may
leave something behind: where it raises, the original code runs the handler, and makes the call itself. Which objects these are is
found out by a walk through the code: names, closure cells, and all that can be reached from them. What C++ implements sees no
Python object.
"""

from __future__ import annotations

import types
from typing import Any

import torch

from bytejit.tracer.core.component import Component
from bytejit.tracer.core.operations import is_program_code, is_torch_python
from bytejit.tracer.core.signals import Break, CannotReconstruct
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import TensorVar
from bytejit.tracer.objects.code_reach import Reach, walk

from .effects_of_calls import has_external_effects

SPEAK = frozenset({"print", "open", "warnings", "logging", "time", "random", "sys", "os"})
MUTE = (types.FunctionType, types.CellType, tuple, type)


class ProgramOperators(Component):
    """The tracer's part that keeps calls of the program's operators and its other effects in order."""

    def __init__(self, t: Tracer) -> None:
        super().__init__(t)
        self.reaches: dict[Any, Reach] = {}  # by operator
        self.bound: set[tuple[int, str]] = set()  # names and objects that a call in the graph may have written
        self.written: dict[int, Any] = {}
        self.late: list[tuple[Reach, int]] = []  # finalizers that run when the region ends, and the steps that let them

    def called(self, fn: Any, name: str) -> None:
        """Check an operator of the program before its call becomes a node. Raises: Break if the operator's code may read an
        object that the region has changed, or change one that the region has read."""
        if not is_program_code(fn) or is_torch_python(fn):
            return
        reach = self.reaches.get(fn)
        if reach is None:
            reach = self.reaches[fn] = reach_of(fn)
        if self.sees_changes(reach):
            raise Break(f"{name}, whose code may see what the region has changed")
        if not self.note_writes(reach):
            raise Break(f"{name}, whose code may change what the region has read")
        if not self.t.job.measure and leaves_traces(reach) and self.t.tensors.in_try(managers=False):
            raise Break(f"{name}, whose code has effects, within `try`")

    def note_writes(self, reach: Reach) -> bool:
        """Note what code may have changed from here on; False where the region knows some of it."""
        changeable = reach.changeable()
        if not changeable.keys().isdisjoint(self.t.by_id):
            return False
        self.bound |= reach.bound
        self.written.update(changeable)
        return True

    def ends_late(self, roots: list[Any]) -> bool:
        """Whether the code of a finalizer may run as late as the region ends: it touches nothing that the region does."""
        reach = walk(roots)
        if reach.unknown or self.sees_changes(reach) or not self.note_writes(reach):
            return False
        self.late.append((reach, self.t.limits.steps))
        return True

    def check_late(self) -> None:
        """At the region's end. Raises: CannotReconstruct where a finalizer would see what the region has changed since."""
        for reach, step in self.late:
            if self.sees_changes(reach):
                raise CannotReconstruct("an object with a finalizer replaced", step)

    def sees_changes(self, reach: Reach) -> bool:
        """Whether the region has changed something that the code can get at."""
        if reach.unknown:
            return has_external_effects(self.t)
        written = self.t.effects.globals_written
        if any((i, name) in reach.names for i, (_, changes) in written.items() for name in changes):
            return True
        changed = [getattr(v, "real", None) for v in self.t.effects.dirty.values()]
        if not {i for i, _ in reach.names}.isdisjoint(map(id, changed)):  # a namespace, written as a dict
            return True
        tensors = [v.real for v in self.t.inputs if isinstance(v, TensorVar) and v.fake.m.store.written]
        return any(id(x) in reach.objects for x in (*changed, *tensors, *self.t.effects.classes_written) if x is not None)

    def read_name(self, space: dict, name: str) -> None:
        """Before a global is read. Raises: Break where an operator in the graph may have bound it anew."""
        if (id(space), name) in self.bound:
            raise Break(f"the global {name}, which an operator or a finalizer may have set meanwhile")

    def looked_at(self, obj: object) -> None:
        """Before the region first looks at an object. Raises: Break where an operator in the graph may have changed it."""
        if id(obj) in self.written:
            raise Break(f"a {type(obj).__name__} that an operator or a finalizer may have changed meanwhile")


def leaves_traces(reach: Reach) -> bool:
    """Whether a second call of the same code could be told from one: it may write, or print, or call an object that does."""
    if reach.unknown or reach.bound or reach.cells or any(name in SPEAK for _, name in reach.names):
        return True
    mute = MUTE if reach.writes else (*MUTE, torch.Tensor)
    return not all(isinstance(x, mute) for x in reach.objects.values())


# ---- the code --------------------------------------------------------------------------------------------------------
def functions_of(fn: Any) -> list[Any] | None:
    """The Python functions that run when an operator is called; None where they are not known."""
    if isinstance(fn, types.FunctionType):
        return [fn]
    if not isinstance(fn, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return []
    name = (fn._schema.name if isinstance(fn, torch._ops.OpOverload) else fn._qualified_op_name).replace(".", "::")
    made = torch._library.custom_ops.OPDEFS.get(name)
    if made is not None:
        return [f for f in (made._init_fn, *made._backend_fns.values()) if f is not None]
    start = "/".join(name.split("::")) + "/"
    return None if any(key.startswith(start) and not key.endswith("/Meta") for key in torch.library._impls) else []


def reach_of(fn: Any) -> Reach:
    """Returns what the Python code behind an operator can reach."""
    functions = functions_of(fn)
    return walk(functions) if functions is not None else Reach(unknown="its implementation is not known")
