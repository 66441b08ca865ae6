"""The sizes that torch.compile's `dynamic_shapes` names (torch.fx.experimental.dynamic_spec), as entries of `dynamic_sources`.

Its classes are known by name: torch's module differs between versions, and is there once a program has imported it.
What is a range, a size derived of another or an assumption there is not checked: such a size is symbolic, as any other.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from bytejit.common.quiet_reads import function_of, own_attributes

ATTRIBUTE = "_dynamic_spec"  # of a function that is decorated with a specification
SHAPES = ("ShapesSpec",)  # holds a specification of parameters
KINDS = (*SHAPES, "ParamsSpec")


def sources_of(given: Any, model: Any) -> tuple[str, ...]:
    """The entries for what `model` is called with. given: a specification, a dictionary of arguments, or None: what the model's
    function is decorated with. Raises: TypeError (no specification), ValueError (two)."""
    fn = model.forward if isinstance(model, torch.nn.Module) else model
    attached = own_attributes(function_of(fn)).get(ATTRIBUTE)
    if given is None:
        given = attached
    elif attached is not None:
        raise ValueError("dynamic_shapes is given, and the function has @dynamic_spec: give one of them")
    if given is None:
        return ()
    if type(given).__name__ in SHAPES:
        given = given._params
    if given is not None and not isinstance(given, dict) and type(given).__name__ not in KINDS:
        raise TypeError(f"dynamic_shapes is {given!r:.60}: expected a dict, {' or '.join(KINDS)}")
    return tuple(entry for name, spec in _arguments(given, fn) for entry in _entries(name, spec))


def _arguments(params: Any, fn: Callable) -> Iterator[tuple[str, Any]]:
    """The name and the specification of each argument."""
    if params is None:
        return
    if isinstance(params, dict):
        named = {k: v for k, v in params.items() if not k.startswith("*")}
        rest, more = params.get("*args") or (), params.get("**kwargs") or {}
    else:
        named, rest, more = params._named_args, params._varargs or (), params._varkw or {}
    yield from ((f"L[{name!r}]", spec) for name, spec in named.items())
    kinds = {p.kind: name for name, p in inspect.signature(fn).parameters.items()} if rest or more else {}
    args, kwargs = kinds.get(inspect.Parameter.VAR_POSITIONAL), kinds.get(inspect.Parameter.VAR_KEYWORD)
    yield from ((f"L[{args!r}][{i}]", spec) for i, spec in enumerate(rest))
    yield from ((f"L[{kwargs!r}][{name!r}]", spec) for name, spec in more.items())


def _entries(name: str, spec: Any) -> Iterator[str]:
    """The entries for a value and for what is below it."""
    kind = type(spec).__name__
    if isinstance(spec, torch.SymInt):
        yield name
    elif kind == "TensorSpec":
        yield from (f"{name}:{i}" for i, size in enumerate(spec) if isinstance(size, torch.SymInt))
    elif kind == "ObjectSpec":
        yield from (entry for key, below in spec.items() for entry in _entries(f"{name}.{key}", below))
    elif kind in ("DictSpec", "SeqSpec"):
        items = spec.items() if kind == "DictSpec" else enumerate(spec._entries)
        yield from (entry for key, below in items for entry in _entries(f"{name}[{key!r}]", below))
