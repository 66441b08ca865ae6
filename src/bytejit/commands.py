"""The commands `python -m bytejit explain` and `bench`: arguments, one clear line where something is wrong, an exit status."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

from . import api
from .common.files import writable
from .common.text import first_line
from .tools.bench import WAYS, BenchResult, child, in_process, machine, picture, rows_of
from .tools.loading import CannotLoad, load, raised

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
        case = load(given.what, given.device)
        try:
            with torch.set_grad_enabled(given.grad):
                print(api.explain(case.target, *case.args, html=given.html))
        except OSError as e:
            if given.html is None or e.filename != given.html:
                raise raised(case.name, e) from None
            raise CannotLoad(f"{given.html} cannot be written: {e.strerror}") from None
        except (Exception, SystemExit) as e:
            raise raised(case.name, e) from None
    except CannotLoad as e:
        print(f"bytejit explain: {first_line(e)}", file=sys.stderr)
        return e.status
    if given.html is not None:
        print(f"\nwritten: {Path(given.html)}")
    return 0


def compilers() -> dict[str, Callable[[Callable], Callable]]:
    """What each way makes of a function. torch's own is asked for by name: it is what bytejit is measured beside."""
    return {"eager": lambda f: f, "bytejit": api.compile, "torch.compile": lambda f: vars(torch)["compile"](f)}


def seconds(text: str) -> float:
    """A time. Raises: ArgumentTypeError."""
    try:
        if 0 < (value := float(text)) < float("inf"):
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")


def bench_parser() -> argparse.ArgumentParser:
    """The arguments of `bench`."""
    options = parser("bench")
    options.add_argument("--torch-compile", action="store_true", help="measure torch.compile, too")
    options.add_argument("--seconds", type=seconds, default=2.0, help="how long each is called")
    options.add_argument("--json", metavar="FILE", help="write the figures")
    options.add_argument("--picture", metavar="FILE", help="write a picture of them, as SVG")
    options.add_argument("--only", choices=WAYS, help=argparse.SUPPRESS)
    return options


def bench(arguments: list[str]) -> int:
    """`python -m bytejit bench MODEL`: a process for each way, progress on stderr, a table. Returns: the exit status."""
    given = bench_parser().parse_args(arguments)
    if given.only:
        return child(given.what, given.only, given.device, given.grad, given.seconds, compilers())
    try:
        for file in filter(None, (given.json, given.picture)):
            can_write(file)
        passed = [given.what, "--device", given.device, "--seconds", str(given.seconds), *(["--grad"] if given.grad else [])]
        results: list[BenchResult] = []
        for way in WAYS if given.torch_compile else WAYS[:2]:
            if results:  # eager, the first, shows whether the program runs at all: nothing is said before it has
                print(f"{way} ...", file=sys.stderr, flush=True)
            results.append(in_process(passed, way))
    except CannotLoad as e:
        print(f"bytejit bench: {first_line(e)}", file=sys.stderr)
        return e.status
    about = machine(given.device)
    print(f"{given.what} on {about['name']}, {about['threads']} threads, torch {about['torch']}\n\n{rows_of(results)}")
    if given.json:
        Path(given.json).write_text(
            json.dumps({"what": given.what, **about, "results": [asdict(r) for r in results]}, indent=1) + "\n"
        )
    if given.picture:
        Path(given.picture).write_text(picture(given.what, results))
    return int(any(r.error for r in results))


def can_write(file: str) -> None:
    """Leaves nothing behind. Raises: CannotLoad."""
    try:
        writable(Path(file))
    except OSError as e:
        raise CannotLoad(f"{file} cannot be written: {e.strerror}") from None


COMMANDS = {"explain": explain, "bench": bench}
