"""The input of a trace (`Job`), and where it ended (`Stop`)."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from bytejit.common.where import Where
from bytejit.tracer.core.sizes import Dynamic

from .signals import Break
from .values import Var


@dataclass
class Job:
    """What to trace: a point of a rewritten function and the live values there, as the dispatcher got them."""

    rewritten: Any
    point: int
    args: tuple
    globals: dict
    unbound: object
    time_limit: float = 60.0
    not_inlined: Callable[[object], str] = lambda fn: ""
    by_value: int = 0  # entries of the site that hold for some values of tensors among the arguments only
    original: Callable[[types.CodeType], types.CodeType] = lambda code: code  # the code as the user wrote it
    function: str = ""
    overrides_off: bool = False  # whether __torch_function__ is turned off around the call
    dynamic: Dynamic = Dynamic()
    cached: dict = field(default_factory=dict)  # first calls of cached functions, made while tracing (objects/caching.py)
    may_wait: bool = True  # whether the call may be left to the original code for what happens once only (NotNow)
    left_to_torch: dict[type, bool] = field(default_factory=dict)  # autograd functions whose backward passes are not traced
    generators: bool = False  # whether locals of the function that nothing reads any more may hold a suspended generator
    unloadable: frozenset[str] = frozenset()  # modules that could not be loaded for the region
    measure: bool = False  # whether sizes that are known only when the graph runs may be measured in it


@dataclass
class Snapshot:
    """The root frame at its last resume point."""

    step: int
    ip: int
    stack: list
    locals: dict
    mutations: int


@dataclass
class Stop:
    """Where and why a trace ended: by returning `value`, or at an exit with the root frame as `snapshot` has it."""

    value: Var | None = None
    snapshot: Snapshot | None = None
    cause: Break | None = None
    where: Where | None = None
    depth: int = 0


def forget_graph(graph: torch.fx.Graph) -> None:
    """Take an unused graph apart. Its nodes refer to each other, and would live until the next garbage collection."""
    nodes = list(graph.nodes)
    for node in nodes:
        node.args, node.kwargs = (), {}
    for node in (graph._root, *nodes):
        node._prev = node._next = None
        vars(node).clear()
    vars(graph).clear()
