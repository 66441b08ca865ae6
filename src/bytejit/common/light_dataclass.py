"""Dataclasses that are not changed, made in a tenth of the time: a process makes two hundred of them when it first compiles.

`dataclass(frozen=True)` compiles the text of six methods for each class, 0.4 ms. Of a light one only `__init__` is compiled, when
the first instance is made; it assigns as any class does, which also takes half the time that a frozen one's takes. That nothing
assigns to it later is checked by the type checker alone. All else is as there: fields, `replace`, equality, hash and repr.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any

__all__ = ["light_dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass as light_dataclass
else:

    def light_dataclass(*, frozen: bool, **options: bool) -> Callable[[type], type]:
        """A decorator. frozen: True, for the type checker. options: `slots`, `eq`, `repr`, as `dataclass` has them."""
        assert frozen, "a dataclass that is changed is made by dataclass()"
        return lambda cls: _made(cls, **options)


def _made(cls: type, *, eq: bool = True, repr: bool = True, slots: bool = False) -> type:
    own = set(vars(cls))
    own_hash = "__hash__" in own and not (cls.__hash__ is None and "__eq__" in own)
    made: Any = dataclass(init=False, eq=False, repr=False, slots=slots)(cls)
    if "__init__" not in own:
        made.__init__ = _late_init(made)
    if repr and "__repr__" not in own:
        made.__repr__ = _repr
    if eq:
        compared = fields(made)
        values = _values([f.name for f in compared if f.compare])
        hashed = _values([f.name for f in compared if (f.compare if f.hash is None else f.hash)])
        if "__eq__" not in own:
            made.__eq__ = _equality(values)
        if not own_hash:
            made.__hash__ = lambda self: hash(hashed(self))
    return made


def _late_init(cls: Any) -> Callable[..., None]:
    """An `__init__` that makes the class's own when it is first called."""

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        cls.__init__ = _init_of(cls)
        cls.__init__(self, *args, **kwargs)

    return __init__


def _init_of(cls: Any) -> Callable[..., None]:
    """Compile `__init__`. A field with a factory gets what that makes where no value is given."""
    env: dict[str, Any] = {"_absent": MISSING}
    given, named, lines = ["self"], ["*"], []
    for f in fields(cls):
        name, value = f.name, f.name
        env |= {f"_default_{name}": f.default, f"_make_{name}": f.default_factory}
        if f.init:
            some = f.default_factory is not MISSING
            default = "=_absent" if some else f"=_default_{name}" if f.default is not MISSING else ""
            (named if f.kw_only else given).append(name + default)
            value = f"_make_{name}() if {name} is _absent else {name}" if some else name
        elif f.default_factory is not MISSING:
            value = f"_make_{name}()"
        elif f.default is not MISSING and any(name in vars(c).get("__slots__", ()) for c in cls.__mro__):
            value = f"_default_{name}"
        else:  # one that `__post_init__` sets, or with a default that the class has
            continue
        lines.append(f"    self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    head = f"def __init__({', '.join(given + (named if len(named) > 1 else []))}):"
    exec("\n".join([head, *(lines or ["    pass"])]), env)
    made = env["__init__"]
    made.__module__, made.__qualname__ = cls.__module__, f"{cls.__qualname__}.__init__"
    return made


def _values(names: list[str]) -> Callable[[Any], tuple]:
    """A function of an instance: the values of its fields, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return (lambda self: (getattr(self, names[0]),)) if names else (lambda self: ())


def _equality(values: Callable[[Any], tuple]) -> Callable[[Any, Any], Any]:
    def __eq__(self: Any, other: Any) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({shown})"
