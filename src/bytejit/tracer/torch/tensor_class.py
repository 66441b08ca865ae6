"""Operators of tensors, and what the class of tensors has for them: a program may put methods of its own there."""

from __future__ import annotations

import operator
from collections.abc import Callable

import torch

from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import TensorVar
from bytejit.tracer.objects.class_facts import class_lookup
from bytejit.tracer.objects.operators import FUNCTIONS, IN_PLACE, UNARY

COMPARED = {"lt": "gt", "le": "ge", "eq": "eq", "ne": "ne", "gt": "lt", "ge": "le"}  # an operator, and the reflected one
# what the interpreter asks the class for, by the operator that stands in the graph
ASKED: dict[Callable, tuple[str, ...]] = {
    **{f: (f"__{name}__", f"__r{name}__") for name, f in FUNCTIONS.items()},
    **{f: (f"__i{name}__",) for name, f in IN_PLACE.items()},
    **{f: (f"__{name}__",) for name, f in UNARY.items()},
    **{getattr(operator, a): (f"__{a}__", f"__{b}__") for a, b in COMPARED.items()},
    **{f: ("__abs__",) for f in (abs, operator.abs)},
    operator.getitem: ("__getitem__",),
    operator.setitem: ("__setitem__",),
    operator.contains: ("__contains__",),
}
NO_OPERATOR = ("__bool__", "__iter__", "__len__")  # leave no call in the graph where the answer is known


def look_up_operators(t: Tracer) -> None:
    """Look for the operators of the graph's calls in the class of tensors, so that what it has there is guarded."""
    names = {name for n in t.graph.nodes if n.op == "call_function" for name in ASKED.get(n.target, ())}
    if any(isinstance(v, TensorVar) for v in t.inputs):
        names.update(NO_OPERATOR)
    for name in sorted(names):
        class_lookup(torch.Tensor, name)
