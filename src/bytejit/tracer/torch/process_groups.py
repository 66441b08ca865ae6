"""What a program asks of its place among other processes: `dist.get_rank()`, `dist.get_world_size()`. Each answer is guarded."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.guards.sources import Attr, CallOf
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import InstanceVar, Var


def _asked(function: Callable, name: str) -> None:
    @models(function)
    def run(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
        group = t.values.real(args[0])
        if kwargs or len(args) != 1 or not isinstance(group, InstanceVar) or group.real is None or group.source is None:
            raise Break(f"{name} of a process group that the region made")
        found = function(group.real)
        t.guard("EQUALS", CallOf(Attr(group.source, name), ()), found)
        return t.values.constant(found)


if torch.distributed.is_available():
    for _name in ("rank", "size"):
        # the function within the descriptor: in torch 2.11 reading it from the class gives the descriptor, which has no hash
        _asked(vars(torch.distributed.ProcessGroup)[_name].__func__, _name)
