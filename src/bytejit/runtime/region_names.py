"""Names of compiled code in messages. Calls of a module run nn.Module's code, but are named after the module's own forward."""

from __future__ import annotations

import inspect
import re
import types
from pathlib import Path
from typing import Any

import torch

from bytejit.common import registry
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.quiet_reads import function_of
from bytejit.common.where import Where, source_line, where_of_function

from .entry import Args
from .live_values import modules_among

# of nn.Module: the code through which every call of a module goes
CALLS = tuple(f.__code__ for name in ("_wrapped_call_impl", "_call_impl") if (f := vars(torch.nn.Module).get(name)) is not None)
MOST_DECORATORS = 30  # lines that decorators may take above a `def`
TORCH = str(Path(torch.__file__).parent)


def names_no_class(code: types.CodeType) -> bool:
    """Whether a code object does not tell the class that it runs for: the two through which nn.Module's calls go."""
    return code in CALLS  # a tuple: a code with constants that have no hash has none either


@light_dataclass(frozen=True)
class Named:
    """What a code is called in messages. parameters: of the forward for which nn.Module's code runs, which has them as `args`."""

    where: Where
    parameters: tuple[str, ...] = ()

    def reworded(self, text: str) -> str:
        """A message with the forward's own names of its arguments: `x` for `args[0]`, `mask` for `kwargs['mask']`."""
        if not self.parameters:
            return text
        text = re.sub(r"\bargs\[(\d+)\]", lambda m: dict(enumerate(self.parameters)).get(int(m[1]), m[0]), text)
        return re.sub(r"\bkwargs\['(\w+)'\]", r"\1", text)


def named_for(args: Args) -> Named | None:
    """Returns the name of nn.Module's code where it runs with these arguments: its module's forward. None without a module."""
    modules = modules_among(args)
    return Named(forward_of(modules[0]), parameters_of(modules[0])) if modules else None


def parameters_of(m: torch.nn.Module) -> tuple[str, ...]:
    """The positional parameters of a module's forward, without self."""
    fn = _forward(m)
    code = getattr(function_of(fn), "__code__", None)
    return code.co_varnames[fn is not vars(m).get("forward") : code.co_argcount] if code is not None else ()


def _own_class(m: torch.nn.Module) -> Any:
    """The program's class of a module: of a compiled one, that which it was made from."""
    trait = vars(type(m)).get(registry.MODULE_TRAIT)
    return type(m) if trait is None else trait.cls


def _forward(m: torch.nn.Module) -> Any:
    return vars(m).get("forward") or inspect.getattr_static(_own_class(m), "forward", None)


def forward_of(m: torch.nn.Module) -> Where:
    """`MyNet.forward` with the line of its definition; where torch's own forward is inherited, the class's first line of code."""
    cls, forward = _own_class(m), _forward(m)
    places = [_place(function_of(forward))]
    if not places[0].line or places[0].file.startswith(TORCH):
        own = [_place(f) for f in vars(cls).values() if isinstance(f, types.FunctionType)]
        places = sorted((w for w in own if not w.file.startswith((TORCH, "<"))), key=lambda w: w.line) or places
    return Where(places[0].file, places[0].line, f"{cls.__qualname__}.forward", places[0].source)


def _place(fn: Any) -> Where:
    """The place of a function below its decorators: the line of its `def`, where that is found."""
    try:
        where = where_of_function(inspect.unwrap(fn))
    except ValueError:  # it wraps itself
        return where_of_function(fn)
    if where.source.lstrip().startswith("@"):
        for line in range(where.line + 1, where.line + MOST_DECORATORS):
            source = source_line(where.file, line)
            if source.lstrip().startswith(("def ", "async def ")):
                return Where(where.file, line, where.function, source)
    return where
