"""Running sums over few long rows, in parts: equal to the sum in one, to infinities and exact integers."""

from __future__ import annotations

import pytest
import torch
from graphs import aten

from bytejit.codegen.aten.long_scans import part_of, split_long_scans

numbers = torch.Generator().manual_seed(0)
FLOATS = torch.randn(2, 5000, 3, generator=numbers, dtype=torch.float64)
HOLES = FLOATS.clone()
HOLES[0, 700, 0], HOLES[1, 4000, 1], HOLES[1, 4500, 2] = torch.inf, torch.nan, -torch.inf
CASES = {
    "columns": (FLOATS, 1, True),
    "not divisible": (FLOATS[:, :4999].contiguous(), 1, True),
    "infinities": (HOLES, 1, True),
    "rows": (torch.randint(-9, 9, (3, 8192), generator=numbers), -1, True),
    "narrow integers": (torch.randint(0, 2**31 - 1, (4200,), generator=numbers, dtype=torch.int32), 0, True),
    "bools": (torch.randint(0, 2, (1, 6000), generator=numbers).bool(), 1, True),
    "short": (FLOATS, 0, False),
    "many rows": (torch.randn(300, 4096, generator=numbers), 1, False),
    "halves": (torch.randn(1, 5000, generator=numbers).half(), 1, False),
    "across": (FLOATS.transpose(0, 1), 0, False),
}


def run(graph: torch.fx.Graph, x: torch.Tensor) -> torch.Tensor:
    return torch.fx.Interpreter(torch.fx.GraphModule({}, graph)).run(x)[0]


@pytest.mark.parametrize("name", CASES)
def test_equal_in_one(name: str) -> None:
    x, dim, split = CASES[name]
    made = aten(lambda x: x.cumsum(dim) + 1, x)
    expected = run(made.graph, x)
    split_long_scans(made.graph)
    assert (sum(n.target is torch.ops.aten.cumsum.default for n in made.graph.nodes) == 2) == split
    got = run(made.graph, x)
    assert got.dtype is expected.dtype and got.stride() == expected.stride()
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9, equal_nan=True)


@pytest.mark.parametrize(("n", "part"), [(20000, 250), (8192, 256), (4099, 256), (5000, 250), (4096 * 3, 256)])
def test_parts(n: int, part: int) -> None:
    assert part_of(n) == part
