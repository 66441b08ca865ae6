"""What stages write into `node.meta` of an FX graph for later stages. Every key is declared here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from .spec import Spec
from .where import Where


class NodeMeta(TypedDict, total=False):
    """The keys of `node.meta`. The tracer writes the first group, `normalise` and the passes on ATen graphs the second."""

    val: Any  # the fake tensor that stands for the value, a SymInt or SymFloat, or a sequence of such
    where: Where | None  # the user's line
    autograd: tuple[bool, bool]  # of an input: (requires_grad, is_leaf) as the graph begins
    look: Any  # of an input: the fake's Meta (shape, strides, dtype, device) as the graph begins; operations may change `val`
    manner: Callable | None  # how the call's shape was inferred: `shapes.symbols.manner_of`
    stack_trace: str  # torch's own key: the user's line in its form, in graphs that users see
    example_value: Any  # torch's own key: `val` in graphs of other tracers

    spec: Spec | tuple  # of the result, or of each result; a symbolic number for an input that is one
    opaque: bool  # of a constant: it lies in a library's own layout, and only the call that it was packed for reads it
    fresh: bool  # of an input: it is new in each call, made by the code around the graph
    new_grad: int  # of an input: the output that takes the place of its `.grad`, whose old tensor nothing reads
    boxed: bool  # of an input: the caller gives it up, in a list that the call empties
    numbers: tuple[str, ...]  # of an input that holds symbolic floats: their texts
    checkpointed: bool  # the call was recorded within a checkpointed part, the first time that it ran
    returns: tuple  # the strides that a library will return, where they are not those of eager
    origin: Any  # of a part of a graph: the node of the whole graph
