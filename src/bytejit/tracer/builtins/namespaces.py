"""Models of the builtins that give the names of an object or of a frame: vars, dir, globals, locals; eval of a text without
names."""

from __future__ import annotations

import builtins
import types
import warnings

from bytejit.common.quiet_reads import FLAGS, HEAP_TYPE, MRO, NAMESPACE
from bytejit.guards.sources import Scope
from bytejit.tracer.core.constants import is_constant
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NULL, DictVar, InstanceVar, Known, SeqVar, Var
from bytejit.tracer.objects.class_facts import class_lookup


@models(builtins.vars)
def vars_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not args:
        return t.calls.call_python(locals, [])
    if (found := t.attributes.getattr(args[0], "__dict__", NULL)) is NULL:
        raise t.raised(TypeError("vars() argument must have __dict__ attribute"))
    return found


@models(builtins.dir)
def dir_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The names of an instance or a class, all of which are guarded. Raises: Break for other objects."""
    v = args[0] if len(args) == 1 and not kwargs else None
    if not isinstance(v, InstanceVar) and not (type(v) is Known and isinstance(v.obj, type)):
        raise Break("a call of dir")
    cls = t.type_of(v)
    method = class_lookup(cls, "__dir__")[0]
    if isinstance(method, types.FunctionType):
        return t.calls.call_python(sorted, [t.calls.call(t.attributes.special(v, "__dir__"), [], {})])
    names: set[object] = set()
    if isinstance(v, InstanceVar) and method is object.__dir__ and class_lookup(cls, "__class__")[1] is object:
        if v.ns is not None:
            t.values.complete(v.ns)
            names |= {t.const(key) for key, _ in v.ns.items.values()}
    elif isinstance(v, InstanceVar) or method is not type.__dir__:
        raise Break("a call of dir")
    for c in MRO(cls if isinstance(v, InstanceVar) else v.obj):
        names |= _names_in(t, c)
    if any(type(name) is not str for name in names):
        raise Break("dir() where a name is no string")
    return SeqVar([t.values.constant(name) for name in sorted(map(str, names))], list)


def _names_in(t: Tracer, cls: type) -> set[object]:
    """The names in a class's own namespace."""
    if not FLAGS(cls) & HEAP_TYPE:  # it cannot change
        return set(NAMESPACE(cls))
    space = t.values.real(t.attributes.getattr(Known(cls), "__dict__"))
    if not isinstance(space, DictVar):
        raise Break(f"the namespace of {cls.__name__}")
    t.values.complete(space)
    return {t.const(key) for key, _ in space.items.values()}


@models(builtins.globals)
def globals_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if args or kwargs:
        raise t.fold_error(globals, *[None for _ in args], **dict.fromkeys(kwargs))
    names = t.present_frame.globals
    return t.values.wrap(names, Scope.of(names), guard=False)


def _one_dict() -> bool:
    """Whether all calls of locals() in a frame give the same dict: before Python 3.13."""
    first = locals()
    return first is locals()


ONE_DICT = _one_dict()


@models(builtins.locals)
def locals_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The variables of the frame that calls, as a dict."""
    frame = t.present_frame
    if frame.names is not None:
        raise Break("locals() of a class body")
    code = frame.code
    found: dict[str, tuple[Var, Var]] = {}
    for name in dict.fromkeys((*code.co_varnames, *code.co_cellvars, *code.co_freevars)):
        cell = frame.cells.get(name)
        value = frame.locals.get(name) if cell is None else cell.content
        if value is not None and not name.startswith("."):
            found[name] = t.values.constant(name), value
    known = t.memo.get(("locals", frame)) if ONE_DICT else None
    if known is None:
        known = t.memo["locals", frame] = DictVar(found)
    else:
        t.touch(known)
        known.items.update(found)
    return known


@models(builtins.eval)
def eval_(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The constant that an expression without names comes to. Raises: Break for all others, and where it fails or warns."""
    text = t.values.real(args[0]) if len(args) == 1 and not kwargs else None
    if type(text) is not Known or type(text.obj) is not str:
        raise Break("a call of eval")
    found: object = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            code = compile(text.obj.lstrip(" \t"), "<string>", "eval", dont_inherit=True)
            plain = not code.co_names and not any(isinstance(c, types.CodeType) for c in code.co_consts)
            found = eval(code, {}) if plain else eval_
        except Exception as e:
            raise Break(f"a call of eval, which gives a {type(e).__name__}") from None
    if not is_constant(found):
        raise Break("a call of eval of a text with names, or that makes an object")
    return t.values.constant(found)
