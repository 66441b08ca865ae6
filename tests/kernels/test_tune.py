"""Timed choices: the faster candidate wins, choices are kept and merged, and every library row computes what torch computes."""

import time

import pytest
import torch
import torch.nn.functional as F

from bytejit.common.options import Options
from bytejit.common.spec import Spec
from bytejit.kernels import gemm, library
from bytejit.kernels.build import NoCompiler
from bytejit.kernels.json_cache import json_cache
from bytejit.kernels.tune import Candidate, Tuner

pytestmark = pytest.mark.timed


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Our own product, built once."""
    try:
        return gemm.OWN.register(Options(cache_dir=str(tmp_path_factory.mktemp("kernels"))))
    except NoCompiler:
        return None


X = Spec.of(torch.empty(4, 6))


class Clock:
    """Seconds that only `spend` moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def spend(self, times, result=lambda x: x):
        """A candidate's call that takes these seconds in turn, the last ones over and over."""
        left = list(times)

        def call(x):
            self.now += left.pop(0) if len(left) > 1 else left[0]
            return result(x)

        return call


def fast(x):
    return (x + 1).t().contiguous().t()


def test_the_faster_one_wins_and_its_strides_are_told():
    clock = Clock()
    choice = Tuner(clock=clock).choose(
        "add1", [X], [Candidate("slow", clock.spend([0.003])), Candidate("fast", clock.spend([0.001], fast))]
    )
    assert choice.name == "fast" and choice.stride == (1, 4) and choice.sure
    assert choice.seconds == pytest.approx({"slow": 0.003, "fast": 0.001})
    assert repr(choice) == "choice fast: fast=1000us slow=3000us"


def test_a_tie_keeps_the_default():
    clock = Clock()
    both = [Candidate("first", clock.spend([0.001])), Candidate("second", clock.spend([0.001]))]
    assert Tuner(clock=clock).choose("add1", [X], both).name == "first"


def test_a_choice_is_made_once_and_survives_the_process(tmp_path):
    clock, calls = Clock(), []
    candidates = [
        Candidate("slow", clock.spend([0.003])),
        Candidate("fast", clock.spend([0.001], lambda x: (calls.append(1), fast(x))[1])),
    ]
    store = json_cache("choices", tmp_path)
    tuner = Tuner(store, clock=clock)
    first = tuner.choose("add1", [X], candidates)
    made = len(calls)
    assert tuner.choose("add1", [X], candidates) == first and len(calls) == made
    tuner.save()
    again = Tuner(json_cache("choices", tmp_path), enabled=False)
    assert again.choose("add1", [X], candidates) == first and len(calls) == made
    assert again.choose("add1", [X], candidates, attrs="other") is None
    assert Tuner(store, enabled=False, threads=tuner.threads + 1).choose("add1", [X], candidates) is None


def test_what_a_library_refuses_is_recorded_and_the_default_must_run():
    def refuses(x):
        raise RuntimeError("not for this shape")

    choice = Tuner().choose("add1", [X], [Candidate("fast", fast), Candidate("bad", refuses)])
    assert choice.name == "fast" and choice.errors == {"bad": "not for this shape"}
    with pytest.raises(RuntimeError, match="not for this shape"):
        Tuner().choose("add1", [X], [Candidate("bad", refuses), Candidate("fast", fast)])


def test_cold_operands_come_from_different_places():
    seen = set()

    def look(x, w):
        seen.add(w.data_ptr())
        return x

    Tuner().choose("look", [X, Spec.of(torch.empty(256, 256))], [Candidate("a", look), Candidate("b", look)], cold=[1])
    assert len(seen) > 1


@pytest.mark.parametrize("epilogue", [None, "relu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("name", ["linear_torch", "linear_onednn", "linear_onednn_packed", "linear_own", "linear_own_packed"])
def test_linear_rows(name, epilogue, own):
    row = library.ROWS[name]
    if name not in library.available() or epilogue and epilogue not in row.epilogues:
        pytest.skip("not offered by this row or build")
    x, w, b = torch.randn(2, 5, 32), torch.randn(48, 32), torch.randn(48)
    weight = row.pack(w, rows=10) if row.pack else w
    want = F.linear(x, w, b)
    want = {None: want, "relu": want.relu(), "gelu": F.gelu(want), "gelu_tanh": F.gelu(want, approximate="tanh")}[epilogue]
    got = row(x=x, w=weight, b=b, epilogue=epilogue, n=48)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert got.is_contiguous()
    if "add" in row.epilogues:
        other = torch.randn(2, 5, 48)
        torch.testing.assert_close(
            row(x=x, w=weight, b=b, epilogue="add", other=other), F.linear(x, w, b) + other, rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("name", ["conv_nchw", "conv_nhwc", "conv_onednn_nhwc", "conv_onednn_packed"])
def test_conv_rows(name):
    row = library.ROWS[name]
    if name not in library.available():
        pytest.skip("not in this build")
    x, w, b = torch.randn(2, 8, 10, 10), torch.randn(16, 8, 3, 3), torch.randn(16)
    geometry = dict(stride=(2, 2), padding=(1, 1), dilation=(1, 1), groups=1)
    given = x.to(memory_format=torch.channels_last) if row.layout == "nhwc" else x
    weight = row.pack(w, **geometry, shape=x.shape) if row.pack else w
    want = F.conv2d(x, w, b, 2, 1)
    got = row(x=given, w=weight, b=b, **geometry)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
    assert got.is_contiguous(memory_format=torch.channels_last if row.layout == "nhwc" else torch.contiguous_format)
    if "add_relu" in row.epilogues:
        other = torch.randn_like(got)
        torch.testing.assert_close(
            row(x=given, w=weight, b=b, **geometry, epilogue="add_relu", other=other), (want + other).relu(), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize(
    "m,k,n",
    [
        (1, 1, 1),
        (1, 33, 17),
        (5, 8, 16),
        (6, 384, 32),
        (7, 385, 40),
        (128, 400, 50),
        (200, 1000, 100),
        (3, 0, 4),
        (0, 4, 4),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_our_own_product(own, m, k, n, threads):
    if own is None:
        pytest.skip("no C++ compiler")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, w, b = torch.randn(m, k), torch.randn(n, k), torch.randn(n)
        want = x.double() @ w.double().t() + b.double()
        scale = max(k, 1) ** 0.5 * 1e-6
        strided = torch.empty(n, 2 * k)[:, ::2].copy_(w)
        for weight in (w, w.t().contiguous().t(), strided, torch.empty(n, k + 3)[:, :k].copy_(w)):
            assert ((own["bytejit.linear.default"](x, weight, b) - want).abs() <= scale * 10).all()
            if k and m:
                panels = own["pack"](weight)
                assert ((own["bytejit.linear_packed.default"](x, panels, n, b, 1) - want.relu()).abs() <= scale * 10).all()
        assert ((own["bytejit.linear.default"](x, w) + b - want).abs() <= scale * 10).all()
        given = torch.full((m, n), float("nan"))
        assert own["bytejit.linear.default"](x, w, b, out=given) is given and ((given - want).abs() <= scale * 10).all()
    finally:
        torch.set_num_threads(before)


def test_our_own_product_keeps_nan_and_infinity(own):
    if own is None:
        pytest.skip("no C++ compiler")
    x, w = torch.ones(8, 4), torch.ones(20, 4)
    x[1, 2], x[3, 0], x[4, 1] = float("nan"), float("inf"), float("-inf")
    torch.testing.assert_close(own["bytejit.linear.default"](x, w, None, 1), (x @ w.t()).relu(), equal_nan=True)


@pytest.mark.parametrize("k", [100, 900])
def test_products_of_one_operand_in_one_call(own, k):
    if own is None:
        pytest.skip("no C++ compiler")
    x = torch.randn(2, 70, k)
    ws = [torch.randn(40, k), torch.randn(k, 17).t(), torch.randn(300, k), torch.randn(k, 250).t(), torch.randn(1, k)]
    bs = [torch.randn(40), None, torch.randn(300), torch.randn(250), torch.randn(1)]
    got = torch.ops.bytejit.linears(x, ws, bs)
    assert [t.shape for t in got] == [(2, 70, n) for n in (40, 17, 300, 250, 1)]
    for y, w, b in zip(got, ws, bs):
        torch.testing.assert_close(y, F.linear(x, w, b), rtol=1e-5, atol=k * 1e-6)


def test_one_lucky_run_does_not_replace_the_default():
    clock = Clock()
    lucky = [0.002] * 4 + [0.0001] + [0.002] * 99
    choice = Tuner(clock=clock).choose(
        "op", [X], [Candidate("default", clock.spend([0.001])), Candidate("lucky", clock.spend(lucky))]
    )
    assert choice.name == "default"
    # clearly faster, and steadily: it wins in few rounds
    before = clock.now
    choice = Tuner(clock=clock).choose(
        "op", [X], [Candidate("default", clock.spend([0.001])), Candidate("fast", clock.spend([0.0008]))]
    )
    assert choice.name == "fast" and choice.sure and clock.now - before < 0.015


def test_a_disturbed_choice_is_not_sure_and_is_timed_again(tmp_path):
    clock, noise = Clock(), [0.001 * 1.3**i for i in range(40)]
    names = [Candidate("default", clock.spend(noise)), Candidate("other", clock.spend([2 * t for t in noise]))]
    store = json_cache("choices", tmp_path)
    tuner = Tuner(store, clock=clock)
    first = tuner.choose("op", [X], names)
    assert first.name == "default" and not first.sure and tuner.spent < 0.6
    tuner.save()
    quiet = [Candidate("default", clock.spend([0.001])), Candidate("other", clock.spend([0.0007]))]
    assert Tuner(store, enabled=False, clock=clock).choose("op", [X], quiet) == first
    again = Tuner(store, clock=clock)
    second = again.choose("op", [X], quiet)
    assert second.name == "other" and second.sure and second.tries == 2
    again.save()
    assert Tuner(store, clock=clock).choose("op", [X], names) == second


def test_a_candidate_within_the_margin_loses():
    clock = Clock()
    choice = Tuner(clock=clock).choose(
        "op", [X], [Candidate("default", clock.spend([0.00100])), Candidate("other", clock.spend([0.00097]))]
    )
    assert choice.name == "default" and choice.sure


def test_what_one_thread_does_is_timed_by_the_processor() -> None:
    """Other programs add nothing to it."""
    assert [Tuner(threads=n).clock for n in (1, 2)] == [time.thread_time, time.perf_counter]
