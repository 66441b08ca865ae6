"""Library calls that answer other strides than were inferred: noticed in the first call, copied from then on."""
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from dynamic import compiled as compiled_for_all
from graphs import aten

from bytejit import registry
from bytejit.codegen.emit_check import KEPT, Fits
from bytejit.codegen.fuse import fuse
from bytejit.codegen.lower import lower
from bytejit.codegen.rewrite import channels_last_stride
from bytejit.codegen.schedule import schedule
from bytejit.compiled import compile_plan, cpu_target
from bytejit.errors import Bug
from bytejit.options import config
from bytejit.spec import Spec

r = torch.randn


def conv_graph(wrong: bool):
    """conv + relu over rows, its result inferred with the channels innermost where `wrong`: torch answers row-major."""
    args = r(2, 3, 6, 6), r(4, 3, 3, 3)
    graph = aten(lambda x, w: F.conv2d(x, w, padding=1).relu() * 2, *args)
    for node in graph.graph.nodes:
        spec = node.meta.get("spec")
        if wrong and "convolution" in str(node.target):
            node.meta["spec"] = Spec(spec.shape, channels_last_stride(spec.shape), spec.dtype, spec.device)
    plan = schedule(fuse(lower(graph)), cpu_target(1))
    return compile_plan(plan, cpu_target(1), config.current), args


@pytest.mark.cxx
@pytest.mark.parametrize("wrong", [False, True])
def test_a_result_in_other_strides_is_copied(wrong: bool) -> None:
    graph, (x, w) = conv_graph(wrong)
    for _ in range(3):
        torch.testing.assert_close(graph.call(x, w)[0], F.conv2d(x, w, padding=1).relu() * 2)
    told = [k for k in registry.counters["externs"] if "other strides" in k]
    assert told == (["aten.convolution.default answers other strides than inferred: copied"] if wrong else [])


@pytest.mark.cxx
def test_only_the_first_call_at_a_size_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    fit = Fits.fit
    monkeypatch.setattr(Fits, "fit", lambda self, result, shape, stride, target: seen.append(target) or fit(
        self, result, shape, stride, target))
    graph = compiled_for_all(lambda x, w: F.linear(x, w).relu(), (r(4, 6), r(5, 6)), (("s0",), ()))
    for n, calls in ((4, 1), (4, 1), (9, 2), (4, 2), (9, 2)):
        graph(r(n, 6), r(5, 6))
        assert len(seen) in (calls, 0)           # a product that writes into our memory needs no check


def test_what_a_check_answers() -> None:
    fits = Fits()
    x = r(3, 4)
    assert fits.fit(x, (3, 4), (4, 1), "op") is x
    assert fits.fit(r(3, 1)[:, :1], (3, 1), (1, 7), "op").stride() == (1, 1)          # a size of 1 has any stride
    fits.learn((1,))
    assert fits.known == {(1,)}
    assert fits.fit(x, (3, 4), (1, 3), "op").stride() == (1, 3) and fits.misfits == {"op"}
    fits.learn((2,))
    assert (2,) not in fits.known
    with pytest.raises(Bug, match="answered the shape"):
        fits.fit(x, (4, 3), (3, 1), "op")


def test_few_sizes_are_remembered() -> None:
    fits = Fits()
    for n in range(KEPT + 5):
        fits.learn((n,))
    assert len(fits.known) == 5


def test_a_result_in_a_temps_memory_is_copied() -> None:
    fits, x = Fits(), r(3, 4)
    kept = fits.own(x[1:], "op", (x,))
    assert torch.equal(kept, x[1:]) and kept.data_ptr() != x[1:].data_ptr() and fits.misfits == {"op"}
    assert fits.own(y := r(2), "other", (x,)) is y and fits.own(None, "none", (x,)) is None and fits.misfits == {"op"}
