"""Plans on disk: what tells graphs apart, what is kept, and that a kept plan returns what a fresh one does."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

import bytejit
from bytejit.backends import compiled as lowering
from bytejit.backends import plan_cache
from bytejit.common.options import config
from bytejit.kernels.build_triton import triton_version


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch, tmp_path) -> list:
    """The graphs that are lowered; the cache's folder is empty."""
    seen: list = []
    plain = lowering.lower

    def lower(aten):
        seen.append(aten)
        return plain(aten)

    monkeypatch.setattr(lowering, "lower", lower)
    with config.patch(cache_dir=str(tmp_path)):
        yield seen
    bytejit.reset()


def normed(x, w, b):
    y = torch.nn.functional.linear(torch.softmax(x * 0.5, -1), w, b)
    x.mul_(2)
    return torch.relu(y).sum(0), y[:, 1:]


def answer(fn, *args, **how):
    """What a fresh compile of `fn` returns, and its inputs afterwards."""
    bytejit.reset()
    args = [a.clone() for a in args]
    with torch.no_grad():
        return bytejit.compile(fn, fullgraph=True, **how)(*args), args


ARGS = torch.linspace(-2, 3, 40).view(5, 8), torch.linspace(0, 1, 24).view(3, 8), torch.ones(3)


@pytest.mark.cxx
@pytest.mark.parametrize(
    "how",
    [
        {},
        pytest.param(
            {"interpret": True},
            marks=pytest.mark.skipif(
                not triton_version() or os.environ.get("TRITON_INTERPRET") != "1", reason="needs triton and TRITON_INTERPRET=1"
            ),
        ),
    ],
    ids=["cpu", "triton"],
)
def test_a_graph_is_planned_once(lowered: list, how: dict) -> None:
    eager = [a.clone() for a in ARGS]
    want = normed(*eager), eager
    for _ in range(3):
        torch.testing.assert_close(answer(normed, *ARGS, options=how), want)
        assert len(lowered) == 1


@pytest.mark.cxx
def test_another_process_finds_the_plan(tmp_path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import torch, bytejit
from bytejit.backends import compiled as lowering
from bytejit.common.options import config
plain, seen = lowering.lower, []
lowering.lower = lambda aten: seen.append(1) or plain(aten)
def f(x, i):
    return torch.nn.functional.layer_norm(x, (8,)).transpose(0, 1) @ x, x[i], torch.cat([x, x * 2]).amax(0)
x, i = torch.linspace(-2, 3, 40).view(5, 8), torch.tensor([4, 0])
with torch.no_grad():
    for a, b in zip(bytejit.compile(f, fullgraph=True)(x, i), f(x, i)):
        torch.testing.assert_close(a, b)
print("lowered", len(seen))
""")
    said = []
    for seed in "1", "2":
        env = {**os.environ, "PYTHONHASHSEED": seed, "BYTEJIT_CACHE_DIR": str(tmp_path / "cache")}
        done = subprocess.run([sys.executable, str(program)], env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout.strip())
    assert said == ["lowered 1", "lowered 0"]


@pytest.mark.cxx
@pytest.mark.parametrize(
    "other",
    [
        lambda: (lambda x: x * 3.0, torch.ones(4, 6)),
        lambda: (lambda x: x * -2.0, torch.ones(4, 6)),
        lambda: (lambda x: x * 2.0, torch.ones(6, 4).t()),
        lambda: (lambda x: x * 2.0, torch.ones(4, 7)),
        lambda: (lambda x: x * 2.0, torch.ones(4, 6, dtype=torch.float64)),
        lambda: (lambda x: x.mul_(2.0), torch.ones(4, 6)),
        lambda: (lambda x: (x * 2.0).sum(1), torch.ones(4, 6)),
        lambda: (lambda x: (x * 2.0).sum(1, keepdim=True), torch.ones(4, 6)),
    ],
    ids="number sign strides shape dtype write dim keyword".split(),
)
def test_another_graph_is_another(lowered: list, other) -> None:
    answer(lambda x: x * 2.0, torch.ones(4, 6))
    fn, x = other()
    eager = x.clone()
    torch.testing.assert_close(answer(fn, x), (fn(eager), [eager]))
    assert len(lowered) == 2


@pytest.mark.cxx
def test_what_is_shown_tells_graphs_apart(lowered: list) -> None:
    """One graph that writes y into x; y is shown, or x, or neither."""
    for fn in (
        lambda x: (y := x * 2.0, x.copy_(y))[0],
        lambda x: (y := x * 2.0, x.copy_(y))[1],
        lambda x: (x.copy_(x * 2.0), 1)[1],
    ):
        eager = torch.ones(4, 6)
        want, (made, (x,)) = fn(eager), answer(fn, torch.ones(4, 6))
        torch.testing.assert_close((made, x), (want, eager))
        assert isinstance(want, int) or (made.data_ptr() == x.data_ptr()) == (want.data_ptr() == eager.data_ptr())
    assert len(lowered) >= 2


def test_numbers_of_one_value_are_told_apart() -> None:
    texts = {plan_cache._text(v, {}) for v in (0, 0.0, -0.0, False, None, "0", (0,), ((0,),), torch.float32, "torch.float32", 0j)}
    assert len(texts) == 11
    assert plan_cache._text([1, [2]], {}) == plan_cache._text((1, (2,)), {})
    with pytest.raises(plan_cache.NotKept):
        plan_cache._text(torch.ones(1), {})


@pytest.mark.cxx
def test_sizes_known_at_the_call_only_are_not_kept(lowered: list) -> None:
    for _ in range(2):
        answer(lambda x: (x * 2).sum(0), torch.ones(4, 6), dynamic=True)
    assert len(lowered) == 2 and not list(config.current.cache_path.rglob("*.plan"))


@pytest.mark.cxx
def test_a_damaged_plan_is_made_again(lowered: list) -> None:
    answer(normed, *ARGS)
    (kept,) = config.current.cache_path.rglob("*.plan")
    kept.write_bytes(kept.read_bytes()[:-3])
    answer(normed, *ARGS)
    assert len(lowered) == 2


@pytest.mark.cxx
def test_all_stages_are_written_where_they_are_asked_for(lowered: list, tmp_path) -> None:
    answer(normed, *ARGS)
    answer(normed, *ARGS, options={"debug": True, "debug_dir": str(tmp_path / "debug")})
    assert len(lowered) == 2 and "softmax" in next((tmp_path / "debug").rglob("*schedule*")).read_text()
