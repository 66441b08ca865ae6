"""The commands `python -m bytejit explain`: arguments, one clear line where something is wrong, an exit status."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from . import api
from .tools.loading import CannotLoad, first_line, load, raised

WHAT = (
    "FILE.py:FUNCTION, a function without parameters, which may return (function, (x, y));"
    " or the name of a model of torchvision, timm or transformers"
)


def parser(command: str) -> argparse.ArgumentParser:
    """The arguments that all commands take."""
    made = argparse.ArgumentParser(prog=f"python -m bytejit {command}")
    made.add_argument("what", help=WHAT)
    made.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1")
    made.add_argument("--grad", action="store_true", help="with gradients; else under torch.no_grad()")
    return made


def explain(arguments: list[str]) -> int:
    """`python -m bytejit explain FILE.py:FUNCTION [--html REPORT.html]`. Returns: the exit status."""
    options = parser("explain")
    options.add_argument("--html", metavar="FILE", help="write the report as one page")
    given = options.parse_args(arguments)
    try:
        case = load(given.what).on(given.device)
        try:
            with torch.set_grad_enabled(given.grad):
                print(api.explain(case.target, *case.args, html=given.html))
        except OSError as e:
            if given.html is None or e.filename != given.html:
                raise raised(case.name, e) from None
            raise CannotLoad(f"{given.html} cannot be written: {e.strerror}") from None
        except Exception as e:
            raise raised(case.name, e) from None
    except CannotLoad as e:
        print(f"bytejit explain: {first_line(e)}", file=sys.stderr)
        return e.status
    if given.html is not None:
        print(f"\nwritten: {Path(given.html)}")
    return 0


COMMANDS = {"explain": explain}
