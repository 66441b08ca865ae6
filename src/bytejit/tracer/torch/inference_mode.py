"""torch.inference_mode in a region: the graph enters and leaves it; where the region ends inside, its exit enters it again."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from bytejit.common import inference
from bytejit.guards.sources import Attr, Called
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import NONE, InstanceVar, Known, Lazy, TensorVar, Var, expect
from bytejit.tracer.torch.state import effect_node

MANAGER = torch._C._InferenceMode
SET_GRAD = torch._C._set_grad_enabled
_regions = itertools.count(1)


def method(name: str) -> Callable:
    """The C function behind a method of the manager, as an attribute read finds it."""
    return MANAGER.__dict__[name].__func__


@models(MANAGER)
def make_manager(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    mode = t.const([*args, *kwargs.values(), Known(True)][0])
    if type(mode) is not bool:
        raise Break("torch.inference_mode with an argument that is not a bool")
    made = InstanceVar(MANAGER, step=t.limits.steps)
    made.ns, made.slots["mode"] = None, Known(mode)
    t.effects.mutations += 1
    return made


@models(method("__enter__"))
def enter(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    manager = args[0]
    if not isinstance(manager, InstanceVar) or manager.real is not None or any(manager is m for m, _ in t.inference):
        raise Break("an inference mode manager made before the region entered")
    if not t.region:
        t.region = next(_regions)
    mode = expect(manager.slots["mode"], Known).obj
    t.inference.append((manager, t.effects.state_set.pop((SET_GRAD, None), None)))
    inference.enter(mode, t.region)
    effect_node(t, inference.enter, mode, t.region)
    return NONE


@models(method("__exit__"))
def leave(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    if not t.inference or t.inference[-1][0] is not args[0]:
        raise Break("the end of an inference mode entered before the region")
    _, grad = t.inference.pop()
    t.effects.state_set.pop((SET_GRAD, None), None)  # leaving restores the grad mode as well
    if grad is not None:
        t.effects.state_set[SET_GRAD, None] = grad
    inference.leave()
    effect_node(t, inference.leave)
    return NONE


def close(t: Tracer) -> None:
    """End of the region: its graph leaves what it entered, which the exit's statements enter again."""
    for _ in t.inference:
        node = t.graph.call_function(inference.leave)
        node.meta["val"] = None


def kind_of_outputs(t: Tracer, outputs: list) -> bool | str | None:
    """The mode that the graph's new tensors were made in, "mixed" for both; None: the one that the region began in."""
    if not t.region:
        return None
    given = {v.fake.m.store for v in t.inputs if isinstance(v, TensorVar)}
    fakes = [n.meta["val"] for n in outputs if isinstance(n.meta.get("val"), torch.Tensor)]
    kinds = {f.m.store.inference for f in fakes if f.m.store not in given}
    if len(kinds) > 1:
        return "mixed"
    return next(iter(kinds)) if kinds and kinds != {torch.is_inference_mode_enabled()} else None


@models(torch._C.TensorBase.is_inference, torch.is_inference)
def is_inference(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v = args[0]
    if not isinstance(v, TensorVar):
        raise t.raised(TypeError("is_inference(): argument 'input' must be Tensor"))
    if v.source is not None:
        return Lazy(v.real.is_inference(), Called(Attr(v.source, "is_inference")))
    return t.values.constant(v.fake.m.store.inference)
