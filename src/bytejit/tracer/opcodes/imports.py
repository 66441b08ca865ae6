"""Handlers: `import` within a function, and `importlib.import_module`.

A module that is not loaded yet is loaded before the region, which is then traced again. Loading runs the program's code:
the graph breaks if the region has changed something that this code may see, and if the import fails. Then the original code
imports by itself.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

from bytejit.common import special_cases
from bytejit.guards.item_sources import DictItem
from bytejit.guards.sources import KnownSource
from bytejit.tracer.core.frame import Frame, Ins
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break, NotLoaded
from bytejit.tracer.core.table import handles
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NULL, Known, Var


@handles("IMPORT_NAME")
def import_name(t: Tracer, f: Frame, ins: Ins) -> None:
    names, level = t.const(t.pop(f)), t.const(t.pop(f))
    package = f.globals.get("__package__") or f.globals.get("__name__", "").rpartition(".")[0]
    full = ins.val
    if level:
        base = package.rsplit(".", level - 1)[0] if level > 1 else package
        full = f"{base}.{ins.val}" if ins.val else base
    for wanted in (full, *_submodules(full, names or ())):
        if wanted not in sys.modules:
            _load(t, wanted)
    f.push(_loaded(t, full if names else full.partition(".")[0]))


def _submodules(full: str, names: tuple[str, ...]) -> Iterator[str]:
    """The modules that `from full import names` loads. Raises: Break where code of the package's says what its names are."""
    module = sys.modules.get(full)
    own = {} if module is None else module.__dict__
    for name in (f"{full}.{n}" for n in names if "__path__" in own and n not in own):
        if name not in sys.modules and _found(name):
            if type(module) is not ModuleType or "__getattr__" in own:
                raise Break(f"an import that may load a module: {name}")
            yield name


def _found(name: str) -> bool:
    """Whether there is a module of this name. Of the packages that it lies in only the first is looked for."""
    if name.rpartition(".")[0] not in sys.modules:
        name = name.partition(".")[0]
    try:
        return name in sys.modules or importlib.util.find_spec(name) is not None
    except Exception:  # what finders of the program's raise, the import raises
        return False


def _loaded(t: Tracer, name: str) -> Var:
    """A module that is loaded. The program may put another one in its place, as tests do; torch's and Python's own stay."""
    module = sys.modules[name]
    if not _is_own(name):
        t.guard("ID_IS", DictItem(KnownSource.of(sys.modules), name), module)
    return t.values.constant(module)


def _is_own(name: str) -> bool:
    """Whether a module is one of Python's or torch's: it reads nothing of the program's."""
    return name.partition(".")[0] in sys.stdlib_module_names or special_cases.TORCH.named(name)


def _load(t: Tracer, name: str) -> None:
    """Ask for a module. Raises: NotLoaded; Break."""
    e = t.effects
    changed = e.dirty or e.globals_written or e.classes_written or t.deferred_calls or t.state_first
    if changed and not _is_own(name) or name in t.job.unloadable or not _found(name):
        raise Break(f"an import that loads a module: {name}")
    raise NotLoaded(name)


@models(importlib.import_module)
def import_module(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    name = t.const(args[0]) if len(args) == 1 and not kwargs else None
    if type(name) is not str or not name or name.startswith("."):
        raise Break("importlib.import_module with these arguments")
    if name not in sys.modules:
        _load(t, name)
    return _loaded(t, name)


@handles("IMPORT_FROM")
def import_from(t: Tracer, f: Frame, ins: Ins) -> None:
    module = t.values.real(f.stack[-1])
    found = t.attributes.getattr(module, ins.val, NULL)
    if found is NULL:
        full = f"{module.obj.__name__}.{ins.val}" if isinstance(module, Known) else ""
        if full not in sys.modules:
            raise Break(f"an import that fails or loads a module: {full or ins.val}")
        found = _loaded(t, full)
    f.push(found)
