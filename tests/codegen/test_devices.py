"""Graphs on a GPU that is not there: normalised and lowered from fakes, to see that each node is known to run somewhere."""

from __future__ import annotations

import pytest
import torch

from bytejit.codegen.aten.normalise import normalise
from bytejit.codegen.loops.ir import Extern
from bytejit.codegen.loops.lower import lower
from bytejit.codegen.loops.lowering import device_of
from bytejit.common.spec import Spec, contiguous_stride
from bytejit.fake.tensor import fake_of_spec

CASES = {
    "cholesky": lambda a, b: torch.linalg.cholesky(a),
    "solve": lambda a, b: torch.linalg.solve(a, b) + 1,
    "inv": lambda a, b: torch.linalg.inv(a) @ b,
    "matrix_power": lambda a, b: torch.linalg.matrix_power(a, -2),
    "solve_ex": lambda a, b: torch.linalg.solve_ex(a, b),
    "eigh": lambda a, b: torch.linalg.eigh(a),
    "lu_factor": lambda a, b: torch.linalg.lu_factor(a),
    "split": lambda a, b: torch.split(a * 2, 2)[0] + 1,
    "var_mean": lambda a, b: torch.var_mean(a, 0),
}


@pytest.mark.parametrize("name", CASES)
def test_each_node_of_a_gpu_graph_has_its_device(name):
    """A check that returns nothing (`_linalg_check_errors`) runs where its operands are"""
    gpu, shape = torch.device("cuda", 0), (4, 4)
    fakes = [fake_of_spec(Spec(shape, contiguous_stride(shape), torch.float32, gpu)) for _ in range(2)]
    with torch.no_grad():
        aten = normalise(torch.fx.symbolic_trace(CASES[name]), fakes)
    assert {device_of(n) for n in aten.graph.nodes if n.op == "call_function"} == {gpu}
    loops = lower(aten)
    assert {b.device for b in loops.buffers.values()} == {"cuda:0"}
    if name in ("cholesky", "solve", "inv", "matrix_power"):
        assert any(isinstance(s, Extern) and "check_errors" in s.target for s in loops.steps)
