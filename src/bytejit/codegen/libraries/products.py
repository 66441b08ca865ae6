"""The one matcher for matrix products in a graph, for all passes that choose a library for them."""

from __future__ import annotations

import dataclasses
import math

from torch import fx

from bytejit.codegen.aten.rewrite import at_hints, aten, spec_of
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

PRODUCTS = frozenset({aten.linear.default, aten.addmm.default, aten.mm.default, aten.bmm.default})


@light_dataclass(frozen=True)
class Product:
    """x [..., K] times m [K, N], plus b [N]. m: the weight's node; transposed: it holds [N, K]. Of three dims where m has them: a
    batch of products."""

    node: fx.Node
    x: fx.Node
    m: fx.Node
    b: fx.Node | None
    transposed: bool

    @property
    def batched(self) -> bool:
        """Whether all operands have one more dim in front."""
        return len(spec_of(self.m).shape) == 3

    @property
    def batch(self) -> int:
        """Returns the number of products."""
        return spec_of(self.m).shape[0] if self.batched else 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, n, k of one product."""
        x, m = spec_of(self.x).shape, spec_of(self.m).shape
        return math.prod(x[:-1]) // self.batch, m[-2] if self.transposed else m[-1], x[-1]

    @property
    def weight(self) -> Spec:
        """Spec of the weight as [N, K]."""
        spec = spec_of(self.m)
        return spec if self.transposed else Spec(spec.shape[::-1], spec.stride[::-1], spec.dtype, spec.device)

    @property
    def work(self) -> int:
        """Multiply-adds, at the sizes that the graph was made with."""
        n, k = self.weight.shape
        return math.prod(at_hints(spec_of(self.x)).shape[:-1]) * n * k

    def through_transpose(self) -> Product:
        """The product with the weight as it lies in memory, without a transpose in front of it."""
        m = self.m
        if self.transposed or not isinstance(m, fx.Node) or m.op != "call_function":
            return self
        swaps = (
            m.target is aten.t.default
            or m.target is aten.transpose.int
            and sorted(d % 2 for d in m.args[1:3]) == [0, 1]
            or m.target is aten.permute.default
            and [d % 2 for d in m.args[1]] == [1, 0]
        )
        return dataclasses.replace(self, m=m.args[0], transposed=True) if swaps else self


def match_product(node: fx.Node) -> Product | None:
    """A node as a `Product` of whatever dtype and device; None when it is none (an addmm with alpha or beta is none)."""
    if node.op != "call_function" or node.target not in PRODUCTS or node.kwargs:
        return None
    args = node.args
    if node.target is aten.linear.default:
        spec = args[1].meta.get("spec")
        if spec is not None and len(spec.shape) < 2:  # the weight is a vector
            return None
        return Product(node, args[0], args[1], args[2] if len(args) > 2 else None, True)
    if node.target is aten.addmm.default:
        return Product(node, args[1], args[2], args[0], False) if len(args) == 3 else None
    return Product(node, args[0], args[1], None, False)
