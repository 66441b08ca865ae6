"""Which values are views that torch conjugates when they are read. Some results of operations are, and view memory that no
other value shows: `fft.ifft` of real tensors, the last result of `svd`."""

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
    fake = node.meta.get("val")
    if node.op == "placeholder" or not isinstance(fake, Fake):  # an input that is breaks where it is read
        return False
    bases = [n for n in node.all_input_nodes if any(v.m.store is fake.m.store for v in fakes_in(n.meta.get("val")))]
    if not bases:
        return False
    if len(bases) > 1 or not isinstance(bases[0].meta["val"], Fake) or not bases[0].meta["val"].is_complex():
        raise Break("whether a complex tensor of the region is conjugated when it is read")
    return is_read_conjugated(bases[0]) is not (called_name(node) in FLIPS)


def of_hidden(t: Tracer, v: TensorVar) -> TensorVar:
    """A value that is conjugated when it is read: where the graph does not show what it views, as a view of what it shows. Its
    bit is known then, and backends return such views."""
    given = v.node.all_input_nodes if v.node is not None else []
    shown = [n.meta["val"] for n in given if isinstance(n.meta.get("val"), Fake)]
    if any(x.m.store is v.fake.m.store for x in shown):
        return v
    return t.tensors.one_tensor(torch.conj, [t.tensors.one_tensor(torch.conj_physical, [v])])
