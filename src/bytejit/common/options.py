"""Options of a compile, their defaults from the environment, and `config`, which changes the defaults at run time.

`Options.from_env` is the only reader of BYTEJIT_* variables: BYTEJIT_CACHE_DIR is the field `cache_dir` and so on.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import caches, torch_options
from .light_dataclass import light_dataclass
from .text import near, unknown

PREFIX = "BYTEJIT_"
TESTS = tuple(PREFIX + part for part in ("TEST_", "FUZZ_", "CHAIN_"))  # of bytejit's own tests
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
LOG_KINDS = ("graph", "guards", "breaks", "recompiles", "code", "cudagraphs")
LOG_FILE, LOG_JSON = "file=", "json"  # among the kinds: where to, and in what form


@light_dataclass(frozen=True)
class Options:
    """How code is compiled. A field is given in `compile(options={...})`, `config.patch(...)`, the environment."""

    # ---- what becomes compiled code
    dynamic: bool | None = None  # sizes: None symbolic once they changed, True at once, False never
    dynamic_sources: tuple[str, ...] = ()  # symbolic from the first compile, by torch's names: L['x'], L['x']:0, L['n']
    recompile_limit: int = 8  # entries that a site may get for each module; after that other calls run the original code
    trace_time_limit: float = 60.0  # seconds of tracing after which a region is given up
    replace_torch_compile: bool | None = None  # True: `import bytejit` makes torch.compile bytejit's; False: `run` does not
    # ---- which kernels are made, and how they run
    mode: str = "default"  # "default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"
    cudagraphs: bool | None = None  # None: as the mode says, and by itself where launching takes most of the time
    freeze: bool = False  # fold and prepack weights: the user promises not to write into them
    winograd: bool = True  # 3x3 convolutions may use Winograd's sums, where timed faster
    fused_rng: bool = False  # random numbers of torch are made within kernels: another stream than eager's
    interpret: bool = False  # graphs on the CPU become Triton kernels, run by Triton's interpreter: for tests without a GPU
    # ---- training
    activation_memory_budget: float = 1.0  # training: how much of what is saved for the backward pass stays so; 0: inputs
    # ---- faults, and whether results are right
    suppress_errors: bool = True  # an internal fault falls back to the original code; tests turn it off
    raise_on_backend_error: bool = True  # what a backend raises at compile time; False: counted, the original code runs
    verify_correctness: bool = False  # compare the first call of each compiled graph with eager, and raise where they differ
    check: bool = False  # the same beside eager and float64, and name the first operation that is off
    check_passes: bool = False  # check the program after each pass, and raise where it is not legal; tests turn it on
    # ---- what is printed and written for people
    logs: tuple[str, ...] = ()  # events to print: graph, guards, breaks, recompiles, code, cudagraphs; also file=PATH, json
    debug: bool = False  # write a folder of stage files a compiled region
    debug_dir: str = "bytejit_debug"  # the folder of those folders, relative to the current one
    # ---- where kernels are built and kept
    cxx: str = ""  # C++ compiler; "" looks for g++, then clang++
    cache_dir: str = ""  # folder of built kernels; "" is $XDG_CACHE_HOME/bytejit or ~/.cache/bytejit
    cache_mb: int = 2048  # size above which the oldest kernels are deleted

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(unknown("mode", self.mode, MODES))
        if not 0 <= self.activation_memory_budget <= 1:
            raise ValueError(f"option activation_memory_budget is {self.activation_memory_budget!r}: expected 0 to 1")
        for kind in self.logs:
            if kind not in LOG_KINDS and kind != LOG_JSON and not (kind.startswith(LOG_FILE) and kind != LOG_FILE):
                raise ValueError(unknown("kind of log", kind, LOG_KINDS))

    @property
    def tune(self) -> bool:
        """Whether to spend compile time on timing choices."""
        return self.mode.startswith("max-autotune")

    @property
    def use_cudagraphs(self) -> bool:
        """Whether kernels on a GPU run as CUDA graphs."""
        return self.cudagraphs if self.cudagraphs is not None else self.mode in ("reduce-overhead", "max-autotune")

    @property
    def cache_path(self) -> Path:
        """The folder of built kernels; it need not exist."""
        if self.cache_dir:
            return Path(self.cache_dir).expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "bytejit"

    def replace(self, **changes: Any) -> Options:
        """These options with some changed. Raises: ValueError for an unknown name or a value that does not fit."""
        return dataclasses.replace(self, **{name: _checked(name, value) for name, value in changes.items()})

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Options:
        """The defaults with BYTEJIT_<FIELD> of the environment applied; warns of names that are no field's.

        Raises: ValueError (a bad value).
        """
        warn_of_unknown(environ)
        made, refused = cls.read(environ)
        if refused:
            raise ValueError(refused[0])
        return made

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> tuple[Options, list[str]]:
        """The defaults with what fits of the environment applied, and why each other value does not fit."""
        made, refused = cls(), []
        for name in FIELDS:
            if (text := environ.get(PREFIX + name.upper())) is not None:
                try:
                    made = made.replace(**{name: _parse(name, text)})
                except ValueError as e:
                    refused.append(f"{PREFIX}{name.upper()}={text!r}: {e}")
        return made, refused


FIELDS: dict[str, str] = {field.name: str(field.type) for field in dataclasses.fields(Options)}
_WORDS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
    "": False,
}
_FITS: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "bool | None": (bool, type(None)),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
}


def warn_of_unknown(environ: Mapping[str, str]) -> None:
    """Warn, once a process, of each variable that looks like an option and is none."""
    for name in sorted(environ):
        field = name.removeprefix(PREFIX).lower()
        if name.startswith(PREFIX) and field not in FIELDS and not name.startswith(TESTS):
            guess = near(field, FIELDS)
            hint = f"; did you mean {PREFIX}{guess.upper()}?" if guess else "."
            known = ", ".join(f"{PREFIX}{known.upper()}" for known in FIELDS)
            caches.warn_once(f"environment {name}", f"bytejit: {name} is no option, and does nothing{hint} Known: {known}")


def _parse(name: str, text: str) -> object:
    """An environment variable's text as the value of a field."""
    kind = FIELDS[name]
    if kind.startswith("tuple"):
        return tuple(part.strip() for part in text.split(",") if part.strip())
    try:
        if kind.startswith("bool"):
            return None if text.lower() == "none" and kind.endswith("None") else _WORDS[text.lower()]
        return {"int": int, "float": float, "str": str}[kind](text)
    except (KeyError, ValueError):
        raise ValueError(f"it is no {kind.split()[0]}") from None


def _checked(name: str, value: Any) -> Any:
    """The value of one field, as it is stored. Raises: ValueError."""
    if name not in FIELDS:
        raise ValueError(unknown("option", name, FIELDS))
    kind = FIELDS[name]
    if kind.startswith("tuple"):
        return (value,) if isinstance(value, str) else tuple(value)
    if name in ("cache_dir", "debug_dir", "cxx") and isinstance(value, os.PathLike):
        return os.fspath(value)
    if not isinstance(value, _FITS[kind]) or (isinstance(value, bool) and bool not in _FITS[kind]):
        raise ValueError(f"option {name} is {value!r}: expected {kind.replace('|', 'or')}")
    return value


class Config:
    """The process's default options. Read and set fields as attributes; `patch` changes them for a while.

    A change holds for what is compiled from then on, also by functions decorated before; compiled entries stay.
    """

    __slots__ = ("_options",)
    _options: Options

    def __init__(self, options: Options) -> None:
        object.__setattr__(self, "_options", options)

    @property
    def current(self) -> Options:
        """The options as they are now."""
        return self._options

    def __getattr__(self, name: str) -> Any:
        if name in FIELDS:
            return getattr(self._options, name)
        raise AttributeError(unknown("option", name, FIELDS))

    def __setattr__(self, name: str, value: object) -> None:
        if name not in FIELDS:
            raise AttributeError(unknown("option", name, FIELDS))
        object.__setattr__(self, "_options", self._options.replace(**{name: value}))

    def __dir__(self) -> list[str]:
        return [*FIELDS, "current", "patch", "reload"]

    def __repr__(self) -> str:
        return repr(self._options).replace("Options(", "config(", 1)

    @contextmanager
    def _patched(self, changes: Mapping[str, object]) -> Iterator[Config]:
        before = self._options
        object.__setattr__(self, "_options", before.replace(**changes))
        try:
            yield self
        finally:
            object.__setattr__(self, "_options", before)

    def patch(self, name: str | Mapping[str, object] | None = None, value: object = None, **changes: object) -> Any:
        """`patch(debug=True)`, `patch("debug", True)` or `patch({"debug": True})`, as a `with` block or a decorator.

        Raises: ValueError at once for an unknown option or a value that does not fit.
        """
        if isinstance(name, str):
            changes[name] = value
        elif name is not None:
            changes.update(name)
        self._options.replace(**changes)
        return self._patched(changes)

    def reload(self) -> None:
        """Read the environment again."""
        object.__setattr__(self, "_options", Options.from_env())


def told_at_import() -> Options:
    """The options of the environment; warns of what names or fits no option. A value that does not fit changes nothing.

    `python -m bytejit` says itself what does not fit, and does not start.
    """
    warn_of_unknown(os.environ)
    made, refused = Options.read()
    if not _of_a_command():
        for why in refused:
            caches.warn_once(f"environment {why}", f"bytejit: {why}; the default holds")
    return made


def _of_a_command() -> bool:
    """Whether the package is imported for `python -m bytejit`, or `-m bytejit.verify`. Until that begins, argv names no file."""
    given = sys.orig_argv
    module = next((b for a, b in zip(given, given[1:]) if a == "-m"), "")
    return sys.argv[:1] == ["-m"] and module.partition(".")[0] == __name__.partition(".")[0]


config = Config(told_at_import())
_serials = itertools.count(1)


@light_dataclass(frozen=True, eq=False)
class Settings:
    """What one `compile` or `optimize` call asked for. Equal settings share compiled code."""

    backend: str | Callable = "inductor"
    nopython: bool = False
    dynamic: bool | None = None
    overrides: tuple[tuple[str, object], ...] = ()  # options given in this call, by name
    serial: int = 0  # settings that differ in it share no compiled code

    @functools.cached_property
    def _key(self) -> tuple:
        # a backend is compared by identity, as a callable need not be hashable; these settings hold it
        return (
            self.backend if isinstance(self.backend, str) else id(self.backend),
            self.nopython,
            self.dynamic,
            self.overrides,
            self.serial,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @classmethod
    def make(
        cls,
        backend: str | Callable,
        nopython: bool,
        dynamic: bool | None,
        mode: str | None,
        options: Mapping[str, object] | None,
    ) -> Settings:
        """Checked settings of a call. Raises: ValueError for unknown options, modes or values that do not fit; TypeError."""
        if options is not None and not isinstance(options, Mapping):
            raise TypeError(f"options is {options!r:.60}: expected a mapping of option names to values")
        if not isinstance(nopython, (bool, int, type(None))):
            raise ValueError(f"fullgraph is {nopython!r:.60}: expected bool")
        changes = torch_options.told(options or {}, FIELDS)
        if mode is not None:
            tuned = "mode" in changes and "mode" not in (options or {})  # max_autotune among torch's options
            with_tuning = {"default": changes.get("mode"), "reduce-overhead": "max-autotune"}
            changes["mode"] = with_tuning.get(mode, mode) if tuned else mode
        if dynamic is not None:
            changes["dynamic"] = dynamic
        checked = {name: _checked(name, value) for name, value in changes.items()}
        config.current.replace(**checked)
        return cls(backend, bool(nopython), checked.get("dynamic"), tuple(sorted(checked.items())))

    def anew(self, **changes: Any) -> Settings:
        """These settings, with fields changed, sharing no code that was compiled before."""
        return dataclasses.replace(self, serial=next(_serials), **changes)

    def arguments(self) -> str:
        """What follows the model in a call of `compile` with these settings; without a backend that is a callable."""
        named = f", backend={self.backend!r}" if isinstance(self.backend, str) and self.backend != "inductor" else ""
        options = {k: v for k, v in self.overrides if k != "dynamic"}
        return named + (f", options={options!r}" if options else "")

    @functools.cached_property
    def _fixed(self) -> dict[str, Any]:
        return dict(self.overrides)

    @property
    def options(self) -> Options:
        """`config` as it is now, with this call's options over it."""
        return dataclasses.replace(config.current, **self._fixed) if self.overrides else config.current

    def __repr__(self) -> str:
        name = self.backend if isinstance(self.backend, str) else getattr(self.backend, "__qualname__", "callable")
        rest = [f"{k}={v!r}" for k, v in self.overrides] + (["nopython=True"] if self.nopython else [])
        return f"Settings({', '.join([repr(name), *rest])})"
