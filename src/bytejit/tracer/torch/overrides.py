"""`__torch_function__`: tensor subclasses, other objects that override torch's functions, TorchFunctionMode.

Which function an override is told of, and with which arguments, is asked of torch itself: the call is made on fakes under
a mode of our own, which notes it. The override's Python is then inlined; a graph knows plain tensors only. A tensor whose
class is a user's subclass is a `TensorVar` with `cls`; one made inside is an alias of a plain one, `base`, that gets its
class when it leaves the region. While a region is traced and while its graph runs, torch asks no override (pipeline.py).
"""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, get_default_nowrap_functions
from torch.utils._device import DeviceContext

from bytejit.common import special_cases
from bytejit.common.overriding import TENSOR_CLASSES, overrides
from bytejit.guards.sources import CallOf, KnownSource
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.models import MODELS
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.values import (
    DictVar,
    InstanceVar,
    Known,
    Lazy,
    SeqVar,
    SliceVar,
    SymVar,
    TensorVar,
    Var,
    expect,
    is_object,
)
from bytejit.tracer.objects.class_facts import MISSING, class_lookup
from bytejit.tracer.torch.subclasses import check_class, looks

OFF_SUBCLASSES, OFF_ALL = torch._C.DisableTorchFunctionSubclass, torch._C.DisableTorchFunction
NOT_IMPLEMENTED = NotImplemented


class OverrideAsked(BaseException):
    """Carries what torch told a mode."""


class FirstAsked(TorchFunctionMode):
    """Stops at the first function that torch tells modes of."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        raise OverrideAsked(func, args, kwargs or {})


class OverridingArgument:
    """Stands for an object with a `__torch_function__` while torch dispatches."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        raise AssertionError("a mode is asked first")


class Overrides(Component):
    """The tracer's part for overrides of torch's functions."""

    def start_overrides(self) -> None:
        """The modes around the region. Devices become arguments of what makes tensors (calls.on_device)."""
        self.modes: list[Var] = []  # asked from the last to the first
        self.entered: list[Var] = []  # of these, those that the region entered
        self.functions_off: list[InstanceVar] = []  # managers that turn overrides off
        self.outer_modes = torch._C._len_torch_function_stack()
        self.outer_device = None
        for i in range(torch._C._len_torch_function_stack()):
            real = torch._C._get_function_stack_at(i)
            mode = Lazy(real, CallOf(KnownSource.of(torch._C._get_function_stack_at), (i,)))
            if type(real) is DeviceContext:
                self.outer_device = self.t.const(self.t.attributes.getattr(mode, "device"))
            else:
                self.modes.append(self.t.values.real(mode))
        self.all_off = self.t.job.overrides_off
        if self.all_off:
            self.t.guards.add_state("function_enabled")

    def relies_on_overrides(self) -> None:
        """Guards that torch asks overrides around the call, as it did not while this is traced."""
        if not self.all_off and not self.outer_modes:  # with modes the whole entry checks this
            with torch._C._EnableTorchFunction():
                self.t.guards.add_state("function_enabled")

    # ---- who overrides ------------------------------------------------------------------------------------------------
    def overriders(self, values: Iterable) -> list[Var]:
        """Returns the values, also within lists and tuples, whose class overrides torch's functions."""
        out: list[Var] = []
        for v in map(self.t.values.real, values):
            if isinstance(v, TensorVar):
                if v.cls is not None and v.cls not in TENSOR_CLASSES and overrides(v.cls):
                    out.append(v)
            elif isinstance(v, InstanceVar) and overrides(v.cls):
                out.append(v)
            elif type(v) is SeqVar:
                out += self.overriders(v.items)
        return [v for i, v in enumerate(out) if v not in out[:i]]

    def overridden(self, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """Returns the result of fn(*args, **kwargs) where a mode or an argument overrides it; None: nothing does."""
        kinds = {m.cls for m in self.functions_off}
        if self.all_off or OFF_ALL in kinds:
            return looks(self.t, fn, args, kwargs)
        found = [] if kinds else self.overriders((*args, *kwargs.values()))
        if not found and not self.modes:
            return looks(self.t, fn, args, kwargs)
        self.relies_on_overrides()
        found = by_precedence(found, self.t.type_of)
        classes = [v.cls for v in found if isinstance(v, TensorVar) and v.cls is not None]
        if not self.modes and len(classes) == len(found) and all(overrides(c) == "default" for c in classes):
            cls = next((c for c in classes if all(issubclass(c, o) for o in classes)), None)
            if cls is not None:
                with self.without_overrides():
                    handler = MODELS.get(fn)
                    plain = (
                        handler(self.t, args, kwargs) if handler is not None else self.t.tensors.call_tensor_op(fn, args, kwargs)
                    )
                    return self.wrapped(plain, cls) if _is_wrapped(fn, args) else plain
        told = self.told(fn, args, kwargs)
        return None if told is None else self.ask(found, *told)

    def asked_by_tensor(self, v: Var, other: Var) -> bool:
        """Whether an operator's method of the tensor `v` asks the `__torch_function__` of the object `other`."""
        on = not self.all_off and not self.functions_off
        return on and isinstance(v, TensorVar) and isinstance(other, InstanceVar) and bool(overrides(other.cls))

    @contextlib.contextmanager
    def without_overrides(self, kind: type = OFF_SUBCLASSES) -> Iterator[None]:
        """Overrides turned off, as the manager of that class does it."""
        manager = InstanceVar(kind, step=self.t.limits.steps)
        self.functions_off.append(manager)
        try:
            yield
        finally:
            self.functions_off.remove(manager)

    def told(self, fn: Any, args: list[Var], kwargs: dict[str, Var]) -> tuple[Any, list[Var], dict[str, Var]] | None:
        """(func, args, kwargs) that torch would tell an override of this call; None when it tells none. Raises: Break."""
        known: dict[int, tuple] = {}
        given = [self._stand_in(a, known) for a in args], {k: self._stand_in(v, known) for k, v in kwargs.items()}
        try:
            with torch._C._EnableTorchFunction(), FirstAsked():
                fn(*given[0], **given[1])
        except OverrideAsked as e:
            func, args, kwargs = e.args
            return func, [self._var_of(a, known) for a in args], {k: self._var_of(v, known) for k, v in kwargs.items()}
        except Exception:  # the caller calls it again
            return None
        return None

    def _stand_in(self, v: Var, known: dict) -> Any:
        v = self.t.values.real(v)
        if isinstance(v, TensorVar):
            made = v.fake
        elif isinstance(v, InstanceVar) and overrides(v.cls):
            made = OverridingArgument()
        elif type(v) is SeqVar and v.cls in (list, tuple):
            made = v.cls([self._stand_in(i, known) for i in v.items])
        elif isinstance(v, SliceVar):
            made = slice(*(self._stand_in(p, known) for p in v.parts))
        elif isinstance(v, DictVar):
            self.t.values.complete(v)
            made = {self.t.const(k): self._stand_in(x, known) for k, x in v.items.values()}
        elif type(v) is SymVar:
            made = v.value
        else:
            return self.t.const(v)
        known[id(made)] = made, v
        return made

    def _var_of(self, value: Any, known: dict) -> Var:
        if id(value) in known:
            return known[id(value)][1]
        if type(value) in (list, tuple):
            return SeqVar([self._var_of(x, known) for x in value], type(value))
        if isinstance(value, torch.Tensor):
            raise Break("a __torch_function__ called with a tensor that torch made internally")
        return self.t.values.constant(value)

    def ask(self, found: list[Var], func: Any, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """The modes, then the arguments that override, each in turn. Raises: Break when all return NotImplemented."""
        types = SeqVar([Known(c) for c in dict.fromkeys(map(self.t.type_of, found))], tuple)

        def result_of(of: Var) -> Var:
            named = DictVar({k: (Known(k), v) for k, v in kwargs.items()})
            return self.t.values.real(
                self.t.calls.call(
                    self.t.attributes.getattr(of, "__torch_function__"),
                    [self.t.values.constant(func), types, SeqVar(list(args), tuple), named],
                    {},
                )
            )

        self.t.effects.mutations += 1
        if self.modes:
            mode = self.modes.pop()
            try:
                result = result_of(mode)
            finally:
                self.modes.append(mode)
            if not is_not_implemented(result):
                return result
        for v in found:
            result = result_of(Known(v.cls) if isinstance(v, TensorVar) else v)
            if not is_not_implemented(result):
                return result
        raise Break(f"every __torch_function__ returns NotImplemented for {getattr(func, '__name__', func)}")

    def of_operator(self, fn: Any, args: list[Var]) -> Var:
        """Calls an operator of a tensor. Raises: Break where an override raises TypeError: torch returns NotImplemented
        for it, and Python asks the other operand or words another error."""
        try:
            return self.t.tensors.call_tensor_op(fn, args, {})
        except Raised as e:
            if issubclass(e.exc.cls, TypeError) and (self.modes or self.overriders(args)):
                raise Break("a __torch_function__ that raises TypeError within an operator") from None
            raise

    # ---- subclasses ---------------------------------------------------------------------------------------------------
    def wrapped(self, result: Var, cls: type) -> Var:
        """Converts a result as torch.Tensor.__torch_function__ does: tensors become instances of the class."""
        result = self.t.values.real(result)
        if cls is torch.Tensor:
            return result
        if isinstance(result, TensorVar) and not issubclass(self.t.type_of(result), cls):
            return self.as_subclass(result, cls)
        if isinstance(result, SeqVar) and result.cls is not torch.Size and result.cls is not collections.deque:
            return SeqVar([self.wrapped(i, cls) for i in result.items], result.cls)
        return result

    def as_subclass(self, v: TensorVar, cls: type) -> TensorVar:
        """v.as_subclass(cls). Raises: Break."""
        if cls in (torch.Tensor, torch.nn.Parameter):
            made_as = None
        else:
            check_class(cls)
            made_as = cls
        if cls is torch.nn.Parameter or cls in self.t.made_classes:
            raise Break(f"Tensor.as_subclass({cls.__name__})")
        with self.without_overrides(OFF_ALL):
            made = expect(self.t.tensors.call_tensor_op(torch.ops.aten.alias.default, [v], {}), TensorVar)
        made.cls, made.base = made_as, v if made_as is not None else None
        return made

    def subclass_getattr(self, v: TensorVar, name: str) -> Var | None:
        """An attribute that the class of a tensor, or an override, defines; None: torch's own."""
        if v.cls is not None and v.cls not in TENSOR_CLASSES:
            found, owner = class_lookup(v.cls, name)
            own = name in v.attrs or v.real is not None and name in v.real.__dict__
            if owner not in (None, object, *TENSOR_CLASSES) and not special_cases.TORCH.made(owner) and not own:
                return self.t.attributes.bind_descriptor(found, owner, v, v.cls, name)
        found = class_lookup(torch.Tensor, name)[0]
        if found is MISSING or not hasattr(type(found), "__set__") or name in ("__dict__", "__class__"):
            return None
        return self.overridden(getattr, [v, Known(name)], {})

    def torch_attribute(self, function: Any, args: list[Var]) -> Var | None:
        """`torch.Tensor.shape.__get__(x)`, as an override calls it; None when it is another function."""
        if not isinstance(function, types.MethodWrapperType) or not args:
            return None
        of = function.__self__
        v = self.t.values.real(args[0])
        if function != getattr(of, "__get__", None) or not isinstance(v, TensorVar):
            return None
        name = getattr(of, "__name__", None) or getattr(getattr(of, "fget", None), "__name__", None)
        if name is None or class_lookup(torch.Tensor, name)[0] is not of:
            return None
        return self.t.tensor_attributes.tensor_getattr(v, name)


def _is_wrapped(fn: Any, args: list[Var]) -> bool:
    """Whether torch.Tensor.__torch_function__ makes what such a call returns one of the subclass."""
    if fn is getattr:
        name = expect(args[1], Known).obj
        fn = getattr(class_lookup(torch.Tensor, name)[0], "__get__", fn)
    return fn not in get_default_nowrap_functions()


def by_precedence(found: list[Var], type_of: Callable) -> list[Var]:
    """Returns one overrider for each class in torch's order: subclasses before their bases, else from left to right."""
    out: list[Var] = []
    for v in found:
        cls = type_of(v)
        if any(type_of(o) is cls for o in out):
            continue
        at = next((i for i, o in enumerate(out) if issubclass(cls, type_of(o))), len(out))
        out.insert(at, v)
    return out


def is_not_implemented(v: Var) -> bool:
    return is_object(v, NOT_IMPLEMENTED)
