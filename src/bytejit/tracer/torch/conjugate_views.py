"""Which values are views that torch conjugates or negates when they are read. Some results of operations are, and view memory
that no other value shows: `fft.ifft` of real tensors, the last result of `svd`."""

from __future__ import annotations

import torch
from torch import fx

from bytejit.common.graph_calls import FLIPS, called_name
from bytejit.fake.tensor import Fake, fakes_in
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import TensorVar


def is_read_conjugated(node: fx.Node) -> bool:
    """Whether a complex value is a view that torch conjugates when it is read. Raises: Break where that is not known."""
    base = viewed(node)
    if base is None:
        return False
    if not base.meta["val"].is_complex():
        raise Break("whether a complex tensor of the region is conjugated when it is read")
    return is_read_conjugated(base) is not (called_name(node) in FLIPS)


def is_read_negated(node: fx.Node) -> bool:
    """Whether a value is a view that torch negates when it is read: `imag` of what is conjugated. Raises: Break."""
    base = viewed(node)
    if base is None:
        return False
    if called_name(node) == "imag" and is_read_conjugated(base):
        return not is_read_negated(base)
    return is_read_negated(base) is not (called_name(node) == "_neg_view")


def viewed(node: fx.Node) -> fx.Node | None:
    """The value that another one views, if it views one. Raises: Break where the graph does not say which."""
    fake = node.meta.get("val")
    if node.op == "placeholder" or not isinstance(fake, Fake):  # an input that is read otherwise breaks where it is read
        return None
    bases = [n for n in node.all_input_nodes if any(v.m.store is fake.m.store for v in fakes_in(n.meta.get("val")))]
    if not bases:
        return None
    if len(bases) > 1 or not isinstance(bases[0].meta["val"], Fake):
        raise Break("whether a tensor of the region is conjugated or negated when it is read")
    return bases[0]


def of_hidden(t: Tracer, v: TensorVar) -> TensorVar:
    """A value that is conjugated when it is read, as a view of a tensor in the graph. If it is not one yet, a conjugated
    copy is made, and its view is returned. Then the conjugate bit is known, and backends can return the view."""
    given = v.node.all_input_nodes if v.node is not None else []
    shown = [n.meta["val"] for n in given if isinstance(n.meta.get("val"), Fake)]
    if any(x.m.store is v.fake.m.store for x in shown):
        return v
    return t.tensors.one_tensor(torch.conj, [t.tensors.one_tensor(torch.conj_physical, [v])])
