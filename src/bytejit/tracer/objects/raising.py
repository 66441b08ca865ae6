"""Models of exception objects: how they are made, what they print, notes, sys.exc_info, exception groups and except*."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from typing import TypeGuard

from bytejit.guards.sources import Call0, Item, Source
from bytejit.tracer.core.exceptions import exception_var, matches
from bytejit.tracer.core.frame import Frame, Ins
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.table import handles
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, InstanceVar, Known, SeqVar, Var, expect, is_object

from .class_facts import class_lookup

# exceptions that take keywords: name -> the attributes that they set
KEYWORDS = {AttributeError: ("name", "obj"), NameError: ("name",), ImportError: ("name", "path")}
SIMPLE = [
    e
    for e in vars(builtins).values()
    if isinstance(e, type)
    and issubclass(e, BaseException)
    and not issubclass(e, (OSError, SyntaxError, UnicodeError, BaseExceptionGroup))
]


@models(*(e.__init__ for e in SIMPLE))
def exception_init(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """BaseException.__init__ and that of its simple subclasses."""
    self, rest = args[0], list(args[1:])
    if not isinstance(self, InstanceVar) or self.real is not None:
        raise Break("__init__ of an exception from outside")
    names = next((n for c, n in KEYWORDS.items() if issubclass(self.cls, c)), ())
    for name, value in kwargs.items():
        if name not in names:
            raise t.raised(TypeError(f"{self.cls.__name__}() takes no keyword arguments"))
        self.slots[name] = value
    self.slots["args"] = SeqVar(rest, tuple)
    t.effects.mutations += 1
    return NONE


@models(BaseException.add_note)
def add_note(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    note = t.const(args[1])
    if not isinstance(note, str):
        raise t.fold_error(BaseException().add_note, note)
    own = expect(args[0], InstanceVar, "a note added to what is no exception").namespace
    notes = t.values.real(t.values.lookup(own, "__notes__") or SeqVar([], list))
    if not isinstance(notes, SeqVar) or notes.cls is not list:
        raise t.raised(TypeError("Cannot add note: __notes__ is not a list"))
    if "__notes__" not in own.items:
        t.subscript_writes.dict_set(own, Known("__notes__"), notes)
    t.touch(notes)
    notes.items.append(args[1])
    return NONE


def arguments(t: Tracer, exc: Var) -> list[Var]:
    """Returns the arguments of an exception. Raises: Break where the program has set other `args`."""
    found = expect(t.values.real(t.attributes.getattr(exc, "args")), SeqVar, "an exception whose args are no tuple")
    return [t.values.real(v) for v in found.items]


@models(*(e.__repr__ for e in SIMPLE))
def exception_repr(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    exc = args[0]
    inside = ", ".join(t.const(t.calls.call_python(repr, [v])) for v in arguments(t, exc))
    return Known(f"{t.type_of(exc).__name__}({inside})")


@models(*(e.__str__ for e in SIMPLE if not issubclass(e, (KeyError, ImportError))))
def exception_str(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    inside = arguments(t, args[0])
    if not inside:
        return Known("")
    return t.calls.call_python(str, [inside[0] if len(inside) == 1 else SeqVar(inside, tuple)])


@models(KeyError.__str__)
def key_error_str(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    inside = arguments(t, args[0])
    return t.calls.call_python(repr, inside) if len(inside) == 1 else exception_str(t, args, kwargs)


@models(sys.exc_info)
def exc_info(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    exc = handled(t, Item(Call0(sys.exc_info), 1))
    if exc is None:
        return SeqVar([NONE, NONE, NONE], tuple)
    return SeqVar([t.values.constant(t.type_of(exc)), exc, t.attributes.getattr(exc, "__traceback__")], tuple)


@models(sys.exception)
def exception(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    return handled(t, Call0(sys.exception)) or NONE


def handled(t: Tracer, source: Source) -> Var | None:
    """The exception that the frame, or a caller of it (then found at `source`), handles."""
    exc = t.current_exception(t.frame)
    if exc is not None:
        return exc
    if t.handled is None:
        t.guard("ID_IS", source, None)
        return None
    return t.values.wrap(t.handled, source)


# ---- groups ------------------------------------------------------------------------------------------------------------------
def make_group(t: Tracer, cls: type, message: Var, members: list[Var], like: InstanceVar | None = None) -> InstanceVar:
    """An exception group; `like`: the group that it is a part of, whose chain and notes it shares."""
    if cls is BaseExceptionGroup and all(issubclass(t.type_of(m), Exception) for m in members):
        cls = ExceptionGroup
    made = InstanceVar(cls, step=t.limits.steps)
    made.slots.update(
        args=SeqVar([message, SeqVar(list(members), list)], tuple), message=message, exceptions=SeqVar(list(members), tuple)
    )
    if like is not None:
        for name in ("__cause__", "__context__", "__suppress_context__"):
            if name in like.slots:
                made.slots[name] = like.slots[name]
        notes = t.values.lookup(like.namespace, "__notes__")
        if notes is not None and isinstance(notes := t.values.real(notes), SeqVar):
            t.subscript_writes.dict_set(made.namespace, Known("__notes__"), SeqVar(list(notes.items), list))
        t.part_of[id(made)] = t.part_of.get(id(like), like)
        t.keep.append(made)
    return made


def new_group(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """ExceptionGroup(message, exceptions)."""
    cls = t.as_class(args[0])
    if len(args) != 3 or kwargs or cls not in (ExceptionGroup, BaseExceptionGroup):
        raise Break("making an exception group")
    message, members = t.values.real(args[1]), [t.values.real(m) for m in t.iteration.iterate(args[2])]
    wrong = (
        not isinstance(t.const(message), str)
        or not members
        or not all(isinstance(m, InstanceVar) and issubclass(m.cls, Exception) and m.real is None for m in members)
    )
    if wrong:
        raise Break("making an exception group of what is no exception of the region")
    made = make_group(t, cls, message, members)
    made.slots["args"] = SeqVar([message, args[2]], tuple)
    return made


models(BaseExceptionGroup.__new__)(new_group)


def split(t: Tracer, exc: InstanceVar, wanted: Callable) -> tuple[Var | None, Var | None]:
    """(the part for which wanted(exception) holds, the rest), each None when empty; nested groups keep their shape."""
    if wanted(exc):
        return exc, None
    if not issubclass(exc.cls, BaseExceptionGroup):
        return None, exc
    if class_lookup(exc.cls, "derive")[0] is not BaseExceptionGroup.__dict__["derive"] or exc.real is not None:
        raise Break("an exception group with its own derive()")
    parts = [split(t, m, wanted) for m in members_of(t, exc)]
    yes, no = [y for y, _ in parts if y is not None], [n for _, n in parts if n is not None]
    message = exc.slots["message"]
    if not yes:
        return None, exc
    return (
        make_group(t, BaseExceptionGroup, message, yes, like=exc),
        make_group(t, BaseExceptionGroup, message, no, like=exc) if no else None,
    )


def members_of(t: Tracer, group: InstanceVar) -> list[InstanceVar]:
    """The exceptions in a group. Raises: Break for a group that the region did not make."""
    if group.real is not None:
        raise Break("an exception group from outside the region")
    return [expect(t.values.real(m), InstanceVar) for m in expect(group.slots["exceptions"], SeqVar).items]


def is_group(exc: Var) -> TypeGuard[InstanceVar]:
    return isinstance(exc, InstanceVar) and issubclass(exc.cls, BaseExceptionGroup)


@handles("CHECK_EG_MATCH")
def check_eg_match(t: Tracer, f: Frame, ins: Ins) -> None:
    """[exc, type] -> [rest, match] (rest None: all matched), or [exc, None]."""
    cls, exc = t.pop(f), t.values.real(f.stack[-1])
    if is_object(exc, None):
        f.push(NONE)
        return
    if not isinstance(exc, InstanceVar) or exc.real is not None:
        raise Break("an exception from outside the region matched by except*")
    if any(issubclass(c, BaseExceptionGroup) for c in classes_of(t, cls)):
        raise Raised(exception_var(TypeError("catching ExceptionGroup with except* is not allowed. Use except instead.")))
    match, rest = split(t, exc, lambda e: matches(t, e, cls))
    if match is None:
        f.push(NONE)
        return
    if not is_group(match):
        match = make_group(t, ExceptionGroup, Known(""), [match])
    f.stack[-1] = rest if rest is not None else NONE
    f.push(match)
    f.handling[-1] = match


def classes_of(t: Tracer, cls: Var) -> list[type]:
    cls = t.values.real(cls)
    given = cls.items if isinstance(cls, SeqVar) else [cls]
    found = [c for c in map(t.as_class, given) if c is not None and issubclass(c, BaseException)]
    if len(found) != len(given):
        raise Raised(exception_var(TypeError("catching classes that do not inherit from BaseException is not allowed")))
    return found


@handles("PREP_RERAISE_STAR")
def prep_reraise_star(t: Tracer, f: Frame, ins: Ins) -> None:
    """[original, exceptions left or raised in the clauses] -> what to raise on, or None."""
    excs, orig = t.pop(f), t.pop(f)
    left = map(t.values.real, expect(excs, SeqVar).items)
    f.push(reraise_star(t, orig, [e for e in left if isinstance(e, InstanceVar)]))


@handles("CALL_INTRINSIC_2")
def call_intrinsic_2(t: Tracer, f: Frame, ins: Ins) -> None:
    """3.12+: 1 is the end of an except* statement; the others make type parameters."""
    if ins.arg != 1:
        raise Break("a type parameter")
    prep_reraise_star(t, f, ins)


def reraise_star(t: Tracer, orig: Var, excs: list[InstanceVar]) -> Var:
    if not is_group(orig):
        return excs[0] if excs else NONE
    left = [e for e in excs if e is orig or t.part_of.get(id(e)) is t.part_of.get(id(orig), orig)]
    raised: list[Var] = [e for e in excs if e not in left]
    keep = {id(leaf) for e in left for leaf in leaves(t, e)}
    back = split(t, orig, lambda e: not is_group(e) and id(e) in keep)[0] if keep else None
    if back is not None and len(keep) == len(list(leaves(t, orig))):
        back = orig
    if back is not None:
        raised.append(back)
    if not raised:
        return NONE
    return raised[0] if len(raised) == 1 else make_group(t, ExceptionGroup, Known(""), raised)


def leaves(t: Tracer, exc: Var) -> Iterator:
    if is_group(exc):
        for m in members_of(t, exc):
            yield from leaves(t, m)
    else:
        yield exc
