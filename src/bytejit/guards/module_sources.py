"""Sources of what an `nn.Module` holds: parameters, buffers, submodules."""

from __future__ import annotations

from typing import ClassVar

from .item_sources import DictItem
from .references import SourcePrinter
from .source import Source, source
from .sources import InstanceDict


class ModuleEntry(Source):
    """One entry of a module's `_parameters`, `_buffers` or `_modules` dict, past nn.Module.__getattr__."""

    __slots__ = ()
    base: Source
    key: str
    table: ClassVar[str]

    def expr(self, at: SourcePrinter) -> str:
        return f"{at.source(DictItem(InstanceDict(self.base), self.table))}[{self.key!r}]"

    def name(self) -> str:
        return f"{self.base.name()}.{self.key}" if self.key.isidentifier() else f"{self.base.name()}[{self.key!r}]"

    def bases(self) -> tuple[Source, ...]:
        return (DictItem(InstanceDict(self.base), self.table),)


@source
class ModuleParam(ModuleEntry):
    """`base.__dict__['_parameters'][key]`."""

    base: Source
    key: str
    table = "_parameters"


@source
class ModuleBuffer(ModuleEntry):
    """`base.__dict__['_buffers'][key]`."""

    base: Source
    key: str
    table = "_buffers"


@source
class SubModule(ModuleEntry):
    """`base.__dict__['_modules'][key]`."""

    base: Source
    key: str
    table = "_modules"
