"""Models of functions of torch.distributions that cannot be traced as they are written."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributions import constraints, utils

from bytejit.tracer.core.models import models, replaces
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import FuncVar, Known, Var

LAZY = utils._lazy_property_and_property
POSITIVE = constraints._PositiveDefinite


@models(LAZY)
def lazy_property(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """The attribute on the class for a parameter that instances compute lazily. Only its type matters."""
    function = t.values.real(args[0]) if args else None
    if not isinstance(function, FuncVar) or function.real is None or kwargs or len(args) != 1:
        raise Break("a lazy property of a distribution made in the region")
    return Known(LAZY(function.real))


@replaces(POSITIVE.check)
def is_positive_definite(self: Any, value: Any) -> torch.Tensor:
    """torch's function, without a branch."""
    symmetric = super(POSITIVE, self).check(value)
    return torch.where(symmetric.all(), torch.linalg.cholesky_ex(value).info.eq(0), symmetric)
