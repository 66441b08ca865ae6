"""Values that leave a region: an expression for each Var, and the statements that make what was made in the region."""

from __future__ import annotations

import builtins
from collections.abc import Callable

import torch

from bytejit.common.gradients import spent
from bytejit.common.overriding import as_subclass, make_wrapper
from bytejit.guards.references import written_out
from bytejit.tracer.core.constants import is_constant
from bytejit.tracer.core.iterator_values import GenVar, IterVar
from bytejit.tracer.core.made_generators import GeneratorVar
from bytejit.tracer.core.made_ids import IdVar
from bytejit.tracer.core.numpy_values import ArrayVar, TensorArrayVar
from bytejit.tracer.core.open_values import OpenVar
from bytejit.tracer.core.range_values import RangeVar
from bytejit.tracer.core.read_values import ReadVar
from bytejit.tracer.core.signals import CannotReconstruct
from bytejit.tracer.core.texts import TextVar, UnreadText
from bytejit.tracer.core.values import (
    NULL,
    CellVar,
    DeferredVar,
    DictVar,
    DictView,
    FuncVar,
    InstanceVar,
    Known,
    Lazy,
    MethodVar,
    PropertyVar,
    ProxyVar,
    SeqVar,
    SetVar,
    SliceVar,
    SuperVar,
    SymVar,
    TensorVar,
    TracebackVar,
    Var,
)
from bytejit.tracer.objects.context_variables import TokenVar
from bytejit.tracer.objects.made_dicts import MadeDict
from bytejit.tracer.sizes.read_numbers import WARNING

from . import classes, containers, functions, instances, iterators
from .statements import Statements


class Reconstruction(Statements):
    """Statements with an expression for every kind of value."""

    def bind(self, obj: object) -> str:
        if isinstance(obj, type) and obj in self.t.made_classes:
            if classes.can_be_made(self.t, obj):
                return classes.make_class(self, obj)
            raise CannotReconstruct(f"the class {obj.__name__} made in the region", self.t.made_classes[obj].step)
        if self.t.rebuilt_classes and isinstance(obj, type) and obj in self.t.rebuilt_classes:
            return classes.rebuild_class(self, obj)
        if self.t.rebuilt_classes and type(obj) in self.t.rebuilt_classes:
            raise CannotReconstruct(
                f"a {type(obj).__name__}, whose class was made in the region,", self.t.rebuilt_classes[type(obj)][3]
            )
        return self.at.bind(obj, "k")

    def value(self, v: Var) -> str:
        """A Python expression for a Var; statements that it needs go to `lines` first."""
        if type(v) is Lazy:
            if v.var is None:
                return self.at.source(v.origin)
            if v.var.source is None and v.source is not None and not isinstance(v.var, (TensorVar, Known)):
                return self.value(v.var)
            v = v.var
        if v is NULL:
            raise AssertionError("a NULL leaves by its slot")
        if isinstance(v, TensorVar):
            return self.tensor(v)
        if isinstance(v, Known):
            return self.known(v)
        if id(v) in self.names:
            return self.names[id(v)]
        if v.source is not None:
            self.kept_cells.add(id(v))
            return self.at.source(v.source)
        return self.made_once(v, MAKERS[type(v)](self, v))

    def made_once(self, v: Var, text: str) -> str:
        """The local that holds what was made: wherever else the value is used, it is that object."""
        if id(v) not in self.names and text != "()":
            self.lines.append(f"{self.new_name(v)} = {text}")
        return self.names.get(id(v), text)

    def tensor(self, v: TensorVar) -> str:
        if v.source is not None and v.real is not None:
            return self.at.source(v.source)
        if v.base is not None:
            return self.names.get(id(v)) or self.subclass_instance(v)
        if v.wrapper is not None:
            return self.names.get(id(v)) or self.wrapper_subclass(v, *v.wrapper)
        if v.node is None:
            raise CannotReconstruct("a tensor made inside a function transform", self.t.escaped.get(id(v), 0))
        known, name = id(v) in self.names, self.output(v.node)
        self.used_at.add(self.output_at[v.node])
        if self.t.backward.is_spent(v):
            return self.names.get(id(v)) or self.spent(v, name)
        if not known and v.cls is torch.nn.Parameter:
            self.names[id(v)] = name
            self.lines.append(f"{name}.__class__ = {self.bind(v.cls)}")
        if v.attrs and not known:
            self.names[id(v)] = name
            for attr, value in v.attrs.items():
                self.lines.append(f"setattr({name}, {attr!r}, {self.value(value)})")
        return name

    def subclass_instance(self, v: TensorVar) -> str:
        """A tensor of a user's class, made from the plain one that it is an alias of."""
        assert v.base is not None, v
        of = self.value(v.base)
        name = self.new_name(v)
        self.lines.append(f"{name} = {self.bind(as_subclass)}({of}, {self.bind(v.cls)})")
        self.lines += containers.attributes(self, name, v)
        return name

    def wrapper_subclass(self, v: TensorVar, args: list[Var], kwargs: dict[str, Var]) -> str:
        """A tensor without memory of its own, made by the call that made it, with the attributes that it got."""
        given = [self.value(a) for a in args] + [f"{k}={self.value(a)}" for k, a in kwargs.items()]
        name = self.new_name(v)
        self.lines.append(f"{name} = {self.bind(make_wrapper)}({', '.join(given)})")
        self.lines += containers.attributes(self, name, v)
        return name

    def spent(self, v: TensorVar, plain: str) -> str:
        """A tensor through which the region has gone backward, made from its value."""
        self.spent_at.add(self.output_at[v.node])
        given = [plain, *map(self.value, self.t.backward.ends_of(v, self.outputs))]
        name = self.new_name(v)
        self.lines.append(f"{name} = {self.bind(spent)}({', '.join(given)})")
        self.lines += containers.attributes(self, name, v)
        return name

    def known(self, v: Known) -> str:
        if type(v) is SymVar:
            self.t.sizes.sizes_leave = True
            if self.t.measures.is_measured(v):
                return self.output(self.t.numbers.number_node(v.value))
            return self.at.source(v.source) if v.source is not None else f"({self.t.numbers.number_text(v.value, self.at)})"
        if isinstance(v, OpenVar):
            return self.at.source(v.origin)
        if type(v) is UnreadText:
            raise CannotReconstruct("text made of a tensor's values", v.step)
        if type(v) is TextVar:
            return self.names.get(id(v)) or self.text(v)
        if type(v) is RangeVar:
            return self.names.get(id(v)) or self.range(v)
        obj = v.obj
        if written_out(obj):
            return repr(obj)
        if v.source is not None and not is_constant(obj):
            return self.at.source(v.source)
        return self.bind(obj)

    def range(self, v: RangeVar) -> str:
        """A range whose bounds change between calls."""
        start, stop = (self.value(self.t.numbers.number(n)) for n in (v.start, v.stop))
        name = self.new_name(v)
        self.lines.append(f"{name} = {self.bind(builtins.range)}({start}, {stop}, {v.step})")
        return name

    def text(self, v: TextVar) -> str:
        """Text that is made now of numbers."""
        given = [self.value(a) for a in v.args] + [f"{k}={self.value(a)}" for k, a in v.kwargs.items()]
        name = self.new_name(v)
        self.lines.append(f"{name} = {self.bind(v.function)}({', '.join(given)})")
        return name


def deferred(out: Statements, v: DeferredVar) -> str:
    if v.early is not None:
        return out.value(v.early)
    raise AssertionError(f"{v} was not called")


def read(out: Statements, v: ReadVar) -> str:
    """A number read out of a tensor, or computed of such."""
    if (of := v.tensor) is None:
        return f"{out.bind(v.function)}({out.many(v.args)})"
    out.t.reads.check(v)
    if of.source is not None and of.real is not None:
        return f"{out.bind(v.function)}({out.at.source(of.source)})"
    assert of.node is not None, of
    if of.fake.requires_grad and v.function in WARNING:
        return f"{out.bind(v.function)}({out.value(of)})"
    text = out.output(of.node)
    out.read_at.add(out.output_at[of.node])
    return f"{out.bind(v.function)}({text})"


def token(out: Statements, v: TokenVar) -> str:
    """Makes a token whose variable is again what it was. Both calls run now, while the variable is as it was at the first."""
    if v.old is not None or out.t.context_variables.pending(v.var):
        raise CannotReconstruct("the token of a context variable", v.step)
    name, var, value = out.new_name(v), out.value(v.args[0]), out.value(v.args[1])
    out.lines += [f"{name} = {var}.set({value})", f"{var}.reset({name})"]
    return name


def traceback(out: Statements, v: TracebackVar) -> str:
    raise CannotReconstruct("a traceback of the region", v.step)


def made_id(out: Statements, v: IdVar) -> str:
    return f"{out.bind(id)}({out.value(v.of)})"


MAKERS: dict[type[Var], Callable] = {
    IdVar: made_id,
    ArrayVar: containers.array,
    TensorArrayVar: containers.traced_array,
    DeferredVar: deferred,
    ReadVar: read,
    SeqVar: containers.sequence,
    DictVar: containers.mapping,
    MadeDict: containers.mapping,
    ProxyVar: containers.mapping_proxy,
    SetVar: containers.make_set,
    DictView: containers.dict_view,
    SliceVar: containers.make_slice,
    CellVar: functions.cell,
    FuncVar: functions.function,
    MethodVar: functions.method,
    SuperVar: functions.bound_super,
    InstanceVar: instances.instance,
    GeneratorVar: instances.instance,
    IterVar: iterators.iterator,
    GenVar: iterators.generator,
    PropertyVar: functions.descriptor,
    TokenVar: token,
    TracebackVar: traceback,
}
