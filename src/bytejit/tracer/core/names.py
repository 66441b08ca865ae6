"""Globals, builtins, cells and the namespaces of class bodies."""

from __future__ import annotations

from bytejit.guards.sources import Global
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.frame import Frame

from .values import CellVar, DictVar, Known, Var


class Names(Component):
    """The part of the tracer that reads and writes names."""

    def load_global(self, f: Frame, name: str) -> Var:
        """A global, else a builtin. Raises: Raised(NameError)."""
        written = self.t.effects.globals_written.get(id(f.globals))
        if written is not None and name in written[1]:
            value = written[1][name]
            if value is not None:
                return value
        elif name in f.globals:
            self.t.program_operators.read_name(f.globals, name)
            return self.t.values.memo_lazy(("g", id(f.globals), name), f.globals[name], lambda: Global.of(f.globals, name))
        builtins_ = f.globals.get("__builtins__", __builtins__)
        table = builtins_ if isinstance(builtins_, dict) else vars(builtins_)
        changed = self.t.effects.globals_written.get(id(table))
        if changed is not None and name in changed[1] and changed[1][name] is not None:
            return changed[1][name]
        if name not in table or changed is not None and name in changed[1]:
            raise self.t.raised(NameError(f"name '{name}' is not defined", name=name))
        return self.builtin(f, name, table)

    def builtin(self, f: Frame, name: str, table: dict) -> Var:
        from bytejit.guards.sources import Scope

        self.t.guard("DICT_ABSENT", Scope.of(f.globals), name)
        import builtins

        if table is vars(builtins):
            from bytejit.guards.sources import Builtin

            return self.t.values.memo_lazy(("b", name), table[name], lambda: Builtin(name))
        return self.t.values.memo_lazy(("b", id(table), name), table[name], lambda: Global.of(table, name))

    def store_global(self, f: Frame, name: str, value: Var | None) -> None:
        """Recorded, and replayed at the exit. `value` None deletes."""
        self.t.effects.mutations += 1
        self.t.effects.globals_written.setdefault(id(f.globals), (f.globals, {}))[1][name] = value

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
