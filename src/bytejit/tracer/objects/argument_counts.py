"""How many arguments builtins take. A wrong count breaks the graph, so that the original call raises its own error."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, defaultdict, deque
from typing import Any

import torch

from bytejit.common.special_cases import module_of
from bytejit.common.text import without_records
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import InstanceVar, Var
from bytejit.tracer.core.versions import MAP_IS_STRICT, REDUCE_NAMES_INITIAL

MANY = 1 << 30
TWO_ARGUMENTS = {"__getitem__", "__contains__"}  # methods of containers without a signature to read
COUNTS: dict[Any, tuple[int, int]] = {getattr: (2, 3), next: (1, 2), iter: (1, 2)}  # nor have these
COUNTS |= {min: (1, MANY), max: (1, MANY), dict.pop: (2, 3)}
COUNTS |= {map: (2, MANY), filter: (2, 2), enumerate: (1, 2), reversed: (1, 1), deque: (0, 2), list: (0, 1), tuple: (0, 1)}
COUNTS |= {set: (0, 1), frozenset: (0, 1), bool: (0, 1), float: (0, 1), slice: (1, 3), range: (1, 3), vars: (0, 1)}
COUNTS |= {list.__init__: (1, 2), set.__init__: (1, 2), slice.indices: (2, 2), torch.Size.numel: (1, 1)}
COUNTS |= {types.MappingProxyType.get: (2, 3)}
# names that arguments may be given by, of what does not say so itself
PLACES: dict[Any, tuple[str, ...]] = {
    str: ("object", "encoding", "errors"),
    bytes: ("source", "encoding", "errors"),
    complex: ("real", "imag"),
    enumerate: ("iterable", "start"),
    deque: ("iterable", "maxlen"),
}
POSITIONAL = {list.sort: 1, sorted: 1}  # number of positional arguments, where it is less than the total
COUNTS |= {functools.reduce: (2, 3), types.GeneratorType.throw: (2, 4), deque.rotate: (1, 2), deque.index: (2, 4)}
NAMED = {min, max, enumerate, deque}  # those of COUNTS that take keyword arguments
NAMED |= ({map} if MAP_IS_STRICT else set()) | ({functools.reduce} if REDUCE_NAMES_INITIAL else set())
for _kind, _count, _names in (
    (set, 2, "add discard remove symmetric_difference_update"),
    (set, 1, "pop clear copy"),
    (set, 2, "issubset issuperset isdisjoint symmetric_difference"),
    (frozenset, 1, "copy"),
    (frozenset, 2, "issubset issuperset isdisjoint symmetric_difference"),
    (deque, 1, "pop popleft clear reverse copy __copy__"),
    (deque, 3, "insert"),
    (dict, 1, "clear copy keys values items"),
    (OrderedDict, 1, "clear copy keys values items"),
    (defaultdict, 1, "copy __copy__"),
    (type({}.keys()), 2, "isdisjoint"),
    (type({}.items()), 2, "isdisjoint"),
    (types.GeneratorType, 1, "close"),
    (types.GeneratorType, 2, "send"),
    (types.MappingProxyType, 1, "keys values items"),
    (BaseException, 2, "with_traceback add_note"),
    (deque, 2, "append appendleft extend extendleft remove count"),
):
    COUNTS.update((getattr(_kind, _name), (_count, _count)) for _name in _names.split())


def declared(obj: Any) -> list[str] | None:
    """The parameters of a C function, as its text signature writes them; None where it has none."""
    text = getattr(obj, "__text_signature__", None)
    if not text or not text.startswith("("):
        return None
    names, depth = [""], 0
    for c in text[1 : text.rindex(")")]:
        depth += (c in "([{") - (c in ")]}")
        if c == "," and not depth:
            names.append("")
        else:
            names[-1] += c
    names = [n.strip() for n in names]
    if any(n.startswith("[") for n in names):  # "value, [start, [stop]]": no signature for all that (3.14's deque.index)
        return None
    if names[0].startswith("$") and (names[0] == "$module" or getattr(obj, "__self__", None) is not None):
        del names[0]
    return names


@functools.cache
def names_of(obj: Any) -> tuple[str, ...]:
    """The names that the arguments of a builtin function, method or class may be given by instead of their places, in order;
    "" for one that has none."""
    if obj in PLACES:
        return PLACES[obj]
    known = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
    names = declared(obj) if isinstance(obj, known) else None
    if names is None:
        return ()
    slash = names.index("/") if "/" in names else -1
    end = next((i for i, n in enumerate(names) if n.startswith("*")), len(names))
    return tuple("" if i < slash else n.partition("=")[0] for i, n in enumerate(names[:end]) if i != slash)


def placed(obj: Any, args: list[Var], kwargs: dict[str, Var]) -> tuple[list[Var], dict[str, Var]]:
    """The arguments with those in their places that were given by name: models look for them there."""
    if not kwargs:
        return args, kwargs
    args, kwargs, names = list(args), dict(kwargs), names_of(obj)
    while len(args) < len(names) and names[len(args)] in kwargs:
        args.append(kwargs.pop(names[len(args)]))
    return args, kwargs


@functools.cache
def counts(obj: Any) -> tuple[int, int, int, bool] | None:
    """(least, most) arguments that a builtin function or method takes, how many of them must be without a name, and whether
    any has one; None where Python does not say."""
    known = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
    if not isinstance(obj, known) and obj not in COUNTS:
        return None
    if obj in COUNTS or obj.__name__ in TWO_ARGUMENTS:
        least, most = COUNTS.get(obj, (2, 2))
        return least, most, 0 if obj is enumerate else least, obj in NAMED
    return counted(obj)


def counted(obj: Any) -> tuple[int, int, int, bool] | None:
    """`counts` by the text signature of a C function (inspect.signature makes a class to read it, each time)."""
    names = declared(obj)
    if names is None:
        return None
    many = any(n.startswith("*") and n != "*" for n in names)
    slash = names.index("/") if "/" in names else -1
    every = [n for n in names if n and n != "/" and not n.startswith("*")]
    named = any(n and n != "*" and (not n.startswith("*") or n.startswith("**")) for n in names[slash + 1 :])
    unnamed = sum("=" not in n for n in names[: max(slash, 0)])
    return sum("=" not in n for n in every), MANY if many else len(every), unnamed, named


def check_count(obj: Any, count: int, named: int) -> None:
    """Handlers take the right number of arguments. Raises: Break, so that the original call raises its own TypeError."""
    known = counts(obj)
    if count > POSITIONAL.get(obj, MANY):
        raise Break(f"{describe(obj)} called with {count} arguments without a name")
    if known is not None and (not known[0] <= count + named <= known[1] or count < known[2] or named and not known[3]):
        raise Break(f"{describe(obj)} called with {count} arguments and {named} by name")


METHODS = (types.MethodDescriptorType, types.WrapperDescriptorType)
CONTAINERS = frozenset((set, frozenset, dict, list, tuple))
# the classes whose methods in C are called on instances of theirs only, and that models take for what they model of these
RECEIVERS = CONTAINERS | {int, float, complex, bool, str, bytes, bytearray, range, slice, deque, OrderedDict, defaultdict}
RECEIVERS |= {torch.Size}


def check_receiver(t: Tracer, method: Any, args: list[Var]) -> None:
    """A method in C is given an instance of its class that is modelled. Raises: Break, so that the original call raises."""
    of = method.__objclass__
    if not args or not issubclass(t.type_of(args[0]), of):
        raise Break(f"{describe(method)} called on what is no {of.__name__}")
    if of in CONTAINERS and isinstance(args[0], InstanceVar) and args[0].base is None:
        raise Break(f"{of.__name__}.{method.__name__} of a {args[0].cls.__name__} that is not modelled")


def describe(obj: Any) -> str:
    """The name of a callable in a message."""
    module = module_of(obj)
    name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None) or type(obj).__name__
    name = without_records(str(name))
    return f"{module}.{name}" if isinstance(module, str) and module != "builtins" else name
