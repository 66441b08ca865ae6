"""What is known of a call in an ATen graph: whether it views its operand, acts, or may raise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from bytejit.common.dtypes import SHORT, acc_dtype
from bytejit.common.spec import Spec

from .table import Op, table

# what torch computes in one dtype of numbers only; its meta kernels take others
PRODUCTS = frozenset("mm addmm bmm baddbmm mv dot linear convolution".split())


def is_view(func: Any) -> bool:
    """Whether an op's result shares its argument's storage, by its schema."""
    returns = func._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not func._schema.is_mutable


def named(func: Any, args: Sequence, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of an operator by their names; those that are not given are not in it."""
    return dict(zip((a.name for a in func._schema.arguments), args)) | dict(kwargs)


def row_of(node: torch.fx.Node) -> Op | None:
    """The row of a call in the op table; None where it has none."""
    return table().by_aten.get(str(node.target))


def kind_of(node: torch.fx.Node) -> str | None:
    """The kind of a call's row: None where it has none."""
    row = row_of(node)
    return None if row is None else row.kind


def is_tagged(node: torch.fx.Node) -> bool:
    """Whether a call is of an operator that torch tags as pointwise. It tags not all that are: see `of_each_element`."""
    return isinstance(node.target, torch._ops.OpOverload) and torch.Tag.pointwise in node.target.tags


def of_each_element(node: torch.fx.Node) -> bool:
    """Whether a call makes each element of its results from those of its operands at the same place, as torch or the row says."""
    row = row_of(node)
    return row is not None and row.elementwise or is_tagged(node)


def stays(node: torch.fx.Node) -> bool:
    """Whether a call is kept when nothing reads its result: it has an effect, or may raise for some values of its operands
    (an index out of range). An operator without a row, or of a dtype that its row does not take, may raise; views and the
    questions of torch's own code (`is_same_size`) do not."""
    if acts(node):
        return True
    row = row_of(node)
    if row is not None:
        return bool(row.raises or row.refuses) or of_other_dtype(row, node) or of_unlike_dtypes(row, node)
    if not isinstance(node.target, torch._ops.OpOverload) or is_view(node.target):
        return False
    return any("Tensor" in str(made.type) for made in node.target._schema.returns)


def of_other_dtype(row: Op, node: torch.fx.Node) -> bool:
    """Whether a call computes in a dtype that its row does not take: torch runs it, and may refuse it, without elements too."""
    if row.kind in ("view", "create"):
        return False
    of = node.args[0] if row.dtype in ("bool", "arg") else node
    specs = of.meta["spec"] if isinstance(of, torch.fx.Node) else None
    spec = specs[0] if isinstance(specs, tuple) and specs else specs
    return isinstance(spec, Spec) and acc_dtype(SHORT.get(spec.dtype, "")) not in row.dtypes


def of_unlike_dtypes(row: Op, node: torch.fx.Node) -> bool:
    """Whether a call is a product or a convolution of bools, or of operands of several dtypes: torch refuses it when it runs."""
    specs = [n.meta.get("spec") for n in node.all_input_nodes] if row.name in PRODUCTS else []
    dtypes = {spec.dtype for spec in specs if isinstance(spec, Spec)}
    return len(dtypes) > 1 or torch.bool in dtypes


def acts(node: torch.fx.Node) -> bool:
    """Whether running a node has an effect beyond its value: it draws random numbers, or returns nothing and so is there to
    raise (`_linalg_check_errors`) or to do what a user's op does."""
    if node.target is torch.ops.aten.scaled_dot_product_attention.default:
        return bool(node.kwargs.get("dropout_p", node.args[4] if len(node.args) > 4 else 0.0))
    schema = getattr(node.target, "_schema", None)
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) or schema is not None and not schema.returns
