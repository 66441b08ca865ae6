"""The function transforms that a trace is within, and what is not traced there as it is outside.

A level of functorch wraps its tensors. Under `vmap` and `jvp` a wrapper has no history, though what it wraps may require
gradients; under `grad` it has the history of its own level only. And a level asks an autograd function for rules of its own
(`vmap`, `jvp`), which need not say what its forward does.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import Known, TensorVar, Var, expect

DIFFERENTIATES = ("grad", "vjp", "forward")  # kinds of levels that record a history
FUNCTION = torch.autograd.Function


@dataclass(frozen=True)
class Level:
    """A transform that is being traced: its kind, and the tensors that it gives to the function."""

    kind: str
    given: tuple[TensorVar, ...]


def check_history_known(t: Tracer, v: TensorVar) -> None:
    """Raises: Break where the innermost level may say otherwise than a fake whether a tensor has a history."""
    if not t.levels or v.source is not None or not v.fake.requires_grad:
        return
    level = t.levels[-1]
    if level.kind not in DIFFERENTIATES or set(level.given).isdisjoint(t.backward.reached([v])[0]):
        raise Break(f"whether a tensor requires gradients within torch.func.{level.kind}")


def requires_gradients(x: torch.Tensor) -> bool:
    """Whether a tensor requires gradients at any level. Known to the tracer only."""
    return x.requires_grad


@models(requires_gradients)
def requires_gradients_at_any_level(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    v = t.values.real(args[0])
    return Known(v.fake.requires_grad) if t.levels and isinstance(v, TensorVar) else t.attributes.getattr(v, "requires_grad")


def check_rules(cls: type) -> None:
    """Known to the tracer only: raises Break for an autograd function of whose forward a level makes more than a trace does."""


@models(check_rules)
def check_rules_of_levels(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    cls = expect(t.values.real(args[0]), Known).obj
    kinds = [level.kind for level in t.levels]
    if kinds and cls.setup_context is FUNCTION.setup_context:
        raise Break(f"{cls.__name__}.apply, an autograd function without setup_context, within torch.func.{kinds[-1]}")
    if "jvp" in kinds:
        raise Break(f"{cls.__name__}.apply, an autograd function, within torch.func.jvp")
    if "vmap" in kinds and (cls.vmap is not FUNCTION.vmap or not cls.generate_vmap_rule):
        raise Break(f"{cls.__name__}.apply, an autograd function without a generated rule, within torch.func.vmap")
    return Known(None)


def check_no_level(t: Tracer) -> None:
    """Raises: Break where torch refuses a backward pass into leaves."""
    if t.levels:
        raise Break(f"Tensor.backward within torch.func.{t.levels[-1].kind}")
