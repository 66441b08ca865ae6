"""ATen's reductions, and what runs along one dimension: a row each. Shape rules and the op table derive from the rows.

`fake/rules/reductions.py` makes the shape rule of a row, and the row of the op table (`codegen/ops/rows/`) of this name takes its
overloads from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from bytejit.common.light_dataclass import light_dataclass

from .spec import reduced_dims

Dims: TypeAlias = Sequence[int] | int | None


@light_dataclass(frozen=True)
class ReductionOp:
    """name: of its row in the op table. overloads: as ATen writes them, without "aten." and ".default".

    results: the dtype of each result: "same" as the operand's, "sum" (whole numbers are summed in int64), "bool" (uint8 stays),
    "index". A dtype that the call gives wins.
    of: which operands the rule serves: "any", "inexact" (floats, complex numbers), "floats", "real" (no complex numbers),
    "numbers" (real, no bools), "bools". For others torch's meta kernel infers or raises.
    empty: whether it takes a tensor without elements.
    no_dims: the meaning of an empty list of dimensions: the op reduces "all" dimensions or "none", or eager raises an error
    ("refused").
    keeps: it runs along one dimension and keeps the shape; what it makes is row-major.
    """

    name: str
    overloads: tuple[str, ...]
    results: tuple[str, ...] = ("same",)
    of: str = "any"
    empty: bool = True
    no_dims: str = "all"
    keeps: bool = False

    def dims(self, given: Dims, rank: int) -> tuple[int, ...]:
        """The dimensions that a call reduces, in order. Raises: IndexError, as torch."""
        if self.no_dims == "none" and given is not None and not isinstance(given, int) and not len(given):
            return ()
        return reduced_dims(given, rank)


_ROWS = (
    ReductionOp("sum", ("sum", "sum.dim_IntList"), ("sum",)),
    ReductionOp("prod", ("prod", "prod.dim_int"), ("sum",)),
    ReductionOp("mean", ("mean", "mean.dim"), of="inexact"),
    ReductionOp("amax", ("amax", "max"), of="real", empty=False),
    ReductionOp("amin", ("amin", "min"), of="real", empty=False),
    *(ReductionOp(f"{n}_dim", (f"{n}.dim",), ("same", "index"), "real", empty=False) for n in ("max", "min")),
    *(ReductionOp(n, (n,), ("index",), "numbers", empty=False) for n in ("argmax", "argmin")),
    *(ReductionOp(n, (n, f"{n}.dim", f"{n}.dims"), ("bool",), no_dims="none") for n in ("any", "all")),
    *(ReductionOp(f"is_{n}_true", (f"_is_{n}_true",), ("bool",), "bools") for n in ("any", "all")),
    *(ReductionOp(n, (f"{n}.correction",), of="floats") for n in ("var", "std")),
    *(ReductionOp(n, (f"{n}.correction",), ("same", "same"), "floats") for n in ("var_mean", "std_mean")),
    ReductionOp("logsumexp", ("logsumexp",), of="floats", no_dims="refused"),
    *(ReductionOp(n, (f"_{n}", f"{n}.int"), of="floats", keeps=True) for n in ("softmax", "log_softmax")),
    ReductionOp("safe_softmax", ("_safe_softmax",), of="floats", keeps=True),
    *(ReductionOp(n, (n,), ("sum",), keeps=True) for n in ("cumsum", "cumprod")),
    ReductionOp("logcumsumexp", ("logcumsumexp",), of="floats", keeps=True),
    *(ReductionOp(n, (n,), ("same", "index"), "numbers", keeps=True) for n in ("cummax", "cummin")),
)
REDUCTIONS = {row.name: row for row in _ROWS}
