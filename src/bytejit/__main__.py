"""`python -m bytejit COMMAND`: verify (also without a command), run, and those of commands.py."""

from __future__ import annotations

import importlib.util
import os
import runpy
import sys
import warnings
from collections.abc import Callable
from importlib import machinery
from types import TracebackType
from typing import TextIO

from . import __version__, verify
from .commands import COMMANDS
from .common.options import Options, config
from .patching import patch_torch_compile

USAGE = """usage: python -m bytejit COMMAND ARGUMENTS...

  verify    what works here, what does not, what to install; also without a command
  run       a script or a module, with torch.compile replaced by bytejit's
  explain   what becomes of a function or a model: graphs, breaks, kernels
  bench     how fast it is, beside eager

python -m bytejit COMMAND -h says more. --version prints the version."""
RUN_USAGE = "usage: python -m bytejit run [-m MODULE | SCRIPT.py] ARGUMENTS..."

# files of the frames that import a module
IMPORTING = (
    "<frozen importlib.util>",
    "<frozen importlib>",
    "<frozen importlib._bootstrap>",
    "<frozen importlib._bootstrap_external>",
)


def run(arguments: list[str]) -> int:
    """Run a script or module as Python does, with torch.compile replaced by bytejit's. Returns: the exit status.

    BYTEJIT_REPLACE_TORCH_COMPILE=0 leaves torch.compile as it is.
    """
    as_module = arguments[:1] == ["-m"]
    if len(arguments) < 1 + as_module or arguments[0] in ("-h", "--help"):
        print(RUN_USAGE, file=sys.stderr)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    name = arguments[as_module]
    if config.replace_torch_compile is None:
        patch_torch_compile()
    sys.path[0] = os.getcwd() if as_module else os.path.dirname(os.path.abspath(name))
    sys.argv = arguments[as_module:]
    try:
        if missing := no_module(name) if as_module else no_script(name):
            print(f"bytejit run: {missing}", file=sys.stderr)
            return 2
        if as_module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except Exception as e:
        tb = of_the_program(e.__traceback__)
        sys.excepthook(type(e), e.with_traceback(tb), tb)
        return 1
    return 0


def of_the_program(tb: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames that started the program."""
    ours = (__file__, runpy.run_path.__code__.co_filename, importlib.util.__file__, importlib.__file__, *IMPORTING)
    while tb is not None and tb.tb_frame.f_code.co_filename in ours:
        tb = tb.tb_next
    return tb


def no_script(name: str) -> str:
    """Returns why a file or folder cannot be run; "" if it can."""
    if not os.path.exists(name):
        return f"no such file: {name}"
    return f"no __main__.py in {name}" if os.path.isdir(name) and not os.path.exists(os.path.join(name, "__main__.py")) else ""


def no_module(name: str) -> str:
    """Returns why a module cannot be run; "" if it can."""
    try:
        found = importlib.util.find_spec(name) if name and name[0] != "." else None
        if found is not None and found.submodule_search_locations is not None:
            return "" if importlib.util.find_spec(f"{name}.__main__") else f"no __main__ in the package {name}"
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.__main__".startswith(error.name):  # what its package imports
            raise
        return f"no module named {error.name}"
    if found is None:
        return f"no module named {name}" if name else "no module is named"
    native = found.loader is machinery.BuiltinImporter or isinstance(found.loader, machinery.ExtensionFileLoader)
    return f"{name} is a module in C" if native else ""


def show(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning of a command: one line, with the place if that is in the program."""
    ours = os.path.dirname(filename) == os.path.dirname(__file__)
    print(message if ours else f"{filename}:{lineno}: {category.__name__}: {message}", file=sys.stderr)


def main(arguments: list[str]) -> int:
    """The command that is named. Returns: the exit status."""
    name, rest = (arguments[0], arguments[1:]) if arguments else ("verify", [])
    if name in ("-h", "--help", "--version"):
        print(f"bytejit {__version__}" if name == "--version" else USAGE)
        return 0
    if refused := Options.read()[1]:
        print(f"bytejit: {refused[0]}", file=sys.stderr)
        return 2
    if name.startswith("-"):  # of `verify`
        name, rest = "verify", arguments
    known: dict[str, Callable[[list[str]], int]] = {"verify": verify.main, "run": run, **COMMANDS}
    if name not in known:
        print(f"bytejit: no command {name!r}: it is one of {', '.join(known)}", file=sys.stderr)
        return 2
    if name == "run":
        return run(rest)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = show
            return known[name](rest)
    except KeyboardInterrupt:
        print(f"bytejit {name}: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
