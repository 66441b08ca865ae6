"""What code of the program can get at: a walk through names, closure cells, and all that can be reached from them."""

from __future__ import annotations

import dis
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch

from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.quiet_reads import function_of, own_attributes
from bytejit.tracer.core.constants import is_constant
from bytejit.tracer.core.library_code import is_library

from .class_facts import NAMESPACE, class_attribute

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
    read: set[tuple[int, int]] = field(default_factory=set)  # by id, codes and their namespaces that are done

    def changeable(self) -> dict[int, Any]:
        """The objects that may be others after a call."""
        if not self.writes:
            return {}
        return {
            i: x
            for i, x in self.objects.items()
            if i in self.cells or not isinstance(x, (torch.Tensor, types.FunctionType, types.CellType, tuple))
        }


def walk(roots: Iterable[Any]) -> Reach:
    """Finds what some functions, and what can be reached from them, can reach."""
    reach, todo = Reach(), list(roots)
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


def method_and_callees(cls: type, name: str) -> list[types.FunctionType]:
    """A method of a class written in Python, and those that it may call on the same instance."""
    found: dict[str, types.FunctionType] = {}
    todo = [name]
    while todo:
        name = todo.pop()
        of = class_attribute(cls, name) if name not in found else None
        of = of.fget if isinstance(of, property) else function_of(of)
        if isinstance(of, types.FunctionType):
            found[name] = of
            todo += of.__code__.co_names
    return list(found.values())


def may_write(functions: list[types.FunctionType]) -> bool:
    """Whether some functions, or those of the program that they name, change anything but their own locals."""
    todo, seen = list(functions), set()
    while todo:
        f = todo.pop()
        if f in seen or is_library(f.__module__):
            continue
        seen.add(f)
        names = f.__code__.co_names
        stores = (i.opname for i in dis.get_instructions(f.__code__))
        if not MUTATORS.isdisjoint(names) or any(n.startswith(("STORE_", "DELETE_")) and "FAST" not in n for n in stores):
            return True
        todo += [g for n in names if isinstance(g := f.__globals__.get(n), types.FunctionType)]
    return False


def lookup_has_effects(key: Any, depth: int = 3) -> bool:
    """Whether hashing or comparing an object, or a part of it, writes anything, by the code of its methods: tracer and guards
    look keys up more often than the program does."""
    if issubclass(type(key), tuple) and any(lookup_has_effects(part) for part in tuple.__iter__(key)):
        return True
    methods = [n for n in ("__hash__", "__eq__") if isinstance(class_attribute(type(key), n), types.FunctionType)]
    if not methods or depth == 0 or class_attribute(type(key), "__hash__") is object.__hash__:
        return False
    parts = {} if issubclass(type(key), (torch.Tensor, torch.nn.Module)) else own_attributes(key)
    functions = [f for name in methods for f in method_and_callees(type(key), name)]
    return may_write(functions) or any(lookup_has_effects(v, depth - 1) for v in parts.values())


def is_plain(obj: Any) -> bool:
    """Whether there is nothing to see in an object: constants, functions written in C, and what the library has."""
    if type(obj) is types.BuiltinFunctionType and not isinstance(obj.__self__, (types.ModuleType, type(None))):
        return False
    if isinstance(obj, BY_VALUE) or is_constant(obj):
        return not (isinstance(obj, types.ModuleType) and not is_library(obj.__name__)) and type(obj) is not tuple
    return isinstance(obj, (type, types.FunctionType)) and is_library(obj.__module__)


def parts_of(obj: Any, reach: Reach) -> Iterator[Any]:
    """Yields what can be reached from one object."""
    if isinstance(obj, types.FunctionType):
        cells = obj.__closure__ or ()
        stored = facts_of(obj.__code__).cells
        reach.cells |= {id(cell) for name, cell in zip(obj.__code__.co_freevars, cells) if name in stored}
        yield from (*cells, *(obj.__defaults__ or ()), *(obj.__kwdefaults__ or {}).values())
        yield from names_of(obj.__code__, obj.__globals__, reach)
    elif type(obj) is types.BuiltinFunctionType:
        reach.writes |= obj.__name__ in MUTATORS
        yield obj.__self__
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
        yield from (f for v in NAMESPACE(obj).values() for f in (v.fget if issubclass(type(v), property) else v, function_of(v)))
    elif not isinstance(obj, (torch.Tensor, types.ModuleType)):
        yield type(obj)
        yield own_attributes(obj)  # the dict itself: it is what a write to an attribute changes


def names_of(code: types.CodeType, space: dict, reach: Reach) -> Iterator[Any]:
    """The values of the globals that a function's code names, attributes of modules of the program among them; notes what it
    writes."""
    if (id(code), id(space)) in reach.read:  # a library makes hundreds of functions of one code
        return
    reach.read.add((id(code), id(space)))
    facts = facts_of(code)
    for name in facts.names:
        reach.names.add((id(space), name))
        value = space.get(name)
        yield value
        if isinstance(value, types.ModuleType) and not is_library(value.__name__):
            inside = vars(value)
            reach.names |= {(id(inside), n) for n in code.co_names}
            yield from (inside[n] for n in code.co_names if n in inside)
            if facts.sets_attributes:
                reach.bound |= {(id(inside), n) for n in code.co_names}
    reach.bound |= {(id(space), name) for name in facts.bound}
    reach.writes |= facts.writes
    for inner in codes_in(code):
        yield from names_of(inner, space, reach)


@light_dataclass(frozen=True)
class CodeFacts:
    """What the instructions of a code say. names: globals that it names; bound: those that it binds anew; cells: the names of
    closure cells that it, or a code within it, binds anew; writes: whether it may change an object."""

    names: tuple[str, ...]
    bound: tuple[str, ...]
    cells: frozenset[str]
    sets_attributes: bool
    writes: bool


@lru_cache(maxsize=5000)  # to read instructions takes longer than all else, and operators of one library share their code
def facts_of(code: types.CodeType) -> CodeFacts:
    """Reads the instructions of a code."""
    by_op: dict[str, dict[Any, None]] = {}
    for ins in dis.get_instructions(code):
        by_op.setdefault(ins.opname, {})[ins.argval] = None

    def of(*ops: str) -> dict[Any, None]:
        return {name: None for op in ops for name in by_op.get(op, ())}

    bound = of("STORE_GLOBAL", "DELETE_GLOBAL")
    return CodeFacts(
        (*(of("LOAD_GLOBAL", "LOAD_NAME") | bound),),
        (*bound,),
        frozenset(of("STORE_DEREF", "DELETE_DEREF")).union(*(facts_of(c).cells for c in codes_in(code))),
        "STORE_ATTR" in by_op,
        not by_op.keys().isdisjoint(STORES) or not MUTATORS.isdisjoint(code.co_names),
    )


def codes_in(code: types.CodeType) -> list[types.CodeType]:
    """The codes of the functions that are made within a code."""
    return [c for c in code.co_consts if isinstance(c, types.CodeType)]
