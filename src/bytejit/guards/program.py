"""Guards that one compiled call checks (guards/native_checker.py), where the pipeline has given a compiler.

A `GuardProgram` turns sources and guards into the steps of a table. It takes what it can check exactly as the Python text
would; what it does not take is checked from Python after it. It also fetches the graph's inputs, and whatever the
Python text reads that it can reach.
"""

from __future__ import annotations

import array
import builtins
import sys
from types import GetSetDescriptorType
from typing import Any

from bytejit.common.errors import Bug
from bytejit.common.plain_types import PLAIN_TYPES
from bytejit.common.quiet_reads import HEAP_TYPE

from .equality import same
from .fusing import fused
from .guard_set import Guard
from .item_sources import DictItem, TupleItem
from .kinds import GLOBAL_STATE, KINDS, TENSOR, NoStep
from .module_sources import ModuleBuffer, ModuleParam, SubModule
from .native_checker import CHECKER, HINTED, OP, table
from .references import Ref
from .sources import (
    Attr,
    Builtin,
    Cell,
    CellContents,
    Closure,
    Defaults,
    Global,
    InstanceDict,
    Item,
    KnownSource,
    KwDefaults,
    Local,
    MethodFunc,
    MethodSelf,
    PastDict,
    Scope,
    Source,
    StackSlot,
    Type,
)

FEWEST = 8  # the least number of guards, without a tensor among them: for fewer the call costs more than it saves
ATTRS = {InstanceDict: "__dict__", CellContents: "cell_contents", MethodSelf: "__self__", MethodFunc: "__func__"}


def _own_dict(kind: type, past: bool) -> bool:
    """Whether `x.__dict__` of instances of this class is what `object` fetches; `past`: past its `__getattribute__`."""
    if issubclass(kind, type) or not (past or kind.__getattribute__ is object.__getattribute__):
        return False
    owner = next((c for c in kind.__mro__ if "__dict__" in vars(c)), None)
    python_class = owner is not None and owner.__flags__ & HEAP_TYPE
    return bool(python_class) and type(vars(owner)["__dict__"]) is GetSetDescriptorType


class GuardProgram:
    """The steps of one entry's table, the arguments that they read, and the values that they hand out."""

    def __init__(self, at: Any):
        self.at = at  # an EntryPrinter: keeps objects alive, knows guarded types
        self.steps: list[tuple[int, ...]] = []
        self.args: list[str] = []
        self.wanted: list[int] = []  # slots of the tuple returned
        self.named: dict[int, str] = {}  # place in that tuple -> local that holds it
        self.keep: list[Any] = [same]  # objects that only the table names
        self.taken = 0  # guards
        self.tensors = 0
        self._slots: dict[Source, int | None] = {}
        self._made: dict[tuple, int] = {}  # step -> slot: sources that fetch alike share one
        self._checked: set[tuple] = set()

    # ---- fetching

    def slot(self, source: Source) -> int | None:
        """The slot that holds the source's value, with the steps that fetch it; None where no step can."""
        if source not in self._slots:
            self._slots[source] = self._fetch(source)
        return self._slots[source]

    def _fetch(self, source: Source) -> int | None:
        if isinstance(source, (Local, StackSlot, Cell)):
            name = source.expr(self.at)
            if name not in self.args:
                self.args.append(name)
            return self._make("ARG", self.args.index(name))
        if isinstance(source, (KnownSource, Scope)):
            return self.object(source.ref)
        if isinstance(source, Builtin):
            return self._item(self._make("CONST", self.address(builtins.__dict__)), source.var)
        if isinstance(source, Type) and source.base in self.at.types:
            return self.object(self.at.types[source.base])
        bases = source.bases()
        base = self.slot(bases[0]) if len(bases) == 1 else None
        return None if base is None else self._step(source, base)

    def _step(self, source: Source, base: int) -> int | None:
        """The slot of a source with one base, which is in a slot."""
        match source:
            case InstanceDict() | PastDict() if (kind := self.at.types.get(source.base)) and _own_dict(
                kind.get(), type(source) is PastDict
            ):
                return self._make("OWN_DICT", base)
            case InstanceDict() | CellContents() | MethodSelf() | MethodFunc():
                return self._attr(base, ATTRS[type(source)])
            case Attr():
                return self._attr(base, source.attr)
            case Type():
                return self._make("TYPE_OF", base)
            case Global() | KwDefaults():
                base = base if type(source) is Global else self._attr(base, "__kwdefaults__")
                return self._item(base, source.var)
            case ModuleParam() | ModuleBuffer() | SubModule() | DictItem():
                return self._item(base, source.key)
            case Item() if type(source.index) in PLAIN_TYPES:
                return self._item(base, source.index)
            case TupleItem() if source.kind is tuple and type(source.index) is int and source.index >= 0:
                return self._make("TUPLE_ITEM", base, source.index)
            case Closure():
                cell = self._item(self._attr(base, "__closure__"), source.index)
                return None if cell is None else self._attr(cell, "cell_contents")
            case Defaults():
                return self._item(self._attr(base, "__defaults__"), source.index)
        return None

    def _attr(self, base: int, name: str) -> int:
        return self._make("ATTR", base, self.address(sys.intern(name)))

    def _item(self, base: int, key: Any) -> int | None:
        if isinstance(key, Ref) and key.weak:
            return None
        return self._make("ITEM", base, self.address(sys.intern(key) if type(key) is str else key))

    def _make(self, op: str, *words: int) -> int:
        step = (OP[op], *words)
        if step not in self._made:
            self._made[step] = len(self._made)
            self.steps.append(step)
        return self._made[step]

    def object(self, ref: Ref) -> int:
        """The slot of an object known by identity."""
        if not ref.weak:
            return self._make("CONST", self.address(ref))
        self.at.watch(ref)
        return self._make("WEAK", self.address(ref.getter))

    def address(self, obj: Any) -> int:
        """The address of an object, or of that behind a Ref, which lives from now on as long as the table."""
        if isinstance(obj, Ref):
            if obj.weak:
                raise Bug(f"{obj!r} is held weakly: its address is worth nothing once it is dead")
            obj = obj.get()
        self.keep.append(obj)
        return id(obj)

    # ---- checking

    def take(self, guard: Guard) -> bool:
        """Whether the program checks this guard: adds its steps when it does, none past fetching for an empty check."""
        step = self._check(guard)
        if step is None:
            return False
        self.taken += guard.kind != GLOBAL_STATE
        if step and step not in self._checked:
            self._checked.add(step)
            self.steps.append(step)
        return True

    def _check(self, guard: Guard) -> tuple | None:
        step = KINDS[guard.kind].step
        if step is None:
            return None
        try:
            words = step(self, guard.source, guard.value)
        except NoStep:
            return None
        self.tensors += guard.kind == TENSOR
        return (OP[words[0]], *words[1:]) if words else ()

    def fetched(self, source: Source) -> int:
        """The slot of a source, for a row's `step`. Raises: NoStep."""
        slot = self.slot(source)
        if slot is None:
            raise NoStep
        return slot

    def type_of(self, source: Source) -> type | None:
        """The exact type of a source's value, where it is guarded or the source is known by identity."""
        if isinstance(source, KnownSource):
            return type(source.ref.get())
        kind = self.at.types.get(source)
        return None if kind is None else kind.get()

    # ---- handing out

    @property
    def pays(self) -> bool:
        """Whether the native call costs less than the same checks in Python."""
        return self.tensors > 0 or self.taken >= FEWEST

    def want_all(self, sources: list[Source]) -> bool:
        """Hand out these values first, in this order; False, and nothing is handed out, where one is out of reach."""
        slots = [self.slot(s) for s in sources]
        if self.wanted or None in slots:
            return False
        self.wanted += [slot for slot in slots if slot is not None]
        return True

    def local(self, source: Source) -> str | None:
        """The local that holds the source's value after the program has run; None where no step can fetch it."""
        slot = self.slot(source)
        if slot is None:
            return None
        if slot not in self.wanted:
            self.wanted.append(slot)
        place = self.wanted.index(slot)
        return self.named.setdefault(place, f"u{place}")

    def text(self, values: str) -> tuple[list[str], array.array]:
        """The statements that make the call, with its tuple in the local `values`, and the table that it reads. No
        step can be added after this."""
        steps, slots = fused([*self.steps, (OP["DONE"], len(self.wanted), *self.wanted)], self.keep)
        flat = [word for step in steps for word in ((*step, 0) if step[0] in HINTED else step)]
        words = table(flat, slots, same)
        self.at.bind((words, self.keep), "table")
        call = ", ".join([str(words.buffer_info()[0]), *self.args])
        lines = [f"{values} = {self.at.bind(CHECKER.run, 'run')}({call})", f"if {values} is None: return MISS"]
        if self.named and len(self.named) == len(self.wanted):
            lines.append(f"({', '.join(f'u{i}' for i in range(len(self.wanted)))},) = {values}")
        else:
            lines += [f"{name} = {values}[{i}]" for i, name in sorted(self.named.items())]
        return lines, words
