"""Strides of dims of size 1, which say nothing and are seen: fakes give eager's, also for what is permuted, expanded, cut out"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("expecttest", reason="torch's operator table needs expecttest")

from bytejit.fake.tensor import FakeMode, fake_like  # noqa: E402
from tests.opinfo.harness import SKIP, copied, tensors  # noqa: E402
from tests.opinfo.table import op_db  # noqa: E402
from tests.opinfo.twists import mapped  # noqa: E402

# operators whose inputs are small and whose results are new tensors or views: elementwise, of layouts, of order
SOME = (
    "abs add angle atan atan2 bitwise_and clamp clamp_max clamp_min clone complex copysign cumsum div.no_rounding_mode eq expm1 "
    "fill flatten flip fliplr fmod frexp gcd hypot igamma index_put isin isnan lcm logical_and masked_fill maximum "
    "meshgrid.list_of_tensors msort mul nan_to_num nn.functional.hardtanh nn.functional.prelu nn.functional.relu6 "
    "nn.functional.softshrink polar pow randint_like reshape reshape_as sin sort sub tril triu unflatten unsqueeze view "
    "view_as where xlogy zeros_like"
).split()
OPERATORS = {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db if op.name not in SKIP}
SAMPLES = 6


def odd(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """Dims of size 1 get strides that nobody would choose."""
    return t.as_strided(t.shape, [rng.choice((1, 2, 5, 7, 60, 0)) if n == 1 else s for n, s in zip(t.shape, t.stride())])


def one(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    """One dim cut to size 1."""
    return odd(t.narrow(rng.randrange(t.dim()), 0, 1), rng) if t.dim() and t.numel() else t


def permuted(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    order = rng.sample(range(t.dim()), t.dim())
    return odd(t.permute(order).contiguous().permute([order.index(d) for d in range(t.dim())]), rng)


def expanded(t: torch.Tensor, rng: random.Random) -> torch.Tensor:
    dims = [d for d in range(t.dim()) if t.shape[d] > 1]
    d = rng.choice(dims) if dims else 0
    return odd(t.narrow(d, 0, 1).expand(t.shape) if dims else t, rng)


LAYOUTS: tuple[Callable, ...] = (odd, one, permuted, expanded, lambda t, rng: one(permuted(t, rng), rng))


def outcome(call: Callable, inputs: tuple) -> list[torch.Tensor] | None:
    """The tensors that a call returns; None where it raises."""
    x, args, kwargs = inputs
    try:
        return tensors(call(x, *args, **kwargs))
    except Exception:
        return None


@pytest.mark.parametrize(
    "name, dtype", [*((name, d) for name in SOME for d in (torch.float32, torch.int64)), ("angle", torch.complex64)], ids=str
)
def test_strides_are_eagers(name: str, dtype: torch.dtype) -> None:
    op: Any = OPERATORS[name]
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip("not of this dtype")
    torch.manual_seed(0)
    seen = 0
    for i, (sample, _) in enumerate(zip(op.sample_inputs("cpu", dtype), range(SAMPLES))):
        for layout, change in enumerate(LAYOUTS):
            rng = random.Random(f"{name} {i} {layout}")
            inputs = mapped((sample.input, sample.args, sample.kwargs), lambda t: change(t.detach(), rng))
            want = outcome(op.op, copied(inputs))
            if want is None:
                continue
            fakes = mapped(copied(inputs), fake_like)
            with FakeMode():
                got = outcome(op.op, fakes)
            assert got is not None, f"sample {i}, layout {layout}: {[(t.shape, t.stride()) for t in tensors(inputs)]}"
            for a, b in zip(want, got, strict=True):
                assert a.shape == b.shape and (not a.numel() or a.stride() == b.stride()), (
                    f"sample {i}, layout {layout}: {[(t.shape, t.stride()) for t in tensors(inputs)]} "
                    f"gives {tuple(a.shape)} {a.stride()}, the fake has {b.stride()}"
                )
                seen += 1
    assert seen
