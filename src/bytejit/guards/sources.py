"""Sources: how an entry fetches a value again from the frame, the globals, or an object that it knows weakly.

A source prints in two ways: `expr(printer)` is Python for the generated entry, `name()` is for people. Sources are
frozen, hashable (the hash is kept: chains are long and looked up often), and compare by structure. No torch here.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from typing import Any

from .references import Ref, SourcePrinter
from .source import Source, Step, param_name, source

# ---- roots -------------------------------------------------------------------------------------------------------


@source
class Local(Source):
    """A fast local, passed to the entry under its own name (see `param_name`)."""

    var: str

    def expr(self, at: SourcePrinter) -> str:
        return param_name("local", self.var)

    def name(self) -> str:
        return self.var


@source
class StackSlot(Source):
    """A non-NULL value of the stack at the entry's point, counted from the bottom."""

    index: int

    def expr(self, at: SourcePrinter) -> str:
        return param_name("stack", self.index)

    def name(self) -> str:
        return f"stack[{self.index}]"


@source
class Cell(Source):
    """A cell object of the frame (not its contents), as the dispatcher passes it."""

    var: str

    def expr(self, at: SourcePrinter) -> str:
        return param_name("cell", self.var)

    def name(self) -> str:
        return f"cell of {self.var}"


@source
class KnownSource(Source):
    """An object known by identity, not through the frame: weakly held where Python allows (see Ref)."""

    ref: Ref

    @staticmethod
    def of(obj: Any, label: str = "") -> KnownSource:
        return KnownSource(Ref(obj, label))

    def expr(self, at: SourcePrinter) -> str:
        return at.ref(self.ref)

    def name(self) -> str:
        return self.ref.label


@source
class Constant(Source):
    """A plain immutable value (int, float, str, tuple of such, dtype, ...): held, printed as a literal."""

    value: Any

    def expr(self, at: SourcePrinter) -> str:
        return at.literal(self.value)

    def name(self) -> str:
        return repr(self.value)


@source
class Drawn(Source):
    """A random number, the i-th that a region draws: an input of its graph that no guard sees."""

    index: int

    def expr(self, at: SourcePrinter) -> str:
        raise AssertionError("a random number is drawn once, before the graph")

    def name(self) -> str:
        return f"random number {self.index}"


@source
class Scope(Source):
    """The globals dict of a function, known by reference: `Scope.of(fn.__globals__)`."""

    ref: Ref

    @staticmethod
    def of(namespace: dict) -> Scope:
        return Scope(Ref(namespace))

    def expr(self, at: SourcePrinter) -> str:
        return at.ref(self.ref)

    def name(self) -> str:
        return f"({self.ref.label})"


@source
class Global(Source):
    """A global: an item of a Scope. Raises KeyError in the entry when absent (a failed guard)."""

    scope: Scope
    var: str

    @staticmethod
    def of(namespace: dict, var: str) -> Global:
        return Global(Scope.of(namespace), var)

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.source(self.scope)}[{self.var!r}]"

    def name(self) -> str:
        return self.var


@source
class Builtin(Source):
    """A builtin name; guard its absence from the globals with DICT_ABSENT on the Scope."""

    var: str

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.bind(builtins.__dict__, 'builtins')}[{self.var!r}]"

    def name(self) -> str:
        return self.var


@source
class Call0(Source):
    """The result of a zero-argument getter held by the entry (`torch.is_grad_enabled`): global state."""

    getter: Callable[[], Any]
    label: str = ""

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.bind(self.getter, 'f')}()"

    def name(self) -> str:
        return f"{self.label or getattr(self.getter, '__name__', 'getter')}()"


# ---- one step from a base ----------------------------------------------------------------------------------------


@source
class CellContents(Step):
    """What a cell object holds (ValueError in the entry when empty: a failed guard)."""

    base: Source
    text = "{0}.cell_contents"


@source
class InstanceDict(Step):
    """An object's own `__dict__`."""

    base: Source
    text = "{0}.__dict__"


@source
class PastDict(Step):
    """An object's own `__dict__`, past a `__getattribute__` of its class."""

    base: Source
    text = "object.__getattribute__({0}, '__dict__')"
    shown = "{0}.__dict__"


@source
class Type(Step):
    """The value's exact type."""

    base: Source
    text = "type({0})"


@source
class MethodSelf(Step):
    """`__self__` of a bound method."""

    base: Source
    text = "{0}.__self__"


@source
class MethodFunc(Step):
    """`__func__` of a bound method."""

    base: Source
    text = "{0}.__func__"


@source
class Called(Step):
    """What the value returns when called without arguments (a weak reference)."""

    base: Source
    text = "{0}()"


@source
class SetCopy(Step):
    """A new set of a set's items: the order in which it is gone through may be another than that of the set itself."""

    base: Source
    text = "{{{{*{0}}}}}"


@source
class SetBytes(Source):
    """The bytes that a set takes: of two in one order, the one with the larger table may take the next item elsewhere."""

    base: Source

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.bind(sys.getsizeof, 'bytes')}({at.source(self.base)})"

    def name(self) -> str:
        return f"sys.getsizeof({self.base.name()})"


@source
class TensorGrad(Step):
    """`.grad` of a tensor."""

    base: Source
    text = "{0}.grad"


@source
class Item(Step):
    """base[index] of a list, tuple, range or other sequence."""

    base: Source
    index: Any
    text = "{0}[{1}]"


@source
class Closure(Step):
    """Contents of a function's i-th closure cell."""

    base: Source
    index: int
    text = "{0}.__closure__[{1}].cell_contents"
    shown = "{0}.__closure__[{1}]"


@source
class Defaults(Step):
    """A function's i-th positional default."""

    base: Source
    index: int
    text = "{0}.__defaults__[{1}]"


@source
class KwDefaults(Step):
    """A function's keyword-only default."""

    base: Source
    var: str
    text = "{0}.__kwdefaults__[{1}]"


@source
class TensorSize(Step):
    """A tensor's size along one dimension."""

    base: Source
    dim: int
    text = "{0}.shape[{1}]"


@source
class TensorStride(Step):
    """A tensor's stride along one dimension, in elements."""

    base: Source
    dim: int
    text = "{0}.stride({1})"


@source
class Attr(Source):
    """getattr(base, attr). Runs descriptors and `__getattr__`, as the user's code would."""

    base: Source
    attr: str

    def expr(self, at: SourcePrinter) -> str:
        base = at.source(self.base)
        return f"{base}.{self.attr}" if self.attr.isidentifier() else f"getattr({base}, {self.attr!r})"

    def name(self) -> str:
        return f"{self.base.name()}.{self.attr}"


@source
class CallOf(Source):
    """base(*args, **dict(named)) with constant arguments: plain values, or objects as Refs. The call only asks."""

    base: Source
    args: tuple
    named: tuple[tuple[str, Any], ...] = ()

    def _text(self, one: Callable[[Any], str]) -> str:
        return ", ".join([*map(one, self.args), *(f"{k}={one(v)}" for k, v in self.named)])

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.source(self.base)}({self._text(at.literal)})"

    def name(self) -> str:
        return f"{self.base.name()}({self._text(lambda a: a.label if isinstance(a, Ref) else repr(a))})"


@source
class Computed(Source):
    """function(*args), a function without effects of objects from outside: NumPy's arithmetic between numbers."""

    function: Ref
    args: tuple[Source, ...]

    def bases(self) -> tuple[Source, ...]:
        return self.args

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.ref(self.function)}({', '.join(map(at.source, self.args))})"

    def name(self) -> str:
        return f"{self.function.label}({', '.join(a.name() for a in self.args)})"
