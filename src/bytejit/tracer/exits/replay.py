"""The tail of an entry: deferred calls, values, writes to objects from outside, the ambient state, and the way out."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch

from bytejit.common import ambient, ambient_kinds, given_warnings
from bytejit.guards.sources import Cell, SourcePrinter
from bytejit.tracer.core.iterator_values import GenVar, IterVar
from bytejit.tracer.core.signals import CannotReconstruct
from bytejit.tracer.core.values import CellVar, Var
from bytejit.tracer.objects import external_generators, external_iterators
from bytejit.tracer.torch import inference_mode

from . import cached_calls, effects
from .reconstruction import Reconstruction


class SideEffectReplay(Reconstruction):
    """Writes the statements that an entry ends with."""

    def write(self, printer: SourcePrinter, values: list[Var], last: Callable[[list[str]], str]) -> str:
        """Statements; `last(expressions)` is the one that leaves. A dry run finds `outputs`. Raises: CannotReconstruct."""
        self.start(printer)
        self.t.program_operators.check_late()
        for v in self.t.deferred_calls:
            if v.watched is not None and v.watched[0]._version != v.watched[1]:
                raise CannotReconstruct("a tensor with a hook, changed afterwards,", v.step)
            if self.t.deferred.recorded and given_warnings.gives(v.function) and id(given_warnings.record()) in self.t.by_id:
                raise CannotReconstruct("a warning, whose record the region reads,", v.step)
            if self.t.deferred.filtered and id(warnings.filters) in self.t.by_id:
                raise CannotReconstruct("a change of the filters of warnings, which the region reads,", v.step)
            inside = self.many(v.args)
            self.lines.append(f"{self.new_name(v)} = {self.bind(v.function)}({inside})")
        texts = [self.value(v) for v in values]
        writes, left = self.effects(), self.leave(last(texts))
        if writes and self.t.locked:
            locks = dict.fromkeys(self.at.source(v.origin) for v in self.t.locked)
            writes = [f"with {', '.join(locks)}:", *("    " + e for e in writes)]
        found = "\n".join([*self.lines, *writes, *left])
        return found if not self.t.deferred.filtered else self.putting_filters_back(found)

    def putting_filters_back(self, statements: str) -> str:
        """The statements, which change the filters of warnings: cut short, the filters are those of before."""
        kinds = self.bind(tuple(kind for kind in ambient_kinds.KINDS if kind.name == "warnings"))
        inside = "\n".join("    " + line for line in statements.splitlines())
        begin = f"filters = {self.bind(ambient.capture)}({kinds})\ntry:\n"
        return f"{begin}{inside}\nexcept BaseException:\n    filters.restore()\n    raise"

    def effects(self) -> list[str]:
        """Writes to objects from outside. Values are computed into `lines` before any write."""
        out: list[str] = []
        for namespace, changes in self.t.effects.globals_written.values():
            g = self.bind(namespace)
            for name, value in changes.items():
                out.append(f"{g}[{name!r}] = {self.value(value)}" if value is not None else f"{g}.pop({name!r}, None)")
        for cls, names in self.t.effects.classes_written.items():
            out += [f"setattr({self.bind(cls)}, {name!r}, {self.value(value)})" for name, value in names.items()]
        out += cached_calls.count_calls(self.t, self.at) + cached_calls.symbolic_calls(self)
        for v in self.t.effects.dirty.values():  # first: over what is written next
            if isinstance(v, IterVar):
                out += external_iterators.advance(self.at.source(v.origin), v)
            elif isinstance(v, GenVar):
                if not v.finished or not v.closable:
                    raise CannotReconstruct("a generator from outside that has more to give", v.step, generator=True)
                out += external_generators.close(self.at.source(v.origin))
        cells = [v for v in self.t.effects.dirty.values() if isinstance(v, CellVar)]
        for v in list(self.t.effects.dirty.values()):
            if not isinstance(v, (CellVar, GenVar, IterVar)):
                out += effects.WRITERS[type(v)](self, v)
        # cells last: a cell that dies with the frame is written only when something that leaves holds it
        while wanted := [v for v in cells if id(v) in self.kept_cells or not self.dies_here(v)]:
            cells = [v for v in cells if v not in wanted]
            for v in wanted:
                out += effects.write_cell(self, v)
        return out

    def leave(self, last: str) -> list[str]:
        """Make the ambient state what the program has behind the region, then return. Cut short, it is put back: the program
        is where the region begins, and its `with` statements restore only what was so there. Setters: the entry does that.
        """
        inference = [self.value(manager) for manager, _ in self.t.inference]
        kinds = self.kinds_entered()
        entered = self.ambient_state(inference)
        if not kinds and not inference:
            return [*entered, last]
        before = [f"before = {self.bind(ambient.capture)}({self.bind(kinds)})"] if kinds else []
        if inference:
            modes = "".join(f"{self.value(m.slots['mode'])}, " for m, _ in self.t.inference)
            begin = self.bind(inference_mode.MANAGER.__init__)
            before.append(f"begin = map({begin}, ({', '.join(inference)},), ({modes}))")
            entered.insert(0, "tuple(begin)")  # one step of the interpreter: an interrupt finds all entered
        undo = [f"    {manager}.__exit__(None, None, None)" for manager in reversed(inference)]
        undo += ["    before.restore()"] if kinds else []
        return [
            *before,
            "try:",
            *("    " + line for line in (*entered, *last.splitlines())),
            "except BaseException:",
            *undo,
            "    raise",
        ]

    def kinds_entered(self) -> tuple[ambient_kinds.Kind, ...]:
        """The kinds of ambient state that the exit changes by entering or leaving one level. No setter of these says what
        the state was before."""
        t = self.t
        names = {
            "function modes": t.devices or t.overrides.entered,
            "torch functions asked": t.overrides.functions_off,
            "autocast nesting": t.nesting,
        }
        return tuple(kind for kind in ambient_kinds.KINDS if names.get(kind.name))

    def as_begun(self, key: tuple, args: tuple) -> bool:
        """Whether a setter's state is at the end what it was as the region began, and as its graph ends."""
        return self.t.state_first[key] == (args, True) and not self.t.inference

    def ambient_state(self, inference: list[str]) -> list[str]:
        """Statements that enter the managers, modes and settings in which the region ends."""
        out = [f"{self.bind(device)}.__enter__()" for device in self.t.devices]
        out += [f"{manager}.__enter__()" for manager in inference]
        out += [f"{self.bind(torch._C._push_on_torch_function_stack)}({self.value(mode)})" for mode in self.t.overrides.entered]
        out += [f"{self.value(manager)}.__enter__()" for manager in self.t.overrides.functions_off]
        if self.t.nesting:
            out.append(f"{self.bind(ambient_kinds.nest)}({self.t.nesting})")
        for key, args in self.t.effects.state_set.items():
            function = key[0]
            if self.as_begun(key, args):
                continue
            out.append(
                f"{self.bind(function)}{args!r}"
                if all(type(a) in (bool, str) for a in args)
                else f"{self.bind(function)}(*{self.bind(args)})"
            )
        return out

    def dies_here(self, v: CellVar) -> bool:
        """Whether the cell is this frame's own, not yet seen by anyone, and the frame ends with the region."""
        t = self.t
        own = isinstance(v.source, Cell) and v.source.var in t.root_frame.code.co_cellvars
        return own and self.returns and t.job.point == t.job.rewritten.start
