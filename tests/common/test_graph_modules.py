"""Graphs as modules: their text says what the graph says."""

import operator

import pytest
import torch
from torch import fx

import bytejit
from bytejit.common.graph_modules import module_of

POWERS = (torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0, 1, 2, 3]), 2)
BINARY = "add and_ eq floordiv ge gt le lshift lt mod mul ne or_ pow rshift sub truediv xor".split()


@pytest.mark.parametrize("power", POWERS, ids=["floats", "integers", "a size"])
@pytest.mark.parametrize("base", [-1, -2, -2.5, -0.0, -float("inf"), complex(0, -1), 2, True])
def test_a_power_of_a_number_keeps_the_sign(base, power):
    graph = fx.Graph()
    graph.output(graph.call_function(operator.pow, (base, graph.placeholder("x"))))
    got, expected = module_of(graph)(power), base**power
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(got, expected, rtol=0, atol=0)
        assert torch.equal(torch.signbit(torch.real(got)), torch.signbit(torch.real(expected)))
    else:
        assert got == expected and type(got) is type(expected)


@pytest.mark.parametrize("name", BINARY)
def test_a_negative_number_on_the_left_of_each_operator(name):
    function = getattr(operator, name)
    x = torch.tensor([1, 2, 3])

    def program(x):
        return function(-3, x), function(x, 2)

    for backend in ("eager", "aot_eager", "inductor"):
        got = bytejit.compile(program, backend=backend, fullgraph=True)(x)
        torch.testing.assert_close(got, program(x), rtol=1e-6, atol=0)


def test_a_power_whose_base_is_negative_and_whose_exponent_a_size():
    def program(x):
        return x + (-2.5) ** x.shape[0], x * (-1) ** x.shape[0], x * (-x.shape[0]) ** 2

    for backend in ("eager", "inductor"):
        compiled = bytejit.compile(program, backend=backend, dynamic=True, fullgraph=True)
        for n in (3, 4):
            torch.testing.assert_close(compiled(torch.ones(n)), program(torch.ones(n)))


def test_an_exported_power_keeps_the_sign():
    x = torch.tensor([0.0, 1.0, 2.0])
    exported = bytejit.export(lambda x: (-1) ** x, x)
    torch.testing.assert_close(exported[0](x), (-1) ** x)
