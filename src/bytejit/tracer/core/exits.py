"""Leaving a region: Python statements that rebuild values, replay effects on outside objects, and answer the exit."""
from __future__ import annotations

import collections
import functools
import types
import weakref

import torch

from bytejit.common import ambient
from bytejit.common.overriding import as_subclass
from bytejit.compat import numpy_types
from bytejit.guards.references import written_out
from bytejit.guards.sources import Cell
from bytejit.tracer.builtins.polyfills import STAYING
from bytejit.tracer.objects import (
    caching,
    external_generators,
    external_iterators,
    rebuilt_classes,
    reconstruct_classes,
    reconstruct_iterators,
)
from bytejit.tracer.objects.class_facts import class_lookup, is_data_descriptor
from bytejit.tracer.objects.containers import is_constant
from bytejit.tracer.objects.external_lists import OutsideList
from bytejit.tracer.torch import inference_mode, overrides

from .signals import CannotRebuild
from .values import (
    NULL,
    ArrayVar,
    CellVar,
    DictVar,
    DictView,
    FuncVar,
    GenVar,
    InstanceVar,
    IterVar,
    Known,
    LateVar,
    Lazy,
    MethodVar,
    NumpyVar,
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


class Rebuild:
    """Writes the tail of an entry. Use: plan what leaves (`scan`), then `write(printer)` the statements.

    `outputs`: FX nodes that the graph has to return, named o0, o1, ... in the text.
    """

    def __init__(self, t, twin=None):
        self.t, self.twin = t, twin
        self.outputs: list = []
        self.output_at: dict = {}
        self.lines: list[str] = []
        self.fills: list[str] = []
        self.names: dict[int, str] = {}
        self.classes: dict[type, str] = {}
        self.count = 0
        self.at = None
        self.kept_cells: set[int] = set()
        self.arrays: list[ArrayVar] = []
        self.returns = False        # whether the region ends by returning from the function

    # ---- which tensors leave: found by a dry run of the same code ----------------------------------------------------
    def write(self, printer, leaving: list[Var], answer) -> str:
        """Statements; `answer(expressions) -> str` makes the last one."""
        self.at, self.lines, self.fills, self.names, self.count = printer, [], [], {}, 0
        self.kept_cells, self.classes = set(), {}
        self.arrays = []
        for v in self.t.late:
            if v.watched is not None and v.watched[0]._version != v.watched[1]:
                raise CannotRebuild("a tensor with a hook, changed afterwards,", v.step)
            inside = self.many(v.args)
            self.lines.append(f"{self.new_name(v)} = {self.bind(v.function)}({inside})")
        values = [self.value(v) for v in leaving]
        effects, left = self.effects(), self.leave(answer(values))
        if effects and self.t.locked:
            locks = dict.fromkeys(self.at.source(v.source) for v in self.t.locked)
            effects = [f"with {', '.join(locks)}:", *("    " + e for e in effects)]
        return "\n".join([*self.lines, *effects, *left])

    def new_name(self, v: Var) -> str:
        name = self.names[id(v)] = f"n{self.count}"
        self.count += 1
        return name

    def bind(self, obj) -> str:
        if isinstance(obj, type) and obj in self.t.made_classes:
            if reconstruct_classes.can_be_made(self.t, obj):
                return reconstruct_classes.make_class(self, obj)
            raise CannotRebuild(f"the class {obj.__name__} made in the region", self.t.made_classes[obj].step)
        if self.t.remade and isinstance(obj, type) and obj in self.t.remade:
            return rebuilt_classes.made_again(self, obj)
        if self.t.remade and type(obj) in self.t.remade:
            raise CannotRebuild(f"a {type(obj).__name__}, whose class was made in the region,", self.t.remade[type(obj)][3])
        return self.at.bind(obj, "k")

    # ---- values ------------------------------------------------------------------------------------------------------
    def value(self, v: Var) -> str:
        """A Python expression for a Var; statements that it needs go to `lines` first."""
        if type(v) is Lazy:
            if v.var is None:
                return self.at.source(v.source)
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
        return MAKERS[type(v)](self, v)

    def tensor(self, v: TensorVar) -> str:
        if v.source is not None and v.real is not None:
            return self.at.source(v.source)
        if v.base is not None:
            return self.names.get(id(v)) or self.subclass_instance(v)
        if v.node is None:
            raise CannotRebuild("a tensor made inside a function transform", self.t.escaped.get(id(v), 0))
        known, name = id(v) in self.names, self.output(v.node)
        if v.attrs and not known:
            self.names[id(v)] = name
            for attr, value in v.attrs.items():
                self.lines.append(f"setattr({name}, {attr!r}, {self.value(value)})")
        return name

    def subclass_instance(self, v: TensorVar) -> str:
        """A tensor of a user's class, made from the plain one that it is an alias of."""
        of = self.value(v.base)
        name = self.new_name(v)
        self.lines.append(f"{name} = {self.bind(as_subclass)}({of}, {self.bind(v.cls)})")
        self.lines += self.attributes(name, v)
        return name

    def output(self, node) -> str:
        """What a node computes, as an output of the graph."""
        if node not in self.output_at:
            self.output_at[node] = len(self.outputs)
            self.outputs.append(node)
        return f"o{self.output_at[node]}"

    def known(self, v: Known) -> str:
        if type(v) is SymVar:
            self.t.sizes.sizes_leave = True
            if self.t.measures.is_measured(v):
                return self.output(self.t.sizes.number_node(v.value))
            return self.at.source(v.source) if v.source is not None else f"({self.t.sizes.number_text(v.value, self.at)})"
        if type(v) is NumpyVar:
            return self.at.source(v.source)
        obj = v.obj
        if written_out(obj):
            return repr(obj)
        if v.source is not None and not is_constant(obj):
            return self.at.source(v.source)
        return self.bind(obj)

    def many(self, items) -> str:
        return "".join(self.value(i) + ", " for i in items)

    def sequence(self, v: SeqVar) -> str:
        if v.cls is tuple:
            return f"({self.many(v.items)})"
        if v.cls is list:
            name = self.new_name(v)
            self.lines.append(f"{name} = []")
            inside = self.many(v.items)
            if inside:
                self.lines.append(f"{name} += [{inside}]")
            return name
        if v.cls is collections.deque:
            name = self.new_name(v)
            self.lines.append(f"{name} = {self.bind(collections.deque)}([], {v.maxlen!r})")
            self.lines.append(f"{name}.extend([{self.many(v.items)}])")
            return name
        cls = self.bind(v.cls)
        inside = self.many(v.items)
        name = self.new_name(v)
        make = f"{self.bind(tuple.__new__)}({cls}, ({inside}))" if hasattr(v.cls, "_fields") else f"{cls}(({inside}))"
        self.lines.append(f"{name} = {make}")
        return name

    def dict(self, v: DictVar) -> str:
        name = self.new_name(v)
        if v.cls is collections.defaultdict:
            made = f"{self.bind(v.cls)}({self.value(v.factory)})"
        else:
            made = "{}" if v.cls is dict else f"{self.bind(v.cls)}()"
        self.lines.append(f"{name} = {made}")
        self.fill_dict(name, v)
        self.lines += self.attributes(name, v)
        return name

    def attributes(self, target: str, v: DictVar | TensorVar) -> list[str]:
        """Statements that set what was set on a value."""
        return [f"setattr({target}, {n!r}, {self.value(x)})" for n, x in v.attrs.items()]

    def fill_dict(self, name: str, v: DictVar, setter: str = "") -> None:
        for key, value in v.items.values():
            k, x = self.value(key), self.value(value)
            self.lines.append(f"{setter}({name}, {k}, {x})" if setter else f"{name}[{k}] = {x}")

    def proxy(self, v: ProxyVar) -> str:
        return f"{self.bind(types.MappingProxyType)}({self.value(v.owner)})"

    def set(self, v: SetVar) -> str:
        inside = self.many(v.items.values())
        name = self.new_name(v)
        self.lines.append(f"{name} = {self.bind(v.cls)}(({inside}))")
        return name

    def view(self, v: DictView) -> str:
        return f"{self.value(v.owner)}.{v.kind}()"

    def slice(self, v: SliceVar) -> str:
        return f"slice({self.many(v.parts)})"

    def cell(self, v: CellVar) -> str:
        name = self.new_name(v)
        self.lines.append(f"{name} = {self.bind(types.CellType)}()")
        if v.content is not None:
            self.lines.append(f"{name}.cell_contents = {self.value(v.content)}")
        return name

    def function(self, v: FuncVar) -> str:
        if v.code in STAYING:
            raise CannotRebuild(f"a function of the tracer's own ({v.name}) made in the region", v.step)
        name = self.new_name(v)
        cells = []
        for cell in v.closure:
            cell = self.t.values.real(cell)
            if id(cell) not in self.names and cell.source is None:
                inner = self.new_name(cell)
                self.lines.append(f"{inner} = {self.bind(types.CellType)}()")
                self.fills.append((inner, cell))
            self.kept_cells.add(id(cell))
            cells.append(self.names.get(id(cell)) or self.at.source(cell.source))
        defaults = f"({self.many(v.defaults)})" if v.defaults else "None"
        closure = "(" + "".join(c + ", " for c in cells) + ")" if cells else "None"
        self.lines.append(f"{name} = {self.bind(types.FunctionType)}({self.bind(v.code)}, {self.bind(v.globals)}, "
                          f"{v.name!r}, {defaults}, {closure})")
        if v.qualname != v.code.co_qualname:
            self.lines.append(f"{name}.__qualname__ = {v.qualname!r}")
        if v.kwdefaults:
            self.lines.append(f"{name}.__kwdefaults__ = {{" + "".join(
                f"{k!r}: {self.value(d)}, " for k, d in v.kwdefaults.items()) + "}")
        if isinstance(v.annotations, FuncVar):
            self.lines.append(f"{name}.__annotate__ = {self.value(v.annotations)}")
        elif isinstance(v.annotations, SeqVar):
            pairs = zip(v.annotations.items[::2], v.annotations.items[1::2])
            items = "".join(f"{self.value(k)}: {self.value(a)}, " for k, a in pairs)
            self.lines.append(f"{name}.__annotations__ = {{{items}}}")
        for attr, value in v.attrs.items():
            self.lines.append(f"{name}.{attr} = {self.value(value)}")
        while self.fills:
            inner, cell = self.fills.pop()
            if cell.content is not None:
                self.lines.append(f"{inner}.cell_contents = {self.value(cell.content)}")
        return name

    def method(self, v: MethodVar) -> str:
        func = self.t.values.real(v.func)
        if isinstance(func, Known) and isinstance(func.obj, (types.MethodDescriptorType, types.WrapperDescriptorType)):
            return f"{self.value(v.self)}.{func.obj.__name__}"
        return f"{self.bind(types.MethodType)}({self.value(func)}, {self.value(v.self)})"

    def super(self, v: SuperVar) -> str:
        return f"super({self.bind(v.cls)}, {self.value(v.obj)})"

    def late(self, v: LateVar) -> str:
        raise AssertionError(f"{v} was not called")

    def array(self, v: ArrayVar) -> str:
        """A numpy array of known values: a copy of its own for each call."""
        for other in self.arrays:
            if other is not v and numpy_types.may_share_memory(other.array, v.array):
                raise CannotRebuild("numpy arrays that share memory", max(v.step, other.step))
        if v.shared:
            raise CannotRebuild("a numpy array that shares memory with a tensor", v.step)
        self.arrays.append(v)
        name = self.new_name(v)
        self.lines.append(f"{name} = {self.bind(v.array)}.copy('K')")
        return name

    def instance(self, v: InstanceVar) -> str:
        name = self.new_name(v)
        cls = self.bind(v.cls)
        if v.cls is functools.partial:
            slots = v.slots
            self.lines.append(f"{name} = {cls}({self.value(slots['func'])}, *{self.value(slots['args'])}, "
                              f"**{self.value(slots['keywords'])})")
            return name
        if v.cls is inference_mode.MANAGER:
            self.lines.append(f"{name} = {cls}({self.value(v.slots['mode'])})")
            return name
        if v.cls in (overrides.OFF_ALL, overrides.OFF_SUBCLASSES):
            self.lines.append(f"{name} = {cls}()")
            return name
        if v.cls is weakref.ReferenceType:
            self.lines.append(f"{name} = {cls}({self.value(v.slots['of'])})")
            return name
        if issubclass(v.cls, BaseException):
            if id(v) in self.t.raised_at:
                raise CannotRebuild("an exception that was raised in the region", v.step)
            args = self.value(v.slots.get("args", SeqVar([], tuple)))
            base = next(c for c in v.cls.__mro__ if not c.__flags__ & (1 << 9))
            self.lines.append(f"{name} = {cls}.__new__({cls}, *{args})")
            self.lines.append(f"{self.bind(base)}.__init__({name}, *{args})")
        elif isinstance(v.base, Known) or isinstance(v.base, SeqVar) and v.base.cls is not list:
            kind = type(v.base.obj) if isinstance(v.base, Known) else tuple
            self.lines.append(f"{name} = {self.bind(kind.__new__)}({cls}, {self.value(v.base)})")
        elif v.base is not None:
            self.lines.append(f"{name} = {cls}.__new__({cls})")
            self.fill_base(name, v)
        else:
            maker = object.__new__ if v.cls.__flags__ & (1 << 9) else v.cls.__new__       # a C class has its own
            self.lines.append(f"{name} = {self.bind(maker)}({cls})")
        self.fill_instance(name, v)
        return name

    def fill_base(self, name: str, v: InstanceVar) -> None:
        if isinstance(v.base, DictVar):
            if v.base.cls is collections.defaultdict:
                self.lines.append(f"{name}.default_factory = {self.value(v.base.factory)}")
            self.fill_dict(name, v.base, self.bind(self.setter_of(v.base.cls)))
        elif isinstance(v.base, SeqVar):
            self.lines.append(f"{self.bind(list.extend)}({name}, [{self.many(v.base.items)}])")
        else:
            self.lines.append(f"{self.bind(set.update)}({name}, ({self.many(v.base.items.values())}))")

    def setter_of(self, cls: type):
        return collections.OrderedDict.__setitem__ if issubclass(cls, collections.OrderedDict) else dict.__setitem__

    def fill_instance(self, name: str, v: InstanceVar) -> None:
        if v.ns is not None and v.ns.items and v.ns.source is None:
            setter = self.bind(object.__setattr__)
            if sets_plainly(v.cls, tuple(v.ns.items)):        # an object without a dict stays without
                self.lines += [f"{setter}({name}, {self.value(k)}, {self.value(x)})" for k, x in v.ns.items.values()]
            else:
                inside = "".join(f"{self.value(k)}: {self.value(x)}, " for k, x in v.ns.items.values())
                self.lines.append(f"{name}.__dict__.update({{{inside}}})")
        for attr, value in v.slots.items():
            if attr in ("args", "exceptions", "message") and issubclass(v.cls, BaseException) or value is NULL:
                continue
            self.lines.append(f"{self.bind(object.__setattr__)}({name}, {attr!r}, {self.value(value)})")

    def descriptor(self, v: PropertyVar) -> str:
        return f"{self.bind(v.cls)}({self.many(v.args)})"

    def traceback(self, v: TracebackVar) -> str:
        raise CannotRebuild("a traceback of the region", v.step)

    # ---- effects -----------------------------------------------------------------------------------------------------
    def effects(self) -> list[str]:
        """Writes to objects from outside. Values are computed into `lines` before any write."""
        out: list[str] = []
        for namespace, changes in self.t.effects.globals_written.values():
            g = self.bind(namespace)
            for name, value in changes.items():
                out.append(f"{g}[{name!r}] = {self.value(value)}" if value is not None else f"{g}.pop({name!r}, None)")
        for cls, names in self.t.effects.classes_written.items():
            out += [f"setattr({self.bind(cls)}, {name!r}, {self.value(value)})" for name, value in names.items()]
        out += caching.count_calls(self.t, self.at) + caching.symbolic_calls(self)
        for v in self.t.effects.dirty.values():         # first: over what is written next
            if isinstance(v, IterVar):
                out += external_iterators.advance(self.at.source(v.source), v)
            elif isinstance(v, GenVar):
                if not v.finished or not v.closable:
                    raise CannotRebuild("a generator from outside that has more to give", v.step)
                out += external_generators.close(self.at.source(v.source))
        cells = [v for v in self.t.effects.dirty.values() if isinstance(v, CellVar)]
        for v in list(self.t.effects.dirty.values()):
            if not isinstance(v, (CellVar, GenVar, IterVar)):
                out += WRITERS[type(v)](self, v)
        # cells last: a cell that dies with the frame is written only when something that leaves holds it
        while wanted := [v for v in cells if id(v) in self.kept_cells or not self.dies_here(v)]:
            cells = [v for v in cells if v not in wanted]
            for v in wanted:
                out += self.write_cell(v)
        return out

    def leave(self, answer: str) -> list[str]:
        """Make the ambient state what the program has behind the region, then return. Cut short, it is put back: the program
        is where the region begins, and its `with` statements restore only what was so there. Setters: the entry does that.
        """
        inference = [self.value(manager) for manager, _ in self.t.inference]
        kinds = self.kinds_entered()
        entered = self.ambient_state(inference)
        if not kinds and not inference:
            return [*entered, answer]
        before = [f"before = {self.bind(ambient.capture)}({self.bind(kinds)})"] if kinds else []
        undo = [f"    {manager}.__exit__(None, None, None)" for manager in reversed(inference)]
        undo += ["    before.restore()"] if kinds else []
        return [*before, "try:", *("    " + line for line in (*entered, *answer.splitlines())), "except BaseException:", *undo,
                "    raise"]

    def kinds_entered(self) -> tuple[ambient.Kind, ...]:
        """The kinds of ambient state that the exit enters or leaves by one, so that no setter says what was there before."""
        t = self.t
        names = {"function modes": t.devices or t.overrides.entered, "torch functions asked": t.overrides.functions_off,
                 "autocast nesting": t.nesting}
        return tuple(kind for kind in ambient.KINDS if names.get(kind.name))

    def ambient_state(self, inference: list[str]) -> list[str]:
        """Statements that enter the managers, modes and settings in which the region ends."""
        out = [f"{self.bind(device)}.__enter__()" for device in self.t.devices]
        out += [f"{manager}.__enter__()" for manager in inference]
        out += [f"{self.bind(torch._C._push_on_torch_function_stack)}({self.value(mode)})" for mode in self.t.overrides.entered]
        out += [f"{self.value(manager)}.__enter__()" for manager in self.t.overrides.functions_off]
        if self.t.nesting:
            out.append(f"{self.bind(ambient.nest)}({self.t.nesting})")
        for key, args in self.t.effects.state_set.items():
            function = key[0]
            if self.t.state_first[key] == (args, True) and not self.t.inference:
                continue                # as the region began, and as its graph ends
            out.append(f"{self.bind(function)}{args!r}" if all(type(a) in (bool, str) for a in args)
                       else f"{self.bind(function)}(*{self.bind(args)})")
        return out

    def dies_here(self, v: CellVar) -> bool:
        """Whether the cell is this frame's own, not yet seen by anyone, and the frame ends with the region."""
        t = self.t
        own = isinstance(v.source, Cell) and v.source.var in t.root.code.co_cellvars
        return own and self.returns and t.job.point == t.job.rewritten.start

    def write_cell(self, v: CellVar) -> list[str]:
        if v.source is None:
            return []
        cell = self.at.source(v.source)
        return [f"{cell}.cell_contents = {self.value(v.content)}" if v.content is not None else f"del {cell}.cell_contents"]

    def write_sequence(self, v: SeqVar) -> list[str]:
        target = self.at.source(v.source)
        if isinstance(v, OutsideList) and v.tail is not None:
            return [f"{self.bind(list.extend)}({target}, [{self.many(v.tail)}])"]
        inside = self.many(v.items)
        if v.cls is collections.deque:
            return [f"{target}.clear()", f"{target}.extend(({inside}))"]
        return [f"{self.bind(list.__setitem__)}({target}, slice(None), [{inside}])"]

    def write_set(self, v: SetVar) -> list[str]:
        target, inside = self.at.source(v.source), self.many(v.items.values())
        return [f"{target}.clear()", f"{target}.update(({inside}))"]

    def write_dict(self, v: DictVar) -> list[str]:
        """Changed keys one by one where that gives the right order, else all of them anew."""
        target = self.at.source(v.source)
        real = v.real
        kind = next((c for c in (collections.OrderedDict, dict) if isinstance(real, c)), dict)
        setter, deleter, clear = (self.bind(getattr(kind, n)) for n in ("__setitem__", "__delitem__", "clear"))
        entries = [(self.value(k), self.value(x), key, x) for key, (k, x) in v.items.items()]
        kept = [k for k in real if k not in v.deleted]
        natural = kept + [k for k in v.items if k not in kept]
        if v.complete and list(v.items) != natural:
            anew = [f"{setter}({target}, {k}, {x})" for k, x, _, _ in entries]
            return [f"{clear}({target})", *anew, *self.attributes(target, v)]
        out = [f"{deleter}({target}, {self.value(self.t.values.constant(k))})" for k in v.deleted if k in real]
        for k, x, key, var in entries:
            same = type(var) is Lazy and key in real and key not in v.deleted and var.obj is dict.__getitem__(real, key)
            if not same:
                out.append(f"{setter}({target}, {k}, {x})")
        return out + self.attributes(target, v)

    def write_instance(self, v: InstanceVar) -> list[str]:
        target = self.at.source(v.source)
        return [f"{self.bind(object.__setattr__)}({target}, {n!r}, {self.value(x)})" if x is not NULL
                else f"{self.bind(object.__delattr__)}({target}, {n!r})" for n, x in v.slots.items()]

    def write_tensor(self, v: TensorVar) -> list[str]:
        return self.attributes(self.at.source(v.source), v)


INLINE = 20      # attributes; Python keeps about 30 without a dict


def sets_plainly(cls: type, names: tuple) -> bool:
    """Whether object.__setattr__ stores these names in an instance's namespace."""
    return len(names) <= INLINE and all(
        type(n) is str and not is_data_descriptor(class_lookup(cls, n)[0]) for n in names) and not any(
        "__setattr__" in vars(c) for c in cls.__mro__[:-1] if not c.__flags__ & (1 << 9))


MAKERS = {ArrayVar: Rebuild.array, LateVar: Rebuild.late,
          SeqVar: Rebuild.sequence, DictVar: Rebuild.dict, ProxyVar: Rebuild.proxy,
          SetVar: Rebuild.set, DictView: Rebuild.view, SliceVar: Rebuild.slice,
          CellVar: Rebuild.cell, FuncVar: Rebuild.function, MethodVar: Rebuild.method, SuperVar: Rebuild.super,
          InstanceVar: Rebuild.instance, IterVar: reconstruct_iterators.iterator, GenVar: reconstruct_iterators.generator,
          PropertyVar: Rebuild.descriptor, TracebackVar: Rebuild.traceback}
WRITERS = {CellVar: Rebuild.write_cell, SeqVar: Rebuild.write_sequence, SetVar: Rebuild.write_set, DictVar: Rebuild.write_dict,
           OutsideList: Rebuild.write_sequence, InstanceVar: Rebuild.write_instance, TensorVar: Rebuild.write_tensor}
