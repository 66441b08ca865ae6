"""Globals, builtins, cells and the namespaces of class bodies."""

from __future__ import annotations

import builtins

from bytejit.guards.sources import Builtin, Global, Scope
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.frame import Frame

from .values import CellVar, DictVar, Known, Var


class Names(Component):
    """The part of the tracer that reads and writes names."""

    def load_global(self, f: Frame, name: str) -> Var:
        """A global, else a builtin. Raises: Raised(NameError)."""
        deleted, value = self.known(f.globals, name)
        if value is not None:
            return value
        if not deleted and name in f.globals:
            self.t.program_operators.read_name(f.globals, name)
            return self.t.values.memo_lazy(("g", id(f.globals), name), f.globals[name], lambda: Global.of(f.globals, name))
        builtins_ = f.globals.get("__builtins__", __builtins__)
        table = builtins_ if isinstance(builtins_, dict) else vars(builtins_)
        gone, value = self.known(table, name)
        if value is None and (gone or name not in table):
            raise self.t.raised(NameError(f"name '{name}' is not defined", name=name))
        return value or self.builtin(f, name, table, deleted)

    def known(self, space: dict, name: str) -> tuple[bool, Var | None]:
        """Returns what the region has done to a name of a namespace: (whether it was deleted, the value bound to it). (False,
        None): nothing, so the namespace is to be read. A namespace that the program also holds as a dict is read as that dict."""
        held = self.t.by_id.get(id(space))
        if isinstance(held, DictVar):
            if name not in held.items:
                self.t.program_operators.read_name(space, name)
            value = self.t.values.lookup(held, name)
            return value is None, value
        written = self.t.effects.globals_written.get(id(space), (space, {}))[1]
        return name in written and written[name] is None, written.get(name)

    def builtin(self, f: Frame, name: str, table: dict, deleted: bool) -> Var:
        """A name that is not among the globals; deleted: the region says so, and no guard asks the globals."""
        if not deleted:
            self.t.guard("DICT_ABSENT", Scope.of(f.globals), name)
        if table is vars(builtins):
            return self.t.values.memo_lazy(("b", name), table[name], lambda: Builtin(name))
        return self.t.values.memo_lazy(("b", id(table), name), table[name], lambda: Global.of(table, name))

    def store_global(self, f: Frame, name: str, value: Var | None) -> None:
        """Recorded, and replayed at the exit. `value` None deletes."""
        self.bind(f.globals, name, value)

    def bind(self, space: dict, name: str, value: Var | None) -> None:
        """Bind a name in a namespace, or delete it (None)."""
        held = self.t.by_id.get(id(space))
        if not isinstance(held, DictVar):
            self.t.effects.mutations += 1
            self.t.effects.globals_written.setdefault(id(space), (space, {}))[1][name] = value
        elif value is not None:
            self.t.subscript_writes.dict_set(held, Known(name), value)
        else:
            self.t.subscript_writes.dict_del(held, name)

    def held_as_dict(self, held: DictVar) -> None:
        """Takes note that the program holds this dict. Where it is a namespace, the values bound in it are put into the dict."""
        _, written = self.t.effects.globals_written.pop(id(held.real), (held.real, {}))
        for name, value in written.items():
            if value is not None or name in held.real:
                self.bind(held.real, name, value)

    def set_cell(self, cell: CellVar, value: Var | None) -> None:
        if value is not None and value.source is None:
            pass
        cell.content, cell.changed = value, True
        self.t.effects.mutations += 1
        self.t.effects.dirty[id(cell)] = self.t.effects.touched[id(cell)] = cell

    def namespace_get(self, names: DictVar, name: str) -> Var | None:
        return self.t.values.lookup(names, name)

    def namespace_set(self, names: DictVar, name: str, value: Var) -> None:
        names.items[name] = (Known(name), value)
