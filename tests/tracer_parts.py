"""A plugin of mypy: the parts of a tracer (`assembly.PARTS`) as typed attributes.

Parts reach each other through their tracer, so their types go in a circle, which imports must not: `Tracer` names none of them,
and `assembly` puts them together. This tells mypy what it would see if `Tracer` could import them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from mypy.nodes import MypyFile
from mypy.plugin import ClassDefContext, Plugin, ReportConfigContext
from mypy.plugins.common import add_attribute_to_class

TRACER = "bytejit.tracer.core.tracer"
ASSEMBLY = Path(__file__).resolve().parent.parent / "src/bytejit/tracer/assembly.py"


def parts() -> dict[str, str]:
    """Attribute of a tracer -> full name of the class of that part."""
    tree = ast.parse(ASSEMBLY.read_text())
    module = {a.name: n.module for n in tree.body if isinstance(n, ast.ImportFrom) and not n.level for a in n.names}
    table = next(n.value for n in tree.body if isinstance(n, ast.AnnAssign) and n.target.id == "PARTS")
    return {k.value: f"{module[v.id]}.{v.id}" for k, v in zip(table.keys, table.values)}


class TracerParts(Plugin):
    """See the module."""

    def get_additional_deps(self, file: MypyFile) -> list[tuple[int, str, int]]:
        if file.fullname != TRACER:
            return []
        return [(10, name.rpartition(".")[0], -1) for name in parts().values()]

    def report_config_data(self, context: ReportConfigContext) -> dict[str, str] | None:
        """What the tracer's module depends on besides its text: mypy keeps nothing of it once the parts change."""
        return parts() if context.id == TRACER else None

    def get_customize_class_mro_hook(self, fullname: str) -> Callable[[ClassDefContext], None] | None:
        return add_parts if fullname == f"{TRACER}.Tracer" else None


def add_parts(context: ClassDefContext) -> None:
    for name, cls in parts().items():
        made = context.api.named_type_or_none(cls)
        if made is None:
            if not context.api.final_iteration:
                context.api.defer()
            continue
        add_attribute_to_class(context.api, context.cls, name, made)


def plugin(version: str) -> type[Plugin]:
    """What mypy asks for."""
    return TracerParts
