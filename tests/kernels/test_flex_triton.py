"""flex_attention as one kernel, in Triton's interpreter, beside eager's in float64; and what is compiled for a GPU."""

from __future__ import annotations

import dataclasses
import math
import os

import pytest
import torch
from torch.nn.attention import flex_attention as flex

import bytejit
from bytejit.common import attention_marks
from bytejit.common.options import config
from bytejit.kernels import flex_triton
from bytejit.kernels.build_triton import Binaries, Binary, triton_version

pytestmark = [
    pytest.mark.triton,
    pytest.mark.skipif(
        not triton_version() or os.environ.get("TRITON_INTERPRET") != "1",
        reason="needs triton and TRITON_INTERPRET=1 (set where there is no GPU)",
    ),
]
NOTHING = pytest.mark.filterwarnings("ignore:.*:UserWarning", "ignore:.*:FutureWarning")
TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
DOCUMENTS = torch.arange(128) // 23
TABLE = torch.randn(4, 128, 128, generator=torch.Generator().manual_seed(1))
LENGTHS = torch.tensor([38, 31])


@pytest.fixture
def problems(monkeypatch):
    """The problems that the kernel was run for; marks are left on the CPU too."""
    found = []
    text_of = flex_triton.text_of
    monkeypatch.setattr(flex_triton, "text_of", lambda p, *rest: found.append(p) or text_of(p, *rest))
    monkeypatch.setattr(attention_marks, "wanted", lambda q, changed, v: not (changed.requires_grad or v.requires_grad))
    return found


def operands(b=2, h=2, n=40, m=None, d=16, groups=1, dtype=torch.float32, e=None, kb=None):
    made = torch.Generator().manual_seed(n + d)
    shapes = (b, h, n, d), (kb or b, h // groups, m or n, d), (kb or b, h // groups, m or n, e or d)
    return [torch.randn(*s, generator=made).to(dtype) for s in shapes]


def check(monkeypatch, problems, given, used=True, score=None, mask=None, mb=None, mh=None, block=32, **options):
    """Compiled beside eager in float64."""
    q, k = given[:2]
    of = None
    if mask is not None:
        of = flex.create_block_mask(mask, mb, mh, q.shape[2], k.shape[2], device="cpu", BLOCK_SIZE=block)

    def f(q, k, v):
        return flex.flex_attention(q, k, v, score, of, return_lse=True, **options)

    with config.patch(interpret=True):
        made, sums = bytejit.compile(f, backend="inductor", fullgraph=True)(*given)
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    want, sums_want = f(*(x.double() for x in given))
    near = TOLERANCE[q.dtype]
    torch.testing.assert_close(made.double(), want, rtol=near, atol=near)
    torch.testing.assert_close(sums.double(), sums_want, rtol=near, atol=near)
    assert (made.dtype, sums.dtype) == (q.dtype, torch.float32) and made.stride() == want.stride()
    assert bool(problems) is used


def causal(b, h, i, j):
    return i >= j


def within(b, h, i, j):
    return (DOCUMENTS[i] == DOCUMENTS[j]) & (i >= j)


def window(b, h, i, j):
    return (i - j).abs() <= 10 + 5 * h + 20 * b


def padded(b, h, i, j):
    return j < LENGTHS[b]


def late(b, h, i, j):
    return (i >= 34) & (i >= j)


def shared(b, h, i, j):
    return (j // 7) % 3 != i % 3


def nothing(b, h, i, j):
    return j < 0


def alibi(s, b, h, i, j):
    return s - (i - j) * torch.exp2(-(h + 1) * 0.5)


def from_table(s, b, h, i, j):
    return s + TABLE[h, i, j]


def capped(s, b, h, i, j):
    return 20 * torch.tanh(s / 20) * torch.where(b == 0, 1.0, 0.5)


def minus_infinity(s, b, h, i, j):
    return torch.where(i % 2 == 0, s, -float("inf"))


CASES = {
    "nothing": {},
    "causal with a bias": {"score": alibi, "mask": causal},
    "documents, a table": {"score": from_table, "mask": within},
    "a mask by head and batch": {"mask": window, "mb": 2, "mh": 4},
    "a mask by batch": {"mask": padded, "mb": 2},
    "rows that see nothing": {"mask": late, "score": capped},
    "no row sees anything": {"mask": nothing},
    "rows of minus infinity": {"score": minus_infinity, "mask": causal},
    "blocks of 8": {"mask": shared, "block": 8},
    "blocks of 16x32": {"mask": causal, "block": (16, 32)},
    "one block": {"mask": causal, "block": 128},
    "a scale": {"mask": causal, "scale": 0.3, "score": alibi},
}


@NOTHING
@pytest.mark.parametrize("case", CASES)
def test_against_eager(monkeypatch, problems, case):
    """Two blocks of rows and of keys, the last of 8; three where some are seen as a whole."""
    check(monkeypatch, problems, operands(n=72 if case == "causal with a bias" else 40), **CASES[case])


SHAPES = {
    "bf16": {"dtype": torch.bfloat16},
    "f16, heads of 40": {"dtype": torch.float16, "d": 40},
    "values of another size": {"d": 24, "e": 72},
    "more keys": {"n": 33, "m": 72},
    "more queries": {"n": 72, "m": 33},
    "one query": {"n": 1, "m": 72},
    "one batch of keys": {"kb": 1},
    "one batch, one head, whole blocks": {"b": 1, "h": 1, "n": 64},
}


@NOTHING
@pytest.mark.parametrize("shape", SHAPES)
def test_shapes(monkeypatch, problems, shape):
    mb = 2 if "kb" in SHAPES[shape] else None
    check(monkeypatch, problems, operands(**SHAPES[shape]), score=alibi, mask=causal, mb=mb)


@NOTHING
def test_a_block_that_reaches_past_the_keys(monkeypatch, problems):
    check(monkeypatch, problems, operands(n=40), score=alibi, mask=causal, block=64)


@NOTHING
def test_heads_that_share_keys(monkeypatch, problems):
    check(monkeypatch, problems, operands(h=4, groups=2), score=from_table, mask=window, mb=2, mh=4, enable_gqa=True)


@NOTHING
def test_operands_lie_as_they_lie(monkeypatch, problems):
    given = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in operands()]
    check(monkeypatch, problems, given, score=alibi, mask=causal)


@NOTHING
def test_blocks_left_out_are_not_computed(problems):
    """Keys of blocks that the mask leaves out may hold nan."""
    q, k, v = operands(n=64)
    of = flex.create_block_mask(lambda b, h, i, j: j < 32, None, None, 64, 64, device="cpu", BLOCK_SIZE=32)
    k[:, :, 32:], v[:, :, 32:] = float("nan"), float("nan")
    with config.patch(interpret=True):
        c = bytejit.compile(lambda q, k, v: flex.flex_attention(q, k, v, block_mask=of), backend="inductor", fullgraph=True)
        made = c(q, k, v)
    want = torch.nn.functional.scaled_dot_product_attention(q, k[:, :, :32], v[:, :, :32])
    torch.testing.assert_close(made, want)
    assert problems


@NOTHING
def test_what_is_no_function_of_one_place_stays_written_out(monkeypatch, problems):
    """An index read from memory is checked, as eager does."""
    order = torch.arange(128).flip(0)
    check(monkeypatch, problems, operands(n=20), used=False, score=lambda s, b, h, i, j: s + DOCUMENTS[order[j]])


@pytest.mark.filterwarnings("ignore")
def test_float64_stays_written_out(monkeypatch, problems):
    q, k, v = (x.double() for x in operands(n=12))
    with config.patch(interpret=True):
        made = bytejit.compile(flex.flex_attention, backend="inductor", fullgraph=True)(q, k, v)
    torch.testing.assert_close(made, torch.nn.functional.scaled_dot_product_attention(q, k, v))
    assert not problems


def test_the_operator_without_functions() -> None:
    """What the program is not given on a CPU: the largest scores."""
    q, k, v = operands(n=40)
    few, at = torch.ones(1, 1, 1, dtype=torch.int32), torch.zeros(1, 1, 1, 1, dtype=torch.int32)
    made, sums, tops = torch.ops.bytejit.gpu_flex(q, k, v, few, at, None, None, [], q.stride(), 1 << 30, 1 << 30, 0.25, "", "")
    scores = (q.double() @ k.double().transpose(-2, -1)) * 0.25
    torch.testing.assert_close(made.double(), scores.softmax(-1) @ v.double(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums.double(), scores.logsumexp(-1) / math.log(2), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(tops.double(), scores.amax(-1) / math.log(2), rtol=1e-5, atol=1e-5)


@NOTHING
@pytest.mark.parametrize("d, dtype", [(64, torch.bfloat16), (256, torch.float16)])
def test_it_compiles_for_a_gpu(monkeypatch, problems, tmp_path, d, dtype):
    check(monkeypatch, problems, operands(b=1, n=16), score=from_table, mask=within)
    shape = 2, 16, 2048, d
    x = shape, (16 * 2048 * d, 2048 * d, d, 1), dtype
    few, at = ((1, 1, 16), (16, 16, 1), torch.int32), ((1, 1, 16, 16), (256, 256, 16, 1), torch.int32)
    p = dataclasses.replace(problems[0], strides=x[1], tensors=(x, x, x, few, at, few, at), rows=128, keys=128)
    with config.patch(cache_dir=str(tmp_path)):
        made = Binaries(config.current).of([flex_triton.job(p, t, 90) for t in flex_triton.tiles(p)[::2]])
    assert [m if isinstance(m, str) else "" for m in made] == [""] * len(made)
    assert all(isinstance(m, Binary) and m.shared <= 227 << 10 for m in made)
