"""Compiled nn.Modules. A compiled module is a second instance that shares the original's `__dict__`: one state.

Its class is made for it, below the original's class and with its names: `__call__` and `forward` are compiled, all else
is inherited. So `isinstance`, `state_dict()` keys, parameters, hooks, `train()`, `to()` are the original's own.
`__call__` is compiled from nn.Module's own Python code: hooks run inside the graph. Pickles (and `torch.save`) hold
the original's class and load as a plain module; `copy.copy` and `copy.deepcopy` give a compiled module.
"""

from __future__ import annotations

import copy
import functools
import operator
import types
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch

from bytejit.common import registry, special_cases, torch_controls
from bytejit.common.identity import IdentityMap
from bytejit.common.options import Settings

from .alike_modules import HANDLE, Groups

STEPS = ("training_step", "validation_step", "test_step", "predict_step")  # what Lightning's Trainer calls
_TRAIT = registry.MODULE_TRAIT  # attribute of a class made here: its _Trait


# owner: this module; size: one a living module made here: the module that it was made from, weakly
_GIVEN: IdentityMap[weakref.ref[torch.nn.Module]] = IdentityMap()
_CLASSES, _METHODS = Groups(), Groups()  # classes made here, and copies of nn.Module's own methods, by the module's class


class _Trait:
    """The origin and purpose of a class made here; `settings` is None when it disables compiling."""

    __slots__ = ("cls", "settings", "reason", "make")

    def __init__(self, cls: type, settings: Settings | None, reason: str | None, make: Callable) -> None:
        self.cls, self.settings, self.reason, self.make = cls, settings, reason, make


def _trait(m: torch.nn.Module) -> _Trait | None:
    return type(m).__dict__.get(_TRAIT)


def _trait_of(made: type) -> _Trait:
    return made.__dict__[_TRAIT]


def settings_of(m: torch.nn.Module) -> Settings | None:
    """The settings of a compiled module; None for a plain one."""
    trait = _trait(m)
    return trait.settings if trait is not None else None


def _view(m: torch.nn.Module, cls: type) -> torch.nn.Module:
    """An instance of `cls` whose state is the state of `m`: the same `__dict__`, and what slots hold."""
    made: torch.nn.Module = object.__new__(cls)
    object.__setattr__(made, "__dict__", m.__dict__)
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__") and hasattr(m, slot):
                object.__setattr__(made, slot, getattr(m, slot))
    if _TRAIT in vars(cls):
        _GIVEN.set(made, weakref.ref(m))
    return made


def plain(m: torch.nn.Module) -> torch.nn.Module:
    """The module before compiling: a view on the same state with the original class. A plain module is returned itself."""
    trait = _trait(m)
    return m if trait is None else _view(m, trait.cls)


def given(m: torch.nn.Module) -> torch.nn.Module:
    """The module that a compiled one was made from; `plain` of it if the program no longer holds that module."""
    return m if _trait(m) is None else _given(m) or plain(m)


def _given(m: torch.nn.Module) -> torch.nn.Module | None:
    """The module that a compiled one was made from, if the program still holds it."""
    ref = _GIVEN.get(m)
    return None if ref is None else ref()


def _copied(self: torch.nn.Module, memo: dict | None) -> torch.nn.Module:
    """copy.copy or copy.deepcopy of a compiled module: the plain module is copied, the copy compiled alike."""
    make = type(self).__dict__[_TRAIT].make
    if memo is None:
        return make(copy.copy(plain(self)))
    # one plain view a deepcopy: a state that refers back to the compiled module would not come to an end otherwise
    source = memo.setdefault((id(self), "plain"), plain(self))
    return make(copy.deepcopy(source, memo))


PREFIX = "_orig_mod."  # in names of the parameters that torch.compile saved


def _load(self: torch.nn.Module, state: dict, prefix: str, *rest: object) -> None:
    """Load the module's own parameters and buffers. Names that torch.compile saved lose their prefix."""
    before = prefix + PREFIX
    for name in [n for n in state if n.startswith(before)]:
        state[prefix + name.removeprefix(before)] = state.pop(name)
    type(self).__dict__[_TRAIT].cls._load_from_state_dict(self, state, prefix, *rest)


def _set_class(m: torch.nn.Module, cls: type) -> None:
    object.__dict__["__class__"].__set__(m, cls)


def _take_class(self: torch.nn.Module, cls: type) -> None:
    """`m.__class__ = C` makes the original a C, and this a compiled C: a module whose parameters were lazy does that to itself.
    An original that is gone is made again for the time of the call: a class that cannot be taken is refused in torch's words."""
    trait, original = _trait_of(type(self)), given(self)
    original.__class__ = cls
    become(self, trait.make(original))


@functools.cache
def _metaclass(meta: type) -> type:
    """Returns the metaclass of the classes made here: it sets `type(m).count = 1` on the original's class."""

    base: Any = meta

    def forward(self: type, name: str) -> type | None:
        trait = base.__getattribute__(self, "__dict__").get(_TRAIT)
        return None if trait is None or name.startswith(("__", "_abc_")) else trait.cls

    def __setattr__(self: type, name: str, value: object) -> None:
        cls = forward(self, name)
        base.__setattr__(self, name, value) if cls is None else setattr(cls, name, value)

    def __delattr__(self: type, name: str) -> None:
        cls = forward(self, name)
        base.__delattr__(self, name) if cls is None else delattr(cls, name)

    return type(meta)(
        meta.__name__,
        (meta,),
        {
            "__setattr__": __setattr__,
            "__delattr__": __delattr__,
            "__module__": meta.__module__,
            "__qualname__": meta.__qualname__,
        },
    )


def _subclass(cls: type, trait: _Trait, members: dict[str, object]) -> type:
    """A class below `cls` with its names. A custom `__init_subclass__` does not run: the user made no subclass."""
    members |= {
        _TRAIT: trait,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "__class__": property(lambda self: cls, _take_class),
        "__reduce_ex__": lambda self, protocol: plain(self).__reduce_ex__(protocol),
        "__copy__": lambda self: _copied(self, None),
        "__deepcopy__": _copied,
        # by these names programs for torch.compile, and torch's own compiler, find the module that was compiled
        "_orig_mod": property(given),
        "_load_from_state_dict": _load,
        "_torchdynamo_orig_callable": property(given),
        "_torchdynamo_wrapper_id": property(id),
    }
    meta = _metaclass(type(cls))
    if isinstance(cls.__init_subclass__, types.BuiltinFunctionType):
        return types.new_class(cls.__name__, (cls,), {"metaclass": meta}, lambda ns: ns.update(members))
    made = types.new_class(cls.__name__, (torch.nn.Module,), {"metaclass": meta}, lambda ns: ns.update(members))
    made.__bases__ = (cls,)
    return made


def other_entrances(cls: type) -> list[str]:
    """Methods of the program that a framework calls in place of the module."""
    if not any(special_cases.LIGHTNING.made(c) for c in cls.__mro__):
        return []
    found = ((name, getattr(cls, name, None)) for name in STEPS)
    return [
        name
        for name, step in found
        if isinstance(step, types.FunctionType) and not special_cases.LIGHTNING.made(step) and not torch_controls.disabled(step)
    ]


def own(fn: types.FunctionType) -> types.FunctionType:
    """A copy of a function with its own code object, and so with its own sites."""
    made = types.FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    made.__kwdefaults__, made.__qualname__, made.__module__ = fn.__kwdefaults__, fn.__qualname__, fn.__module__
    made.__doc__, made.__annotations__ = fn.__doc__, fn.__annotations__
    made.__dict__.update(fn.__dict__)
    return made


class _Method(registry.PresentMethod):
    """A method of a compiled module, compiled from the method that the original's class has at the time of the call."""

    __slots__ = ("name", "cls", "owner", "compile", "of", "compiled")

    def __init__(self, cls: type, compile: Callable[[types.FunctionType], Callable]) -> None:
        self.cls, self.compile = cls, compile
        self.name, self.owner = "", cls
        self.of: tuple | None = None  # what `compiled` was made from: the function, its code and its defaults
        self.compiled: Any = None

    def __set_name__(self, owner: type, name: str) -> None:
        self.name, self.owner = name, owner
        self.made(getattr(self.cls, name))  # now: the first call may come where few frames are left

    def __get__(self, m: torch.nn.Module | None, owner: type | None = None) -> Any:
        """Needs no frame of its own beside the method's where the class has what it had. Cost there: 0.3 us."""
        fn: Any = getattr(self.cls, self.name)
        of = self.of
        known = (
            of is not None
            and fn is of[0]
            and (fn.__code__ is of[1] and fn.__defaults__ is of[2] and fn.__kwdefaults__ is of[3])
            and torch_controls.DISABLED not in fn.__dict__
        )
        if not known and not self.made(fn):
            return fn if m is None else getattr(super(self.owner, m), self.name)
        return self.compiled if m is None else types.MethodType(self.compiled, m)

    def made(self, fn: Any) -> bool:
        """Compile the method that the class has now. Returns False where it stays uncompiled."""
        if not isinstance(fn, types.FunctionType) or torch_controls.disabled(fn) or fn is torch.nn.Module.forward:
            return False
        of = (fn, fn.__code__, fn.__defaults__, fn.__kwdefaults__)
        if self.of is None or any(map(operator.is_not, of, self.of)):
            self.of, self.compiled = of, self.compile(own(fn))
        return True


def _is_script(cls: type) -> bool:
    return any(c.__name__ == special_cases.SCRIPT_MODULE and special_cases.TORCH_SCRIPT.made(c) for c in cls.__mro__)


def become(m: torch.nn.Module, other: torch.nn.Module) -> None:
    """Make a compiled module what another one with the same state is."""
    _set_class(m, type(other))


def follow(m: torch.nn.Module) -> bool:
    """Make a compiled module anew, where the one it was made from has got another class since: a parametrization of the module
    itself does that. Returns whether it did."""
    trait = _trait(m)
    now = _given(m) if trait is not None and trait.settings is not None else None
    if trait is None or now is None or type(now) is trait.cls:
        return False
    become(m, trait.make(now))
    return True


def part(m: torch.nn.Module) -> bool:
    """Give a compiled module sites of its own: those that it shares have entries for many others, and none for it. Returns
    whether it did."""
    trait = _trait(m)
    if trait is None or trait.settings is None:
        return False
    become(m, trait.make(given(m), alone=True))
    return True


def own_method(method: types.MethodType) -> types.FunctionType:
    """The function to compile for a method of a module: a copy that modules which look alike share.

    The method's code is that of all instances, and that of nn.Module's own methods is all modules'."""
    m, fn = method.__self__, cast(types.FunctionType, method.__func__)
    if HANDLE in fn.__dict__:
        return fn
    found = _METHODS.shared(type(m), m, lambda known: _same_function(known, fn))
    if found is None:
        _METHODS.note(type(m), found := own(fn), m)
    return found


def _same_function(a: types.FunctionType, b: types.FunctionType) -> bool:
    parts = ((f.__globals__, f.__closure__, f.__defaults__, f.__kwdefaults__) for f in (a, b))
    return a.__code__ == b.__code__ and all(map(operator.is_, *parts))


def compile_module(
    m: torch.nn.Module, settings: Settings, compile_function: Callable, compile_again: Callable, alone: bool = False
) -> torch.nn.Module:
    """The compiled module of `m`, which stays as it is and shares its state. Compiled alike already: `m` itself.

    compile_again: its method `compile`, in place of nn.Module's, which would change the state that both share.
    alone: whether it gets sites of its own, whatever other modules look alike.
    Raises: TypeError for a ScriptModule, or a class whose `__call__` is not Python code.
    """
    trait = _trait(m)
    if trait is not None:
        if trait.settings == settings or trait.settings is None:
            return m
        m = given(m)
    cls = type(m)
    call = cls.__call__
    if torch_controls.disabled(call) or torch_controls.disabled_module(m):
        return m
    if _is_script(cls) or not isinstance(call, types.FunctionType):
        raise TypeError(f"cannot compile a {cls.__name__}: its code is not Python. Compile the nn.Module it was made from")
    made = None if alone else _CLASSES.shared(cls, m, lambda known: _trait_of(known).settings == settings)
    first = made is None and not alone
    if made is None:
        members = _compiled_members(cls, settings, compile_function, compile_again)
        make = functools.partial(
            compile_module, settings=settings, compile_function=compile_function, compile_again=compile_again
        )
        made = _subclass(cls, _Trait(cls, settings, None, make), members)
    view = _view(m, made)
    if first:
        _CLASSES.note(cls, made, view)
    return view


def _compiled_members(cls: Any, settings: Settings, compile_function: Callable, compile_again: Callable) -> dict[str, object]:
    """What the class of a compiled module has of its own."""
    members: dict[str, object] = {"__call__": compile_function(own(cls.__call__), settings)}
    shown = getattr(members["__call__"], "_repr_html_", None)
    if shown is not None and not hasattr(cls, "_repr_html_"):
        members["_repr_html_"] = lambda self: shown(self)
    if cls.compile is torch.nn.Module.compile:
        members["compile"] = compile_again
    compiled = functools.partial(compile_function, settings=settings)
    return members | {name: _Method(cls, compiled) for name in ("forward", *other_entrances(cls))}


def disabled_function(fn: Callable, reason: str | None, recursive: bool = True) -> Callable:
    """A function that calls `fn` and is marked "disable". recursive: nothing is compiled anew below it either."""

    @functools.wraps(fn)
    def disabled_call(*args: object, **kwargs: object) -> object:
        return registry.while_running_only(fn, args, kwargs) if recursive else fn(*args, **kwargs)

    registry.mark("disable", disabled_call, reason or "")
    return disabled_call


def disabled(m: torch.nn.Module, reason: str | None, recursive: bool = True) -> torch.nn.Module:
    """A view on a module whose calls are never compiled."""
    m = plain(m)
    cls = type(m)
    members: dict[str, object] = {name: _disabled_method(cls, name, reason, recursive) for name in ("__call__", "forward")}
    make = functools.partial(disabled, reason=reason, recursive=recursive)
    return _view(m, _subclass(cls, _Trait(cls, None, reason, make), members))


def _disabled_method(cls: type, name: str, reason: str | None, recursive: bool) -> Callable:
    """A function that calls, uncompiled, the method that the class has under that name at the time of the call."""

    def present(self: torch.nn.Module, *args: object, **kwargs: object) -> object:
        made: Any = next(c for c in type(self).__mro__ if _TRAIT in vars(c))
        return getattr(super(made, self), name)(*args, **kwargs)

    return disabled_function(functools.wraps(getattr(cls, name))(present), reason, recursive)
