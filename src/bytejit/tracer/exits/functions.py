"""Functions, cells, bound methods and descriptors made in a region that leave it."""

from __future__ import annotations

import types

from bytejit.tracer.core.models import STAYING
from bytejit.tracer.core.signals import CannotReconstruct
from bytejit.tracer.core.values import CellVar, FuncVar, InstanceVar, Known, MethodVar, PropertyVar, SeqVar, SuperVar

from .statements import Statements


def cell(out: Statements, v: CellVar) -> str:
    name = out.new_name(v)
    out.lines.append(f"{name} = {out.bind(types.CellType)}()")
    if v.content is not None:
        out.lines.append(f"{name}.cell_contents = {out.value(v.content)}")
    return name


def function(out: Statements, v: FuncVar) -> str:
    if v.code in STAYING:
        raise CannotReconstruct(f"a function of the tracer's own ({v.name}) made in the region", v.step)
    name = out.new_name(v)
    cells = []
    for part in v.closure:
        cell = out.t.values.real(part)
        assert isinstance(cell, CellVar), cell
        if id(cell) not in out.names and cell.source is None:
            inner = out.new_name(cell)
            out.lines.append(f"{inner} = {out.bind(types.CellType)}()")
            out.fills.append((inner, cell))
        out.kept_cells.add(id(cell))
        cells.append(out.names.get(id(cell)) or out.at.source(cell.origin))
    defaults = f"({out.many(v.defaults)})" if v.defaults else "None"
    closure = "(" + "".join(c + ", " for c in cells) + ")" if cells else "None"
    out.lines.append(
        f"{name} = {out.bind(types.FunctionType)}({out.bind(v.code)}, {out.bind(v.globals)}, {v.name!r}, {defaults}, {closure})"
    )
    if v.qualname != v.code.co_qualname:
        out.lines.append(f"{name}.__qualname__ = {v.qualname!r}")
    if v.kwdefaults:
        out.lines.append(
            f"{name}.__kwdefaults__ = {{" + "".join(f"{k!r}: {out.value(d)}, " for k, d in v.kwdefaults.items()) + "}"
        )
    if isinstance(v.annotations, FuncVar):
        out.lines.append(f"{name}.__annotate__ = {out.value(v.annotations)}")
    elif isinstance(v.annotations, SeqVar):
        pairs = zip(v.annotations.items[::2], v.annotations.items[1::2])
        items = "".join(f"{out.value(k)}: {out.value(a)}, " for k, a in pairs)
        out.lines.append(f"{name}.__annotations__ = {{{items}}}")
    for attr, value in v.attrs.items():
        out.lines.append(f"{name}.{attr} = {out.value(value)}")
    while out.fills:
        inner, cell = out.fills.pop()
        if cell.content is not None:
            out.lines.append(f"{inner}.cell_contents = {out.value(cell.content)}")
    return name


def method(out: Statements, v: MethodVar) -> str:
    func = out.t.values.real(v.func)
    if isinstance(func, Known) and isinstance(func.obj, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        if isinstance(v.self, InstanceVar):  # under its name the class may have another one
            return f"{out.bind(func.obj)}.__get__({out.value(v.self)}, {out.bind(v.self.cls)})"
        return f"{out.value(v.self)}.{func.obj.__name__}"
    return f"{out.bind(types.MethodType)}({out.value(func)}, {out.value(v.self)})"


def bound_super(out: Statements, v: SuperVar) -> str:
    return f"super({out.bind(v.cls)}, {out.value(v.obj)})"


def descriptor(out: Statements, v: PropertyVar) -> str:
    return f"{out.bind(v.cls)}({out.many(v.args)})"
