"""Calls: Python functions are inlined, torch's are recorded in the graph, pure builtins are folded."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import reprlib
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from bytejit.common import special_cases
from bytejit.common.registry import any_marked
from bytejit.common.torch_controls import DISABLED, DISABLED_FOR, disabled_text, loaded
from bytejit.compat import closures, numpy_types
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.constants import NotConstant, is_constant, to_python
from bytejit.tracer.core.descriptions import shown_name
from bytejit.tracer.core.exceptions import left_generator
from bytejit.tracer.core.frame import Frame, bind
from bytejit.tracer.core.iterator_values import GenVar, IterVar
from bytejit.tracer.core.models import BY_NAME, CALLED, MODELS, OPERATORS, POLYFILLS, REPLACED, STEPPED
from bytejit.tracer.core.operations import is_torch_function
from bytejit.tracer.core.signals import SIGNALS, Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import (
    NONE,
    CellVar,
    DictVar,
    FuncVar,
    InstanceVar,
    Known,
    MethodVar,
    PropertyVar,
    SeqVar,
    SetVar,
    TensorVar,
    Var,
    expect,
)
from bytejit.tracer.objects.pure_functions import is_pure

from . import external_generators, single_dispatch
from .argument_counts import METHODS, RECEIVERS, check_count, check_receiver, describe, placed
from .class_facts import class_lookup
from .folded_warnings import run_now
from .own_methods import is_plain_instance, plain_part, stands_for
from .partials import called_with, parts_of
from .reachable import surely_held

MAX_DEPTH = 180
MOST_ITEMS = 10_000  # of an iterator that a folded call makes
# what keeps the repr of a dataclass, or of the library's containers, from asking itself
REPR_ONCE = (dataclasses.make_dataclass("_Sample", ()).__repr__.__code__, reprlib.recursive_repr()(repr).__code__)
SPARED = torch._compile._disable_dynamo(lambda: None).__code__  # torch spares its own compiler some of its Python: not us


class Calls(Component):
    """The part of the tracer that calls."""

    def __init__(self, t: Tracer) -> None:
        super().__init__(t)
        self.frameless: list[Frame | None] = []

    @contextmanager
    def no_frame(self) -> Iterator[None]:
        """Inside, a call stands for one of a Python function which has a frame of its own in eager, and none in the trace."""
        self.frameless.append(self.t.frame)
        try:
            yield
        finally:
            self.frameless.pop()

    def has_handler(self, obj: Any) -> bool:
        try:
            return obj in MODELS or obj in POLYFILLS or is_torch_function(obj)
        except TypeError:
            return False

    def call_python(self, obj: Any, args: list[Var], kwargs: dict[str, Var] | None = None) -> Var:
        """Call a real callable with modelled arguments."""
        return self.t.values.real(self.call(Known(obj), args, kwargs or {}))

    def call(self, fn: Var, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """fn(*args, **kwargs). Raises: Raised, Break."""
        fn = self.t.values.real(fn)
        while isinstance(fn, MethodVar):
            args = [fn.self, *args]
            fn = self.t.values.real(fn.func)
        if isinstance(fn, FuncVar):
            return self.call_function(fn, args, kwargs)
        if isinstance(fn, Known):
            return self.call_known(fn, args, kwargs)
        if isinstance(fn, InstanceVar):
            return self.call_instance(fn, args, kwargs)
        if isinstance(fn, PropertyVar):
            raise Break("calling a descriptor")
        raise self.t.raised(TypeError(f"'{shown_name(self.t.type_of(fn))}' object is not callable"))

    def call_function(self, fn: FuncVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if DISABLED in fn.attrs:  # by the region itself
            why = fn.attrs.get(DISABLED_FOR)
            raise Break(disabled_text(fn.qualname, why and self.t.const(why)))
        if fn.real is not None:
            marked = self.t.marks.call_marked(fn.real, args, kwargs) if any_marked() or loaded() else None
            if marked is not None:
                return marked
            handler = MODELS.get(fn.real)
            if handler is not None:
                args, kwargs = [self.t.values.real(a) for a in args], {k: self.t.values.real(v) for k, v in kwargs.items()}
                with self.no_frame():
                    return handler(self.t, args, kwargs)
            if is_torch_function(fn.real):
                return self.t.tensors.call_tensor_op(fn.real, args, kwargs)
            if fn.code is SPARED and special_cases.TORCH.made(fn.real) and closures.known(closures.SPARED):
                return self.call(fn.closure[fn.code.co_freevars.index("fn")].content, args, kwargs)
            if fn.code in REPR_ONCE and (found := self._repr_once(fn, args, kwargs)) is not None:
                return found
            if (made := self.t.composed_tensors.called(fn, args, kwargs)) is not None:
                return made
            reason = self.t.not_inlined(fn.real)
            if reason:
                inner = getattr(fn.real, "_torchdynamo_orig_callable", None)  # torch wraps some of its own, once asked
                if isinstance(inner, types.FunctionType) and inner in MODELS:
                    return self.call_function(expect(self.t.values.constant(inner), FuncVar), args, kwargs)
                raise Break(reason)
            if fn.real in POLYFILLS:
                fn = expect(self.t.values.constant(POLYFILLS[fn.real]), FuncVar)
            elif fn.qualname == fn.name and (polyfill := BY_NAME.get((fn.real.__module__, fn.name))) is not None:
                fn = expect(self.t.values.constant(polyfill), FuncVar)
            elif single_dispatch.is_dispatch(fn):
                with self.no_frame():
                    found = single_dispatch.dispatched(self.t, fn, args, kwargs)
                if found is not None:
                    return found
        return self.inline(fn, args, kwargs)

    def _repr_once(self, fn: FuncVar, args: list[Var], kwargs: dict[str, Var]) -> Var | None:
        """Call the function behind a repr that guards against recursion (`reprlib.recursive_repr`, dataclasses). An object
        that contains itself is not handled: it breaks the graph at the depth limit. Returns None if such a repr is already
        running, outside of the region."""
        known = closures.known(closures.RECURSIVE_REPR)
        inside = {name: cell.content for name, cell in zip(fn.code.co_freevars, fn.closure)} if known else {}
        running, function = inside.get("repr_running"), inside.get("user_function")
        if running is None or function is None or self.t.subscripts.length(running):
            return None
        return self.call(function, args, kwargs)

    def inline(self, fn: FuncVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """Run a Python function's body in the trace; a generator function gives a suspended GenVar."""
        code = fn.code
        if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
            raise Break(f"the async function {fn.qualname}")
        if self.t.frame is not None and self.t.frame.depth > MAX_DEPTH:
            raise Break(f"calls nested more than {MAX_DEPTH} deep")
        self.t.limits.call_step()
        frame = Frame(code, fn.globals, self.t.frame, fn)
        try:
            values = bind(self.t, fn, args, kwargs)
        except Raised:
            if fn.code in REPLACED:  # what it stands for words that in its own way
                raise Break(f"{fn.name} called with arguments that it does not take") from None
            raise
        self.set_up(frame, values, fn.closure)
        if code.co_flags & inspect.CO_GENERATOR:
            frame.generator = GenVar(frame, self.t.limits.steps)
            frame.generator.call = fn, list(args), dict(kwargs)
            self.t.keep.append(frame.generator)
            return frame.generator
        self.t.inlined[id(code)] = code
        return self.t.run(frame)

    def set_up(self, frame: Frame, values: dict[str, Var], closure: tuple[CellVar, ...]) -> None:
        """Locals and cells of a new frame."""
        code = frame.code
        for name in code.co_cellvars:
            frame.cells[name] = CellVar(values.pop(name, None))
        for name, cell in zip(code.co_freevars, closure):
            frame.cells[name] = expect(self.t.values.real(cell), CellVar)
        frame.locals.update(values)

    def moved(self, v: Var) -> GenVar:
        """A generator that is about to be moved on: the exit brings one from outside there too. Raises: Break."""
        if not isinstance(v, GenVar):
            raise Break("a generator from outside that cannot be looked into")
        if v.source is not None and id(v) not in self.t.effects.dirty:
            v.step = self.t.limits.steps
            external_generators.add_guards(self.t, v)
        self.t.touch(v)
        return v

    def resume(self, gen: GenVar, value: Var, thrown: Raised | None = None) -> tuple[bool, Var]:
        """Run a generator to its next yield: (False, yielded) or (True, returned). Raises: Raised."""
        gen = self.moved(gen)
        if gen.running:
            raise self.t.raised(ValueError("generator already executing"))
        if thrown is not None and (gen.finished or not gen.started):
            gen.finished = True
            try:
                raise thrown
            finally:
                del thrown  # its traceback holds this frame
        if gen.finished:
            return True, NONE
        frame = gen.frame
        stood = gen.started, frame.ip, list(frame.stack)
        if not gen.started and not self.t.comparisons.is_same(value, NONE):
            raise self.t.raised(TypeError("can't send non-None value to a just-started generator"))
        if gen.started:
            frame.push(value)
        frame.inject, frame.parent = thrown, self.t.frame
        thrown = None  # it comes back out of the frame: its traceback would hold this frame, and this frame it
        frame.depth = self.t.frame.depth + 1 if self.t.frame else 1
        gen.started = gen.running = True
        try:
            result = self.t.run(frame)
        except Raised as e:
            if (goes_on := STEPPED.get(frame.code)) is not None:
                gen.finished, (gen.started, frame.ip, frame.stack) = not goes_on, stood
                raise
            gen.finished = True
            if issubclass(e.exc.cls, StopIteration):  # 3.11 wraps here, later versions in the generator's own code
                raise Raised(left_generator(e.exc)) from None
            raise
        except Break:
            gen.finished = True
            raise
        finally:
            gen.running = False
        gen.finished = not frame.suspended
        return gen.finished, result

    def call_instance(self, fn: InstanceVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if fn.cls is functools.partial:
            inner, first, named = parts_of(self.t, fn)
            return self.call(inner, called_with(self.t, first, args), {**named, **kwargs})
        if fn.cls is weakref.ReferenceType and fn.real is None:
            if not surely_held(self.t, self.t.values.real(fn.slots["of"])):
                raise Break("a weak reference to an object that may have been freed")
            return fn.slots["of"]
        if issubclass(fn.cls, torch._ops.HigherOrderOperator) and fn.real is not None and fn.real.name() in OPERATORS:
            return self.call_function(expect(self.t.values.constant(OPERATORS[fn.real.name()]), FuncVar), args, kwargs)
        found, owner = class_lookup(fn.cls, "__call__")
        if isinstance(found, types.FunctionType):
            return self.call(self.t.attributes.class_value(owner, "__call__", found), [fn, *args], kwargs)
        if fn.real is not None and fn.cls in CALLED:
            return CALLED[fn.cls](self.t, fn, [self.t.values.real(a) for a in args], kwargs)
        if fn.real is not None and is_torch_function(fn.real):
            return self.t.tensors.call_tensor_op(fn.real, args, kwargs)
        if found is None or owner is None:
            raise self.t.raised(TypeError(f"'{fn.cls.__name__}' object is not callable"))
        raise Break(f"a call of a {fn.cls.__module__}.{fn.cls.__name__}, a C object")

    def call_known(self, fn: Known, args: list[Var], kwargs: dict[str, Var]) -> Var:
        obj = fn.obj
        if self.t.reads.count and not kwargs and (read := self.t.reads.called(obj, args)) is not None:
            return read
        if self.t.deferred_calls:
            args = self.t.drawn.computed_with(obj, args)
        if (self.t.devices or self.t.overrides.outer_device) and isinstance(obj, types.BuiltinFunctionType):
            kwargs = on_device(self.t, obj, kwargs)
        if self.t.sizes.env is not None or self.t.sizes.dynamic.some:
            found = self.t.numbers.symbolic_call(obj, args, kwargs)
            if found is not None:
                return found
        asked = (any_marked() or loaded()) and not isinstance(obj, types.FunctionType)
        marked = self.t.marks.call_marked(obj, args, kwargs) if asked else None
        if marked is not None:
            return marked
        try:
            handler = MODELS.get(obj)
        except TypeError:
            handler = None
        if handler is not None:
            args = [self.t.values.real(a) for a in args]
            if isinstance(obj, METHODS) and obj.__objclass__ in RECEIVERS:
                check_receiver(self.t, obj, args)
            check_count(obj, len(args), len(kwargs))
            args, kwargs = placed(obj, args, kwargs)
            kwargs = {k: self.t.values.real(v) for k, v in kwargs.items()}
            if not isinstance(obj, types.FunctionType):
                return handler(self.t, args, kwargs)
            with self.no_frame():
                return handler(self.t, args, kwargs)
        if isinstance(obj, types.FunctionType):
            return self.call_function(expect(self.t.values.constant(obj), FuncVar), args, kwargs)
        if is_torch_function(obj):
            return self.t.tensors.call_tensor_op(obj, args, kwargs)
        if isinstance(obj, type) and obj not in POLYFILLS:
            return self.t.instantiation.instantiate(obj, args, kwargs)
        if type(obj) is types.MethodWrapperType and (found := self.t.overrides.torch_attribute(obj, args)) is not None:
            return found
        if isinstance(obj, types.MethodWrapperType) or isinstance(obj, types.BuiltinMethodType):
            return self.call_builtin(obj, args, kwargs)
        try:
            polyfill = POLYFILLS.get(obj)
        except TypeError:
            polyfill = None
        if polyfill is not None:
            return self.inline(expect(self.t.values.constant(polyfill), FuncVar), args, kwargs)
        if isinstance(obj, (types.MethodDescriptorType, types.WrapperDescriptorType)):
            return self.call_builtin(obj, args, kwargs)
        raise Break(f"a call of {describe(obj)}")

    def call_builtin(self, obj: Any, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """A C function: folded when it is pure and its arguments are constants."""
        polyfill = POLYFILLS.get(obj) if not isinstance(getattr(obj, "__self__", None), (list, dict, set)) else None
        if polyfill is not None:
            return self.inline(expect(self.t.values.constant(polyfill), FuncVar), args, kwargs)
        owner = getattr(obj, "__self__", None)
        found = class_lookup(owner, obj.__name__)[0] if isinstance(owner, type) else None
        if isinstance(found, types.ClassMethodDescriptorType) and self.has_handler(found):
            if found.__get__(None, owner) == obj:  # `Function.apply` since torch 2.14, read from its class before
                return self.call(MethodVar(Known(found), self.t.values.constant(owner)), args, kwargs)
        if isinstance(owner, (tuple, str, bytes, int, float, complex, range, frozenset, type)) or (
            is_constant(owner) and owner is not None
        ):
            unbound = getattr(type(owner), obj.__name__, None) if not isinstance(owner, type) else None
            if unbound in MODELS:
                check_count(unbound, 1 + len(args), len(kwargs))
                args, kwargs = placed(unbound, [self.t.values.constant(owner), *args], kwargs)
                return MODELS[unbound](self.t, list(map(self.t.values.real, args)), kwargs)
        if not is_pure(obj):
            raise Break(f"a call of {describe(obj)}")
        args, kwargs = [self.t.values.real(a) for a in args], {k: self.t.values.real(v) for k, v in kwargs.items()}
        try:
            real_args = [self.given_to_c(a) for a in args]
            real_kwargs = {k: self.given_to_c(v) for k, v in kwargs.items()}
        except NotConstant as e:
            if any(isinstance(self.t.values.real(a), TensorVar) for a in args):
                raise Break(f"{describe(obj)} needs a tensor's value") from None
            raise Break(f"a call of {describe(obj)} with {e}") from None
        return self.folded(obj, real_args, real_kwargs)

    def given_to_c(self, v: Var) -> Any:
        """Returns the argument that a folded C function gets for a value. Raises: NotConstant, Break."""
        if is_plain_instance(v):
            return plain_part(v)
        return to_python(self.t, v, classes=True)

    def folded(self, function: Callable, args: list, kwargs: dict[str, Any]) -> Var:
        """function(*args, **kwargs) of real objects, called now: an iterator that it makes is made anew in each call.
        Raises: Raised."""
        try:
            result = run_now(self.t, function, args, kwargs)
        except SIGNALS:
            raise
        except Exception as e:
            if any(map(stands_for, e.args)):
                raise Break(f"{describe(function)} raises an error that holds its argument") from None
            if kwargs and isinstance(function, METHODS) and isinstance(e, TypeError):  # bound, it says that in other words
                raise Break(f"{describe(function)} refuses arguments by name") from None
            raise self.t.raised(e) from None
        if not hasattr(type(result), "__next__") or type(result) is types.GeneratorType:
            return self.model(result)
        items = list(itertools.islice(result, MOST_ITEMS + 1))
        if len(items) > MOST_ITEMS:
            raise Break(f"more than {MOST_ITEMS} items of {describe(function)}")
        state: dict[str, Any] = {"seq": SeqVar([self.model(i) for i in items], list), "at": 0, "cls": type(result)}
        state["again"] = functools.partial(function, *args, **kwargs), []
        return IterVar("seq", state, self.t.limits.steps)

    def model(self, value: Any) -> Var:
        """The Var for a new value that a folded call made."""
        if type(value) is list:
            return SeqVar([self.model(v) for v in value], list)
        if type(value) is tuple:
            return SeqVar([self.model(v) for v in value], tuple)
        if type(value) is dict:
            return DictVar({k: (self.model(k), self.model(v)) for k, v in value.items()})
        if type(value) in (set, frozenset):
            return SetVar({v: self.model(v) for v in value}, type(value))
        if isinstance(value, numpy_types.ARRAY):
            return self.t.numpy_arrays.array(value)
        return stands_for(value) or self.t.values.constant(value)

    # ---- classes ----------------------------------------------------------------------------------------------------


def on_device(t: Tracer, function: Callable, kwargs: dict[str, Var]) -> dict[str, Var]:
    """The arguments by name of what makes tensors, with the device of the manager (`with torch.device(d)`) around it."""
    from torch.utils._device import _device_constructors

    given = kwargs.get("device")
    if function in _device_constructors() and (given is None or t.comparisons.is_same(given, NONE)):
        return {**kwargs, "device": Known(t.devices[-1] if t.devices else t.overrides.outer_device)}
    return kwargs
