"""The two passes of an autograd function as graphs: its forward as traced, and its backward, traced with the forward's context.

The backward pass runs later than the guards are checked. Of what it reads from outside, functions, their defaults, classes,
modules and dtypes are taken for what they were; constants are looked at once more where it runs, and torch runs it where one is
another. torch also runs one that reads anything else, that does more than compute, or that reads a constant that other code in
the region has read, as its forward: torch would run that again, with another constant.
"""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch

from bytejit.common import special_cases
from bytejit.common.applied import TracedPasses
from bytejit.common.gradients import BACKWARD
from bytejit.guards.guard_set import Guard, GuardSet
from bytejit.guards.kinds import EQUALS, GLOBAL_STATE
from bytejit.guards.later import checked_later
from bytejit.guards.sources import CellContents, Defaults, Global, KwDefaults, Scope
from bytejit.tracer.core.signals import Break, LeaveToTorch, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, FuncVar, Known, SeqVar, SymVar, TensorVar, Var, expect
from bytejit.tracer.objects.code_reach import walk

from .effects_of_calls import without_gradients
from .parts import part_of, taken_by

Node: TypeAlias = torch.fx.Node


@dataclass
class ApplyCall:
    """A call of `apply` whose forward pass was traced. marked: outputs without gradients."""

    cls: type
    cls_var: Var
    ctx: Var
    given: list[Var]
    outputs: list[Var]
    single: bool
    marked: list[Var]


def gradient_of(index: int) -> None:
    """Stands for the gradient of an output while a backward pass is traced."""
    raise AssertionError("only traced")


def run_backward(cls: Any, ctx: Any, grads: Any, devices: tuple) -> Any:
    """A backward pass runs where autocast is off, whatever it is around the forward pass."""
    if not devices:
        return cls.backward(ctx, *grads)
    with torch.autocast(devices[0], enabled=False):
        return run_backward(cls, ctx, grads, devices[1:])


def traced_passes(t: Tracer, call: ApplyCall, forward: Sequence[Node]) -> tuple[TracedPasses, tuple[Node, ...]]:
    """Both passes, and what they read besides the arguments. Raises: LeaveToTorch."""
    materialize = bool(t.const(t.attributes.getattr(call.ctx, "materialize_grads")))
    before = len(t.graph.nodes)
    grads = [gradient(t, call, i, o, materialize) for i, o in enumerate(call.outputs)]
    markers = [g.node for g in grads if isinstance(g, TensorVar)]
    outer, t.guards = t.guards, GuardSet()
    memo, t.memo = t.memo, {}  # so that the backward's trace reads again what the forward has read, and adds guards for it
    try:
        found, changes = without_gradients(t, lambda: results(t, call, grads))
    except (Break, Raised) as e:
        reach = walk([getattr(call.cls, "backward")])
        raise LeaveToTorch(call.cls, str(getattr(e, "reason", e)), reach.writes or bool(reach.bound or reach.unknown)) from None
    finally:
        seen, t.guards, t.memo = t.guards, outer, memo
        read_before = {g.source for g in seen if outer.on(g.source)}
        outer.update(seen)
    own = t.values.real(t.attributes.getattr(call.cls_var, "backward"))
    open_ones = [g for g in seen if not (lasting(g) or in_decorator(g, own))]
    holds = checked_later(open_ones) if open_ones else None
    if changes or open_ones and (holds is None or any(g.source in read_before for g in open_ones)):
        raise LeaveToTorch(call.cls, "its backward pass changes, or looks at, more than its context", changes)
    backward = [n for n in list(t.graph.nodes)[before:] if n.op != "placeholder" and n not in markers]
    forward = [n for n in forward if n.op != "placeholder"]
    if any(n.target in BACKWARD for n in (*forward, *backward)):
        raise LeaveToTorch(call.cls, "a backward pass within it", False)
    passes, extra = put_together(t, call, grads, found, forward, backward)
    return replace(passes, materialize=materialize, holds=holds), extra


def gradient(t: Tracer, call: ApplyCall, i: int, output: Var, materialize: bool) -> Var:
    """The gradient that the backward pass gets for an output."""
    if not isinstance(output, TensorVar) or not materialize and (output in call.marked or not output.fake.is_floating_point()):
        return NONE
    with t.fake_mode, torch.no_grad():
        fake = torch.empty_like(output.fake)
    node = t.tensors.add_node(gradient_of, None, (i,), {})
    node.meta["val"] = fake
    return t.tensors.wrap_result(node, fake)


def results(t: Tracer, call: ApplyCall, grads: list[Var]) -> list[Var]:
    """The results of the backward pass: one gradient or None for each argument. Raises: Break."""
    if getattr(call.cls, "vjp") is not torch.autograd.Function.vjp:
        raise Break("a vjp")
    devices = SeqVar([Known(d) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)], tuple)
    args = [call.cls_var, call.ctx, SeqVar(grads, tuple), devices]
    found = t.values.real(t.calls.call(t.values.constant(run_backward), args, {}))
    given = [t.values.real(v) for v in (found.items if isinstance(found, SeqVar) and found.cls is tuple else [found])]
    if len(given) < len(call.given) or any(v is not NONE and not is_none(v) for v in given[len(call.given) :]):
        raise Break("the number of gradients differs from the number of arguments")
    given = given[: len(call.given)]
    for v, of in zip(given, call.given):
        if not is_none(v) and not (isinstance(v, TensorVar) and isinstance(of, TensorVar)):
            raise Break("a gradient that is no tensor, or of what is none")
    return given


def is_none(v: Var) -> bool:
    return type(v) is Known and v.obj is None


def lasting(guard: Guard) -> bool:
    """Whether what a guard checks can be assumed to hold later, too."""
    if isinstance(guard.source, (Defaults, KwDefaults)) or guard.kind in ("FUNCTION", GLOBAL_STATE):
        return True
    if guard.kind == "DICT_ABSENT":
        return isinstance(guard.source, Scope)
    if guard.kind == EQUALS and type(guard.value) is float and isinstance(guard.source, Global):
        return special_cases.NUMBERS.runs(guard.source.scope.ref.get() or {})
    value = getattr(guard.value, "get", lambda: guard.value)()
    return guard.kind == "ID_IS" and isinstance(value, LASTING) or guard.kind == "TYPE_IS" and value in LASTING


def in_decorator(guard: Guard, backward: Var) -> bool:
    """Whether a guard is on what a decorator of torch's, as `custom_bwd`, holds for the function that it made."""
    if not isinstance(backward, FuncVar) or not special_cases.NOT_THE_USERS.runs(backward.globals):
        return False
    at = guard.source if isinstance(guard.source, CellContents) else None
    while at is not None and at != backward.source:
        at = getattr(at, "base", None)
    return at is not None


LASTING = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type, staticmethod, classmethod, torch.dtype)


def number_or_constant(v: Var) -> Any:
    """What stands for an output that is no tensor: a number that changes stays a symbol."""
    return v.value if isinstance(v, SymVar) else expect(v, Known).obj


def put_together(
    t: Tracer, call: ApplyCall, grads: list[Var], found: list[Var], forward: list[Node], backward: list[Node]
) -> tuple[TracedPasses, tuple[Node, ...]]:
    """The graphs of both passes."""
    tensors = [o for o in call.outputs if isinstance(o, TensorVar)]
    returned = list(dict.fromkeys(o.node for o in tensors))
    given = [None if is_none(v) else expect(v, TensorVar).node for v in found]
    markers = {g.node: i for i, g in enumerate(grads) if isinstance(g, TensorVar)}
    needed = [n for n in taken_by(backward, [n for n in given if n is not None]) if n not in markers]
    kept = [n for n in needed if n in forward]
    outer = [n for n in needed if n not in kept]
    taken = taken_by(forward, returned)
    extra = tuple(dict.fromkeys([*taken, *outer]))
    to_save = [t.values.real(v) for v in t.iteration.iterate(t.attributes.getattr(call.ctx, "to_save"))]
    saved = {v.node for v in to_save if isinstance(v, TensorVar)}
    passes = TracedPasses(
        part_of(taken, forward, (*returned, *kept)),
        part_of([*markers, *outer, *kept], backward, tuple(given)),
        tuple(map(extra.index, taken)),
        tuple(map(extra.index, outer)),
        len(returned),
        tuple(returned.index(o.node) if isinstance(o, TensorVar) else (number_or_constant(o),) for o in call.outputs),
        call.single,
        tuple(markers.values()),
        frozenset(i for i, n in enumerate([*outer, *kept]) if n in saved),
        tuple(i for i, o in enumerate(call.outputs) if o in call.marked),
    )
    return passes, extra
