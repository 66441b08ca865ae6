"""Libraries of our own on the CPU: a unit of C++ text, and the torch operators that run it."""

from __future__ import annotations

from collections.abc import Callable

from bytejit.common.options import Options
from bytejit.common.own_operators import OPERATORS

from .build_cpp import functions


class OwnLibrary:
    """One library. unit: its C++ text. schemas: of its operators, without the namespace. make(functions of the built unit) ->
    Python functions by name: those behind the operators ("bytejit.linear.default"), and helpers such as "pack".

    built: what `make` returned; empty until `register` was called, and where there is no compiler.
    """

    def __init__(self, unit: str, schemas: tuple[str, ...], make: Callable[[dict[str, Callable]], dict[str, Callable]]) -> None:
        self.unit, self.schemas, self.make = unit, schemas, make
        self.names = tuple(schema.partition("(")[0] for schema in schemas)
        self.built: dict[str, Callable] = {}
        self._by_options: dict[Options, dict[str, Callable]] = {}
        self._defined = False

    def define(self) -> None:
        """Makes the operators known to torch. They run once `register` was called."""
        if not self._defined:
            self._defined = True
            for schema in self.schemas:
                OPERATORS.define(schema)

    def register(self, options: Options) -> dict[str, Callable]:
        """Builds the unit and lets the operators run it. Returns what `make` returned: an emitter may call these functions
        directly, those of one result with `out=`. Raises: NoCompiler, BuildFailed."""
        if (made := self._by_options.get(options)) is None:
            made = self._by_options[options] = self.make(functions(self.unit, options))
            self.define()
            if not self.built:
                for name in self.names:
                    OPERATORS.impl(name, made[f"bytejit.{name}.default"], "CPU")
            self.built.update(made)
        return made
