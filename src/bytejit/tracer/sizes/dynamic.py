"""Symbolic sizes and ints in a trace: which become symbols, their values as graph nodes and as Python text, their guards.

`Tracer.env` is None until the first symbol is made; sympy is imported then.
"""
from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from bytejit.common import logs, torch_controls
from bytejit.common.registry import DYNAMIC_DIMS, STATIC_DIMS
from bytejit.errors import ConstraintViolation
from bytejit.fake.sized import infer_sized
from bytejit.fake.tensor import DataDependent, Fake, NoFake
from bytejit.guards.kinds import Expr, GuardSet, TensorCheck
from bytejit.guards.sources import Local, ModuleBuffer, ModuleParam, Source, StackSlot, TensorSize, TensorStride
from bytejit.shapes.symbols import Manner, NotReal, is_symbolic
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.signals import Break, Specialise
from bytejit.tracer.core.sizes import Dynamic, Feed
from bytejit.tracer.core.values import Known, NumpyVar, SeqVar, SymVar, TensorVar, Var

from .copies import MAY_COPY
from .numpy_numbers import plain_number

NUMBERS = (int, float, bool)


def changes_its_tensor(fn: Callable) -> bool:
    """Whether a call gives a tensor another shape in place: it is made once, and answers that very tensor."""
    return getattr(fn, "__name__", "") in ("unsqueeze_", "squeeze_", "transpose_", "swapaxes_", "swapdims_", "t_", "resize_",
                                           "as_strided_", "resize_as_", "set_")


class Symbols(Component):
    """The part of the tracer that deals in symbolic numbers."""

    def start_symbols(self, dynamic: Dynamic) -> None:
        """No symbols yet."""
        self.dynamic, self.env = dynamic, None
        self.sizes_leave = False                    # whether a symbolic number leaves the region
        self.t.manner: Manner | None = None           # of the operation inferred last
        self.symbols: dict[Source, Feed] = {}
        self.sources: dict[Any, Source] = {}                # sympy symbol -> its source
        self.number_nodes: dict[Any, torch.fx.Node] = {}
        self.checks: dict[Source, tuple[tuple, tuple]] = {}     # tensor -> symbolic shape and stride, as its guard has them
        self.fake_sizes: dict[Source, tuple[tuple, tuple]] = {}
        self.marked: dict[Source, int] = {}                 # sizes that the user marked dynamic -> what they are now
        self.copies: list[tuple] = []                       # (memory, memory of its copy, terms)
        self.t.hysteresis.start_varying()
        self.t.unit_strides.start_unit_strides()
        self.t.measures.start_measuring()

    def environment(self) -> Any:
        """The Env, made with the first symbol."""
        if self.env is None:
            from bytejit.shapes.environment import Env  # sympy comes with it
            self.env = Env(lambda: self.t.tensors.where() if self.t.frame is not None else None, self.t.measures.refuse_inside)
        return self.env

    # ---- making symbols ----------------------------------------------------------------------------------------------
    def symbol(self, source: Source, real: int | float, low: int | None = 2, high: int | None = None,
               now: int | None = None) -> Any:
        """The symbol of a size, an int or a float from outside: a placeholder of the graph. `now`: as in Feed."""
        found = self.symbols.get(source)
        if found is not None:
            return found.value
        env = self.environment()
        name = f"{'f' if type(real) is float else 's'}{len(self.symbols)}"
        value = env.float_symbol(name, real) if type(real) is float else env.symbol(name, real, low, high)
        node = self.t.graph.placeholder(name)
        node.target, node.meta["val"] = node.name, value
        feed = self.symbols[source] = Feed(source, value, node, now)
        self.t.inputs.append(feed)
        self.sources[value.node.e], self.number_nodes[value.node.e] = source, node
        return value

    def input_sizes(self, obj: torch.Tensor, source: Source) -> tuple[tuple, tuple] | None:
        """Shape and stride of a tensor from outside with symbols for sizes that are dynamic; None where none is."""
        d, shape, stride = self.dynamic, tuple(obj.shape), obj.stride()
        marks, fixed, weak = getattr(obj, DYNAMIC_DIMS, None) or {}, getattr(obj, STATIC_DIMS, ()), ()
        said = torch_controls.dims_of(obj)
        if said is not None:
            marks, weak, fixed = {**said.dynamic, **marks}, said.weak, said.fixed.union(fixed).difference(marks)
        if not d.at_once and not d.changed and not marks:
            return None
        traced = self.t.hysteresis.traced_sizes(shape, source, fixed)
        if isinstance(source, (ModuleParam, ModuleBuffer)) or isinstance(obj, torch.nn.Parameter):
            marks, d, traced = {}, Dynamic(False, d.changed, d.static), {}
        sizes: list = list(shape)
        for i, n in enumerate(shape):
            key, (low, high) = TensorSize(source, i), marks.get(i, (None, None))
            if i in marks and i not in weak and n > 1:
                self.marked[key] = n
            if traced.get(i, n) < 2 or i in fixed or key in d.static or not (i in marks or i in traced or d.wants(key)):
                continue
            if n >= (low or 1) and (high is None or n <= high):
                sizes[i] = self.bounded(key, traced.get(i, n), low, high, n)
        self.t.hysteresis.note_varying(shape, sizes)
        check = self.steps_of(shape, stride, sizes)
        steps: list = []
        for i, s in enumerate(check):
            key = TensorStride(source, i)
            if s > 1 and d.wants(key) and not d.at_once:
                steps.append(self.symbol(key, s))
                self.t.guard("EXPR", source, self.expr_guard(steps[-1].node.e, f"2 <= {steps[-1].node.e}"))
            else:
                steps.append(s)
        if not any(map(is_symbolic, (*sizes, *steps))):
            return None
        guarded = tuple(None if is_symbolic(s) else s for s in steps)
        for i in sorted(range(len(shape)), key=lambda i: (stride[i], -i)):        # inner dims first
            if not is_symbolic(steps[i]) and steps[i] < 0:
                inner = -1 - steps[i]
                steps[i] = steps[inner] * sizes[inner]
        self.checks[source] = tuple(-1 if is_symbolic(s) else s for s in sizes), guarded
        self.fake_sizes[source] = tuple(sizes), tuple(steps)
        return tuple(sizes), tuple(steps)

    def bounded(self, key: Source, n: int, low: int | None, high: int | None, now: int) -> torch.SymInt:
        """The symbol of a size that is `now` and is traced as n; a range that the user promised is guarded."""
        size = self.symbol(key, n, 1, None, now if now != n else None)
        if low is not None and low > 1:
            operator.truth(size >= low)
        if high is not None:
            operator.truth(size <= high)
        return size

    def steps_of(self, shape: tuple, stride: tuple, sizes: list) -> list[int]:
        """Strides, where one that follows from a symbolic size is -1-k: shape[k] * stride[k]."""
        out = list(stride)
        order = sorted((i for i in range(len(shape))), key=lambda i: (stride[i], shape[i] != 1, -i))
        moved: set[int] = set()
        for i in order:
            for k in order:
                if k != i and stride[k] * shape[k] == stride[i] and stride[k] <= stride[i] and stride[k] != 0 \
                        and (shape[k] > 1 or k > i) and (is_symbolic(sizes[k]) or k in moved and shape[k] > 1) \
                        and self.before(k, i, out):
                    out[i] = -1 - k
                    moved.add(i)
                    break
        return out

    def before(self, k: int, i: int, steps: list[int]) -> bool:
        """Whether stride k can be known without stride i."""
        while steps[k] < 0:
            k = -1 - steps[k]
            if k == i:
                return False
        return k != i

    def tensor_check(self, obj: torch.Tensor, source: Source, requires_grad: bool) -> TensorCheck:
        """The guard of an input tensor, its symbolic sizes left open."""
        shape, stride = self.checks.get(source) or (tuple(obj.shape), obj.stride())
        return TensorCheck.of(obj, requires_grad, shape, self.t.unit_strides.without_unit_strides(shape, stride))

    def wrap_number(self, obj: int | float, source: Source) -> Var | None:
        """A symbol for an int or float from outside that changes; None where it stays a constant."""
        d = self.dynamic
        if not (d.at_once and isinstance(source, (Local, StackSlot)) or source in d.changed) or source in d.static:
            return None
        if type(obj) is float:
            self.t.guard("TYPE_IS", source, float)
            return SymVar(self.symbol(source, obj), source)
        if not self.is_usable(obj):
            return None
        self.t.guard("TYPE_IS", source, int)
        return self.int_symbol(obj, source)

    @staticmethod
    def is_usable(obj: int) -> bool:
        """Whether an int may be a symbol: 0 and 1 matter in themselves, and larger ones are no sizes."""
        return not 0 <= obj < 2 and -2**31 <= obj <= 2**31

    def int_symbol(self, obj: int, source: Source) -> SymVar:
        """The symbol of an int from outside, its sign guarded."""
        known = source in self.symbols
        value = self.symbol(source, obj) if obj >= 0 else self.symbol(source, obj, None, -1)
        if not known:
            name = str(value.node.e)
            self.t.guard("EXPR", source, Expr(f"{name} >= 2" if obj >= 0 else f"{name} < 0", ((name, source),)))
        return SymVar(value, source)

    # ---- values --------------------------------------------------------------------------------------------------------
    def number(self, value: Any) -> Var:
        """A number that may be symbolic, as a Var."""
        if isinstance(value, torch.SymBool):
            value = bool(value)
        elif is_symbolic(value):
            known = value.node.value
            if not isinstance(known, NUMBERS):
                return SymVar(value)
            value = known
        return self.t.values.constant(value)

    def number_of(self, v: Var) -> Any:
        """The int, float or symbol that a Var is; None for others."""
        if type(v) is SymVar:
            return v.value
        return v.obj if isinstance(v, Known) and type(v.obj) in NUMBERS else None

    def on_numbers(self, function: Callable, *args: Var) -> Var | None:
        """function(*args) where all args are numbers; None otherwise. Raises: Raised."""
        real = [self.number_of(a) for a in args]
        if any(r is None for r in real):
            return None
        try:
            return self.number(self.computed(function, real))
        except (ArithmeticError, ValueError, TypeError) as e:
            raise self.t.raised(e) from None

    def computed(self, function: Callable, numbers: list) -> Any:
        """function(*numbers), of which some are symbolic. A float is computed as Python does."""
        if not is_math(function) and not any(isinstance(n, (float, torch.SymFloat)) for n in numbers):
            return function(*numbers)
        from bytejit.shapes.nodes import apply
        try:
            found = apply(function, numbers)
        except NotReal:                     # a complex number: of what the floats are now
            return function(*(float(n) if isinstance(n, torch.SymFloat) else int(n) if isinstance(n, torch.SymInt) else n
                              for n in numbers))
        return function(*numbers) if found is None else found

    def symbolic_call(self, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """A call of a library function that symbols pass through; None where it is none, or no symbol is among the args."""
        if kwargs or not args:
            return None
        try:
            function = PASSED.get(fn) or (fn if is_math(fn) else None)
        except TypeError:
            return None
        if function is None:
            return None
        args = [self.t.values.real(a) for a in args]
        args = [plain_number(self.t, a) if type(a) is NumpyVar and takes_plain(fn, a.real) else a for a in args]
        if any(type(a) is SymVar for a in args):
            return self.on_numbers(function, *args)
        if fn is math.prod and len(args) == 1 and isinstance(args[0], SeqVar):
            items = [self.t.values.real(i) for i in args[0].items]
            return self.on_numbers(lambda *xs: math.prod(xs), *items) if any(type(i) is SymVar for i in items) else None
        return None

    def tensor_length(self, v: TensorVar) -> Var | None:
        """len(tensor) where it is symbolic."""
        return self.number(v.fake.shape[0]) if v.fake.dim() and is_symbolic(v.fake.shape[0]) else None

    # ---- graph nodes and text ----------------------------------------------------------------------------------------
    def number_node(self, value: Any) -> Any:
        """A graph node (or a plain number) for a symbolic number: placeholders, and arithmetic on them."""
        if isinstance(value, torch.SymBool):
            return bool(value)
        return self.expression_node(value.node.public)

    def expression_node(self, e: Any) -> Any:
        """The node that computes an expression; one for each."""
        if isinstance(e, NUMBERS):
            return e
        found = self.number_nodes.get(e)
        if found is None:
            function, parts = parts_of(e)
            args = tuple(self.expression_node(p) for p in parts)
            if not any(isinstance(a, torch.fx.Node) for a in args):
                return function(*args)
            found = self.t.graph.call_function(function, args)
            found.meta["val"] = self.sym_of(e)
            found.meta["where"] = self.t.tensors.where() if self.t.frame is not None else None
            self.number_nodes[e] = found
        return found

    def sym_of(self, e: Any) -> Any:
        """An expression as a SymInt or SymFloat."""
        from bytejit.shapes.environment import Node
        from bytejit.shapes.integer_math import is_float
        return torch.SymFloat(Node(self.env, e, float)) if is_float(e) else torch.SymInt(Node(self.env, e, int))

    def number_text(self, value: Any, at: Any) -> str:
        """Python text of a symbolic number over sources."""
        from bytejit.guards.kinds import expression_text
        e = value.node.public
        if isinstance(e, NUMBERS):
            return repr(e)
        return expression_text(at, self.expr_guard(e))

    def expr_guard(self, e: Any, text: str | None = None) -> Expr:
        """Text over sizes, with the source of each symbol in it. `e`: an expression, or a Condition with its `text`."""
        from bytejit.shapes.integer_math import text as text_of
        symbols = e.symbols() if hasattr(e, "symbols") else e.free_symbols
        return Expr(text or text_of(e), tuple((str(s), self.sources[s]) for s in sorted(symbols, key=str)))

    # ---- specialising and guards -------------------------------------------------------------------------------------
    def refuse_symbols(self, args: Any, where: Any = None) -> None:
        """Something failed on these arguments: if sizes among them are symbolic, trace again with those static. where: the
        user's line, if not the one being traced.

        Raises: Specialise.
        """
        found: set = set()
        for x in numbers_in(args):
            if is_symbolic(x):
                e = x.node.public
                found |= getattr(e, "free_symbols", set())
        if found - self.t.measures.measured.keys():
            raise Specialise(
                frozenset(self.sources[s] for s in found - self.t.measures.measured.keys()), where or self.t.tensors.where()
            )

    def run_symbolic(self, fn: Callable, args: Any, kwargs: dict) -> Any:
        """What `fn(*args, **kwargs)` gives on fakes with symbolic sizes. Raises: Break, where eager may refuse what is empty."""
        with self.env.rely():
            result = self.infer_symbolic(fn, args, kwargs)
        name = getattr(fn, "__name__", "")
        if any(word in name for word in REFUSE_EMPTY) and any(n == 0 for n in sizes_in((args, kwargs, result))):
            raise Break(f"{name} of a tensor without elements")
        return result

    def infer_symbolic(self, fn: Callable, args: Any, kwargs: dict) -> Any:
        """fn(*args, **kwargs) on fakes with symbolic sizes. Where torch's C++ made a size constant, or refused, the call
        is made again with torch's Python decompositions of composite ops, which keep more sizes symbolic."""
        env = self.env
        with self.t.fake_mode:
            said = infer_sized(fn, args, kwargs)
        if said is not None:
            return said[1]
        before, fixed, error, result = env.save(), env.fixed, None, None
        may_copy = fn in MAY_COPY
        plain = Manner(env, relaxed=may_copy or fn in NEW_RESULTS)
        self.t.manner = plain if plain.relaxed else None
        env.waived.clear()
        try:
            with plain(), self.t.fake_mode:
                result = fn(*args, **kwargs)
            if may_copy:
                self.t.copying.note_copy(args, result, [*env.waived])
            if env.fixed == fixed or changes_its_tensor(fn):
                return result
        except (DataDependent, NoFake):
            raise
        except Exception as e:
            # judged below, when the other way has been tried
            if changes_its_tensor(fn):
                raise
            error = e
        after, made, decomposed = env.save(), env.fixed, replace(plain, decompose=True)
        env.restore(before)
        try:
            with decomposed(), self.t.fake_mode:
                again = fn(*args, **kwargs)
            if error is not None or env.fixed < made:
                self.t.manner = decomposed
                if may_copy:
                    self.t.copying.note_copy(args, again, [*env.waived])
                return again
        except Exception as e:
            if error is not None and isinstance(e, (DataDependent, NoFake)):
                raise
        env.restore(after)
        if error is not None:
            raise error
        return result

    def settle(self, guards: GuardSet) -> None:
        """Write what the trace and its backend found out about symbols into guards. Once, after the backend has run."""
        self.check_marks()
        self.t.unit_strides.guard_unit_strides(guards)
        if self.env is None:
            return
        for source, (shape, stride) in self.checks.items():
            sizes, _ = self.fake_sizes[source]
            fixed = tuple(s if s >= 0 else self.size_check(v) for s, v in zip(shape, sizes))
            if fixed != shape:
                for g in guards.on(source):
                    if g.kind == "TENSOR":
                        guards.replace(g, g.value.with_sizes(fixed, stride))
        for relation, where in self.env.conditions:
            if self.t.measures.inside(relation):
                self.t.measures.refuse_later(relation, where)
                continue
            symbols = sorted(relation.symbols(), key=str)
            if len(symbols) == 1 and self.is_said(relation, symbols[0]):
                continue
            guards.add("EXPR", self.sources[symbols[0]], self.expr_guard(relation, relation.text()), where)

    def check_marks(self) -> None:
        """Sizes that became constants: an error where the user marked one dynamic, else a line of the log.

        Raises: ConstraintViolation.
        """
        fixed = [(f.source, f.value.node.hint, *self.env.why_fixed(f.value.node.e)) for f in self.symbols.values()
                 if isinstance(f.source, TensorSize) and isinstance(self.env.simplified(f.value.node.e), int)]
        done = {n.meta.get("where") for n in self.t.graph.nodes}
        fixed += [(key, self.marked.get(key), None, where) for key, where in self.dynamic.refused if where in done]
        for key, size, relation, where in fixed:
            why = "an operation there takes constant sizes only"
            if relation is not None:
                named = {str(s): self.sources[s].name() for s in relation.symbols() if s in self.sources}
                why = "the code needs " + re.sub(r"\b[sf]\d+\b", lambda m, of=named: of.get(m[0], m[0]), relation.text())
            if key in self.marked:
                raise ConstraintViolation(
                    f"{key.name()} is marked dynamic, but can only be {size}", where, why,
                    f"take mark_dynamic off dim {key.dim} (mark_static says so), or change that line to hold for other sizes")
            logs.log("recompiles", f"{key.name()} stays {size}: {why}", where)

    def size_check(self, size: torch.SymInt) -> int:
        """A symbolic size as its tensor's guard has it: the constant that it became, or 1 or 2 as its least value, negative."""
        e = size.node.public
        return e if isinstance(e, int) else -min(max(int(self.env.range(size.node.e)[0]), 1), 2)

    def is_said(self, relation: Any, symbol: Any) -> bool:
        """Whether the guard of the tensor whose size this is says it already: what constant it is, or that it is not 1."""
        from bytejit.shapes.environment import Condition
        source = self.sources[symbol]
        if not isinstance(source, TensorSize) or source.base not in self.checks:
            return False
        return isinstance(self.env.simplified(symbol), int) or relation == Condition("<=", 2, symbol)

    def drop_unused_symbols(self) -> None:
        """Take placeholders out of the graph whose symbol became a constant and that nothing uses."""
        for feed in list(self.symbols.values()):
            if not feed.node.users and isinstance(self.env.simplified(feed.value.node.e), NUMBERS):
                self.t.graph.erase_node(feed.node)
                self.t.inputs.remove(feed)


def numbers_in(x: Any) -> Any:
    """All sizes, strides and numbers in a nest of arguments."""
    if type(x) is Fake:
        yield from (*x.m.shape, *x.m.stride, x.m.offset)
    elif isinstance(x, torch.Tensor):
        yield from x.shape
        yield from x.stride()
    elif isinstance(x, (list, tuple)):
        for part in x:
            yield from numbers_in(part)
    elif isinstance(x, dict):
        yield from numbers_in(list(x.values()))
    elif isinstance(x, slice):
        yield from (x.start, x.stop, x.step)
    else:
        yield x


# functions that eager refuses where a size is 0, and references in Python do not: a size that may be 0 is asked
REFUSE_EMPTY = ("interpolate", "upsample", "pool", "pad", "fold", "fft")


def sizes_in(x: Any) -> Any:
    """The sizes of all fakes in a nest."""
    if type(x) is Fake:
        yield from x.m.shape
    elif isinstance(x, dict):
        yield from sizes_in(tuple(x.values()))
    elif isinstance(x, (list, tuple)):
        for part in x:
            yield from sizes_in(part)


def parts_of(e: Any) -> tuple[Callable, tuple]:
    """An expression as one Python function of smaller ones."""
    from bytejit.shapes import integer_math as sm
    if e.is_Add or e.is_Mul:
        terms = e.as_ordered_terms() if e.is_Add else e.as_ordered_factors()
        last = terms[-1]
        rest = e.func(*terms[:-1])
        if e.is_Add and last.could_extract_minus_sign():
            return operator.sub, (sm.plain(rest), sm.plain(-last))
        return operator.add if e.is_Add else operator.mul, (sm.plain(rest), sm.plain(last))
    if e.is_Pow:
        return operator.pow, (sm.plain(e.base), sm.plain(e.exp))
    return getattr(e, "real", None) or FUNCTIONS_OF[type(e).__name__], tuple(map(sm.plain, e.args))


FUNCTIONS_OF: dict[str, Callable] = {
    "FloorDiv": operator.floordiv, "Mod": operator.mod, "Most": max, "Least": min, "Floor": math.floor, "Ceil": math.ceil,
    "Trunc": int}


def is_math(fn: Any) -> bool:
    """Whether it is a function of the math module."""
    return fn is not None and getattr(math, getattr(fn, "__name__", None) or "", None) is fn


def takes_plain(fn: Any, number: Any) -> bool:
    """Whether a function of one number does with a NumPy number as with the Python number of the same value."""
    if fn is operator.index:
        return type(number.item()) is int
    return fn in (int, float) or isinstance(number, float) and is_math(fn)


def _int(x: Any) -> Any:
    return torch.SymInt(x.node.trunc()) if isinstance(x, torch.SymFloat) else x if isinstance(x, torch.SymInt) else int(x)


def _float(x: Any) -> Any:
    return torch.sym_float(x)


def _round(kind: str) -> Callable:
    def function(x: Any) -> Any:
        if isinstance(x, torch.SymFloat):
            return torch.SymInt(getattr(x.node, kind)())
        return x if isinstance(x, torch.SymInt) else getattr(math, kind)(x)
    return function


# library functions that symbols pass through
PASSED: dict[Any, Callable] = {
    int: _int, float: _float, abs: abs, math.floor: _round("floor"), math.ceil: _round("ceil"), math.trunc: _round("trunc"),
    math.prod: math.prod, operator.index: _int, torch.sym_int: _int, torch.sym_float: _float, torch.sym_max: torch.sym_max,
    torch.sym_min: torch.sym_min, torch.sym_sum: torch.sym_sum,
}

_F = torch.nn.functional
# functions whose result is no view of an argument: whether memory is contiguous decides nothing that a program can see
NEW_RESULTS = frozenset({
    operator.matmul, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.bmm, torch.Tensor.bmm, torch.mm,
    torch.Tensor.mm, torch.addmm, torch.baddbmm, _F.linear, _F.scaled_dot_product_attention, _F.layer_norm, _F.rms_norm,
    _F.group_norm, _F.softmax, _F.log_softmax, torch.softmax, torch.Tensor.softmax, _F.embedding, _F.cross_entropy,
    _F.conv1d, _F.conv2d, _F.conv3d, torch.cat, torch.stack, torch.cumsum, torch.Tensor.cumsum,
})
