"""One row for each ATen operator: how a call is written in ONNX. The rows are in the other files here, a file for each family.

A row gets the writer, the spec of the call's result, and the call's arguments: tensors as `writer.Tensor`, numbers as they are,
sizes that are known only at the call as `Index`. It returns the `Tensor` of the result, or a tuple of them (None for a result
that has no form in ONNX). It raises `Cannot` where it has no form for the arguments: torch runs that call.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from operator import getitem
from typing import Any

import torch
from torch import fx

from bytejit.codegen.loops.index import Undecided
from bytejit.codegen.ops.calls import is_view as is_view
from bytejit.common.dtypes import ONNX, WIDE_DTYPES
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

from .writer import Cannot, ModelWriter, Tensor, Write

FAMILIES = ("pointwise", "activations", "create", "moves", "reductions", "products", "networks")
COMPUTED = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.bool})
FLOATS = WIDE_DTYPES


@light_dataclass(frozen=True)
class Row:
    """write: the function described above; dtypes: those that the call's tensors may have."""

    write: Write
    dtypes: frozenset[torch.dtype]


ROWS: dict[Any, Row] = {}


def row(*ops: Any, dtypes: frozenset[torch.dtype] = COMPUTED) -> Callable[[Write], Write]:
    """Register the row of ATen overloads."""

    def register(write: Write) -> Write:
        for op in ops:
            if op in ROWS:
                raise ValueError(f"{op} has two rows")
            ROWS[op] = Row(write, dtypes)
        return write

    return register


EVERY = frozenset(ONNX)  # for rows that only move elements


@functools.cache
def rows() -> dict[Any, Row]:
    """All rows: ATen overload -> row."""
    for family in FAMILIES:
        importlib.import_module(f"{__package__}.{family}")
    return ROWS


def tensors_of(node: fx.Node) -> list[Spec]:
    """The specs of the tensors that a call takes, and of those results that something reads."""
    made = [node] if isinstance(node.meta.get("spec"), Spec) else [u for u in node.users if u.target is getitem]
    return [s for n in (*made, *node.all_input_nodes) for s in _specs(n.meta.get("spec"))]


def _specs(spec: Any) -> list[Spec]:
    if isinstance(spec, (tuple, list)):
        return [s for part in spec for s in _specs(part)]
    return [spec] if isinstance(spec, Spec) else []


def refuses(node: fx.Node) -> str:
    """Returns why a call cannot be written in ONNX, for messages; "" where it can."""
    found = rows().get(node.target)
    if found is None:
        return "bytejit has no ONNX form of it"
    specs = tensors_of(node)
    for spec in specs:
        if spec.dtype not in found.dtypes:
            return f"a tensor is {spec.dtype}"
        if 0 in [n for n in spec.shape if isinstance(n, int)]:
            return "a tensor has no elements"
    try:
        writer = ModelWriter()
        write(writer, node, {n: value_of(writer, n) for n in node.all_input_nodes})
    except Cannot as e:
        return str(e)
    except Undecided:
        return "its form depends on a size that is known only at the call"
    return ""


def value_of(writer: ModelWriter, node: fx.Node) -> Any:
    """A placeholder for a value, to find out whether its readers have a form. Raises: Cannot."""
    spec = node.meta.get("spec")
    if isinstance(spec, Spec):
        return Tensor(writer.name(), spec.dtype, spec.shape)
    if isinstance(spec, (tuple, list)) and all(isinstance(s, Spec) for s in spec):
        return tuple(Tensor(writer.name(), s.dtype, s.shape) for s in spec)
    raise Cannot("an argument is not a tensor")


def write(writer: ModelWriter, node: fx.Node, env: dict[fx.Node, Any]) -> Any:
    """Writes a call. env: node -> its ONNX value. Returns the value of the call. Raises: Cannot."""
    if node.target is getitem:
        made = env[node.args[0]][node.args[1]]
        if made is None:
            raise Cannot("this result has no form in ONNX")
        return made
    args, kwargs = fx.node.map_arg((node.args, dict(node.kwargs)), env.__getitem__)
    spec = node.meta["spec"]
    made = rows()[node.target].write(writer, spec, *args, **kwargs)
    if isinstance(spec, Spec):
        return _checked(made, spec)
    return tuple(None if t is None else _checked(t, s) for t, s in zip(made, spec, strict=True))


def _checked(made: Tensor, spec: Spec) -> Tensor:
    if made.dtype is not spec.dtype:
        raise Cannot(f"its ONNX form returns {made.dtype}, not {spec.dtype}")
    return Tensor(made.name, spec.dtype, spec.shape)
