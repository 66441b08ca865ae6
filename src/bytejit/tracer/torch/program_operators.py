"""Operators whose implementation is the program's own Python, and what that code may see and change.

A graph calls such an operator where the program does, but the region's other effects come at its end, and what the region reads
of Python objects was read before the graph ran. So the graph breaks before a call whose code may see what the region has
changed, and before the region reads what such code may have written. Which objects these are is found out by a walk through
the code: names, closure cells, and all that can be reached from them. What C++ implements sees no Python object.
"""

from __future__ import annotations

import dis
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from bytejit.tracer.core.component import Component
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.values import TensorVar
from bytejit.tracer.objects.class_facts import NAMESPACE, is_library
from bytejit.tracer.objects.containers import is_constant

from .effects_of_calls import has_external_effects
from .operations import is_program_code, is_torch_python

MOST_OBJECTS = 5000  # of one walk
STORES = ("STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "STORE_DEREF", "DELETE_ATTR", "DELETE_SUBSCR", "DELETE_DEREF")
# methods of containers that change them, and functions that change any object
MUTATORS = frozenset(
    """append appendleft extend extendleft insert pop popleft popitem remove discard clear update setdefault add sort reverse
    rotate move_to_end subtract setattr delattr __setattr__ __setitem__ __delitem__ __iadd__ fill_ copy_ set_""".split()
)
BY_VALUE = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.ModuleType, torch.dtype)


@dataclass
class Reach:
    """What the code of an operator can get at. names: (id of a namespace, name) that it reads or writes; bound: those that it
    binds anew; objects: by id, kept alive; cells: ids of closure cells that it binds anew; writes: whether it may change an
    object; unknown: why that is not known."""

    names: set[tuple[int, str]] = field(default_factory=set)
    bound: set[tuple[int, str]] = field(default_factory=set)
    objects: dict[int, Any] = field(default_factory=dict)
    cells: set[int] = field(default_factory=set)
    writes: bool = False
    unknown: str = ""

    def changeable(self) -> dict[int, Any]:
        """The objects that may be others after a call."""
        if not self.writes:
            return {}
        return {
            i: x
            for i, x in self.objects.items()
            if i in self.cells or not isinstance(x, (torch.Tensor, types.FunctionType, types.CellType, tuple))
        }


class ProgramOperators(Component):
    """The tracer's part that keeps calls of the program's operators and its other effects in order."""

    def __init__(self, t: Any) -> None:
        super().__init__(t)
        self.reaches: dict[Any, Reach] = {}  # by operator
        self.bound: set[tuple[int, str]] = set()  # names and objects that a call in the graph may have written
        self.written: dict[int, Any] = {}

    def called(self, fn: Any, name: str) -> None:
        """Before a call becomes a node. Raises: Break where the operator's code may see what the region has changed, or change
        what the region knows."""
        if not is_program_code(fn) or is_torch_python(fn):
            return
        reach = self.reaches.get(fn)
        if reach is None:
            reach = self.reaches[fn] = reach_of(fn)
        if self.sees_changes(reach):
            raise Break(f"{name}, whose code may see what the region has changed")
        changeable = reach.changeable()
        if not changeable.keys().isdisjoint(self.t.by_id):
            raise Break(f"{name}, whose code may change what the region has read")
        self.bound |= reach.bound
        self.written.update(changeable)

    def sees_changes(self, reach: Reach) -> bool:
        """Whether the region has changed something that the code can get at."""
        if reach.unknown:
            return has_external_effects(self.t)
        written = self.t.effects.globals_written
        if any((i, name) in reach.names for i, (_, changes) in written.items() for name in changes):
            return True
        changed = [getattr(v, "real", None) for v in self.t.effects.dirty.values()]
        tensors = [v.real for v in self.t.inputs if isinstance(v, TensorVar) and v.fake.m.store.written]
        return any(id(x) in reach.objects for x in (*changed, *tensors, *self.t.effects.classes_written) if x is not None)

    def read_name(self, space: dict, name: str) -> None:
        """Before a global is read. Raises: Break where an operator in the graph may have bound it anew."""
        if (id(space), name) in self.bound:
            raise Break(f"the global {name}, which an operator in the graph may have set")

    def looked_at(self, obj: object) -> None:
        """Before the region first looks at an object. Raises: Break where an operator in the graph may have changed it."""
        if id(obj) in self.written:
            raise Break(f"a {type(obj).__name__} that an operator in the graph may have changed")


# ---- the walk --------------------------------------------------------------------------------------------------------
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
    """What the Python code behind an operator can get at."""
    reach, functions = Reach(), functions_of(fn)
    if functions is None:
        reach.unknown = "its implementation is not known"
        return reach
    todo: list[Any] = list(functions)
    while todo:
        obj = todo.pop()
        if id(obj) in reach.objects or is_plain(obj):
            continue
        if len(reach.objects) > MOST_OBJECTS:
            reach.unknown, reach.writes = "it can get at very many objects", True
            break
        reach.objects[id(obj)] = obj
        todo += parts_of(obj, reach)
    return reach


def is_plain(obj: Any) -> bool:
    """Whether there is nothing to see in an object: constants, functions written in C, and what the library has."""
    if isinstance(obj, BY_VALUE) or is_constant(obj):
        return not (isinstance(obj, types.ModuleType) and not is_library(obj.__name__)) and type(obj) is not tuple
    return isinstance(obj, (type, types.FunctionType)) and is_library(obj.__module__)


def parts_of(obj: Any, reach: Reach) -> Iterator[Any]:
    """What can be got at from one object."""
    if isinstance(obj, types.FunctionType):
        cells = obj.__closure__ or ()
        stored = cells_stored(obj.__code__)
        reach.cells |= {id(cell) for name, cell in zip(obj.__code__.co_freevars, cells) if name in stored}
        yield from (*cells, *(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values())
        yield from names_of(obj.__code__, obj.__globals__, reach)
    elif isinstance(obj, types.MethodType):
        yield from (obj.__func__, obj.__self__)
    elif isinstance(obj, types.CellType):
        try:
            yield obj.cell_contents
        except ValueError:  # not bound yet
            return
    elif isinstance(obj, dict):
        yield from (*obj, *obj.values())
    elif isinstance(obj, (list, tuple, set, frozenset)):
        yield from obj
    elif isinstance(obj, type):
        yield from (f for v in NAMESPACE(obj).values() for f in (getattr(v, "fget", v), getattr(v, "__func__", v)))
    elif not isinstance(obj, (torch.Tensor, types.ModuleType)):
        yield type(obj)
        yield from getattr(obj, "__dict__", {}).values()


def names_of(code: types.CodeType, space: dict, reach: Reach) -> Iterator[Any]:
    """The values of the globals that a function's code names, attributes of modules of the program among them; notes what it
    writes."""
    for ins in dis.get_instructions(code):
        if ins.opname in ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"):
            reach.names.add((id(space), ins.argval))
            value = space.get(ins.argval)
            yield value
            if isinstance(value, types.ModuleType) and not is_library(value.__name__):
                inside = vars(value)
                reach.names |= {(id(inside), n) for n in code.co_names}
                yield from (inside[n] for n in code.co_names if n in inside)
                if any(i.opname == "STORE_ATTR" for i in dis.get_instructions(code)):
                    reach.bound |= {(id(inside), n) for n in code.co_names}
        if ins.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            reach.bound.add((id(space), ins.argval))
        reach.writes |= ins.opname in STORES
    reach.writes |= not MUTATORS.isdisjoint(code.co_names)
    for inner in codes_in(code):
        yield from names_of(inner, space, reach)


def cells_stored(code: types.CodeType) -> set[str]:
    """The names of the closure cells that a code, or one within it, binds anew."""
    stored = {ins.argval for ins in dis.get_instructions(code) if ins.opname in ("STORE_DEREF", "DELETE_DEREF")}
    return stored.union(*map(cells_stored, codes_in(code)))


def codes_in(code: types.CodeType) -> list[types.CodeType]:
    """The codes of the functions that are made within a code."""
    return [c for c in code.co_consts if isinstance(c, types.CodeType)]
