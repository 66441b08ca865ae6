"""torch's state of a thread is read from its libraries, and outputs are made by their functions: as through torch's Python."""

from __future__ import annotations

import threading

import pytest
import torch

import bytejit
from bytejit.compat import torch_functions
from bytejit.guards.native_checker import CHECKER

pytestmark = pytest.mark.cxx


def test_each_thread_has_its_own_state() -> None:
    """Autocast of one thread is no other's, whichever has run the entry last."""
    compiled, x, found = bytejit.compile(lambda x: x @ x), torch.ones(4, 4), {}

    def work(name: str) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=name == "cast"):
            found[name] = [compiled(x).dtype for _ in range(3)]

    for _ in range(2):
        for name in ("plain", "cast"):
            work(name)
            thread = threading.Thread(target=work, args=(name + " of a thread" if name == "plain" else name,))
            thread.start()
            thread.join()
    cast = found.pop("cast")
    assert cast == [torch.bfloat16] * 3 and all(dtypes == [torch.float32] * 3 for dtypes in found.values())


def test_a_trace_of_torch_is_noticed() -> None:
    """torch.jit.trace and its like look at the operations that eager runs."""
    compiled, x = bytejit.compile(lambda x: x.sin() * 2), torch.ones(4)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), x.sin() * 2)
        traced = torch.jit.trace(compiled, x)
        assert "aten::sin" in str(traced.graph)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.bfloat16, torch.int64, torch.complex64, torch.uint16])
def test_a_new_tensor_is_as_torchs(dtype: torch.dtype) -> None:
    compiled = bytejit.compile(lambda x: x + 1)
    compiled(torch.ones(2))  # the checks are compiled
    new = CHECKER.maker(dtype)
    assert torch_functions.makers() is None or new.__name__ == "new_tensor"
    for shape, stride in (((2, 3), (3, 1)), ((2, 3), (1, 2)), ((), ()), ((0, 3), (3, 1)), ((1,) * 20, (1,) * 20)):
        x = new(shape, stride)
        assert (type(x), x.dtype, x.shape, x.stride(), x._version) == (torch.Tensor, dtype, shape, stride, 0)
        assert not x.requires_grad and x.untyped_storage().resizable() and x.storage_offset() == 0
    with torch.inference_mode():
        assert new((2,), (1,)).is_inference()
    for shape, stride in (((-1,), (1,)), ((2,), (1, 1)), ((1 << 50, 1 << 10), (1 << 10, 1))):
        with pytest.raises(RuntimeError) as ours:
            new(shape, stride)
        with pytest.raises(RuntimeError) as eager:
            torch.empty(0, dtype=dtype).new_empty_strided(shape, stride)
        assert str(ours.value).split("\n")[0] == str(eager.value).split("\n")[0]
