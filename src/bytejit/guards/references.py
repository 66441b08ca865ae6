"""Objects that a generated entry knows by identity, and the text by which it names them and plain constants."""

from __future__ import annotations

import enum
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from bytejit.common.plain_types import PLAIN_TYPES
from bytejit.common.quiet_reads import HEAP_TYPE

# of torch: equal ones are interchangeable
VALUES = frozenset({torch.device, torch.dtype, torch.layout, torch.memory_format, torch.Size})
# what an instance of a subclass is as one of the plain type, past methods of its own: no `__int__` of the program runs
PLAIN_VALUE: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda x: bytes.__getitem__(x, slice(None)),
    complex: lambda x: complex.__pos__(x),
}


class Ref:
    """An object known by identity: held weakly where Python allows, so that no entry keeps user data alive.

    Two kinds are held strongly (`weak` is False): objects that take no weak reference (dicts, tuples, lists, ...), and
    objects that live as long as their module (modules, module-level classes and functions), for which a weak reference
    would only cost time.
    """

    __slots__ = ("getter", "ident", "label", "weak")

    def __init__(self, obj: Any, label: str = ""):
        self.ident = id(obj)  # for hashing; equality asks for the living objects
        self.label = label or _label(obj)
        self.weak = not permanent(obj)
        try:
            self.getter: Callable[[], Any] = weakref.ref(obj) if self.weak else (lambda: obj)
        except TypeError:
            self.getter = lambda: obj
            self.weak = False

    @staticmethod
    def strong(obj: Any, label: str = "") -> Ref:
        """The same, held for as long as the entry is there."""
        made = Ref(obj, label)
        made.weak, made.getter = False, lambda: obj
        return made

    def get(self) -> Any:
        """The object; None once it is dead."""
        return self.getter()

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        # the address only where the object is alive: two dead ones may have had the same
        return isinstance(other, Ref) and self.ident == other.ident and self.is_(other.get())

    def is_(self, obj: Any) -> bool:
        """Whether this is the object, and alive."""
        found = self.getter()
        return found is obj and not (found is None and self.weak)

    def __hash__(self) -> int:
        return hash(self.ident)

    def __repr__(self) -> str:
        return self.label


def permanent(obj: Any) -> bool:
    """Whether an imported module holds the object under its own name, so that holding it keeps nothing alive."""
    cls = type(obj)
    if issubclass(cls, types.ModuleType):
        return sys.modules.get(obj.__name__) is obj
    if issubclass(cls, types.BuiltinFunctionType):
        return obj.__self__ is None or issubclass(type(obj.__self__), types.ModuleType)
    if issubclass(cls, (type, types.FunctionType)):
        module = module_of(obj) if issubclass(cls, type) else obj.__module__
        home = sys.modules.get(module) if isinstance(module, str) else None
        return home is not None and vars(home).get(QUALNAME(obj) if issubclass(cls, type) else obj.__qualname__) is obj
    return False


def class_can_change(obj: Any) -> bool:
    """Whether an object may be given another class."""
    if issubclass(type(obj), types.ModuleType):  # also a permanent one: modules do this to themselves
        return True
    return bool(type(obj).__flags__ & HEAP_TYPE) and not isinstance(obj, (type, torch.Tensor)) and not permanent(obj)


# past a metaclass's own: what it says of a class is code of the program
MODULE, QUALNAME, NAME = (type.__dict__[n].__get__ for n in ("__module__", "__qualname__", "__name__"))


def module_of(cls: type) -> Any:
    """Returns the `__module__` that a class has (any object), or None."""
    try:
        return MODULE(cls)
    except AttributeError:
        return None


LONG_INT = 4096  # bits; Python refuses to write out ints of more than 4300 digits


def written_out(value: Any) -> bool:
    """Whether a constant's repr() reads back as itself and is short."""
    cls = type(value)
    return cls in (str, bytes, bool) or value is None or value is Ellipsis or cls is int and value.bit_length() <= LONG_INT


def plain(value: Any) -> bool:
    """Whether a value is an immutable one that is compared by value, or a tuple or frozenset of such, or of classes."""
    cls = type(value)
    if cls in PLAIN_TYPES or cls in VALUES or issubclass(cls, enum.Enum):
        return True
    return cls in (tuple, frozenset) and all(issubclass(type(v), type) or plain(v) for v in value)


def _label(obj: Any) -> str:
    cls = type(obj)
    if issubclass(cls, types.ModuleType):
        return obj.__name__
    if issubclass(cls, dict):
        name = dict.get(obj, "__name__")
        return f"globals of {name}" if isinstance(name, str) else "a dict"
    if issubclass(cls, type):
        return QUALNAME(obj)
    own = obj.__qualname__ if issubclass(cls, types.FunctionType) else None
    return own if isinstance(own, str) else f"a {NAME(cls)}"


class Printable(Protocol):
    """What has a text that fetches it: a source."""

    def expr(self, printer: SourcePrinter) -> str:
        """The text. Objects that it names are bound in `printer.env`."""
        ...


class SourcePrinter:
    """Prints sources as Python; `env` collects the objects that the text names. The printer of entries extends it with locals."""

    def __init__(self, env: dict[str, Any] | None = None):
        self.env: dict[str, Any] = {} if env is None else env
        self._names: dict[Any, str] = {}

    def source(self, source: Printable) -> str:
        """Text that evaluates to the source's value."""
        return source.expr(self)

    def bind(self, obj: Any, prefix: str = "c") -> str:
        """A name in `env` for this very object."""
        key = (prefix, id(obj))  # env holds it from now on
        if key not in self._names:
            name = f"_{prefix}{len(self._names)}"
            self._names[key] = name
            self.env[name] = obj
        return self._names[key]

    def literal(self, value: Any) -> str:
        """Text for a constant: written out when it reads back as itself, else bound in `env`."""
        if written_out(value):
            return repr(value)
        if type(value) is tuple:
            return "(" + "".join(self.literal(v) + ", " for v in value) + ")"
        if isinstance(value, Ref):
            return self.ref(value)
        return self.bind(value)

    def ref(self, ref: Ref) -> str:
        """Text for the object behind a Ref: a call of the weak reference, or the object's own name."""
        if ref.weak:
            return f"{self.bind(ref.getter, 'w')}()"
        return self.bind(ref.get())

    def watch(self, ref: Ref) -> None:
        """Takes note that the printed text is of no use once the object is dead."""


class NotingPrinter(SourcePrinter):
    """Prints sources and notes which they were."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: set[Any] = set()

    def source(self, source: Printable) -> str:
        self.noted.add(source)
        return super().source(source)
