"""Keeps torch's compiler off bytejit's code where both are in one process.

While a function that torch.compile made runs, torch's compiler looks at each frame: it would trace what bytejit rewrote,
and bytejit itself. It is told to pass over them when the program loads it, which `_Watch` sees.
"""

from __future__ import annotations

import importlib.machinery
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from .identity import IdentityMap
from .torch_controls import FRAMES, LOADED, OURS, RULES

HERE = str(Path(__file__).resolve().parents[1])
GENERATED = "<bytejit"  # how names of generated code begin, in place of a file's
# owner: keep_off; size: one a living rewritten code, until torch's compiler is loaded; goes with the code
_WAITING: IdentityMap[weakref.ref[types.CodeType]] = IdentityMap()
# owner: when_loaded; size: one a patch in force, until torch's compiler is loaded
_THEN: list[Callable[[types.ModuleType], None]] = []


def mark_compiled(compiled: Callable, fn: Callable) -> None:
    """What torch's compiler is to know of a function that bytejit made of `fn`: given it, it compiles `fn`; within a function
    that it compiles it calls it as it is."""
    compiled.__dict__.update(
        _torchdynamo_orig_callable=fn,
        _torchdynamo_wrapper_id=id(compiled),
        _torchdynamo_disable=OURS,
        _torchdynamo_disable_msg=OURS,
    )


def keep_off(code: types.CodeType) -> None:
    """Let torch's compiler pass over a rewritten code, now or when it is loaded."""
    skip = getattr(sys.modules.get(FRAMES), "skip_code", None)
    if skip is not None and not _watching():
        _pass_over_files()
        skip(code)
        return
    _WAITING.set(code, weakref.ref(code))
    _watch()


def when_loaded(then: Callable[[types.ModuleType], None]) -> None:
    """Call `then` with torch's compiler when the program loads it; not where it is loaded already."""
    if LOADED not in sys.modules:
        _THEN.append(then)
        _watch()


def forget(then: Callable[[types.ModuleType], None]) -> None:
    """Take back `when_loaded`."""
    if then in _THEN:
        _THEN.remove(then)


def _watch() -> None:
    if LOADED not in sys.modules and not _watching():
        sys.meta_path.insert(0, _Watch())


def _watching() -> bool:
    return any(isinstance(finder, _Watch) for finder in sys.meta_path)


def _pass_over_files() -> None:
    rules = sys.modules.get(RULES)
    folders, renew = getattr(rules, "SKIP_DIRS", None), getattr(rules, "_recompile_re", None)
    if folders is not None and renew is not None and GENERATED not in folders:
        folders += [f"{HERE}/", GENERATED]
        renew()


class _Watch:
    """A finder of modules that finds none but torch's compiler, once: what waits is kept off it, and told, then."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """The module's own spec, for torch's compiler."""
        if name != LOADED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_tell(module: types.ModuleType) -> None:
                load(module)
                sys.meta_path.remove(self)
                for code in filter(None, (ref() for ref in [*_WAITING.values()])):
                    keep_off(code)
                    _WAITING.pop(code)
                for then in [*_THEN]:
                    then(module)
                _THEN.clear()

            spec.loader.exec_module = load_and_tell  # type: ignore[method-assign]
        return spec
