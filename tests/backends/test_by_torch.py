"""Graphs of few operations are timed both ways: which are, what is chosen, and that nothing else differs."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import bytejit
from bytejit.backends import by_torch
from bytejit.kernels.tune import Choice, Tuner


def chosen(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    """Choices between graphs fall on `name`; returns the texts of those that were asked for, as the program goes on."""
    asked: list[str] = []
    plain = Tuner.choose

    def choose(self, op, specs, candidates, *args, **more):
        if op != by_torch.OPERATION:
            return plain(self, op, specs, candidates, *args, **more)
        asked.append(str(more["attrs"]))
        operands = [torch.zeros(s.shape, dtype=s.dtype).as_strided(s.shape, s.stride) for s in specs]
        for way in candidates:
            way.call(*way.prepare(*operands))
        return Choice(name, (), {}, {})

    monkeypatch.setattr(Tuner, "choose", choose)
    return asked


PROGRAMS = {
    "sine": torch.sin,
    "method": lambda x: x.tanh(),
    "three": lambda x: torch.sin(x) * 2 + 1,
    "activation": lambda x: F.gelu(x),
    "upsampling": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
}


@pytest.mark.parametrize("name", ["torch", "own"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_both_ways_are_eager(monkeypatch, program, name) -> None:
    """Results and gradients are eager's whatever is chosen; torch's state of random numbers and `.grad` stay as they were."""
    asked = chosen(monkeypatch, name)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    expected = program(x)
    weights = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad(expected, x, weights)
    state = torch.get_rng_state()
    compiled = bytejit.compile(program)
    for _ in range(2):
        found = compiled(x)
        assert torch.equal(torch.get_rng_state(), state)
        assert x.grad is None
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, x, weights)[0], gradient)
    assert len(asked) == 1 and not bytejit.counters["fallbacks"]
    assert hasattr(found.grad_fn, "program") == (name == "own")


def test_a_busy_machine_does_not_decide() -> None:
    """Least times that were met twice decide, whichever way was the faster one more often."""
    assert by_torch.is_own(Choice("torch", (), {"own": 1.0, "torch": 2.0}, {}))
    assert not by_torch.is_own(Choice("torch", (), {"own": 0.99, "torch": 1.0}, {}))
    assert not by_torch.is_own(Choice("torch", (), {"own": 1.0, "torch": 2.0}, {}, sure=False))
    assert by_torch.is_own(Choice("own", (), {"own": 1.0}, {"torch": "it raised"}))


def test_torch_is_the_node(monkeypatch) -> None:
    """Through torch autograd has eager's own nodes."""
    chosen(monkeypatch, "torch")
    found = bytejit.compile(lambda x: x.sin())(torch.ones(3, requires_grad=True))
    assert found.grad_fn.name() == "SinBackward0"


def drawn(x: torch.Tensor) -> torch.Tensor:
    return F.dropout(x, 0.5, True)


def test_draws_are_eager(monkeypatch) -> None:
    """Timing draws no numbers of the program's."""
    chosen(monkeypatch, "own")
    x = torch.ones(64, requires_grad=True)
    torch.manual_seed(3)
    expected = [drawn(x), drawn(x)]
    torch.manual_seed(3)
    compiled = bytejit.compile(drawn)
    assert all(torch.equal(compiled(x), one) for one in expected)


def written(x: torch.Tensor) -> torch.Tensor:
    return x.mul_(2)


NOT_TIMED = {
    "writes": (written, [torch.ones(3)]),
    "many": (lambda x: x.sin().cos().sin(), [torch.ones(3)]),
    "two results": (lambda x: (x + 1, x + 2), [torch.ones(3)]),
    "complex": (lambda x: x + 1, [torch.ones(3, dtype=torch.complex64)]),
    "empty": (lambda x: x + 1, [torch.ones(0)]),
    "large": (lambda x: x + 1, [torch.ones(1).expand(1 << 13, 1 << 13).contiguous()]),
}


@pytest.mark.parametrize("program, args", NOT_TIMED.values(), ids=NOT_TIMED)
def test_what_is_not_timed(monkeypatch, program, args) -> None:
    """Graphs that write, are larger, have several results, or inputs that are no plain tensors of moderate size."""
    asked = chosen(monkeypatch, "torch")
    torch.testing.assert_close(bytejit.compile(program)(*[a.clone() for a in args]), program(*[a.clone() for a in args]))
    assert not asked


def test_changed_sizes_are_compiled(monkeypatch) -> None:
    """Symbolic sizes are not timed."""
    asked = chosen(monkeypatch, "torch")
    compiled = bytejit.compile(torch.sin)
    for n in (3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(n)), torch.ones(n).sin())
    assert len(asked) == 1


def test_made_up_numbers_may_be_refused(monkeypatch) -> None:
    """Timing divides by zeros here, which eager refuses; the program does not."""
    asked = chosen(monkeypatch, "torch")
    x, y = torch.tensor([7, 8]), torch.tensor([2, 3])
    assert torch.equal(bytejit.compile(lambda x, y: x // y)(x, y), x // y) and asked


def test_hooks_are_not_told(monkeypatch) -> None:
    """Where the program watches what is saved, nothing is timed."""
    asked = chosen(monkeypatch, "own")
    seen: list = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x):
        bytejit.compile(torch.sin)(torch.ones(3, requires_grad=True))
    assert not asked and len(seen) == 1


def test_reports_show_kernels(monkeypatch) -> None:
    """Who asks for a report of a program gets it compiled."""
    asked = chosen(monkeypatch, "torch")
    assert [r.through_torch for r in bytejit.explain(torch.sin, torch.ones(3)).with_graph] == [""] and not asked


@pytest.mark.timed
def test_the_choice_is_stored(tmp_path) -> None:
    """A later compile does not time again what was sure."""
    with bytejit.config.patch(cache_dir=str(tmp_path)):
        x = torch.ones(64, requires_grad=True)
        for _ in range(2):
            bytejit.reset()
            bytejit.compile(torch.sin)(x).sum().backward()
    assert any("graph" in p.read_text() for p in tmp_path.rglob("*.json"))


def definite(x):
    return x @ x.T + torch.eye(3)


REFUSES = {
    "cholesky": (torch.linalg.cholesky, lambda: (definite(torch.rand(3, 3)),)),
    "divides": (lambda i, j: i // j, lambda: (torch.arange(4), torch.tensor([1, 2, 3, -2]))),
    "counts": (lambda x, i: x.repeat_interleave(i, 0, output_size=6), lambda: (torch.rand(3, 2), torch.tensor([1, 2, 3]))),
    "an unused parameter": (
        lambda p, q: (p.detach() * q).sum(),
        lambda: (torch.rand(3).requires_grad_(), torch.rand(3).requires_grad_()),
    ),
}


@pytest.mark.parametrize("name", REFUSES)
def test_graphs_that_refuse_numbers_that_are_made_up(name):
    """They are compiled, as they were before"""
    program, given = REFUSES[name]
    args = given()
    torch.testing.assert_close(bytejit.compile(program)(*args), program(*args))
    assert not bytejit.counters["faults"] and not bytejit.counters["fallbacks"]
