"""Guards: what a trace read from outside and baked in. A guard is a source, a kind, and the value seen at trace time.

Each kind is one row of KINDS: the check as Python text, what to show when it fails, and a rough cost. `GuardSet`
keeps guards in the order in which they were added (a guard on a base comes before guards on what is fetched through
it), drops duplicates, and drops what another guard implies. Values are held weakly wherever they are user objects
(see source.Ref).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import repeat
from operator import is_
from typing import Any

import torch

from bytejit.common import ambient, torch_controls
from bytejit.common.overriding import overrides, unasked
from bytejit.common.spec import contiguous_stride, short_dtype
from bytejit.compat import numpy_types

from . import library_flags
from .references import PLAIN_VALUE, Printer, Ref, permanent, plain
from .sources import Constant, Known, Scope, Source

TYPE_IS = "TYPE_IS"              # value: the exact type
ID_IS = "ID_IS"                  # value: the object itself
EQUALS = "EQUALS"                # value: a plain constant; strict about types (1, True, 1.0), signs of zero, nan
EQUALS_AS = "EQUALS_AS"          # value: (int, float, str, ...; what an instance of a subclass of it is when made that)
BOOL = "BOOL"                    # value: bool(x)
LEN_IS = "LEN_IS"                # value: len(x)
DICT_KEYS = "DICT_KEYS"          # value: tuple of keys, in order
DICT_ABSENT = "DICT_ABSENT"      # value: a key that is not there
DICT_PRESENT = "DICT_PRESENT"    # value: a key that is there
ATTR_ABSENT = "ATTR_ABSENT"      # value: an attribute name that hasattr denies
SET_ITEMS = "SET_ITEMS"          # value: tuple of items in iteration order, or a frozenset when the order was not read
TENSOR = "TENSOR"                # value: TensorCheck
EXPR = "EXPR"                    # value: Expr over ints
ALIAS = "ALIAS"                  # value: (other source, whether they are the same object)
GLOBAL_STATE = "GLOBAL_STATE"    # source: State(name); value: what it was
FUNCTION = "FUNCTION"            # value: the function (its code, number of defaults, names of keyword defaults)
NOT_NONE = "NOT_NONE"            # value: unused
VALUE = "VALUE"                  # value: Computed, whose first source is the guard's own
NO_GRAD_FN = "NO_GRAD_FN"        # value: unused; a tensor without grad_fn


@dataclass(frozen=True, slots=True)
class TensorCheck:
    """What must hold of a tensor. None means: not checked.

    Shapes and strides in elements. A size -n is symbolic: n or more. A None inside the stride is not checked; a stride
    -1-k is the size of dimension k times the stride that is wanted there. No stride is checked where a symbolic size is 1.
    """

    type: type = torch.Tensor
    dtype: torch.dtype | None = None
    shape: tuple | None = None
    stride: tuple | None = None
    device: torch.device | None = None
    requires_grad: bool | None = None
    is_leaf: bool | None = None
    storage_offset: int | None = None
    conj: bool = False
    neg: bool = False

    @staticmethod
    def of(tensor: torch.Tensor, requires_grad: bool = True, shape: tuple | None = None,
           stride: tuple | None = None) -> TensorCheck:
        """The check for a strided tensor; `shape` and `stride` where sizes of it are symbolic.

        `requires_grad=False` leaves that flag unchecked: right where the trace ran with gradients off.
        """
        shape = tuple(tensor.shape) if shape is None else shape
        stride = tuple(tensor.stride()) if stride is None else stride
        return TensorCheck(type(tensor), tensor.dtype, shape, stride, tensor.device,
                           tensor.requires_grad if requires_grad else None, conj=tensor.is_conj(), neg=tensor.is_neg())

    def with_sizes(self, shape: tuple, stride: tuple) -> TensorCheck:
        """The same with another shape and stride."""
        return replace(self, shape=shape, stride=stride)

    def __repr__(self) -> str:
        shape = "?" if self.shape is None else ",".join(str(s) if s >= 0 else f"{-s}+" for s in self.shape)
        text = f"{'any' if self.dtype is None else short_dtype(self.dtype)}[{shape}]"
        plain = self.shape is not None and self.stride is not None and all(
            a in (None, b) for a, b in zip(self.stride, contiguous_stride(self.shape)))
        dense = self.shape is not None and self.stride == tuple(
            -2 - i for i in range(len(self.shape) - 1)) + (1,)
        if self.stride is not None and not plain and not dense:
            text += f"({','.join('?' if s is None else str(s) for s in self.stride)})"
        if self.device is not None and self.device.type != "cpu":
            text += f"@{self.device}"
        if self.requires_grad is not None:
            text += " grad" if self.requires_grad else " no grad"
        return text if self.type is torch.Tensor else f"{self.type.__name__} {text}"


@dataclass(frozen=True)
class Expr:
    """A Python condition over named ints: `Expr("s0 + 1 < s1", (("s0", source), ("s1", source)))`."""

    text: str
    names: tuple[tuple[str, Source], ...]

    def __repr__(self) -> str:
        return self.text + " where " + ", ".join(f"{n} = {s.name()}" for n, s in self.names)


@dataclass(frozen=True, eq=False)
class Computed:
    """A value that a pure function of some tensors gave: `run(*sources)` is a tensor, `want` its items."""

    run: Callable[..., Any]
    sources: tuple[Source, ...]
    want: Any

    def __repr__(self) -> str:
        return f"{str(self.want)[:60]} from {', '.join(s.name() for s in self.sources)}"


# ---- global state ------------------------------------------------------------------------------------------------

def _autocast(device: str) -> tuple[bool, torch.dtype]:
    return torch._C.is_autocast_enabled(device), torch._C.get_autocast_dtype(device)


_C, _AD = torch._C, torch.autograd.forward_ad
# name -> (getter, text of its call; "{f}" is the getter itself)
STATES: dict[str, tuple[Callable[[], Any], str]] = {
    "grad_mode": (_C.is_grad_enabled, "{f}()"),
    "inference_mode": (_C.is_inference_mode_enabled, "{f}()"),
    "autocast": (_C._is_any_autocast_enabled, "{f}()"),
    "function_modes": (_C._len_torch_function_stack, "{f}()"),          # torch.device as a context is one of them
    "function_enabled": (_C._is_torch_function_enabled, "{f}()"),       # matters to tensor subclasses only
    "dispatch_modes": (_C._len_torch_dispatch_stack, "{f}()"),
    # vmap, torch.func.grad: a plain type hides wrappers
    "functorch_level": (_C._functorch.maybe_current_level, "{f}()"),
    "forward_ad_level": (lambda: _AD._current_level, "_AD._current_level"),
    "default_dtype": (torch.get_default_dtype, "{f}()"),
    "deterministic": (_C._get_deterministic_algorithms, "{f}()"),
    "anomaly": (_C.is_anomaly_enabled, "{f}()"),
    "autocast_cache": (_C.is_autocast_cache_enabled, "{f}()"),
    "autocast_nesting": (ambient.autocast_nesting, "{f}()"),
    "autocast_cpu": (lambda: _autocast("cpu"), "{f}()"),
    "autocast_cuda": (lambda: _autocast("cuda"), "{f}()"),
    "cuda_device": (lambda: _C._cuda_getDevice() if torch.cuda.is_initialized() else 0, "{f}()"),    # where "cuda" names no index
    "stance": (torch_controls.forced, ""),
    **library_flags.STATES,
}
ALWAYS = ("grad_mode", "inference_mode", "autocast", "function_modes", "dispatch_modes", "functorch_level",
          "forward_ad_level", "default_dtype", "deterministic", "stance")


@dataclass(frozen=True, slots=True, eq=True, repr=False)
class State(Source):
    """A piece of torch's global state, by its name in STATES."""

    which: str

    __hash__ = Source.__hash__

    def expr(self, at: Printer) -> str:
        if self.which == "stance":
            return torch_controls.forced_text(at.bind)
        getter, text = STATES[self.which]
        at.env["_AD"] = _AD
        return text.format(f=at.bind(getter, "f")) if "{" in text else text

    def name(self) -> str:
        return f"torch's {self.which}"


# ---- strict equality ---------------------------------------------------------------------------------------------

def same(a: Any, b: Any) -> bool:
    """Equality that tells types, signs of zero and nans apart, all the way down tuples, lists, dicts and sets."""
    if a is b:
        return True
    kind = type(a)
    if kind is not type(b):
        return False
    if kind is float:
        return (a == b and math.copysign(1.0, a) == math.copysign(1.0, b)) or (a != a and b != b)
    if kind is complex:
        return same(a.real, b.real) and same(a.imag, b.imag)
    if kind in numpy_types.SCALARS:
        return numpy_types.same_scalar(a, b)
    if kind is slice:
        return same((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return len(a) == len(b) and all(map(same, a, b)) and all(map(same, a.values(), b.values()))
    return bool(a == b)


# ---- rows --------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Row:
    """One kind of guard: how to print its check over the text of the value, and what to show when it fails."""

    check: Callable[[Printer, str, Any], str]
    seen: str                 # expression over {x} for what is there now; "" shows nothing
    says: str                 # "{name}", "{want}", "{got}"
    once: bool = True         # the check reads the value's text once (else it is fetched into a local first)
    cost: int = 30            # nanoseconds, rough


def _is(at: Printer, obj: Any) -> str:
    """Right side of an `is`."""
    if obj is None or obj is True or obj is False or obj is Ellipsis:
        return repr(obj)
    return at.ref(obj) if isinstance(obj, Ref) else at.bind(obj)


def _equals(at: Printer, x: str, value: Any) -> str:
    if value is None or type(value) is bool or value is Ellipsis:
        return f"{x} is {value!r}"
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return f"{x} is {at.bind(value)}"
    const = at.bind(value)
    if type(value) in (int, str):
        return f"({x} is {const} or (type({x}) is {type(value).__name__} and {x} == {value!r}))"
    return f"({x} is {const} or {at.bind(same, 'same')}({x}, {const}))"


def _equals_as(at: Printer, x: str, value: tuple[type, Any]) -> str:
    return f"{at.bind(same, 'same')}({at.bind(PLAIN_VALUE[value[0]], 'plain')}({x}), {at.bind(value[1])})"


def _keys(at: Printer, x: str, keys: tuple) -> str:
    if all(type(k) is str for k in keys):
        return f"[*{x}] == {at.bind(list(keys))}" if keys else f"not {x}"
    for k in keys:
        if isinstance(k, Ref):
            at.watch(k)
    if all(isinstance(k, Ref) for k in keys):
        return f"{at.bind(_are, 'are')}({x}, {at.bind([k.getter for k in keys])})"
    if any(isinstance(k, Ref) for k in keys):
        return f"{at.bind(_mixed_keys, 'keys')}({x}, {at.bind(list(keys))})"
    return f"{at.bind(same, 'same')}([*{x}], {at.bind(list(keys))})"


def _are(found: Iterable, getters: list[Callable[[], Any]]) -> bool:
    """Whether these are the objects that the getters return, all alive. Cost: 60 ns an object."""
    now, known = [*found], [get() for get in getters]
    return len(now) == len(known) and all(map(is_, now, known)) and not any(map(is_, known, repeat(None)))


def _mixed_keys(found: Any, keys: list) -> bool:
    """Whether the keys are these: objects (Ref) by identity, plain values strictly by value."""
    now = [*found]
    return len(now) == len(keys) and all(
        k.is_(a) if isinstance(k, Ref) else same(a, k) for a, k in zip(now, keys))


def _set_items(at: Printer, x: str, items: Any) -> str:
    if isinstance(items, frozenset):
        return f"{x} == {at.bind(items)} and {{*map(type, {x})}} == {at.bind({type(i) for i in items})}"
    return _keys(at, x, items)


def _dims(text: str, values: tuple) -> list[str]:
    return [f"len({text}) == {len(values)}"] + [
        f"{text}[{i}] == {v}" if v >= 0 else f"{text}[{i}] >= {-v}" for i, v in enumerate(values)]


def _steps(x: str, shape: tuple | None, values: tuple) -> list[str]:
    """Checks of strides of which some follow from sizes, are not checked, or not where the size is 1."""
    def wanted(i: int) -> str:
        v = values[i]
        return f"{x}.stride({i})" if v is None else str(v) if v >= 0 else f"{x}.shape[{-1 - v}] * {wanted(-1 - v)}"
    parts = [(i, f"{x}.stride({i}) == {wanted(i)}") for i, v in enumerate(values) if v is not None]
    return [f"({x}.shape[{i}] == 1 or {part})" if shape and shape[i] == -1 else part for i, part in parts]


def _contiguous(shape: tuple | None, stride: tuple) -> bool:
    """Whether `is_contiguous()` says the same of a tensor of this shape as its strides, some of which are not checked."""
    if shape is None or any(s < 1 for s in shape):
        return False
    return all(a == b if n > 1 else a is None for n, a, b in zip(shape, stride, contiguous_stride(shape), strict=True))


def neg_possible(check: TensorCheck) -> bool:
    """Whether a tensor with these strides can be a lazily negated view: those are x.conj().imag, of even strides."""
    if check.dtype is not None and not (check.dtype.is_floating_point or check.dtype.is_complex):
        return False
    if check.shape is None or check.stride is None:
        return True
    long = [st for s, st in zip(check.shape, check.stride) if s > 1 or s < 0]
    return 0 in check.shape or all(st is None or st < 0 or st % 2 == 0 for st in long)


def check_of(c: TensorCheck) -> Callable[[torch.Tensor], bool]:
    """The check as a function: of a tensor whose attributes an override would be told of."""
    at = Printer()
    parts = tensor_checks(at, "x", c, told=True)
    return eval(f"lambda x: {' and '.join(parts)}", at.env)


def tensor_checks(at: Printer, x: str, c: TensorCheck, told: bool = False) -> list[str]:
    """The parts of a tensor's check, cheapest and likeliest to fail first. `x` must be a name."""
    if not told and overrides(c.type):
        return [f"type({x}) is {_is(at, Ref(c.type))}", f"{at.bind(unasked(check_of(c)))}({x})"]
    parts = [f"type({x}) is {_is(at, Ref(c.type))}"]
    if c.shape is not None:
        dynamic = any(s < 0 for s in c.shape)
        parts += _dims(f"{x}.shape", c.shape) if dynamic else [f"{x}.shape == {at.bind(c.shape)}"]
    if c.dtype is not None:
        parts.append(f"{x}.dtype is {at.bind(c.dtype)}")
    if c.requires_grad is not None:
        parts.append(f"{x}.requires_grad" if c.requires_grad else f"not {x}.requires_grad")
    # an oneDNN tensor answers to shape and strides like any other
    parts.append(f"{x}.layout is {at.bind(torch.strided)}")
    if c.device is not None:
        parts.append(f"{x}.is_cpu" if c.device.type == "cpu" else f"{x}.device == {at.bind(c.device)}")
    if c.stride is not None:
        if _contiguous(c.shape, c.stride):
            parts.append(f"{x}.is_contiguous()")     # is cheaper
        elif any(s is None or s < 0 for s in c.stride):
            parts += _steps(x, c.shape, c.stride)
        else:
            parts.append(f"{x}.stride() == {at.bind(c.stride)}")
    if c.is_leaf is not None:
        parts.append(f"{x}.is_leaf" if c.is_leaf else f"not {x}.is_leaf")
    if c.storage_offset is not None:
        parts.append(f"{x}.storage_offset() == {c.storage_offset}")
    if c.dtype is None or c.dtype.is_complex:
        parts.append(f"{x}.is_conj()" if c.conj else f"not {x}.is_conj()")
    if c.neg or neg_possible(c):
        parts.append(f"{x}.is_neg()" if c.neg else f"not {x}.is_neg()")
    return parts


def _expr(at: Printer, x: str, value: Expr) -> str:
    return f"({expression_text(at, value)})"


def expression_text(at: Printer, value: Expr) -> str:
    """Its text with each name replaced by that source's."""
    namespace = {name: at.source(source) for name, source in value.names}
    names = "|".join(map(re.escape, namespace))
    text = re.sub(rf"\b(?:{names})\b", lambda found: namespace[found.group()], value.text) if names else value.text
    at.env.setdefault("math", math)
    return text


def _function(at: Printer, x: str, value: tuple) -> str:
    code, count, keys = value
    return " and ".join([
        f"{x}.__code__ is {at.bind(code)}",
        f"len({x}.__defaults__) == {count}" if count else f"not {x}.__defaults__",
        f"[*{x}.__kwdefaults__] == {at.bind(list(keys))}" if keys else f"not {x}.__kwdefaults__"])


def _state(at: Printer, x: str, value: Any) -> str:
    if type(value) is bool or (type(value) is int and value == 0):      # these getters answer a bool or a count
        return x if value else f"not {x}"
    return f"{x} == {at.literal(value)}" if type(value) in (int, tuple) else f"{x} is {_is(at, value)}"


def _computed(at: Printer, x: str, value: Computed) -> str:
    tensors = [x, *(at.source(s) for s in value.sources[1:])]
    return f"{at.bind(value.run, 'value')}({', '.join(tensors)}).tolist() == {at.bind(value.want)}"


def _truth(at: Printer, x: str, value: bool) -> str:
    return f"{x}" if value else f"not {x}"


KINDS: dict[str, Row] = {
    TYPE_IS: Row(lambda at, x, v: f"type({x}) is {_is(at, v)}", "type({x})",
                 "{name} was a {want}, is a {got}", cost=15),
    ID_IS: Row(lambda at, x, v: f"{x} is {_is(at, v)}", "{x}",
               "{name} is another object: was {want}, is {got}", cost=20),
    EQUALS: Row(_equals, "{x}", "{name} was {want}, is {got}", once=False, cost=20),
    EQUALS_AS: Row(_equals_as, "{x}", "{name} was {want}, is {got}", cost=300),
    BOOL: Row(_truth, "bool({x})", "bool({name}) was {want}, is {got}", cost=20),
    LEN_IS: Row(lambda at, x, v: f"len({x}) == {v}", "len({x})", "len({name}) was {want}, is {got}", cost=40),
    DICT_KEYS: Row(_keys, "[*{x}]", "keys of {name} were {want}, are {got}", cost=150),
    DICT_ABSENT: Row(lambda at, x, v: f"{at.literal(v)} not in {x}", "", "{name} has got the key {want}", cost=25),
    DICT_PRESENT: Row(lambda at, x, v: f"{at.literal(v)} in {x}", "", "{name} has lost the key {want}", cost=25),
    ATTR_ABSENT: Row(lambda at, x, v: f"not hasattr({x}, {v!r})", "", "{name} has got the attribute {want}", cost=500),
    SET_ITEMS: Row(_set_items, "{x}", "items of {name} were {want}, are {got}", once=False, cost=200),
    TENSOR: Row(lambda at, x, v: " and ".join(tensor_checks(at, x, v)), "{x}", "{name} was {want}, is {got}",
                once=False, cost=300),
    EXPR: Row(_expr, "", "{want} no longer holds", cost=60),
    ALIAS: Row(lambda at, x, v: f"{x} is {'' if v[1] else 'not '}{at.source(v[0])}", "",
               "whether {name} is {want} changed", cost=15),
    GLOBAL_STATE: Row(_state, "{x}", "{name} was {want}, is {got}", cost=30),
    FUNCTION: Row(_function, "{x}", "{name} has another code or other defaults", once=False, cost=60),
    NOT_NONE: Row(lambda at, x, v: f"{x} is not None", "", "{name} is None", cost=10),
    VALUE: Row(_computed, "{x}", "what was computed from {name} was {want}, is another", cost=8000),
    NO_GRAD_FN: Row(lambda at, x, v: f"{x}.grad_fn is None", "{x}.grad_fn", "{name} has got a grad_fn", cost=40),
}


# ---- guards ------------------------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class Guard:
    """A source, a kind, the value seen, and the user's line that read it (`where`, a Where or None)."""

    kind: str
    source: Source
    value: Any
    where: Any = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"{self.kind} {self.source.name()}: {self.value!r}" + (f"   # {self.where}" if self.where else "")


class GuardSet:
    """Guards in order, without duplicates or guards that others imply."""

    def __init__(self) -> None:
        self._by_source: dict[Source, dict[Any, Guard]] = {}
        self._order: list[Guard] = []

    def add(self, kind: str, source: Source, value: Any = None, where: Any = None) -> None:
        """Add a guard. User objects among the values are turned into weak references. Raises: KeyError (unknown
        kind)."""
        KINDS[kind]
        if _trivial(kind, source):
            return
        guard = Guard(kind, source, _kept(kind, value), where)
        mine = self._by_source.setdefault(source, {})
        slot = (kind, _slot(guard))
        if slot in mine or any(_implied(kind, guard, old) for old in mine.values()):
            return
        for key in [k for k, old in mine.items() if _implied(old.kind, old, guard)]:
            self._order.remove(mine.pop(key))
        mine[slot] = guard
        self._order.append(guard)

    def replace(self, guard: Guard, value: Any) -> None:
        """Give a guard another value."""
        new = Guard(guard.kind, guard.source, value, guard.where)
        self._order[self._order.index(guard)] = new
        self._by_source[guard.source][guard.kind, _slot(guard)] = new

    def add_state(self, *names: str) -> None:
        """Guard global state as it is now: the rows of STATES named, or ALWAYS (with autocast's details when it is
        on)."""
        wanted = list(names or ALWAYS)
        if not names and STATES["autocast"][0]():
            wanted += ["autocast_cpu", "autocast_cuda", "autocast_cache"]
        for name in wanted:
            self.add(GLOBAL_STATE, State(name), STATES[name][0]())

    def update(self, other: GuardSet) -> None:
        """Add all guards of another set."""
        for g in other:
            self.add(g.kind, g.source, g.value, g.where)

    def copy(self) -> GuardSet:
        """A set with the same guards, to go on from (or to come back to)."""
        new = GuardSet()
        new._order = list(self._order)
        new._by_source = {s: dict(m) for s, m in self._by_source.items()}
        return new

    def on(self, source: Source) -> list[Guard]:
        """The guards on a source."""
        return list(self._by_source.get(source, {}).values())

    def __iter__(self) -> Iterator[Guard]:
        return iter(self._order)

    def __len__(self) -> int:
        return len(self._order)

    def text(self) -> str:
        """One line a guard."""
        return "\n".join(map(repr, self._order))

    def __repr__(self) -> str:
        return f"GuardSet({len(self)} guards on {len(self._by_source)} sources)"


def _trivial(kind: str, source: Source) -> bool:
    """Guards on constants, and identity or type of what is known by identity, cannot fail."""
    return isinstance(source, Constant) or (isinstance(source, (Known, Scope)) and kind in (ID_IS, TYPE_IS))


def _kept(kind: str, value: Any) -> Any:
    """The value as a guard keeps it: objects as Ref, plain values as they are."""
    if isinstance(value, Ref):
        return value
    if kind == FUNCTION:        # what it is now: a function's code can be replaced
        if type(value) is tuple:
            return value
        return value.__code__, len(value.__defaults__ or ()), tuple(value.__kwdefaults__ or ())
    if kind in (ID_IS, TYPE_IS):
        return value if value is None or value is Ellipsis or type(value) is bool else Ref(value)
    if kind in (DICT_KEYS, SET_ITEMS) and not isinstance(value, frozenset):
        return tuple(k if isinstance(k, Ref) or plain(k) else Ref(k) for k in value)
    if kind in (DICT_ABSENT, DICT_PRESENT) and not plain(value):
        return Ref(value)
    return value


def _slot(guard: Guard) -> Any:
    """What tells two guards of one kind on one source apart (a key, a name); None where one kind says it all."""
    if guard.kind in (DICT_ABSENT, DICT_PRESENT, ATTR_ABSENT, EXPR, ALIAS, VALUE):
        return (type(guard.value), guard.value)
    return None


def _implied(kind: str, guard: Guard, by: Guard) -> bool:
    """Whether `by`, on the same source, makes `guard` redundant."""
    if by.kind == ID_IS:
        if kind in (TYPE_IS, NOT_NONE):      # an instance of a Python class can be given another __class__ later
            return not isinstance(by.value, Ref) or not _class_can_change(by.value.get())
        return kind == EQUALS and not isinstance(by.value, Ref)
    if by.kind == EQUALS:
        return kind in (TYPE_IS, BOOL, NOT_NONE, LEN_IS)
    if by.kind == TENSOR:
        return kind in (TYPE_IS, NOT_NONE)
    if by.kind in (DICT_KEYS, SET_ITEMS):
        return kind in (LEN_IS, DICT_ABSENT, DICT_PRESENT)
    return by.kind == TYPE_IS and kind == NOT_NONE


def _class_can_change(obj: Any) -> bool:
    return bool(type(obj).__flags__ & (1 << 9)) and not isinstance(obj, (type, torch.Tensor)) and not permanent(obj)
