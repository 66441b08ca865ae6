"""Operators over modelled values: arithmetic on numbers, containers, tensors and instances."""

from __future__ import annotations

import collections
import operator
from collections.abc import Callable
from typing import Any

import torch

from bytejit.common.quiet_reads import derives
from bytejit.compat import numpy_types
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.constants import NotConstant, is_constant, to_python
from bytejit.tracer.core.descriptions import shown_name
from bytejit.tracer.core.numpy_values import ArrayVar
from bytejit.tracer.core.read_values import ReadVar, refuse_reads
from bytejit.tracer.core.signals import SIGNALS, Break
from bytejit.tracer.core.texts import CONVERSION, TextVar, UnreadText, text_of
from bytejit.tracer.core.values import (
    DeferredVar,
    DictVar,
    DictView,
    InstanceVar,
    Known,
    MethodVar,
    ProxyVar,
    SeqVar,
    SetVar,
    SymVar,
    TensorVar,
    Var,
    expect,
    is_object,
)
from bytejit.tracer.sizes.called_anew import arithmetic_anew, call_anew, source_of

from .class_facts import MISSING, class_lookup
from .containers import base_of
from .folded_warnings import run_now
from .own_methods import NUMBERS, OF_MAPPINGS, OF_NUMBERS, answers, c_operator, is_number, is_sequence, own_method, refused
from .plain_parts import Said, plain_binary
from .set_orders import changed_in_place
from .unread_texts import unread

FUNCTIONS: dict[str, Callable] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "matmul": operator.matmul,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "divmod": divmod,
}
IN_PLACE: dict[str, Callable] = {
    "add": operator.iadd,
    "sub": operator.isub,
    "mul": operator.imul,
    "truediv": operator.itruediv,
    "floordiv": operator.ifloordiv,
    "mod": operator.imod,
    "pow": operator.ipow,
    "matmul": operator.imatmul,
    "lshift": operator.ilshift,
    "rshift": operator.irshift,
    "and": operator.iand,
    "or": operator.ior,
    "xor": operator.ixor,
}
MOST_BITS = 31  # of a power of two that stays open: products of it are to be integers of 64 bits
UNARY: dict[str, Callable] = {"neg": operator.neg, "pos": operator.pos, "invert": operator.invert}
LONGEST = 1_000_000  # items of a sequence that repetition may make in the trace
SET_OPERATIONS = {"and": "intersection", "or": "union", "sub": "difference", "xor": "symmetric_difference"}
SIZES_ADD = "__radd__" in vars(torch.Size)  # torch 2.8+: also what is added to a tuple is one
SYMBOL = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "** or pow()",
    "matmul": "@",
    "lshift": "<<",
    "rshift": ">>",
    "and": "&",
    "or": "|",
    "xor": "^",
    "divmod": "divmod()",
}


class Operators(Component):
    """The part of the tracer that carries out operators."""

    def fold(self, function: Callable, *args: Any) -> Any:
        """Run a pure function on constants now. Raises: Raised with its exception."""
        try:
            result = run_now(self.t, function, args, {})
        except SIGNALS:  # a value that the function asked for cannot be told
            raise
        except Exception as e:
            raise self.t.raised(e) from None
        return self.t.numpy_arrays.array(result) if isinstance(result, numpy_types.ARRAY) else self.t.values.constant(result)

    # ---- arithmetic -------------------------------------------------------------------------------------------------
    def binary(self, name: str, a: Var, b: Var, in_place: bool = False) -> Var:
        if (found := self.text(name, a, b) or arithmetic_anew(self.t, FUNCTIONS[name], a, b)) is not None:
            return found
        if type(a) is SymVar or type(b) is SymVar:
            if (power := self._power_of_two(name, a, b)) is not None:
                return power
            if (number := self.t.numbers.on_numbers(FUNCTIONS[name], a, b)) is not None:
                return number
        if isinstance(a, Known) and isinstance(b, Known) and (is_constant(a.obj) and is_constant(b.obj)):
            return self.fold((IN_PLACE if in_place else FUNCTIONS)[name], a.obj, b.obj)
        if isinstance(a, DeferredVar) or isinstance(b, DeferredVar):
            late = self.t.reads.binary(name, FUNCTIONS[name], a, b) or self.t.deferred.defer_binary(name, FUNCTIONS[name], a, b)
            if late is not None:
                return late
            refuse_reads(a, b)
            return self.binary(name, self.t.drawn.early(a), self.t.drawn.early(b), in_place)
        if isinstance(a, ArrayVar) or isinstance(b, ArrayVar):
            return self.t.numpy_arrays.array_call((IN_PLACE if in_place else FUNCTIONS)[name], [a, b])
        if name == "mod" and type(a) is Known and type(a.obj) in (str, bytes):  # takes any object on its right
            if not (issubclass(self.t.type_of(b), type(a.obj)) and answers(b, ("__rmod__",))):
                return self.format_percent(a, b)
        if isinstance(a, TensorVar) or isinstance(b, TensorVar):
            reflected = self.overloads(b) and not is_number(b) and not self.t.overrides.asked_by_tensor(a, b)
            if not self.overloads(a, f"__{name}__") and not reflected:
                return self.tensor_binary(name, a, b, in_place)
        own = answers(a, (f"__i{name}__", f"__{name}__", f"__r{name}__")) or answers(b, (f"__{name}__", f"__r{name}__"))
        own = own or any(isinstance(v, InstanceVar) and issubclass(v.cls, numpy_types.SCALAR) for v in (a, b))
        if own and not isinstance(a, DictView) and not isinstance(b, DictView):
            return self._binary_special(name, a, b, in_place)
        made = self._binary_containers(name, a, b, in_place)
        return made if made is not None else self._binary_special(name, a, b, in_place)

    def _power_of_two(self, name: str, a: Var, b: Var) -> Var | None:
        """2**b, a << b and a >> b for an integer b that changes: each call computes the power before the graph runs."""
        if name not in ("pow", "lshift", "rshift") or type(b) is not SymVar or not isinstance(b.value, torch.SymInt):
            return None
        whole = self.t.type_of(a) is int and (name != "pow" or type(a) is Known and a.obj == 2)
        if not whole or source_of(self.t, b) is None or not (b.value >= 0 and b.value < MOST_BITS):
            return None
        power = call_anew(self.t, operator.pow, [Known(2), b])
        if power is None or name == "pow":
            return power
        return self.binary("mul" if name == "lshift" else "floordiv", a, power)

    def text(self, name: str, a: Var, b: Var) -> Var | None:
        """Text put together, or filled in, with numbers that change."""
        if name == "add" and TextVar in (type(a), type(b)) and self.t.type_of(a) is self.t.type_of(b) is str:
            return text_of(operator.add, [a, b])
        if name == "add" and UnreadText in (type(a), type(b)):
            return unread(self.t, operator.add, [a, b])
        if name == "mod" and type(a) is Known and type(a.obj) is str:
            row = SeqVar(list(map(self.t.values.real, b.items)), tuple) if isinstance(b, SeqVar) and b.cls is tuple else b
            made = text_of(operator.mod, [a, row]) or unread(self.t, operator.mod, [a, row])
            return made or call_anew(self.t, operator.mod, [a, row])
        return None

    def overloads(self, v: Var, *methods: str) -> bool:
        """Whether a modelled instance brings its own operator."""
        if isinstance(v, InstanceVar) and issubclass(v.cls, numpy_types.SCALAR):
            raise Break("an instance of a subclass of a NumPy scalar combined with a tensor")
        return isinstance(v, InstanceVar) and (v.base is None or not is_number(v) or answers(v, methods))

    def tensor_binary(self, name: str, a: Var, b: Var, in_place: bool) -> Var:
        """An operator with a tensor on either side; `0 += tensor` makes a new tensor."""
        table = IN_PLACE if in_place and isinstance(a, TensorVar) else FUNCTIONS
        return self.t.overrides.of_operator(table[name], [a, b])

    def _binary_containers(self, name: str, a: Var, b: Var, in_place: bool) -> Var | None:
        if isinstance(a, SeqVar) and isinstance(b, SeqVar) and name == "add":
            same = a.cls is b.cls or (issubclass(a.cls, tuple) and issubclass(b.cls, tuple))
            if same:
                if in_place and not issubclass(a.cls, tuple):
                    self.t.touch(a)
                    a.items.extend(b.items)
                    self.shorten(a)
                    return a
                if a.cls is collections.deque:
                    return self.shorten(SeqVar([*a.items, *b.items], a.cls, maxlen=a.maxlen))
                if torch.Size in (a.cls, b.cls) and SIZES_ADD:
                    return self._sizes_added(a, b)
                return SeqVar([*a.items, *b.items], a.cls if a.cls in (list, tuple, torch.Size) else tuple)
        if isinstance(a, SeqVar) and in_place and name == "add" and a.cls is list:
            items = self.t.iteration.iterate(b, sized=True)
            self.t.touch(a)
            a.items.extend(items)
            return a
        for seq, n in ((a, b), (b, a)):
            if isinstance(seq, SeqVar) and isinstance(n, Known) and type(n.obj) in (int, bool) and name == "mul":
                if n.obj * len(seq.items) > LONGEST:
                    raise Break(f"a sequence of {n.obj * len(seq.items)} items made by repetition")
                if in_place and seq is a and seq.cls in (list, collections.deque):
                    self.t.touch(a)
                    a.items[:] = a.items * n.obj
                    return self.shorten(a)
                cls = seq.cls if seq.cls in (list, torch.Size, collections.deque) else tuple
                return self.shorten(SeqVar(seq.items * n.obj, cls, maxlen=seq.maxlen))
        if name in SET_OPERATIONS and (found := self._sets(name, a, b, in_place)) is not None:
            return found
        if name == "or" and isinstance(a, DictVar) and isinstance(b, DictVar):
            if not in_place and b.cls is not a.cls and derives(b.cls, a.cls):  # its __ror__ comes first
                self.t.values.complete(a)
                target = DictVar(dict(a.items), b.cls, factory=b.factory)
                self.t.calls.call_python(dict.update, [target, b])
                return target
            copied = a.cls.copy if a.cls in (collections.OrderedDict, collections.defaultdict) else dict.copy
            given = a.owner if isinstance(a, ProxyVar) else a
            made = a if in_place else self.t.calls.call_python(copied, [given])
            self.t.calls.call_python(dict.update, [made, b])
            return made
        return None

    def _sets(self, name: str, a: Var, b: Var, in_place: bool) -> Var | None:
        """An operation of sets: of two of them, or of a view of keys or items and anything to iterate. None for other values."""
        like_sets = [isinstance(v, SetVar) or isinstance(v, DictView) and v.kind != "values" for v in (a, b)]
        if not all(like_sets):
            other = b if like_sets[0] else a
            if not any(isinstance(v, DictView) and like for v, like in zip((a, b), like_sets)):
                return None
            if isinstance(other, (InstanceVar, TensorVar)):  # may have an operator of its own
                raise Break("a view of a dict combined with an instance")
        left, right = self.t.subscripts.as_set(a), self.t.subscripts.as_set(b)
        method = getattr(left.cls, SET_OPERATIONS[name])
        result = expect(self.t.calls.call_python(method, [left, right]), SetVar)
        if in_place and isinstance(a, SetVar) and a.cls is set and isinstance(b, SetVar):
            self.t.touch(a)
            a.table = changed_in_place(a, SET_OPERATIONS[name], b)
            a.items = result.items
            return a
        made = SetVar(result.items, a.cls if isinstance(a, SetVar) and isinstance(b, SetVar) else set)
        made.table = result.table if made.cls is result.cls else None
        return made

    def _sizes_added(self, a: SeqVar, b: SeqVar) -> SeqVar:
        """A torch.Size and a tuple, in either order: a torch.Size, where all are numbers."""
        made = SeqVar([*a.items, *b.items], torch.Size)
        if not all(self.t.type_of(v) is int for v in made.items):
            raise Break("a torch.Size and a tuple that holds more than numbers added")
        return made

    def shorten(self, seq: SeqVar) -> SeqVar:
        """A deque keeps its last `maxlen` items."""
        if seq.maxlen is not None:
            del seq.items[: max(0, len(seq.items) - seq.maxlen)]
        return seq

    def format_percent(self, a: Known, b: Var) -> Var:
        try:
            return self.fold(operator.mod, a.obj, to_python(self.t, b))
        except NotConstant:
            pass
        row = b.base if isinstance(b, InstanceVar) and isinstance(b.base, SeqVar) and b.base.cls is tuple else b
        parts = list(map(self.t.values.real, row.items if isinstance(row, SeqVar) and issubclass(row.cls, tuple) else [b]))
        kinds = [kind for kind in CONVERSION.findall(str(a.obj)) if kind != "%"]
        if any(kind not in "sra" and answers(part, OF_NUMBERS) for kind, part in zip(kinds, parts)):
            raise Break("formatting an object with % as a number")
        if isinstance(row, (InstanceVar, DictVar)) and ("%(" in str(a.obj) or len(kinds) != 1):
            raise Break("formatting a mapping with %")
        texts = [to_python(self.t, p) if self._is_plain(p) else Said.of(self.t, p) for p in parts]
        try:
            return self.t.values.constant(a.obj % tuple(texts))
        except (TypeError, ValueError):  # %d and the like of objects
            raise Break("formatting an object with % as a number") from None

    def _is_plain(self, v: Var) -> bool:
        try:
            to_python(self.t, v)
        except NotConstant:
            return False
        return True

    def _binary_special(self, name: str, a: Var, b: Var, in_place: bool) -> Var:
        """__iop__, __op__, __rop__, in Python's order."""
        found = plain_binary(self.t, name, a, b, in_place)
        if found is not None:
            return found
        a_cls, b_cls = self.t.type_of(a), self.t.type_of(b)
        attempts = [(a, f"__{name}__", b), (b, f"__r{name}__", a)]
        if b_cls is not a_cls and derives(b_cls, a_cls):
            own = class_lookup(b_cls, f"__r{name}__")[0]
            if own is not MISSING and own is not class_lookup(a_cls, f"__r{name}__")[0]:  # an inherited method comes second
                attempts.reverse()
        if a_cls is b_cls:
            attempts = attempts[:1]
        numeric = (f"__{name}__", f"__r{name}__")
        if in_place:  # in C a sequence is asked after what numbers have for it
            late = name in ("add", "mul") and (isinstance(a, SeqVar) or name == "mul" and is_sequence(a))
            late = late and not own_method(a_cls, f"__i{name}__")
            attempts.insert(len(attempts) if late else 0, (a, f"__i{name}__", b))
        for v, method, other in attempts:
            if v is a and method != numeric[1] and isinstance(b, InstanceVar) and not isinstance(a, InstanceVar):
                if (result := self._in_c(name, method, a, b)) is not None:
                    return result
            if name in ("add", "mul") and is_sequence(v) and method in numeric and not answers(v, numeric):
                continue
            if isinstance(v, (InstanceVar, SeqVar, DictVar, SetVar)) or (isinstance(v, Known) and isinstance(v.obj, type)):
                result = self.try_special(v, method, [other])
                if result is not None:
                    return result
        found = plain_binary(self.t, name, a, b, in_place, tried=True)
        if found is None and name == "mul":
            found = self._repeated(a, b, in_place)
        if found is not None:
            return found
        try:
            left, right = to_python(self.t, a, classes=True), to_python(self.t, b, classes=True)
        except NotConstant:
            if isinstance(a, TensorVar) or isinstance(b, TensorVar):
                return self.tensor_binary(name, a, b, in_place)
            worded = refused(self.t, (IN_PLACE if in_place else FUNCTIONS)[name], a, b)
            if worded is not None:
                raise worded from None
            symbol = SYMBOL[name] + ("=" if in_place else "")
            if name == "pow" and in_place:
                symbol = "**="
            raise self.t.raised(
                TypeError(f"unsupported operand type(s) for {symbol}: '{shown_name(a_cls)}' and '{shown_name(b_cls)}'")
            ) from None
        return self.fold((IN_PLACE if in_place else FUNCTIONS)[name], left, right)

    def _repeated(self, a: Var, b: Var, in_place: bool) -> Var | None:
        """A sequence repeated as often as an object says by its `__index__`; None for other values."""
        for seq, n in ((base_of(a), b), (base_of(b), a)):
            text = isinstance(seq, Known) and isinstance(seq.obj, (str, bytes))
            if (isinstance(seq, SeqVar) or text) and answers(n, ("__index__",)):
                return self.binary("mul", seq, Known(self.t.subscripts.index(n)), in_place and seq is a)
        return None

    def _in_c(self, name: str, method: str, a: Var, b: InstanceVar) -> Var | None:
        """Calls the operator of a built-in value with an instance on its right; None where it declines. Sequences come last: they
        have no operator for numbers."""
        if isinstance(a, DictVar) and method == "__ior__":
            return None  # it takes any mapping
        if isinstance(a, (SetVar, DictVar)) or type(a) is Known and type(a.obj) is frozenset:
            kinds = (dict,) if isinstance(a, DictVar) else (set, frozenset)
            if class_lookup(self.t.type_of(a), method)[0] is MISSING or not issubclass(b.cls, kinds):
                return None
            if b.base is None or isinstance(a, DictVar) and answers(b, OF_MAPPINGS):
                raise Break(f"an operator of a {self.t.type_of(a).__name__} and a {b.cls.__name__}, which is read by its methods")
            return self.binary(name, a, b.base, method == f"__i{name}__")
        right = b.base
        if type(a) is SymVar and isinstance(right, Known):
            return self.t.numbers.on_numbers(FUNCTIONS[name], a, right)
        numbers = isinstance(a, Known) and isinstance(a.obj, NUMBERS)
        return c_operator(self.t, method, a, right) if numbers and right is not None else None

    def try_special(self, v: Var, method: str, args: list[Var]) -> Var | None:
        """Call a special method; None when there is none or it returns NotImplemented."""
        found = self.t.attributes.find_special(v, method)
        if found is None:
            return None
        if isinstance(found, MethodVar) and isinstance(found.func, Known) and not self.t.calls.has_handler(found.func.obj):
            if not isinstance(v, InstanceVar) or v.base is None:
                if isinstance(v, InstanceVar):
                    raise Break(f"{self.t.type_of(v).__name__}.{method} of a C object")
                return None
        result = self.t.values.real(self.t.calls.call(found, args, {}))
        return None if is_object(result, NotImplemented) else result

    def unary(self, name: str, v: Var) -> Var:
        if (found := arithmetic_anew(self.t, UNARY[name], v)) is not None:
            return found
        if isinstance(v, ArrayVar):
            return self.t.numpy_arrays.array_call(UNARY[name], [v])
        if isinstance(v, ReadVar) and (late := self.t.reads.call(UNARY[name], [v])) is not None:
            return late
        if isinstance(v, DeferredVar):
            refuse_reads(v)
            return self.unary(name, self.t.drawn.early(v))
        if isinstance(v, TensorVar):
            return self.t.tensors.call_tensor_op(UNARY[name], [v], {})
        if type(v) is SymVar and name == "invert" and isinstance(v.value, torch.SymInt):
            return self.binary("sub", Known(-1), v)
        if type(v) is SymVar and name != "invert" and (number := self.t.numbers.on_numbers(UNARY[name], v)) is not None:
            return number
        if isinstance(v, Known) and is_constant(v.obj):
            return self.fold(UNARY[name], v.obj)
        result = self.try_special(v, f"__{name}__", [])
        if result is not None:
            return result
        sign = {"neg": "-", "pos": "+", "invert": "~"}[name]
        raise self.t.raised(TypeError(f"bad operand type for unary {sign}: '{self.t.type_of(v).__name__}'"))
