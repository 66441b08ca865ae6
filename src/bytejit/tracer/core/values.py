"""Symbolic values, which stand for real objects on the tracer's stack and in its locals. One class for each behaviour.

A value read from outside the region stays `Lazy` until something looks at it; only then is it guarded (tracer/objects/wrap.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import CodeType, MappingProxyType
from typing import Any, TypeVar

import torch

from bytejit.common.errors import Bug
from bytejit.guards.sources import InstanceDict, PastDict, Source

from .set_tables import Table
from .signals import Break


class Var:
    """A value of the traced program. `source`: how to fetch it again from the frame; None when made in the trace."""

    __slots__ = ("source",)

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    def __repr__(self) -> str:
        return type(self).__name__

    @property
    def origin(self) -> Source:
        """The source of a value that came from outside. Raises: Bug for one made in the trace."""
        if self.source is None:
            raise Bug(f"{self} was made in the trace: it has no source")
        return self.source


V = TypeVar("V", bound=Var)


def expect(v: Var | None, cls: type[V], unlike: str = "") -> V:
    """v, which is of that class. Raises: Break(unlike) where a program may bring another here, else Bug."""
    if isinstance(v, cls):
        return v
    raise Break(unlike) if unlike else Bug(f"a {cls.__name__} was expected, not {v}")


class Lazy(Var):
    """A real object with its source that nothing has looked at yet. `var`: what it became."""

    __slots__ = ("obj", "var")

    def __init__(self, obj: Any, source: Source | None) -> None:
        super().__init__(source)
        self.obj = obj
        self.var: Var | None = None

    def __repr__(self) -> str:
        return f"Lazy({self.source})"


class Null(Var):
    """The NULL that calls keep on the stack."""

    __slots__ = ()


NULL = Null()


class Known(Var):
    """A real object used as it is: a constant, a function, a class, a module, a torch operator."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.obj = obj

    def __repr__(self) -> str:
        return f"Known({str(self.obj)[:40]})"


class SymVar(Known):
    """An int or float that is symbolic: `value`, a torch.SymInt or SymFloat.

    Whoever reads `obj`, not knowing of symbols, gets the constant that it was; that becomes a condition.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any, source: Source | None = None) -> None:
        Var.__init__(self, source)
        self.value = value

    @property
    def obj(self) -> int | float:  # type: ignore[override]  # what Known keeps in a slot
        """The number when traced, made a constant. Raises: Break for one that differs in each call."""
        node = self.value.node
        node.env.made_constant(node.public)
        return node.guard_int() if node.is_int() else node.guard_float()

    def __repr__(self) -> str:
        return f"SymVar({self.value})"


NONE, TRUE, FALSE = Known(None), Known(True), Known(False)


def is_object(v: Var | None, obj: object) -> bool:
    """Whether a value is this singleton (None, NotImplemented). A number or text that changes is none, and stays open."""
    return type(v) is Known and v.obj is obj


class TensorVar(Var):
    """A tensor: the FX node that makes it and its fake. `real` is the tensor itself when it is an input."""

    __slots__ = ("node", "fake", "real", "attrs", "cls", "version", "cls_changed", "base", "wrapper")

    def __init__(
        self, node: torch.fx.Node | None, fake: Any, source: Source | None = None, real: Any = None, cls: type | None = None
    ) -> None:
        super().__init__(source)
        self.node, self.fake, self.real, self.cls = node, fake, real, cls
        self.attrs: dict[str, Var] = {}
        self.base: TensorVar | None = None  # of an instance of a subclass made inside: the plain tensor behind it
        self.wrapper: tuple[list[Var], dict[str, Var]] | None = None  # what _make_wrapper_subclass was called with, inside

    def __repr__(self) -> str:
        return f"TensorVar({self.node}: {tuple(self.fake.shape)})"


class SeqVar(Var):
    """A list, tuple, deque, torch.Size or named tuple. `items` may hold Lazy values. Outside lists keep `real`."""

    __slots__ = ("items", "cls", "real", "maxlen", "attrs")

    def __init__(
        self, items: Any, cls: type = list, source: Source | None = None, real: Any = None, maxlen: int | None = None
    ) -> None:
        super().__init__(source)
        self.items, self.cls, self.real, self.maxlen = items, cls, real, maxlen

    def __repr__(self) -> str:
        return f"{self.cls.__name__}{self.items!r:.60}"


class DictVar(Var):
    """A dict or one of its library kinds. `items`: hashable key -> (key Var, value Var), see containers.key_of."""

    __slots__ = ("items", "cls", "real", "factory", "complete", "deleted", "attrs")

    def __init__(
        self, items: Any, cls: type = dict, source: Source | None = None, real: Any = None, factory: Var | None = None
    ) -> None:
        super().__init__(source)
        self.items, self.cls, self.real, self.factory = items, cls, real, factory
        self.attrs: dict[str, Var] = {}  # an OrderedDict takes attributes
        # an outside dict is read key by key until someone iterates; `complete` once all keys are guarded
        self.complete = real is None
        self.deleted: set = set()

    def __repr__(self) -> str:
        return f"{self.cls.__name__}<{len(self.items)}>"


class ProxyVar(DictVar):
    """A mapping proxy made in the trace, over a DictVar whose keys are all known."""

    __slots__ = ("owner",)

    def __init__(self, owner: DictVar) -> None:
        super().__init__({}, MappingProxyType)
        self.owner = owner

    @property
    def items(self) -> dict:
        """Returns the items that the owner holds now."""
        return self.owner.items

    @items.setter
    def items(self, value: Any) -> None:
        if value:
            raise AssertionError("a mapping proxy is read only")


class SetVar(Var):
    """A set or frozenset. `items`: hashable key -> element Var. `table`: how it was made, where that is known."""

    __slots__ = ("table", "items", "cls", "real")

    def __init__(self, items: Any, cls: type = set, source: Source | None = None, real: Any = None) -> None:
        super().__init__(source)
        self.items, self.cls, self.real = items, cls, real
        self.table: Table | None = None


VIEWS = {(of, kind): type(getattr(of(), kind)()) for of in (dict, OrderedDict) for kind in ("keys", "values", "items")}


class DictView(Var):
    """keys(), values() or items() of a DictVar. complete: called with it before anybody looks at what it holds."""

    __slots__ = ("unread", "kind", "complete")

    def __init__(
        self, owner: DictVar, kind: str, source: Source | None = None, complete: Callable[[DictVar], None] | None = None
    ) -> None:
        super().__init__(source)
        self.unread, self.kind, self.complete = owner, kind, complete

    @property
    def owner(self) -> DictVar:
        """The dict, all its keys known."""
        if self.complete is not None:
            self.complete(self.unread)
        return self.unread

    @property
    def cls(self) -> type:
        """Views of an OrderedDict have classes of their own."""
        return VIEWS[OrderedDict if issubclass(self.unread.cls, OrderedDict) else dict, self.kind]


class SliceVar(Var):
    """slice(start, stop, step) with symbolic parts."""

    __slots__ = ("parts",)

    def __init__(self, parts: list[Var], source: Source | None = None) -> None:
        self.source, self.parts = source, parts


class CellVar(Var):
    """A closure cell. `content` None: empty."""

    __slots__ = ("content", "real", "changed")

    def __init__(self, content: Var | None, source: Source | None = None, real: Any = None) -> None:
        super().__init__(source)
        self.content, self.real, self.changed = content, real, False


class FuncVar(Var):
    """A Python function: one from outside (`real`) or one made in the trace by MAKE_FUNCTION."""

    __slots__ = (
        "real",
        "code",
        "globals",
        "closure",
        "defaults",
        "kwdefaults",
        "attrs",
        "annotations",
        "name",
        "qualname",
        "step",
    )

    def __init__(
        self,
        code: CodeType,
        globals_: dict,
        closure: tuple,
        defaults: tuple = (),
        kwdefaults: dict[str, Var] | None = None,
        real: Any = None,
        source: Source | None = None,
        step: int = 0,
    ) -> None:
        super().__init__(source)
        self.code, self.globals, self.closure, self.real = code, globals_, closure, real
        self.defaults, self.kwdefaults = defaults, kwdefaults or {}
        self.annotations: Var | None = None
        self.attrs: dict[str, Var] = {}
        self.name, self.qualname, self.step = code.co_name, code.co_qualname, step

    def __repr__(self) -> str:
        return f"FuncVar({self.qualname})"


class MethodVar(Var):
    """A function bound to a value."""

    __slots__ = ("func", "self")

    def __init__(self, func: Var, self_: Var, source: Source | None = None) -> None:
        super().__init__(source)
        self.func, self.self = func, self_

    def __repr__(self) -> str:
        return f"MethodVar({self.func}, {self.self})"


class DeferredVar(Var):
    """What a call with effects gives when the region ends: a draw of `random`, a hook's handle (see core/deferred_calls.py).

    `watched`: a fake and its version when the call was traced; the call is right only while it stays that.
    """

    __slots__ = ("kind", "function", "args", "watched", "step", "early")

    def __init__(self, kind: type, function: Callable, args: list[Var], step: int = 0) -> None:
        super().__init__(None)
        self.kind, self.function, self.args, self.step = kind, function, args, step
        self.watched: tuple | None = None
        self.early: Var | None = None  # what stands for it, where it was drawn before the graph

    def __repr__(self) -> str:
        return f"DeferredVar({getattr(self.function, '__name__', self.function)})"


DELETED = Null()


class InstanceVar(Var):
    """An instance of a class: one from outside (`real`) or one made in the trace (`real` None).

    `ns` models its `__dict__` (None without one), `slots` what it keeps elsewhere (`__slots__`, an exception's args),
    `base` the built-in part of a subclass of list, tuple, dict, set, int, str...; `step` is when it was made.
    """

    __slots__ = ("cls", "real", "ns", "slots", "base", "step", "new_args")

    def __init__(self, cls: type, source: Source | None = None, real: Any = None, base: Var | None = None, step: int = 0) -> None:
        super().__init__(source)
        self.cls, self.real, self.base, self.step = cls, real, base, step
        self.slots: dict[str, Var] = {}
        self.new_args: list[Var] | None = None
        if real is None:
            self.ns: DictVar | None = DictVar({})
        else:
            past = cls.__getattribute__ is not object.__getattribute__ and source is not None
            try:
                namespace = object.__getattribute__(real, "__dict__")
            except AttributeError:
                namespace = None
            except TypeError as e:  # an instance whose class got another class's `__dict__` to read it by
                raise Break(f"the namespace of a {cls.__name__} cannot be had ({e})") from None
            self.ns = (
                DictVar({}, dict, (PastDict if past else InstanceDict)(self.origin), namespace)
                if type(namespace) is dict
                else None
            )

    def __repr__(self) -> str:
        return f"InstanceVar({self.cls.__name__})"

    @property
    def namespace(self) -> DictVar:
        """The model of its `__dict__`. Raises: Break for an instance without one."""
        return expect(self.ns, DictVar, f"an attribute of a {self.cls.__name__}, which has no namespace")


class TracebackVar(Var):
    """The traceback of an exception raised in the trace: passed on, never looked into, never leaves."""

    __slots__ = ("step",)

    def __init__(self, step: int) -> None:
        self.source, self.step = None, step


class SuperVar(Var):
    """super(cls, obj)."""

    __slots__ = ("cls", "obj")

    def __init__(self, cls: type, obj: Var) -> None:
        super().__init__(None)
        self.cls, self.obj = cls, obj


class PropertyVar(Var):
    """A descriptor object made in the trace (property, classmethod, staticmethod)."""

    __slots__ = ("cls", "args")

    def __init__(self, cls: type, args: list[Var]) -> None:
        super().__init__(None)
        self.cls, self.args = cls, args
