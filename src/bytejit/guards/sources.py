"""Sources: how an entry fetches a value again from the frame, the globals, or an object that it knows weakly.

A source prints in two ways: `expr(printer)` is Python for the generated entry, `name()` is for people. Sources are
frozen, hashable (the hash is kept: chains are long and looked up often), and compare by structure. No torch here.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

from .references import PLAIN, Printer, Ref


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    """Names of a source class's fields: the classes are few, and `dataclasses.fields` is slow."""
    return tuple(f.name for f in dataclasses.fields(kind))


class Source:
    """Base of all sources. Subclasses give `expr(printer)` and `name()`; `bases()` are the sources that it reads."""

    __slots__ = ("_key", "_hash")

    def _fields(self) -> tuple:
        try:
            return self._key
        except AttributeError:
            key = tuple(_typed(getattr(self, name)) for name in _names(type(self)))
            object.__setattr__(self, "_key", key)
            return key

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or hash(self) != hash(other):
            return False
        return self._fields() == other._fields()

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            value = hash((type(self).__name__, self._fields()))
            object.__setattr__(self, "_hash", value)
            return value

    def __repr__(self) -> str:
        return self.name()

    def expr(self, at: Printer) -> str:
        """Python that evaluates to the value; names not in the frame are bound in `at.env`."""
        raise NotImplementedError(f"{type(self).__name__} has no expr(): give the source class one")

    def name(self) -> str:
        """The value's name as a person would write it."""
        raise NotImplementedError(f"{type(self).__name__} has no name(): give the source class one")

    def bases(self) -> tuple[Source, ...]:
        """Sources that this one is computed from."""
        return tuple(v for name in _names(type(self)) if isinstance(v := getattr(self, name), Source))

    def root(self) -> Source:
        """The first source of the chain: a local, a cell, a global, a constant."""
        source = self
        while bases := source.bases():
            source = bases[0]
        return source


def _typed(value: Any) -> Any:
    """A key that tells 1, True and 1.0 apart, as DictItem(d, 1) and Item(l, True) print differently."""
    return (type(value), value) if type(value) in PLAIN else value


def _source(cls: type) -> type:
    return dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)(cls)


# ---- roots -------------------------------------------------------------------------------------------------------


@_source
class Local(Source):
    """A fast local, passed to the entry under its own name (see `param_name`)."""

    var: str

    def expr(self, at: Printer) -> str:
        return param_name("local", self.var)

    def name(self) -> str:
        return self.var


@_source
class StackSlot(Source):
    """A non-NULL value of the stack at the entry's point, counted from the bottom."""

    index: int

    def expr(self, at: Printer) -> str:
        return param_name("stack", self.index)

    def name(self) -> str:
        return f"stack[{self.index}]"


@_source
class Cell(Source):
    """A cell object of the frame (not its contents), as the dispatcher passes it."""

    var: str

    def expr(self, at: Printer) -> str:
        return param_name("cell", self.var)

    def name(self) -> str:
        return f"cell of {self.var}"


@_source
class Known(Source):
    """An object known by identity, not through the frame: weakly held where Python allows (see Ref)."""

    ref: Ref

    @staticmethod
    def of(obj: Any, label: str = "") -> Known:
        return Known(Ref(obj, label))

    def expr(self, at: Printer) -> str:
        return at.ref(self.ref)

    def name(self) -> str:
        return self.ref.label


@_source
class Constant(Source):
    """A plain immutable value (int, float, str, tuple of such, dtype, ...): held, printed as a literal."""

    value: Any

    def expr(self, at: Printer) -> str:
        return at.literal(self.value)

    def name(self) -> str:
        return repr(self.value)


@_source
class Scope(Source):
    """The globals dict of a function, known by reference: `Scope.of(fn.__globals__)`."""

    ref: Ref

    @staticmethod
    def of(namespace: dict) -> Scope:
        return Scope(Ref(namespace))

    def expr(self, at: Printer) -> str:
        return at.ref(self.ref)

    def name(self) -> str:
        return f"({self.ref.label})"


@_source
class Global(Source):
    """A global: an item of a Scope. Raises KeyError in the entry when absent (a failed guard)."""

    scope: Scope
    var: str

    @staticmethod
    def of(namespace: dict, var: str) -> Global:
        return Global(Scope.of(namespace), var)

    def expr(self, at: Printer) -> str:
        return f"{at.source(self.scope)}[{self.var!r}]"

    def name(self) -> str:
        return self.var


@_source
class Builtin(Source):
    """A builtin name; guard its absence from the globals with DICT_ABSENT on the Scope."""

    var: str

    def expr(self, at: Printer) -> str:
        import builtins
        return f"{at.bind(builtins.__dict__, 'builtins')}[{self.var!r}]"

    def name(self) -> str:
        return self.var


@_source
class Call0(Source):
    """The result of a zero-argument getter held by the entry (`torch.is_grad_enabled`): global state."""

    getter: Callable[[], Any]
    label: str = ""

    def expr(self, at: Printer) -> str:
        return f"{at.bind(self.getter, 'f')}()"

    def name(self) -> str:
        return f"{self.label or getattr(self.getter, '__name__', 'getter')}()"


# ---- one step from a base ----------------------------------------------------------------------------------------

STEPS: dict[str, tuple[str, str]] = {
    # class name: (expression, name for people); {0} base, {1} and {2} further fields, printed as literals unless raw
    "CellContents": ("{0}.cell_contents", "{0}.cell_contents"),
    "InstanceDict": ("{0}.__dict__", "{0}.__dict__"),
    "PastDict": ("object.__getattribute__({0}, '__dict__')", "{0}.__dict__"),
    "Type": ("type({0})", "type({0})"),
    "Len": ("len({0})", "len({0})"),
    "MethodSelf": ("{0}.__self__", "{0}.__self__"),
    "MethodFunc": ("{0}.__func__", "{0}.__func__"),
    "Called": ("{0}()", "{0}()"),
    "TensorData": ("{0}.data", "{0}.data"),
    "TensorGrad": ("{0}.grad", "{0}.grad"),
    "StorageOffset": ("{0}.storage_offset()", "{0}.storage_offset()"),
}


class _Step(Source):
    """A source of one base and no argument; its texts are the row of STEPS named after the class."""

    __slots__ = ()

    def expr(self, at: Printer) -> str:
        return STEPS[type(self).__name__][0].format(at.source(self.base))

    def name(self) -> str:
        return STEPS[type(self).__name__][1].format(self.base.name())


def _step(name: str, doc: str) -> type:
    cls = types.new_class(name, (_Step,), {}, lambda ns: ns.update(
        __annotations__={"base": Source}, __doc__=doc, __module__=__name__, __qualname__=name))
    return _source(cls)


CellContents = _step("CellContents", "What a cell object holds (ValueError in the entry when empty: a failed guard).")
InstanceDict = _step("InstanceDict", "An object's own `__dict__`.")
PastDict = _step("PastDict", "An object's own `__dict__`, past a `__getattribute__` of its class.")
Type = _step("Type", "The value's exact type.")
Len = _step("Len", "len(value).")
MethodSelf = _step("MethodSelf", "`__self__` of a bound method.")
MethodFunc = _step("MethodFunc", "`__func__` of a bound method.")
Called = _step("Called", "What the value answers when called without arguments (a weak reference).")
TensorData = _step("TensorData", "`.data` of a tensor.")
TensorGrad = _step("TensorGrad", "`.grad` of a tensor.")
StorageOffset = _step("StorageOffset", "A tensor's storage offset, in elements.")


@_source
class Attr(Source):
    """getattr(base, attr). Runs descriptors and `__getattr__`, as the user's code would."""

    base: Source
    attr: str

    def expr(self, at: Printer) -> str:
        base = at.source(self.base)
        return f"{base}.{self.attr}" if self.attr.isidentifier() else f"getattr({base}, {self.attr!r})"

    def name(self) -> str:
        return f"{self.base.name()}.{self.attr}"


@_source
class CallOf(Source):
    """base(*args, **dict(named)) with constant arguments: plain values, or objects as Refs. The call only asks."""

    base: Source
    args: tuple
    named: tuple[tuple[str, Any], ...] = ()

    def _text(self, one: Callable[[Any], str]) -> str:
        return ", ".join([*map(one, self.args), *(f"{k}={one(v)}" for k, v in self.named)])

    def expr(self, at: Printer) -> str:
        return f"{at.source(self.base)}({self._text(at.literal)})"

    def name(self) -> str:
        return f"{self.base.name()}({self._text(lambda a: a.label if isinstance(a, Ref) else repr(a))})"


@_source
class DictItem(Source):
    """base[key] of a dict. A key that is no plain value is given as a Ref (`dict_item` does it)."""

    base: Source
    key: Any

    def expr(self, at: Printer) -> str:
        return f"{at.source(self.base)}[{at.literal(self.key)}]"

    def name(self) -> str:
        if type(self.base) is InstanceDict and type(self.key) is str:
            return f"{self.base.base.name()}.{self.key}"
        return f"{self.base.name()}[{self.key!r}]"


def dict_item(base: Source, key: Any, own_getitem: bool = False) -> Source:
    """An item of a dict whose key is kept weakly when it is an object rather than a plain value.

    own_getitem: the dict's class has a `__getitem__` of its own, which is gone round."""
    plain = type(key) in PLAIN or (type(key) is tuple and all(type(k) in PLAIN for k in key))
    key = key if plain else Ref(key)
    return TupleItem(base, key, dict) if own_getitem else DictItem(base, key)


@_source
class DictKeyAt(Source):
    """The i-th key of a dict, in order."""

    base: Source
    index: int

    def expr(self, at: Printer) -> str:
        return f"[*{at.source(self.base)}][{self.index}]"

    def name(self) -> str:
        return f"list({self.base.name()})[{self.index}]"


@_source
class Item(Source):
    """base[index] of a list, tuple, range or other sequence."""

    base: Source
    index: Any

    def expr(self, at: Printer) -> str:
        return f"{at.source(self.base)}[{at.literal(self.index)}]"

    def name(self) -> str:
        return f"{self.base.name()}[{self.index!r}]"


@_source
class TupleItem(Source):
    """tuple.__getitem__(base, i) (or list's, or dict's): for subclasses that override indexing, e.g. named tuples."""

    base: Source
    index: Any
    kind: type = tuple

    def expr(self, at: Printer) -> str:
        return f"{at.bind(self.kind.__getitem__, 'get')}({at.source(self.base)}, {at.literal(self.index)})"

    def name(self) -> str:
        return f"{self.base.name()}[{self.index!r}]"


@_source
class Closure(Source):
    """Contents of a function's i-th closure cell."""

    fn: Source
    index: int

    def expr(self, at: Printer) -> str:
        return f"{at.source(self.fn)}.__closure__[{self.index}].cell_contents"

    def name(self) -> str:
        return f"{self.fn.name()}.__closure__[{self.index}]"


@_source
class Defaults(Source):
    """A function's i-th positional default."""

    fn: Source
    index: int

    def expr(self, at: Printer) -> str:
        return f"{at.source(self.fn)}.__defaults__[{self.index}]"

    def name(self) -> str:
        return f"{self.fn.name()}.__defaults__[{self.index}]"


@_source
class KwDefaults(Source):
    """A function's keyword-only default."""

    fn: Source
    var: str

    def expr(self, at: Printer) -> str:
        return f"{at.source(self.fn)}.__kwdefaults__[{self.var!r}]"

    def name(self) -> str:
        return f"{self.fn.name()}.__kwdefaults__[{self.var!r}]"


@_source
class TensorSize(Source):
    """A tensor's size along one dimension."""

    base: Source
    dim: int

    def expr(self, at: Printer) -> str:
        return f"{at.source(self.base)}.shape[{self.dim}]"

    def name(self) -> str:
        return f"{self.base.name()}.shape[{self.dim}]"


@_source
class TensorStride(Source):
    """A tensor's stride along one dimension, in elements."""

    base: Source
    dim: int

    def expr(self, at: Printer) -> str:
        return f"{at.source(self.base)}.stride({self.dim})"

    def name(self) -> str:
        return f"{self.base.name()}.stride({self.dim})"


class _ModuleEntry(Source):
    """One entry of a module's `_parameters`, `_buffers` or `_modules` dict, past nn.Module.__getattr__."""

    __slots__ = ()
    table = ""

    def expr(self, at: Printer) -> str:
        return f"{at.source(DictItem(InstanceDict(self.base), self.table))}[{self.key!r}]"

    def name(self) -> str:
        return f"{self.base.name()}.{self.key}" if self.key.isidentifier() else f"{self.base.name()}[{self.key!r}]"

    def bases(self) -> tuple[Source, ...]:
        return (DictItem(InstanceDict(self.base), self.table),)


@_source
class ModuleParam(_ModuleEntry):
    """`base.__dict__['_parameters'][key]`."""

    base: Source
    key: str
    table = "_parameters"


@_source
class ModuleBuffer(_ModuleEntry):
    """`base.__dict__['_buffers'][key]`."""

    base: Source
    key: str
    table = "_buffers"


@_source
class SubModule(_ModuleEntry):
    """`base.__dict__['_modules'][key]`."""

    base: Source
    key: str
    table = "_modules"


def param_name(kind: str, which: str | int) -> str:
    """Name of an entry's parameter: kind is "local", "stack" or "cell". Names like `.0`, `@x` become identifiers."""
    text = str(which)
    if not text.isidentifier() and kind != "stack":
        text = "dot" + "".join(c if c.isidentifier() or c.isdigit() else f"_{ord(c):x}_" for c in text.lstrip("."))
    return {"local": "L_", "stack": "S_", "cell": "C_"}[kind] + text


def params_of(stack: int, live: tuple[str, ...], cells: tuple[str, ...]) -> list[str]:
    """Parameter names of an entry at a point, in the order in which the dispatcher is called."""
    return ([param_name("stack", i) for i in range(stack)] + [param_name("local", n) for n in live]
            + [param_name("cell", n) for n in cells])
