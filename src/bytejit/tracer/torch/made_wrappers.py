"""Tensors made in a region by `Tensor._make_wrapper_subclass`: no memory of their own, only attributes; their class runs
operations itself (`__torch_dispatch__`, `__torch_function__`). Quantised activations are such.

No graph holds one: what its class does with its attributes is traced. One that leaves the region is made there by the same
call, and then given its attributes."""

from __future__ import annotations

from typing import Any

import torch

from bytejit.common.overriding import overrides
from bytejit.tracer.core.models import models
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import SeqVar, TensorVar, Var
from bytejit.tracer.torch.subclasses import dispatches

KNOWN = frozenset(("strides", "dtype", "layout", "device", "requires_grad"))  # others change what it says of itself


@models(torch.Tensor._make_wrapper_subclass)
def make_wrapper_subclass(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    """An instance without memory. Raises: Break, for classes that override no function, and for unusual options."""
    cls = t.as_class(args[0]) if args else None
    if cls is None or not issubclass(cls, torch.Tensor) or not dispatches(cls) or overrides(cls) != "own":
        raise Break(f"making a {getattr(cls, '__name__', 'tensor')}, which overrides no function of torch")
    given = {k: t.values.real(v) for k, v in kwargs.items()}
    if len(args) != 2 or not given.keys() <= KNOWN or "requires_grad" in given and t.comparisons.truth(given["requires_grad"]):
        raise Break(f"making a {cls.__name__} that requires gradients, or with unusual options")
    t.overrides.relies_on_overrides()
    fake = _looks(t, t.values.real(args[1]), given)
    made = TensorVar(None, fake, cls=cls)
    made.wrapper = args, given
    t.by_fake[id(fake)] = made
    t.effects.mutations += 1
    return made


def _looks(t: Tracer, size: Var, given: dict[str, Var]) -> Any:
    """A fake of the size and with the options that were given."""
    options = {k: t.const(v) for k, v in given.items() if k not in ("strides", "requires_grad")}
    shape = [size, given["strides"]] if "strides" in given else [size]
    if not all(isinstance(s, SeqVar) for s in shape):
        raise Break("a size of a tensor that is no sequence")
    nodes = tuple(t.tensors.to_node_arg(s) for s in shape)
    numbers = torch.fx.node.map_arg(nodes, lambda n: n.meta["val"])
    return t.tensors.run_fake(torch.empty if len(shape) == 1 else torch.empty_strided, numbers, options)
