"""Classes made in a region that leave it: made again by the exit's statements, where making them runs no code of the program."""

from __future__ import annotations

import types

from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, InstanceVar
from bytejit.tracer.objects.class_facts import class_lookup

from .statements import Statements

AT_CREATION = ("__slots__", "__module__", "__qualname__", "__doc__")
NOT_SET = frozenset({*AT_CREATION, "__classcell__", "__dict__", "__weakref__"})


def can_be_made(t: Tracer, cls: type) -> bool:
    """Whether `type(name, bases, namespace)` makes the class, without hooks written in Python."""
    made = t.made_classes[cls]
    contents = made.contents
    if type(cls) is not type or "__orig_bases__" in contents or "__init_subclass__" in contents:
        return False
    for base in made.bases:
        if base in t.made_classes:
            if not can_be_made(t, base):
                return False
        elif type(base) is not type or not isinstance(
            class_lookup(base, "__init_subclass__")[0], types.ClassMethodDescriptorType
        ):
            return False
    values = (t.values.real(v) for v in contents.values())
    return not any(
        isinstance(v, InstanceVar) and isinstance(class_lookup(v.cls, "__set_name__")[0], types.FunctionType) for v in values
    )


def make_class(out: Statements, cls: type) -> str:
    """The name of the class in the exit's text; the statements that make it go to `out.lines`."""
    name = out.classes.get(cls)
    if name is not None:
        return name
    made = out.t.made_classes[cls]
    contents, bases = made.contents, "".join(out.bind(b) + ", " for b in made.bases)
    first = "".join(f"{k!r}: {out.value(contents[k])}, " for k in AT_CREATION if k in contents)
    if made.names_cell is not None:  # `type` puts the class's namespace into it
        cell = out.names.get(id(made.names_cell))
        if cell is None:
            cell = out.new_name(made.names_cell)
            out.lines.append(f"{cell} = {out.bind(types.CellType)}()")
        first += f"'__classdictcell__': {cell}, "
    name = out.classes[cls] = f"n{out.count}"
    out.count += 1
    out.lines.append(f"{name} = {out.bind(type)}({cls.__name__!r}, ({bases}), {{{first}}})")
    given = {k: v for k, v in contents.items() if k not in NOT_SET}
    if "__eq__" in given and "__hash__" not in given:
        given["__hash__"] = NONE
    for key, value in given.items():
        out.lines.append(f"{out.bind(setattr)}({name}, {key!r}, {out.value(value)})")
    return name


def rebuild_class(out: Statements, cls: type) -> str:
    """The name of a class that the library made of constants, in the exit's text (`objects/rebuilt_classes.py`)."""
    name = out.classes.get(cls)
    if name is None:
        function, args, kwargs, _ = out.t.rebuilt_classes[cls]
        name = out.classes[cls] = f"n{out.count}"
        out.count += 1
        out.lines.append(f"{name} = {out.at.bind(function, 'k')}(*{out.at.bind(args, 'k')}, **{out.at.bind(kwargs, 'k')})")
    return name
