"""What torch's operators refuse (`error_inputs` of its operator table) is refused with the same type of exception."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.opinfo.core import ErrorInput, OpInfo

import bytejit

from .table import op_db

pytestmark = pytest.mark.cxx
REFUSING = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db if op.error_inputs_func is not None}
# every eighth, and those that once answered where eager raises
SOME = sorted({*sorted(REFUSING)[::8], "gather", "complex", "multinomial", "aminmax", "native_layer_norm", "nn.functional.gelu"})
MOST = 6  # inputs of one operator
KNOWN = {"amax": "more than 64 dimensions, which eager's kernels refuse", "amin": "as amax"}


def outcome(call: object, given: ErrorInput) -> type:
    """The type of what a call raises; NoneType where it returns."""
    sample = given.sample_input
    try:
        call(sample.input, *sample.args, **sample.kwargs)
    except Exception as error:
        return type(error)
    return type(None)


def inputs_of(op: OpInfo) -> list[ErrorInput]:
    torch.manual_seed(0)
    return [e for e in op.error_inputs("cpu")][:MOST]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", SOME)
def test_the_same_inputs_are_refused(name: str, backend: str) -> None:
    op = REFUSING[name]
    if name in KNOWN and backend == "inductor":
        pytest.skip(KNOWN[name])

    def call(x: object, *args: object, **kwargs: object) -> object:
        return op.op(x, *args, **kwargs)

    for i, given in enumerate(inputs_of(op)):
        bytejit.reset()
        with bytejit.config.patch(suppress_errors=True):
            found = outcome(bytejit.compile(call, backend=backend), given)
        assert found is outcome(call, given), f"input {i} of {name}"


@pytest.mark.parametrize("std", [-1, -2.5, float("nan")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32])
def test_draws_into_a_tensor_are_refused_in_eagers_words(std: float, dtype: torch.dtype) -> None:
    def draw(x: torch.Tensor) -> torch.Tensor:
        return x.to(dtype, copy=True).normal_(0, std)

    bytejit.reset()
    said = []
    for call in (draw, bytejit.compile(draw)):
        with pytest.raises((RuntimeError, NotImplementedError)) as caught:
            call(torch.ones(4))
        said.append((caught.type, str(caught.value)))
    assert said[0] == said[1] and not bytejit.counters["faults"]
