"""Turns real objects into Vars, and adds the guards when the trace first looks at a value from outside."""

from __future__ import annotations

import collections
import enum
import gc
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from bytejit.compat import numpy_types
from bytejit.guards.item_sources import TupleItem
from bytejit.guards.plain_sources import PlainLength
from bytejit.guards.references import PLAIN_VALUE, permanent
from bytejit.guards.sources import Attr, CellContents, Defaults, Item, KnownSource, KwDefaults, MethodFunc, MethodSelf, Source
from bytejit.shapes.symbols import is_symbolic
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.constants import is_constant
from bytejit.tracer.core.library_code import is_library
from bytejit.tracer.core.object_kinds import BOUND, BY_REFERENCE, IN_SETS, SINGLETONS, UNBOUND, is_reference, real_items
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.values import (
    FALSE,
    NONE,
    TRUE,
    CellVar,
    DeferredVar,
    DictVar,
    FuncVar,
    InstanceVar,
    Known,
    Lazy,
    MethodVar,
    SeqVar,
    SetVar,
    SliceVar,
    Var,
)
from bytejit.tracer.sizes.called_anew import open_constant

from .class_facts import MRO, NAMESPACE, class_lookup, hides_dict, is_named_tuple, replaces_lookup
from .code_reach import lookup_has_effects
from .containers import item_source, keys_source, model_key, runs_code
from .external_generators import external_generator
from .external_iterators import SEEN, external_iterator
from .external_lists import ExternalList
from .external_views import KINDS, external_view
from .identities import fix_key
from .open_writes import ExternalDict


class Wrapping(Component):
    """The part of the tracer that turns real objects into Vars."""

    def real(self, v: Var) -> Var:
        """The value behind a Lazy. Looking at it adds a guard."""
        if type(v) is not Lazy:
            return v if type(v) is not DeferredVar or v.early is None else v.early
        if v.var is None:
            v.var = self.wrap(v.obj, v.origin)
        return v.var

    def lazy(self, obj: Any, source: Source | None) -> Var:
        """A value from outside; constants of the trace itself have no source."""
        return self._fetched(Lazy(obj, source)) if source is not None else self.constant(obj)

    def _fetched(self, lazy: Lazy) -> Lazy:
        """Note a value that was found by name or key. That it was found is guarded even if nothing uses the value."""
        self.t.fetched.append(lazy)
        return lazy

    def constant(self, obj: Any) -> Var:
        """A real object that needs no guard: code constants, results of folding, library objects known by name."""
        if obj is None:
            return NONE
        if obj is True or obj is False:
            return TRUE if obj else FALSE
        if is_symbolic(obj):
            return self.t.numbers.number(obj)
        if type(obj) is torch.Size:
            return SeqVar([self.t.numbers.number(n) for n in obj], torch.Size)
        if type(obj) is slice:  # 3.14 has constant slices among a code's constants
            return self.t.subscripts.slice([self.constant(part) for part in (obj.start, obj.stop, obj.step)])
        if isinstance(obj, tuple) and is_constant(obj):
            return SeqVar([self.constant(o) for o in obj], type(obj))
        if type(obj) is tuple:
            return SeqVar([self.constant(o) for o in obj], tuple)
        if is_constant(obj) or isinstance(obj, BY_REFERENCE):
            return Known(obj)
        if type(obj) is types.MethodType and is_constant(obj.__self__):  # made anew whenever it is read
            return MethodVar(self.constant(obj.__func__), Known(obj.__self__))
        return self.wrap(obj, KnownSource.of(obj), guard=False)

    def passing(self, value: object) -> Var:
        """`constant` of what is gone when the region has been traced (a class made in it): the parts of a function are
        constants as well."""
        v = self.constant(value)
        if isinstance(v, FuncVar) and v.real is not None:
            v.defaults = tuple(map(self.constant, v.real.__defaults__ or ()))
            v.kwdefaults = {k: self.constant(d) for k, d in (v.real.__kwdefaults__ or {}).items()}
            for cell in v.closure:
                if cell.content is not None and cell.source is not None:
                    cell.content = self.passing(cell.real.cell_contents)
        return v

    def wrap(self, obj: object, source: Source, guard: bool = True) -> Var:
        """Look at a value from outside: guard it, and make the Var for it."""
        if issubclass(type(obj), weakref.ProxyTypes):  # each access asks for the object that it refers to, which may be dead
            raise Break("a weak proxy")
        if replaces_lookup(obj):
            raise Break("a metaclass that replaces how attributes of classes are read")
        seen = self.t.by_id.get(id(obj))
        if seen is not None:
            if guard and seen.source is not None and seen.source != source:
                self.alias(seen, source, obj)
            return seen
        self.t.limits.work_step()
        self.t.program_operators.looked_at(obj)
        if is_constant(obj) and type(obj) is not slice:
            return self._wrap_constant(obj, source, guard)
        var = self._wrap_object(obj, source, guard)
        if not isinstance(var, MethodVar):
            self.t.by_id[id(obj)] = var
            self.t.keep.append(obj)
        if id(obj) in self.t.effects.globals_written and isinstance(var, DictVar):
            self.t.names.held_as_dict(var)
        return var

    def alias(self, seen: Var, source: Source, obj: object) -> None:
        """The object was met before under another source: guard that the two are one."""
        known = issubclass(type(obj), types.FunctionType) and isinstance(seen.source, KnownSource)
        if known or issubclass(type(obj), BY_REFERENCE):
            self.t.guard("ID_IS", source, obj)
        else:
            self.t.guard("ALIAS", source, seen.source)

    def _wrap_constant(self, obj: Any, source: Source, guard: bool) -> Var:
        if issubclass(type(obj), (*SINGLETONS, enum.Enum)):
            if guard:
                self.t.guard("ID_IS", source, obj)
        elif guard:
            if (changing := open_constant(self.t, obj, source)) is not None:
                return changing
            self.t.guard("EQUALS", source, obj)
        if isinstance(obj, tuple):
            return SeqVar([self.constant(o) for o in obj], type(obj), source=source, real=obj)
        return Known(obj, source)

    def _wrap_object(self, obj: Any, source: Source, guard: bool) -> Var:
        cls = type(obj)  # not isinstance(): what an object says of its class is the program's business, and may be code
        if cls in BOUND and guard and (bound := self.bound_builtin(obj, source)) is not None:
            return bound
        if issubclass(cls, BY_REFERENCE):
            if issubclass(cls, types.ModuleType) and cls.__getattribute__ is not types.ModuleType.__getattribute__:
                raise Break("a module that is not loaded until it is asked for something")
            if guard:
                self.t.guard("ID_IS", source, obj)
            return Known(obj, source)
        if issubclass(cls, types.FunctionType):
            return self._wrap_function(obj, source, guard)
        if issubclass(cls, torch.Tensor):
            return self.t.tensor_inputs.tensor(obj, source)
        if guard:
            self.t.guard("TYPE_IS", source, cls)
        if cls is numpy_types.ARRAY and guard:
            return self.t.traced_arrays.from_outside(obj, source)
        if issubclass(cls, types.MethodType):
            return MethodVar(Lazy(obj.__func__, MethodFunc(source)), Lazy(obj.__self__, MethodSelf(source)), source)
        if issubclass(cls, types.CellType):
            return self.wrap_cell(obj, source)
        if cls is slice:
            return SliceVar([self.real(Lazy(getattr(obj, n), Attr(source, n))) for n in ("start", "stop", "step")], source)
        if type(obj) in SEEN and guard and (iterator := external_iterator(self.t, obj, source)) is not None:
            return iterator
        if cls is types.GeneratorType and guard and (generator := external_generator(self.t, obj, source)) is not None:
            return generator
        if cls in KINDS and (view := external_view(self.t, obj, source)) is not None:
            return view
        return self.container(obj, source)

    def bound_builtin(self, obj: Any, source: Source) -> MethodVar | None:
        """A method written in C bound to an object (`items.append`), made anew whenever it is read: known by its name and
        what it is bound to. None for functions, and for methods that are known as they are."""
        owner, name = obj.__self__, obj.__name__
        if (
            owner is None
            or issubclass(type(owner), (type, types.ModuleType))
            or replaces_lookup(owner)
            or self.t.calls.has_handler(obj)
        ):
            return None
        found = next((NAMESPACE(c)[name] for c in MRO(type(owner)) if type(NAMESPACE(c).get(name)) in UNBOUND), None)
        if found is None or found.__get__(owner, type(owner)) != obj:
            return None
        for kind, of, value in (
            ("TYPE_IS", source, type(obj)),
            ("EQUALS", Attr(source, "__name__"), name),
            ("TYPE_IS", Attr(source, "__self__"), type(owner)),
        ):
            self.t.guard(kind, of, value)
        return MethodVar(Known(found), Lazy(owner, Attr(source, "__self__")), source)

    def wrap_cell(self, cell: types.CellType, source: Source) -> CellVar:
        """A closure cell; two functions that share a cell share the CellVar."""
        seen = self.t.by_id.get(id(cell))
        if isinstance(seen, CellVar):
            return seen
        self.t.program_operators.looked_at(cell)
        try:
            content = Lazy(cell.cell_contents, CellContents(source))
        except ValueError:
            content = None
        var = CellVar(content, source, cell)
        self.t.by_id[id(cell)] = var
        self.t.keep.append(cell)
        return var

    def _wrap_function(self, fn: types.FunctionType, source: Source, guard: bool) -> FuncVar:
        """A function by identity where it is permanent or has no closure, else by its code, with its parts as sources."""
        by_identity = permanent(fn)
        if guard:
            if by_identity:
                self.t.guard("ID_IS", source, fn)
            else:
                self.t.guard("TYPE_IS", source, types.FunctionType)
                self.t.guard("FUNCTION", source, fn)
        if by_identity:
            source = KnownSource.of(fn)
            if not is_library(fn.__module__):
                self.t.guard("FUNCTION", source, fn)  # its code can be replaced
        closure = tuple(self.wrap_cell(cell, Item(Attr(source, "__closure__"), i)) for i, cell in enumerate(fn.__closure__ or ()))
        defaults = tuple(Lazy(d, Defaults(source, i)) for i, d in enumerate(fn.__defaults__ or ()))
        kwdefaults: dict[str, Var] = {k: Lazy(v, KwDefaults(source, k)) for k, v in (fn.__kwdefaults__ or {}).items()}
        var = FuncVar(self.t.job.original(fn.__code__), fn.__globals__, closure, defaults, kwdefaults, real=fn, source=source)
        var.name, var.qualname = fn.__name__, fn.__qualname__
        return var

    def container(self, obj: Any, source: Source) -> Var:
        cls = type(obj)
        if cls in (list, collections.deque):
            return ExternalList(self.t, obj, source)
        if issubclass(cls, tuple):
            if cls in (tuple, torch.Size) or is_named_tuple(cls) or hasattr(cls, "n_sequence_fields"):
                self.t.guard("LEN_IS", source, len(obj))
                items = [Lazy(o, TupleItem(source, i)) for i, o in enumerate(tuple.__iter__(obj))]
                return SeqVar(items, cls, source, obj)
        if cls in (dict, collections.OrderedDict):
            return ExternalDict(self.t, cls, source, obj)
        if cls is collections.defaultdict:
            return ExternalDict(self.t, cls, source, obj, Lazy(obj.default_factory, Attr(source, "default_factory")))
        if cls is types.MappingProxyType and type(*gc.get_referents(obj)) in (dict, collections.OrderedDict):
            return DictVar({}, cls, source, obj)
        if cls in (set, frozenset) and all(is_constant(o) or isinstance(o, IN_SETS) or is_reference(o) for o in obj):
            self.t.guard("SET_ITEMS", source, frozenset(obj))
            return SetVar({o: self.constant(o) for o in obj}, cls, source, obj)
        return self._wrap_instance(obj, source)

    def _guard_length(self, obj: Any, source: Source, kind: Any) -> None:
        """Guard the length of an instance of a subclass, without code of its own for that."""
        if class_lookup(type(obj), "__len__")[0] is kind.__len__:
            self.t.guard("LEN_IS", source, kind.__len__(obj))
        else:
            self.t.guard("EQUALS", PlainLength(source, kind), kind.__len__(obj))

    def _wrap_instance(self, obj: Any, source: Source) -> InstanceVar:
        """An instance of a user's class, or of a library's that nothing here models: its attributes are read one by one."""
        cls = type(obj)
        base: Var | None = None
        if issubclass(cls, dict):
            kind = next(k for k in (collections.OrderedDict, collections.defaultdict, dict) if issubclass(cls, k))
            factory = Lazy(obj.default_factory, Attr(source, "default_factory")) if kind is collections.defaultdict else None
            base = ExternalDict(self.t, kind, source, obj, factory)
        elif issubclass(cls, list):
            self._guard_length(obj, source, list)
            base = SeqVar([Lazy(o, TupleItem(source, i, list)) for i, o in enumerate(list.__iter__(obj))], list, source, obj)
        elif issubclass(cls, tuple):
            self._guard_length(obj, source, tuple)
            base = SeqVar([Lazy(o, TupleItem(source, i)) for i, o in enumerate(tuple.__iter__(obj))], tuple, source, obj)
        elif issubclass(cls, (int, float, str, bytes, complex)) and not issubclass(cls, numpy_types.SCALAR):
            plain = next(c for c in (int, float, str, bytes, complex) if issubclass(cls, c))
            value = PLAIN_VALUE[plain](obj)
            self.t.guard("EQUALS_AS", source, (plain, value))
            base = Known(value)
        if hides_dict(cls):
            raise Break(f"an object whose class replaces __dict__ ({cls.__name__})")
        return InstanceVar(cls, source, obj, base)

    # ---- dicts from outside, read key by key -----------------------------------------------------------------------
    def lookup(self, d: DictVar, key: object, decides: bool = True) -> Var | None:
        """The value under a real key, or None. An outside dict is asked, and what it returned is guarded. decides: whether
        it matters that the key is there, too, where nothing looks at its value."""
        if d.real is not None:
            if runs_code(key):
                self.complete(d)
            fix_key(self.t, key)
        found = d.items.get(key)
        if found is not None:
            return found[1]
        if d.complete or key in d.deleted:
            return None
        raw = d.real
        if not (dict.__contains__(raw, key) if isinstance(raw, dict) else key in raw):
            self.t.guard("DICT_ABSENT", keys_source(d), key)
            return None
        value = dict.__getitem__(raw, key) if isinstance(raw, dict) else raw[key]
        var = Lazy(value, item_source(d, key))
        if decides:
            self._fetched(var)
        d.items[key] = (self.constant(key), var)
        return var

    def complete(self, d: DictVar) -> None:
        """Guard all keys of an outside dict, in order, so that it can be iterated or measured."""
        if d.complete:
            return
        pairs = real_items(d.real)
        keys = [key for key, _ in pairs]
        for key in keys:
            if type(key) is not str and lookup_has_effects(key):
                raise Break(f"keys whose __hash__ has effects ({type(key).__name__})")
        self.t.guard("DICT_KEYS", keys_source(d), tuple(keys))
        gone, read, d.complete = d.deleted, d.items, True
        d.items = {}
        for key, value in pairs:
            modelled = model_key(self.t, key)
            if modelled in gone:
                continue  # put in again it comes last, with what was added
            held = read.pop(modelled)[1] if modelled in read else Lazy(value, item_source(d, key))
            d.items[modelled] = (self.constant(key), held)  # the dict's own key, which may be of another type than what is equal
        d.items.update(read)  # keys added in the trace come last

    # ---- names ------------------------------------------------------------------------------------------------------

    def memo_lazy(self, key: object, obj: Any, source: Callable[[], Source]) -> Lazy:
        found = self.t.memo.get(key)
        if found is None or found.obj is not obj:
            found = self.t.memo[key] = self._fetched(Lazy(obj, source()))
        return found
