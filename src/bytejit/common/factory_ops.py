"""ATen's operators that fill a new tensor with one value: a row each. Shape rules and the op table derive from the rows."""

from __future__ import annotations

from bytejit.common.light_dataclass import light_dataclass


@light_dataclass(frozen=True)
class FactoryOp:
    """name: of its row in the op table. sized, like, new: the overload that is given sizes, one that is given a tensor to be
    like, and one of a tensor that is given sizes; as ATen writes them, without "aten." and ".default".

    value: what is stored; None where the call says it, behind what says the shape. stored: False where nothing is.
    """

    name: str
    sized: str
    like: str
    new: str
    value: int | None = 0
    stored: bool = True

    @property
    def overloads(self) -> tuple[str, str, str]:
        """All three."""
        return self.sized, self.like, self.new


FACTORIES = {
    row.name: row
    for row in (
        FactoryOp("zeros", "zeros", "zeros_like", "new_zeros"),
        FactoryOp("ones", "ones", "ones_like", "new_ones", 1),
        FactoryOp("full", "full", "full_like", "new_full", None),
        FactoryOp("empty", "empty.memory_format", "empty_like", "new_empty", stored=False),
    )
}
