"""Operators over modelled values: arithmetic, comparison, truth, subscripts, length."""
from __future__ import annotations

import collections
import operator
import types

import torch

from bytejit.compat import numpy_types
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.signals import SIGNALS, Break, Raised
from bytejit.tracer.core.values import (
    NONE,
    ArrayVar,
    DictVar,
    DictView,
    InstanceVar,
    Known,
    LateVar,
    MethodVar,
    NumpyVar,
    SeqVar,
    SetVar,
    SliceVar,
    SymVar,
    TensorVar,
    Var,
    shown_name,
)
from bytejit.tracer.sizes.numpy_numbers import compare_numpy, plain_number

from .class_facts import MISSING, class_lookup
from .containers import ELEMENT, NotConstant, elements, is_constant, key_of, to_python
from .plain_parts import Said, plain, plain_binary, plain_equal

FUNCTIONS = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "truediv": operator.truediv, "floordiv": operator.floordiv,
    "mod": operator.mod, "pow": operator.pow, "matmul": operator.matmul, "lshift": operator.lshift, "rshift": operator.rshift,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor}
IN_PLACE = {
    "add": operator.iadd, "sub": operator.isub, "mul": operator.imul, "truediv": operator.itruediv,
    "floordiv": operator.ifloordiv, "mod": operator.imod, "pow": operator.ipow, "matmul": operator.imatmul,
    "lshift": operator.ilshift, "rshift": operator.irshift, "and": operator.iand, "or": operator.ior, "xor": operator.ixor}
UNARY = {"neg": operator.neg, "pos": operator.pos, "invert": operator.invert}
COMPARISONS = {"lt": operator.lt, "le": operator.le, "eq": operator.eq, "ne": operator.ne, "gt": operator.gt, "ge": operator.ge}
REFLECTED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}
LONGEST = 1_000_000      # items of a sequence that repetition may make in the trace
SET_OPERATIONS = {"and": "intersection", "or": "union", "sub": "difference", "xor": "symmetric_difference"}
SYMBOL = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "** or pow()", "matmul": "@",
          "lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^"}


class Operators(Component):
    """The part of the tracer that carries out operators."""

    def fold(self, function, *args):
        """Run a pure function on constants now. Raises: Raised with its exception."""
        try:
            result = function(*args)
        except SIGNALS:             # a value that the function asked for cannot be told
            raise
        except Exception as e:
            raise self.t.raised(e) from None
        return self.t.numpy_arrays.array(result) if isinstance(result, numpy_types.ARRAY) else self.t.values.constant(result)

    # ---- arithmetic -------------------------------------------------------------------------------------------------
    def binary(self, name: str, a: Var, b: Var, in_place: bool = False) -> Var:
        if type(a) is SymVar or type(b) is SymVar:
            found = self.t.sizes.on_numbers(FUNCTIONS[name], a, b)
            if found is not None:
                return found
        if isinstance(a, Known) and isinstance(b, Known) and (is_constant(a.obj) and is_constant(b.obj)):
            return self.fold(FUNCTIONS[name], a.obj, b.obj)
        if isinstance(a, LateVar) or isinstance(b, LateVar):
            return self.t.deferred.late_binary(name, FUNCTIONS[name], a, b)
        if isinstance(a, ArrayVar) or isinstance(b, ArrayVar):
            return self.t.numpy_arrays.array_call((IN_PLACE if in_place else FUNCTIONS)[name], [a, b])
        if isinstance(a, TensorVar) or isinstance(b, TensorVar):
            if not self.overloads(a, name) and not self.overloads(b, name):
                return self.tensor_binary(name, a, b, in_place)
        found = self._binary_containers(name, a, b, in_place)
        return found if found is not None else self._binary_special(name, a, b, in_place)

    def overloads(self, v: Var, name: str) -> bool:
        """Whether a modelled instance brings its own operator."""
        return isinstance(v, InstanceVar) and v.base is None

    def tensor_binary(self, name: str, a: Var, b: Var, in_place: bool) -> Var:
        """An operator with a tensor on either side; `0 += tensor` makes a new tensor."""
        table = IN_PLACE if in_place and isinstance(a, TensorVar) else FUNCTIONS
        return self.t.tensors.call_tensor_op(table[name], [a, b], {})

    def _binary_containers(self, name: str, a: Var, b: Var, in_place: bool) -> Var | None:
        a_seq, b_seq = isinstance(a, SeqVar), isinstance(b, SeqVar)
        if a_seq and b_seq and name == "add":
            same = a.cls is b.cls or (issubclass(a.cls, tuple) and issubclass(b.cls, tuple))
            if same:
                if in_place and not issubclass(a.cls, tuple):
                    self.t.touch(a)
                    a.items.extend(b.items)
                    self.shorten(a)
                    return a
                if a.cls is collections.deque:
                    return self.shorten(SeqVar([*a.items, *b.items], a.cls, maxlen=a.maxlen))
                return SeqVar([*a.items, *b.items], a.cls if a.cls in (list, tuple, torch.Size) else tuple)
        if a_seq and in_place and name == "add" and a.cls is list:
            items = self.t.iteration.iterate(b)
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
                return self.shorten(SeqVar(seq.items * n.obj, seq.cls, maxlen=seq.maxlen))
        if isinstance(a, Known) and type(a.obj) in (str, bytes) and name == "mod":
            return self.format_percent(a, b)
        if name in SET_OPERATIONS and isinstance(a, (SetVar, DictView)) and isinstance(b, (SetVar, DictView)):
            result = self.t.calls.call_python(getattr(set, SET_OPERATIONS[name]), [self.as_set(a), self.as_set(b)])
            if in_place and isinstance(a, SetVar) and a.cls is set:
                self.t.touch(a)
                a.items = result.items
                return a
            return SetVar(result.items, a.cls if isinstance(a, SetVar) else set)
        if name == "or" and isinstance(a, DictVar) and isinstance(b, DictVar):
            if not in_place and b.cls is not a.cls and issubclass(b.cls, a.cls):       # its __ror__ comes first
                self.t.values.complete(a)
                target = DictVar(dict(a.items), b.cls, factory=b.factory)
                self.t.calls.call_python(dict.update, [target, b])
                return target
            copied = a.cls.copy if a.cls in (collections.OrderedDict, collections.defaultdict) else dict.copy
            target = a if in_place else self.t.calls.call_python(copied, [a])
            self.t.calls.call_python(dict.update, [target, b])
            return target
        return None

    def shorten(self, seq: SeqVar) -> SeqVar:
        """A deque keeps its last `maxlen` items."""
        if seq.maxlen is not None:
            del seq.items[:max(0, len(seq.items) - seq.maxlen)]
        return seq

    def format_percent(self, a: Known, b: Var) -> Var:
        try:
            return self.fold(operator.mod, a.obj, to_python(self.t, b))
        except NotConstant:
            parts = b.items if isinstance(b, SeqVar) and issubclass(b.cls, tuple) else [b]
            values = [plain(self.t.values.real(p)) for p in parts]
            if all(map(self._is_plain, values)) and not any(self._has_text(self.t.values.real(p)) for p in parts):
                return self.fold(operator.mod, a.obj, tuple(to_python(self.t, v) for v in values))
            texts = [to_python(self.t, p) if self._is_plain(p) else Said.of(self.t, self.t.values.real(p)) for p in parts]
            try:
                return self.t.values.constant(a.obj % tuple(texts))
            except (TypeError, ValueError):         # %d and the like of objects
                raise Break("formatting an object with % as a number") from None

    def _has_text(self, v: Var) -> bool:
        """Whether the program says how an instance is shown."""
        return isinstance(v, InstanceVar) and any(
            isinstance(class_attribute(v.cls, name), types.FunctionType) for name in ("__str__", "__repr__"))

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
        if b_cls is not a_cls and issubclass(b_cls, a_cls) and hasattr(b_cls, f"__r{name}__"):
            attempts.reverse()
        if a_cls is b_cls:
            attempts = attempts[:1]
        if in_place:
            attempts.insert(0, (a, f"__i{name}__", b))
        for v, method, other in attempts:
            if isinstance(v, (InstanceVar, SeqVar, DictVar, SetVar)) or (isinstance(v, Known) and isinstance(v.obj, type)):
                result = self.try_special(v, method, [other])
                if result is not None:
                    return result
        found = plain_binary(self.t, name, a, b, in_place, tried=True)
        if found is not None:
            return found
        try:
            left, right = to_python(self.t, a, classes=True), to_python(self.t, b, classes=True)
        except NotConstant:
            if isinstance(a, TensorVar) or isinstance(b, TensorVar):
                return self.tensor_binary(name, a, b, in_place)
            symbol = SYMBOL[name] + ("=" if in_place else "")
            if name == "pow" and in_place:
                symbol = "**="
            raise self.t.raised(TypeError(f"unsupported operand type(s) for {symbol}: "
                                        f"'{shown_name(a_cls)}' and '{shown_name(b_cls)}'")) from None
        return self.fold((IN_PLACE if in_place else FUNCTIONS)[name], left, right)

    def try_special(self, v: Var, method: str, args: list[Var]) -> Var | None:
        """Call a special method; None when there is none or it answers NotImplemented."""
        found = self.t.attributes.find_special(v, method)
        if found is None:
            return None
        if isinstance(found, MethodVar) and isinstance(found.func, Known) and not self.t.calls.has_handler(found.func.obj):
            if not isinstance(v, InstanceVar) or v.base is None:
                if isinstance(v, InstanceVar):
                    raise Break(f"{self.t.type_of(v).__name__}.{method} of a C object")
                return None
        result = self.t.values.real(self.t.calls.call(found, args, {}))
        return None if isinstance(result, Known) and result.obj is NotImplemented else result

    def unary(self, name: str, v: Var) -> Var:
        if isinstance(v, ArrayVar):
            return self.t.numpy_arrays.array_call(UNARY[name], [v])
        if isinstance(v, LateVar):
            raise Break("a random number used in the region")
        if isinstance(v, TensorVar):
            return self.t.tensors.call_tensor_op(UNARY[name], [v], {})
        if type(v) is SymVar and name != "invert":
            return self.t.sizes.on_numbers(UNARY[name], v)
        if isinstance(v, Known) and is_constant(v.obj):
            return self.fold(UNARY[name], v.obj)
        result = self.try_special(v, f"__{name}__", [])
        if result is not None:
            return result
        sign = {"neg": "-", "pos": "+", "invert": "~"}[name]
        raise self.t.raised(TypeError(f"bad operand type for unary {sign}: '{self.t.type_of(v).__name__}'"))

    # ---- comparison ----------------------------------------------------------------------------------------------------
    def compare(self, name: str, a: Var, b: Var) -> Var:
        a, b = self.t.values.real(a), self.t.values.real(b)
        if isinstance(a, LateVar) or isinstance(b, LateVar):
            raise Break("a random number compared")
        if isinstance(a, ArrayVar) or isinstance(b, ArrayVar):
            return self.t.numpy_arrays.array_call(COMPARISONS[name], [a, b])
        if type(a) is NumpyVar or type(b) is NumpyVar:
            found = compare_numpy(self.t, COMPARISONS[name], a, b)
            if found is not None:
                return found
        if type(a) is SymVar or type(b) is SymVar:
            found = self._compare_symbols(name, a, b)
            if found is not None:
                return found
        if isinstance(a, Known) and isinstance(b, Known):
            if is_constant(a.obj) and is_constant(b.obj):
                return self.fold(COMPARISONS[name], a.obj, b.obj)
            if name in ("eq", "ne") and (isinstance(a.obj, (type, types.ModuleType, types.BuiltinFunctionType))
                                         or is_constant(a.obj) or is_constant(b.obj)):
                return self.fold(COMPARISONS[name], a.obj, b.obj)
        if isinstance(a, TensorVar) or isinstance(b, TensorVar):
            other = b if isinstance(a, TensorVar) else a
            if type(other) in (TensorVar, SymVar) or isinstance(other, Known) and (
                    self.t.type_of(other) in numpy_types.NUMBERS or isinstance(other.obj, (int, float, bool, complex))):
                return self.t.tensors.call_tensor_op(COMPARISONS[name], [a, b], {})
            if name in ("eq", "ne") and not isinstance(other, InstanceVar):
                return self.t.values.constant(name == "ne")
            if not isinstance(other, InstanceVar):
                raise Break(f"a tensor compared with a {self.t.type_of(other).__name__}")
        found = self._compare_containers(name, a, b)
        return found if found is not None else self._compare_special(name, a, b)

    def _compare_symbols(self, name: str, a: Var, b: Var) -> Var | None:
        """A comparison with a symbolic number: what it comes to is a condition. None where the other is no number."""
        found = self.t.sizes.on_numbers(COMPARISONS[name], a, b)
        other = b if type(a) is SymVar else a
        if found is not None or name not in ("eq", "ne"):
            return found
        never = isinstance(other, (SeqVar, DictVar, SetVar)) or type(other) is Known and isinstance(
            other.obj, (types.NoneType, str, type))
        return self.t.values.constant(name == "ne") if never else None

    def _compare_containers(self, name: str, a: Var, b: Var) -> Var | None:
        if isinstance(a, SeqVar) and isinstance(b, SeqVar):
            if not (a.cls is b.cls or issubclass(a.cls, tuple) and issubclass(b.cls, tuple)):
                return self.t.values.constant(name == "ne") if name in ("eq", "ne") else None
            return self._compare_sequences(name, a.items, b.items)
        if isinstance(a, DictVar) and isinstance(b, DictVar) and name in ("eq", "ne"):
            self.t.values.complete(a), self.t.values.complete(b)
            ordered = all(issubclass(v.cls, collections.OrderedDict) for v in (a, b))
            equal = len(a.items) == len(b.items) and (not ordered or list(a.items) == list(b.items)) and all(
                k in b.items and self.equal(v, b.items[k][1]) for k, (_, v) in a.items.items())
            return self.t.values.constant(equal == (name == "eq"))
        a, b = (
            SetVar({k: self.t.values.constant(k) for k in v.obj}, frozenset)
            if isinstance(v, Known) and type(v.obj) is frozenset
            else v
            for v in (a, b)
        )
        if isinstance(a, (SetVar, DictView)) and isinstance(b, (SetVar, DictView)):
            left, right = frozenset(self.as_set(a).items), frozenset(self.as_set(b).items)
            return self.t.values.constant(COMPARISONS[name](left, right))
        if name in ("eq", "ne") and isinstance(a, SliceVar) and isinstance(b, SliceVar):
            equal = all(self.equal(x, y) for x, y in zip(a.parts, b.parts))
            return self.t.values.constant(equal == (name == "eq"))
        return None

    def _compare_sequences(self, name: str, left: list, right: list) -> Var:
        if name in ("eq", "ne") and len(left) != len(right):
            return self.t.values.constant(name == "ne")
        for x, y in zip(left, right):
            if not self.equal(x, y):
                if name in ("eq", "ne"):
                    return self.t.values.constant(name == "ne")
                return self.compare(name, x, y)
        return self.t.values.constant(COMPARISONS[name](len(left), len(right)))

    def equal(self, a: Var, b: Var) -> bool:
        """`a is b or a == b`, as containers compare their items."""
        return self.is_same(a, b) or self.truth(self.compare("eq", a, b))

    def _compare_special(self, name: str, a: Var, b: Var) -> Var:
        a_cls, b_cls = self.t.type_of(a), self.t.type_of(b)
        attempts = [(a, f"__{name}__", b), (b, f"__{REFLECTED[name]}__", a)]
        if b_cls is not a_cls and issubclass(b_cls, a_cls):
            attempts.reverse()
        for v, method, other in attempts:
            if isinstance(v, InstanceVar):
                if v.base is not None and class_attribute(v.cls, method) is class_attribute(_base_class(v), method):
                    try:
                        return self.compare(name, v.base if v is a else a, self._plain_base(other) if v is a else v.base)
                    except Raised as e:
                        if name in ("eq", "ne") or not issubclass(e.exc.cls, TypeError):
                            raise
                        continue        # the message names the classes
                if class_attribute(v.cls, method) in (object.__eq__, object.__ne__, object.__lt__, object.__le__,
                                                      object.__gt__, object.__ge__):
                    if name == "ne" and class_attribute(v.cls, "__eq__") is not object.__eq__:
                        result = self.try_special(v, "__eq__", [other])
                        if result is not None:
                            return self.t.values.constant(not self.truth(result))
                    continue
                result = self.try_special(v, method, [other])
                if result is not None:
                    return result
        if name in ("eq", "ne"):
            found = plain_equal(self.t, name, a, b)
            if found is not None:
                return found
            for v in (a, b):
                if isinstance(v, Known) and not isinstance(v.obj, (type, types.ModuleType)) and not is_constant(v.obj):
                    if type(v.obj).__eq__ is not object.__eq__ and not callable(v.obj):
                        raise Break(f"comparing a {type(v.obj).__name__}")
            return self.t.values.constant(self.is_same(a, b) == (name == "eq"))
        symbol = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}[name]
        raise self.t.raised(TypeError(f"'{symbol}' not supported between instances of '{shown_name(a_cls)}' and "
                                    f"'{shown_name(b_cls)}'"))

    def _plain_base(self, v: Var) -> Var:
        return v.base if isinstance(v, InstanceVar) and v.base is not None else v

    def is_same(self, a: Var, b: Var) -> bool:
        """a is b."""
        a, b = self.t.values.real(a), self.t.values.real(b)
        if type(a) is SymVar or type(b) is SymVar:
            return a is b
        if isinstance(a, Known) and isinstance(b, Known):
            return a.obj is b.obj or (is_constant(a.obj) and type(a.obj) is type(b.obj) and a.obj == b.obj
                                      and isinstance(a.obj, (int, str)))
        if isinstance(a, TensorVar) and isinstance(b, TensorVar) and a is not b:
            self.t.copying.rely_on_copies(a, b)       # x.contiguous() is x, where it copies nothing
        return a is b

    def truth(self, v: Var) -> bool:
        """bool(v). Raises: Break when a tensor would decide, Raised."""
        v = self.t.values.real(v)
        if type(v := plain_number(self.t, v)) is SymVar:
            return bool(v.value != 0)
        if isinstance(v, Known):
            if is_constant(v.obj) or isinstance(v.obj, (type, types.ModuleType, types.BuiltinFunctionType)):
                return bool(v.obj)
            return True
        if isinstance(v, TensorVar):
            return self.t.tensors.tensor_truth(v)
        if isinstance(v, (SeqVar, SetVar, DictView)):
            return self.length(v) > 0
        if isinstance(v, DictVar):
            if not v.complete and not v.items and not v.deleted:
                filled = len(v.real) > 0
                self.t.guard("BOOL", v.source, filled)
                return filled
            if any(k not in v.deleted for k in v.items):
                return True
            return self.length(v) > 0
        if isinstance(v, LateVar):
            raise Break("a random number decides a branch")
        if isinstance(v, ArrayVar):
            return self.t.const(self.t.numpy_arrays.array_call(bool, [v]))
        if isinstance(v, InstanceVar):
            return self._instance_truth(v)
        return True

    def _instance_truth(self, v: InstanceVar) -> bool:
        for method in ("__bool__", "__len__"):
            found = class_attribute(v.cls, method)
            if isinstance(found, types.FunctionType):
                result = self.t.values.real(self.t.calls.call(self.t.attributes.special(v, method), [], {}))
                if not isinstance(result, Known):
                    raise Break(f"the truth of a {v.cls.__name__} depends on a tensor")
                if method == "__bool__" and type(result.obj) is not bool:
                    raise self.t.raised(TypeError(f"__bool__ should return bool, returned {type(result.obj).__name__}"))
                return bool(result.obj)
            if found is not None:
                if v.base is not None:
                    return self.truth(v.base)
                raise Break(f"the truth of a {v.cls.__name__}, a C object")
        return True

    # ---- subscripts -----------------------------------------------------------------------------------------------------
    def slice(self, parts: list[Var]) -> Var:
        return SliceVar([self.t.values.real(p) for p in parts])

    def index(self, v: Var) -> int:
        """operator.index(v) of a constant."""
        v = self.t.values.real(v)
        if isinstance(v, Known) and isinstance(v.obj, int):
            return int(v.obj)
        if isinstance(v, TensorVar):
            if (known := self.t.tensor_values.python_value(v, operator.index)) is not None:
                return known.obj
            raise Break("a tensor's value used as an index")
        if isinstance(v, InstanceVar):
            return self.index(
                v.base if isinstance(v.base, Known) else self.t.calls.call(self.t.attributes.special(v, "__index__"), [], {})
            )
        raise self.t.raised(TypeError(f"'{self.t.type_of(v).__name__}' object cannot be interpreted as an integer"))

    def real_slice(self, v: SliceVar) -> slice:
        return slice(*(None if isinstance(p, Known) and p.obj is None else self.index(p) for p in v.parts))

    def getitem(self, container: Var, key: Var) -> Var:
        container, key = self.t.values.real(container), self.t.values.real(key)
        if isinstance(container, TensorVar):
            return self.t.tensors.call_tensor_op(operator.getitem, [container, self._plain_index(key)], {})
        if isinstance(container, SeqVar):
            return self._sequence_item(container, key)
        if isinstance(container, DictVar):
            return self.dict_item(container, key)
        if isinstance(container, ArrayVar):
            return self.t.numpy_arrays.array_call(operator.getitem, [container, key])
        if isinstance(container, Known):
            return self._known_item(container, key)
        if isinstance(container, InstanceVar):
            found = class_attribute(container.cls, "__getitem__")
            if isinstance(found, types.FunctionType):
                return self.t.calls.call(self.t.attributes.special(container, "__getitem__"), [key], {})
            if container.base is not None:
                return self.getitem_of_base(container, key)
            if found is not None:
                raise Break(f"indexing a {container.cls.__name__}, a C object")
        raise self.t.raised(TypeError(f"'{self.t.type_of(container).__name__}' object is not subscriptable"))

    def _plain_index(self, key: Var) -> Var:
        """A tensor's index with what __index__ says in place of the instances that have one."""
        if isinstance(key, InstanceVar) and isinstance(class_attribute(key.cls, "__index__"), types.FunctionType):
            return Known(self.index(key))
        if (
            isinstance(key, SeqVar)
            and key.cls is tuple
            and any(isinstance(self.t.values.real(k), InstanceVar) for k in key.items)
        ):
            return SeqVar([self._plain_index(self.t.values.real(k)) for k in key.items], tuple)
        return key

    def getitem_of_base(self, v: InstanceVar, key: Var) -> Var:
        """Subscripting a subclass of a built-in container that does not override it; dicts look for __missing__."""
        if isinstance(v.base, DictVar) and self.t.values.lookup(v.base, key_of(self.t, key)) is None:
            missing = class_attribute(v.cls, "__missing__")
            if isinstance(missing, types.FunctionType):
                return self.t.calls.call(self.t.attributes.special(v, "__missing__"), [key], {})
        return self.getitem(v.base, key)

    def _sequence_item(self, seq: SeqVar, key: Var) -> Var:
        if isinstance(key, SliceVar):
            if seq.cls not in (list, tuple, torch.Size) and not issubclass(seq.cls, tuple):
                raise self.t.raised(TypeError("sequence index must be integer, not 'slice'"))
            try:
                return SeqVar(seq.items[self.real_slice(key)], seq.cls if seq.cls in (list, torch.Size) else tuple)
            except ValueError as e:
                raise self.t.raised(e) from None
        if not isinstance(key, (TensorVar, InstanceVar)) and not (isinstance(key, Known) and isinstance(key.obj, int)):
            name = "list" if seq.cls is list else "tuple"
            raise self.t.raised(TypeError(f"{name} indices must be integers or slices, not {self.t.type_of(key).__name__}"))
        try:
            return seq.items[self.index(key)]
        except IndexError:
            kind = "deque" if seq.cls.__name__ == "deque" else "list" if seq.cls is list else "tuple"
            name = f"{kind} index out of range"
            raise self.t.raised(IndexError(name)) from None

    def dict_item(self, d: DictVar, key: Var) -> Var:
        real_key = key_of(self.t, key)
        found = self.t.values.lookup(d, real_key)
        if found is not None:
            return found
        if d.cls.__name__ == "Counter":
            return Known(0)
        if d.cls.__name__ == "defaultdict" and not self.is_same(d.factory, NONE):
            value = self.t.calls.call(self.t.values.real(d.factory), [], {})
            self.dict_set(d, key, value)
            return value
        e = self.t.raised(KeyError(real_key if is_constant(real_key) else "?"))
        e.exc.slots["args"] = SeqVar([key], tuple)
        raise e

    def _known_item(self, v: Known, key: Var) -> Var:
        if isinstance(v.obj, type) or not is_constant(v.obj):
            if isinstance(v.obj, type) and "__class_getitem__" not in dir(v.obj) and type(v.obj) is not type:
                found = self.t.attributes.find_special(v, "__getitem__")
                if found is not None:
                    return self.t.calls.call(found, [key], {})
            try:
                return self.fold(operator.getitem, v.obj, to_python(self.t, key, classes=True))
            except NotConstant:
                raise Break(f"indexing {v!r}") from None
        try:
            return self.fold(operator.getitem, v.obj, to_python(self.t, key))
        except NotConstant:
            raise Break("a tensor's value used as an index") from None

    def setitem(self, container: Var, key: Var, value: Var) -> None:
        container, key = self.t.values.real(container), self.t.values.real(key)
        if isinstance(container, TensorVar):
            self.t.tensors.call_tensor_op(operator.setitem, [container, self._plain_index(key), value], {})
        elif isinstance(container, ArrayVar):
            self.t.numpy_arrays.array_call(operator.setitem, [container, key, value])
        elif isinstance(container, SeqVar) and not issubclass(container.cls, tuple):
            self._no_slices(container, key)
            self.t.touch(container)
            try:
                if isinstance(key, SliceVar):
                    container.items[self.real_slice(key)] = list(self.t.iteration.iterate(self.t.values.real(value)))
                else:
                    container.items[self.index(key)] = value
            except (IndexError, ValueError) as e:
                if isinstance(e, IndexError) and container.cls is list:
                    e = IndexError("list assignment index out of range")
                raise self.t.raised(e) from None
        elif isinstance(container, DictVar):
            self.dict_set(container, key, value)
        elif isinstance(container, InstanceVar) and class_attribute(container.cls, "__setitem__") is not None:
            if not isinstance(class_attribute(container.cls, "__setitem__"), types.FunctionType) and container.base is not None:
                self.setitem(container.base, key, value)
            else:
                self.t.calls.call(self.t.attributes.special(container, "__setitem__"), [key, value], {})
        else:
            raise self.t.raised(TypeError(f"'{self.t.type_of(container).__name__}' object does not support item assignment"))

    def _no_slices(self, seq: SeqVar, key: Var) -> None:
        if isinstance(key, SliceVar) and seq.cls is collections.deque:
            raise self.t.raised(TypeError("sequence index must be integer, not 'slice'"))

    def delitem(self, container: Var, key: Var) -> None:
        container, key = self.t.values.real(container), self.t.values.real(key)
        if isinstance(container, SeqVar) and not issubclass(container.cls, tuple):
            self._no_slices(container, key)
            self.t.touch(container)
            try:
                del container.items[self.real_slice(key) if isinstance(key, SliceVar) else self.index(key)]
            except IndexError as e:
                raise self.t.raised(IndexError("list assignment index out of range") if container.cls is list else e) from None
        elif isinstance(container, DictVar):
            real_key = key_of(self.t, key)
            if self.t.values.lookup(container, real_key) is None:
                e = self.t.raised(KeyError("?"))
                e.exc.slots["args"] = SeqVar([key], tuple)
                raise e
            self.dict_del(container, real_key)
        elif isinstance(container, InstanceVar):
            if not isinstance(class_attribute(container.cls, "__delitem__"), types.FunctionType) and container.base is not None:
                self.delitem(container.base, key)
            else:
                self.t.calls.call(self.t.attributes.special(container, "__delitem__"), [key], {})
        else:
            raise self.t.raised(TypeError(f"'{self.t.type_of(container).__name__}' object does not support item deletion"))

    def contains(self, container: Var, item: Var) -> bool:
        container, item = self.t.values.real(container), self.t.values.real(item)
        if isinstance(container, DictVar):
            return self.t.values.lookup(container, key_of(self.t, item)) is not None
        if isinstance(container, SetVar):
            return key_of(self.t, item, ELEMENT) in container.items
        if isinstance(container, DictView) and container.kind == "keys":
            return self.contains(container.owner, item)
        if isinstance(container, ArrayVar):
            return self.t.const(self.t.numpy_arrays.array_call(operator.contains, [container, item]))
        if isinstance(container, SeqVar):
            return any(self.equal(v, item) for v in list(container.items))
        if isinstance(container, Known) and is_constant(container.obj):
            try:
                return bool(self.fold(operator.contains, container.obj, to_python(self.t, item)).obj)
            except NotConstant:
                raise Break("a tensor looked for in a constant") from None
        if isinstance(container, TensorVar):
            raise Break("`in` on a tensor")
        if isinstance(container, InstanceVar):
            found = class_attribute(container.cls, "__contains__")
            if isinstance(found, types.FunctionType):
                return self.truth(self.t.calls.call(self.t.attributes.special(container, "__contains__"), [item], {}))
            if container.base is not None:
                return self.contains(container.base, item)
        if isinstance(container, Known) and isinstance(container.obj, type):
            found = self.t.attributes.find_special(container, "__contains__")
            if found is not None and isinstance(item, Known):
                return bool(self.fold(operator.contains, container.obj, item.obj).obj)
        return any(self.equal(v, item) for v in self.t.iteration.iterate(container))

    def length(self, v: Var) -> int:
        v = self.t.values.real(v)
        if isinstance(v, SeqVar):
            return len(v.items)
        if isinstance(v, SetVar):
            return len(v.items)
        if isinstance(v, DictVar):
            self.t.values.complete(v)
            return len(v.items)
        if isinstance(v, DictView):
            return self.length(v.owner)
        if isinstance(v, TensorVar):
            return self.t.const(self.t.tensors.call_tensor_op(len, [v], {}))
        if isinstance(v, ArrayVar):
            return self.t.const(self.t.numpy_arrays.array_call(len, [v]))
        if isinstance(v, Known) and is_constant(v.obj):
            return self.fold(len, v.obj).obj
        if isinstance(v, InstanceVar):
            if isinstance(class_attribute(v.cls, "__len__"), types.FunctionType):
                return self.index(self.t.calls.call(self.t.attributes.special(v, "__len__"), [], {}))
            if v.base is not None:
                return self.length(v.base)
            if class_attribute(v.cls, "__len__") is not None:
                raise Break(f"the length of a {v.cls.__name__}, a C object")
        if isinstance(v, Known) and isinstance(v.obj, type) and hasattr(type(v.obj), "__len__"):
            return self.fold(len, v.obj).obj
        raise self.t.raised(TypeError(f"object of type '{self.t.type_of(v).__name__}' has no len()"))

    # ---- writes into dicts ------------------------------------------------------------------------------------------------
    def dict_set(self, d: DictVar, key: Var, value: Var) -> None:
        real_key = key_of(self.t, key)
        if d.cls is types.MappingProxyType:
            raise self.t.raised(TypeError("'mappingproxy' object does not support item assignment"))
        self.t.touch(d)
        if d.real is not None and not d.complete and real_key not in d.items and real_key not in d.deleted:
            self.t.values.lookup(d, real_key)          # whether it was there decides its place in the order
        old = d.items.get(real_key)
        d.items[real_key] = (old[0] if old is not None else key, value)

    def dict_del(self, d: DictVar, real_key) -> None:
        self.t.touch(d)
        d.items.pop(real_key, None)
        if d.real is not None:
            d.deleted.add(real_key)

    def as_set(self, v: Var) -> SetVar:
        if isinstance(v, SetVar):
            return v
        return SetVar(elements(self.t, self.t.iteration.iterate(v)))


def class_attribute(cls: type, name: str):
    """A class attribute found by MRO, unbound; None without one."""
    found = class_lookup(cls, name)[0]
    return None if found is MISSING else found


def _base_class(v: InstanceVar) -> type:
    return type(v.base.obj) if isinstance(v.base, Known) else v.base.cls
