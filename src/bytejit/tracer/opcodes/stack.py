"""Handlers: stack shuffling, constants, locals, cells, globals. https://docs.python.org/3/library/dis.html"""

from __future__ import annotations

import builtins
from types import GeneratorType

import torch

from bytejit.guards.source import Source
from bytejit.guards.sources import Local, StackSlot
from bytejit.tracer.core.exceptions import exception_var
from bytejit.tracer.core.frame import Frame, Ins
from bytejit.tracer.core.iterator_values import GenVar
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.table import RETURN, handles
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NULL, CellVar, DictVar, InstanceVar, Known, Lazy, SeqVar, Var
from bytejit.tracer.objects.finalizers import ends_by_code


@handles("NOP", "RESUME", "CACHE", "EXTENDED_ARG", "PRECALL", "COPY_FREE_VARS", "NOT_TAKEN")
def nothing(t: Tracer, f: Frame, ins: Ins) -> None:
    """COPY_FREE_VARS is done when the frame is set up."""


@handles("MAKE_CELL")
def make_cell(t: Tracer, f: Frame, ins: Ins) -> None:
    """Done when the frame is set up, but for 3.12's inlined comprehensions, each of which makes its own."""
    if ins.index >= f.decoded.body:
        f.cells[ins.val] = CellVar(f.locals.pop(ins.val, None))


@handles("POP_TOP", "POP_ITER")
def pop_top(t: Tracer, f: Frame, ins: Ins) -> None:
    value = f.stack[-1]
    let_generator_go(t, f, value)
    if isinstance(value.source, StackSlot) or (type(value) is SeqVar and value.source is None):
        let_go(t, f, value, held=StackSlot)
    f.stack.pop()


@handles("PUSH_NULL")
def push_null(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(NULL)


@handles("SWAP")
def swap(t: Tracer, f: Frame, ins: Ins) -> None:
    f.stack[-1], f.stack[-ins.arg] = f.stack[-ins.arg], f.stack[-1]


@handles("COPY")
def copy(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(f.stack[-ins.arg])


@handles("LOAD_CONST", "LOAD_SMALL_INT", "RETURN_CONST_VALUE")
def load_const(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(t.values.constant(ins.val if ins.op != "LOAD_SMALL_INT" else ins.arg))


def unbound_local(f: Frame, name: str) -> Raised:
    return Raised(
        exception_var(UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value"))
    )


@handles("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW")
def load_fast(t: Tracer, f: Frame, ins: Ins) -> None:
    load_local(t, f, ins.val)


def load_local(t: Tracer, f: Frame, name: str) -> None:
    if name in f.locals:  # also a cell variable of one comprehension that is a plain one of another
        f.push(f.locals[name])
    elif name in f.cells:  # 3.13: a cell variable is read with LOAD_FAST when its cell is wanted
        f.push(f.cells[name])
    else:
        raise unbound_local(f, name)


@handles("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(t: Tracer, f: Frame, ins: Ins) -> None:
    """What a slot of an inlined comprehension's variable held: a value, the function's own cell, or nothing."""
    f.push(f.locals.pop(ins.val) if ins.val in f.locals else f.cells.get(ins.val, NULL))


@handles("LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW")
def load_fast_load_fast(t: Tracer, f: Frame, ins: Ins) -> None:
    load_local(t, f, ins.val[0])
    load_local(t, f, ins.val[1])


@handles("STORE_FAST_LOAD_FAST")
def store_fast_load_fast(t: Tracer, f: Frame, ins: Ins) -> None:
    overwrite(t, f, ins.val[0])
    load_local(t, f, ins.val[1])


@handles("STORE_FAST_STORE_FAST")
def store_fast_store_fast(t: Tracer, f: Frame, ins: Ins) -> None:
    overwrite(t, f, ins.val[0])
    overwrite(t, f, ins.val[1])


@handles("STORE_FAST", "STORE_FAST_MAYBE_NULL")
def store_fast(t: Tracer, f: Frame, ins: Ins) -> None:
    overwrite(t, f, ins.val)


def overwrite(t: Tracer, f: Frame, name: str) -> None:
    """Move the uppermost value into a local. Raises: Break."""
    if f is t.root:
        if not t.lost:
            note_loss(t, f, name)
        if name in f.locals:
            let_generator_go(t, f, f.locals[name])
        elif t.job.generators and name in t.stale:  # what it holds now is not known, and ends when it is overwritten
            raise Break("a local that may hold a generator is overwritten")
    store_local(f, name, f.pop_raw())


def let_generator_go(t: Tracer, f: Frame, v: Var) -> None:
    """A local or the stack drops a generator. If that runs code of it (`finally`), the original code drops it. Raises: Break."""
    if f is t.root and isinstance(v.source, (Local, StackSlot)):
        obj = v.obj if type(v) is Lazy else getattr(v, "real", None)
        if isinstance(obj, GeneratorType) and obj.gi_frame is not None:
            gen = t.values.real(v)
            if not isinstance(gen, GenVar) or not (gen.finished or gen.closable):
                raise Break("an unfinished generator is dropped within a try or with block")


def note_loss(t: Tracer, f: Frame, name: str) -> None:
    """Whether the frame's own reference to an object from outside goes: what a weak reference says may change with it."""
    old = f.locals.get(name)
    if old is None:
        t.lost = name in t.stale
    elif old.source is not None:
        t.lost = not isinstance(old.obj if isinstance(old, (Lazy, Known)) else getattr(old, "real", old), UNWATCHED)


def let_go(t: Tracer, f: Frame, value: Var, held: type[Source] = Source) -> None:
    """A local or the stack drops its value. The frame keeps values from outside until the region ends: if dropping one would run
    code, the original code drops it. held: the kind of place that lets go of what it holds. Raises: Break."""
    value = value if type(value) is Lazy and value.var is None else t.values.real(value)
    inside = value.items if isinstance(value, SeqVar) else ()
    if isinstance(value, DictVar):
        inside = [v for _, v in value.items.values()]
    for v in (value, *inside[:64]):
        obj = v.obj if type(v) is Lazy else getattr(v, "real", None) if isinstance(v, (InstanceVar, SeqVar, DictVar)) else None
        if f is t.root and obj is not None and isinstance(v.source, held) and ends_by_code(obj):
            raise Break("an object with a finalizer is dropped")


UNWATCHED = (torch.Tensor, int, float, str, type(None))  # whose end no weak reference of the program tells, as a rule


def store_local(f: Frame, name: str, value: Var) -> None:
    if value is NULL:
        f.locals.pop(name, None)
    elif isinstance(value, CellVar) and name in f.cells:
        f.cells[name] = value
        f.locals.pop(name, None)
    else:
        f.locals[name] = value


@handles("DELETE_FAST")
def delete_fast(t: Tracer, f: Frame, ins: Ins) -> None:
    if ins.val not in f.locals:
        raise unbound_local(f, ins.val)
    let_go(t, f, f.locals[ins.val])
    if f is t.root and not t.lost:
        note_loss(t, f, ins.val)
    del f.locals[ins.val]


@handles("LOAD_CLOSURE")
def load_closure(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(f.cells[ins.val])


def cell_content(t: Tracer, cell: CellVar, name: str, free: bool) -> Var:
    if cell.content is None:
        if free:
            what = f"cannot access free variable '{name}' where it is not associated with a value in enclosing scope"
            raise Raised(exception_var(NameError(what, name=name)))
        raise Raised(
            exception_var(UnboundLocalError(f"cannot access local variable '{name}' where it is not associated with a value"))
        )
    return cell.content


@handles("LOAD_DEREF")
def load_deref(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(cell_content(t, f.cells[ins.val], ins.val, ins.val in f.code.co_freevars))


def in_namespace(t: Tracer, names: Var | None, name: str) -> Var | None:
    """Returns the value of a name in a class body's namespace; None without one."""
    if names is None:
        return None
    assert isinstance(names, DictVar), names
    return t.names.namespace_get(names, name)


@handles("LOAD_CLASSDEREF")
def load_classderef(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(in_namespace(t, f.names, ins.val) or cell_content(t, f.cells[ins.val], ins.val, True))


@handles("LOAD_FROM_DICT_OR_DEREF")
def load_from_dict_or_deref(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(in_namespace(t, t.pop(f), ins.val) or cell_content(t, f.cells[ins.val], ins.val, True))


@handles("STORE_DEREF")
def store_deref(t: Tracer, f: Frame, ins: Ins) -> None:
    t.names.set_cell(f.cells[ins.val], f.pop_raw())


@handles("DELETE_DEREF")
def delete_deref(t: Tracer, f: Frame, ins: Ins) -> None:
    cell = f.cells[ins.val]
    cell_content(t, cell, ins.val, ins.val in f.code.co_freevars)
    t.names.set_cell(cell, None)


@handles("LOAD_GLOBAL")
def load_global(t: Tracer, f: Frame, ins: Ins) -> None:
    """3.11+: the low bit asks for a NULL beside the callable."""
    value = t.names.load_global(f, ins.val)
    if ins.arg & 1:
        f.push_callable(value)
    else:
        f.push(value)


@handles("STORE_GLOBAL")
def store_global(t: Tracer, f: Frame, ins: Ins) -> None:
    t.names.store_global(f, ins.val, f.pop_raw())


@handles("DELETE_GLOBAL")
def delete_global(t: Tracer, f: Frame, ins: Ins) -> None:
    t.names.load_global(f, ins.val)
    t.names.store_global(f, ins.val, None)


@handles("LOAD_NAME")
def load_name(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(in_namespace(t, f.names, ins.val) or t.names.load_global(f, ins.val))


@handles("STORE_NAME")
def store_name(t: Tracer, f: Frame, ins: Ins) -> None:
    if f.names is None:
        raise Break("a name stored in a module's body")
    t.names.namespace_set(f.names, ins.val, f.pop_raw())


@handles("DELETE_NAME")
def delete_name(t: Tracer, f: Frame, ins: Ins) -> None:
    if f.names is None or f.names.items.pop(ins.val, None) is None:
        raise Raised(exception_var(NameError(f"name '{ins.val}' is not defined", name=ins.val)))


@handles("LOAD_LOCALS")
def load_locals(t: Tracer, f: Frame, ins: Ins) -> None:
    if f.names is None:
        raise Break("locals() of a function")
    f.push(f.names)


@handles("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(in_namespace(t, t.pop(f), ins.val) or t.names.load_global(f, ins.val))


@handles("RETURN_VALUE")
def return_value(t: Tracer, f: Frame, ins: Ins) -> int | None:
    f.returned = f.pop_raw()
    return RETURN


@handles("RETURN_CONST")
def return_const(t: Tracer, f: Frame, ins: Ins) -> int | None:
    f.returned = t.values.constant(ins.val)
    return RETURN


@handles("LOAD_ASSERTION_ERROR")
def load_assertion_error(t: Tracer, f: Frame, ins: Ins) -> None:
    f.push(Known(AssertionError))


@handles("LOAD_COMMON_CONSTANT")
def load_common_constant(t: Tracer, f: Frame, ins: Ins) -> None:
    """3.14: AssertionError, NotImplementedError, and the builtins tuple, all, any."""
    value = (
        ins.val
        if not isinstance(ins.val, int)
        else (AssertionError, NotImplementedError, builtins.tuple, builtins.all, builtins.any)[ins.val]
    )
    f.push(Known(value))
