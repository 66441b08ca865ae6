"""Writes to items, and their deletion."""

from __future__ import annotations

import collections
import operator
import types

from bytejit.tracer.core.component import Component
from bytejit.tracer.core.numpy_values import ArrayVar
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.values import DictVar, InstanceVar, SeqVar, SliceVar, TensorVar, Var

from .changing_keys import taken_back
from .class_facts import class_attribute
from .containers import key_of, runs_code
from .external_lists import ExternalList
from .finalizers import check_replaced
from .made_dicts import MadeDict
from .open_writes import ExternalDict
from .own_methods import refused


class SubscriptWrites(Component):
    """The part of the tracer that sets and deletes items."""

    def setitem(self, container: Var, key: Var, value: Var) -> None:
        container, key = self.t.values.real(container), self.t.values.real(key)
        if isinstance(container, TensorVar):
            self.t.tensors.call_tensor_op(operator.setitem, [container, self.t.subscripts.plain_index(key), value], {})
        elif isinstance(container, ArrayVar):
            self.t.numpy_arrays.array_call(operator.setitem, [container, key, value])
        elif isinstance(container, SeqVar) and not issubclass(container.cls, tuple):
            self._no_slices(container, key)
            if isinstance(container, ExternalList) and container.write(key, value):
                return
            self.t.touch(container)
            try:
                if isinstance(key, SliceVar):
                    places = self.t.subscripts.real_slice(key)
                    if not self.t.iteration.has_iter(value):
                        raise self.t.fold_error(operator.setitem, [], places, None)
                    container.items[places] = self.t.iteration.rest(value)
                else:
                    container.items[self.t.subscripts.place(container, key)] = value
            except (IndexError, ValueError) as e:
                if isinstance(e, IndexError) and container.cls is list:
                    e = IndexError("list assignment index out of range")
                raise self.t.raised(e) from None
        elif isinstance(container, DictVar):
            self.dict_set(container, key, value)
        elif isinstance(container, InstanceVar) and (own := class_attribute(container.cls, "__setitem__")) is not None:
            if not isinstance(own, types.FunctionType) and container.base is not None:
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
                items = self.t.subscripts
                del container.items[items.real_slice(key) if isinstance(key, SliceVar) else items.place(container, key)]
            except IndexError as e:
                raise self.t.raised(IndexError("list assignment index out of range") if container.cls is list else e) from None
        elif isinstance(container, DictVar):
            if taken_back(self.t, container, key):
                return
            real_key = key_of(self.t, key)
            if self.t.values.lookup(container, real_key) is None:
                raise self.t.subscripts.no_key("?", key)
            self.dict_del(container, real_key)
        elif isinstance(container, InstanceVar):
            own = class_attribute(container.cls, "__delitem__")
            if own is None:
                refusal = refused(self.t, operator.delitem, container, key)
                raise refusal or Break(f"deleting an item of a {container.cls.__name__}")
            if not isinstance(own, types.FunctionType) and container.base is not None:
                self.delitem(container.base, key)
            else:
                self.t.calls.call(self.t.attributes.special(container, "__delitem__"), [key], {})
        else:
            cls = self.t.type_of(container)
            numbered = issubclass(cls, (tuple, str, bytes, set, frozenset, range)) and self.t.subscripts.is_index(key)
            denied = "doesn't" if numbered else "does not"
            raise self.t.raised(TypeError(f"'{cls.__name__}' object {denied} support item deletion"))

    def dict_set(self, d: DictVar, key: Var, value: Var, is_open: bool = True) -> None:
        """d[key] = value. is_open: whether a key that changes between calls may stay open."""
        if is_open and isinstance(d, (ExternalDict, MadeDict)) and d.write(key, value):
            return
        real_key = key_of(self.t, key)
        if d.cls is types.MappingProxyType:
            raise self.t.raised(TypeError("'mappingproxy' object does not support item assignment"))
        check_replaced(self.t, d, real_key)
        self.t.touch(d)
        if d.real is not None and not d.complete and real_key not in d.items and real_key not in d.deleted:
            self.t.values.lookup(d, real_key)  # whether it was there decides its place in the order
        old = d.items.get(real_key)
        d.items[real_key] = (old[0] if old is not None else key, value)

    def dict_del(self, d: DictVar, real_key: object) -> None:
        check_replaced(self.t, d, real_key)
        self.t.touch(d)
        if d.real is not None and runs_code(real_key):  # the key that the dict has, which equals this one
            real_key = next(key for key in d.items if key == real_key)
        d.items.pop(real_key, None)
        if d.real is not None:
            d.deleted.add(real_key)
