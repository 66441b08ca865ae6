"""`python -m bytejit` checks the installation, as `python -m bytejit.verify`; `run` runs a script; commands.py has the others."""

from __future__ import annotations

import os
import runpy
import sys

from .commands import COMMANDS
from .options import config
from .patching import patch_torch_compile
from .verify import main

USAGE = "usage: python -m bytejit run [-m MODULE | SCRIPT.py] ARGUMENTS..."


def run(arguments: list[str]) -> int | str:
    """Run a script or module as Python does, with torch.compile replaced by bytejit's. Returns: the exit status.

    BYTEJIT_REPLACE_TORCH_COMPILE=0 leaves torch.compile as it is.
    """
    as_module = arguments[:1] == ["-m"]
    if len(arguments) < 1 + as_module or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stderr)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    name = arguments[as_module]
    if not as_module and not os.path.exists(name):
        print(f"bytejit run: no such file: {name}", file=sys.stderr)
        return 2
    if config.replace_torch_compile is None:
        patch_torch_compile()
    sys.argv = arguments[as_module:]
    sys.path[0] = os.getcwd() if as_module else os.path.dirname(os.path.abspath(name))
    if as_module:
        runpy.run_module(name, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(name, run_name="__main__")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"]:
        sys.exit(run(sys.argv[2:]))
    if sys.argv[1:2] and sys.argv[1] in COMMANDS:
        sys.exit(COMMANDS[sys.argv[1]](sys.argv[2:]))
    sys.exit(main())
