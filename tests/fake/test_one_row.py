"""One op, one row: a shape rule that follows from what a row says is made of it, and the others say what the row does not."""

from __future__ import annotations

from bytejit.codegen.ops.table import Op, table
from bytejit.common.factory_ops import FACTORIES
from bytejit.common.pointwise_ops import POINTWISE
from bytejit.common.reduction_ops import REDUCTIONS
from bytejit.fake.rules.core import BESIDE, REASONS
from bytejit.fake.rules.views import STRIDED
from bytejit.fake.tensor import ROWS  # all files of rules are imported there

TABLES = (POINTWISE, REDUCTIONS, FACTORIES)
MADE = {f"aten::{o}" for rows in TABLES for row in rows.values() for o in row.overloads} | STRIDED.keys()


def row_of(name: str) -> Op | None:
    """The row of the op table of an operator, as rules name it."""
    overload = name.replace("::", ".", 1)
    return table().by_aten.get(overload if "." in name else f"{overload}.default")


def test_a_rule_beside_a_row_says_what_the_row_does_not() -> None:
    beside = {name for name in ROWS if (row := row_of(name)) and row.kind != "extern" and name not in MADE}
    without = beside - REASONS.keys()
    assert not without, f"make the rule of the row, or say what it says beside it: {sorted(without)}"
    assert not any(row.kind == "pointwise" for name in beside if (row := row_of(name)))


def test_a_rule_that_is_made_of_a_row_is_not_written_too() -> None:
    assert MADE <= ROWS.keys() and not MADE & REASONS.keys()
    assert set(REASONS.values()) == set(BESIDE), "a reason that no rule gives"


def test_each_row_of_the_common_tables_is_in_the_op_table() -> None:
    assert not [name for name in MADE if row_of(name) is None]


def test_views_that_step_through_their_operand_are_not_lowered_by_hand() -> None:
    assert {row.lower.__module__ for name in STRIDED if (row := row_of(name)) and row.lower} == {
        "bytejit.codegen.ops.rows.strided"
    }
