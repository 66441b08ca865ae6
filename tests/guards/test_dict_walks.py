"""All that is asked of one module's `__dict__` is read in one go. Whatever its keys are, and however they change, changes of what
was read are seen, and others compile nothing."""

from __future__ import annotations

import collections
import ctypes
import sys
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import bytejit
from bytejit.common.options import Options
from bytejit.compat import layouts
from bytejit.guards import fusing
from bytejit.guards.native_checker import CHECKER, OP
from bytejit.kernels.build_cpp import build

pytestmark = pytest.mark.cxx


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factor, self.shift, self.name = nn.Linear(4, 4), 3, 1000.5, "part"

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scaled(self.linear(x)) + self.shift + len(self.name)


@pytest.fixture(autouse=True)
def compiled_checks() -> Iterator[None]:
    before = CHECKER._build, CHECKER._calls
    CHECKER.install(lambda text: build([text], Options()).calls[0])
    bytejit.reset()
    yield
    CHECKER._build, CHECKER._calls = before


def warmed(model: nn.Module | None = None, x: torch.Tensor | None = None) -> tuple[nn.Module, Callable, torch.Tensor]:
    torch.manual_seed(0)
    model = model or nn.Sequential(Part(), Part())
    f, x = bytejit.compile(model, backend="eager"), torch.randn(3, 4) if x is None else x
    same_as(model, f, x)
    return model, f, x


def same_as(model: nn.Module, f: Callable, x: torch.Tensor) -> None:
    for _ in range(3):
        assert torch.equal(f(x), model(x))


def compiles() -> int:
    return bytejit.counters.total("graphs")


class Odd(dict):
    """A dict of a class of its own."""


def reordered(part: Part) -> None:
    kept = dict(part.__dict__)
    part.__dict__.clear()
    part.__dict__.update(dict(reversed(kept.items())))


UNREAD = {  # changes of the dict that nothing read
    "a key added": lambda part: setattr(part, "other", 1),
    "many keys added": lambda part: [setattr(part, f"other{i}", 1) for i in range(100)],
    "a key that is no string": lambda part: part.__dict__.update({5: 1}),
    "a key deleted": lambda part: delattr(part, "_is_full_backward_hook"),
    "a key deleted and added again": lambda part: part.__dict__.update(
        _is_full_backward_hook=part.__dict__.pop("_is_full_backward_hook")
    ),
    "an unread value": lambda part: setattr(part, "_state_dict_hooks", {1: 2}),
    "other order": reordered,
    "a copy": lambda part: setattr(part, "__dict__", {**part.__dict__}),
    "a dict of another class": lambda part: setattr(part, "__dict__", Odd(part.__dict__)),
    "keys that are equal": lambda part: setattr(part, "__dict__", {"".join([*k]): v for k, v in part.__dict__.items()}),
}
READ = {  # changes of what was read
    "a value": lambda part: setattr(part, "factor", 4),
    "a float": lambda part: setattr(part, "shift", 2.5),
    "a string of another length": lambda part: setattr(part, "name", "other"),
    "a method": lambda part: setattr(part, "scaled", lambda x: x * 7),
    "a submodule": lambda part: setattr(part, "linear", nn.ReLU()),
    "a hook": lambda part: part.register_forward_hook(lambda mod, args, out: out * 2),
    "forward": lambda part: setattr(part, "forward", lambda x: x * 5),
    "a deleted attribute": lambda part: delattr(part, "factor"),
}


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize("unread", UNREAD)
def test_what_was_read_is_seen_in_every_dict(unread: str, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, f, x = warmed()
    before = compiles()
    UNREAD[unread](model[1])
    same_as(model, f, x)
    assert compiles() == before, "nothing that was read has changed"
    READ[read](model[1])
    monkeypatch.setattr(Part, "factor", 6, raising=False)  # behind an attribute that was deleted
    same_as(model, f, x)
    assert compiles() > before


def test_keys_that_come_and_go_in_every_call() -> None:
    model, f, x = warmed()
    before = compiles()
    for i in range(40):
        setattr(model[1], f"other{i % 3}", i)
        assert torch.equal(f(x), model(x))
        if i % 2:
            delattr(model[1], f"other{i % 3}")
    assert compiles() == before
    model[1].factor = 5
    same_as(model, f, x)


def test_equal_values_of_other_objects() -> None:
    model, f, x = warmed()
    before = compiles()
    for i in range(4):
        model[1].shift = float(f"1000.{5 + 0 * i}")
        model[0].name = "".join(["pa", "rt"])
        same_as(model, f, x)
    assert compiles() == before


def test_what_a_dict_held_is_not_kept_alive() -> None:
    model, f, x = warmed()
    held = [sys.getrefcount(v) for v in model[1].__dict__.values()]
    for _ in range(1000):
        f(x)
    now = [sys.getrefcount(v) for v in model[1].__dict__.values()]
    assert all(abs(a - b) < 500 for a, b in zip(held, now, strict=True))


def steps_of(model: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    ops: list[int] = []
    real = fusing.Fusing.numbered

    def numbered(self: fusing.Fusing) -> tuple[list, int]:
        steps, slots = real(self)
        ops.extend(step[0] for step in steps)
        return steps, slots

    monkeypatch.setattr(fusing.Fusing, "numbered", numbered)
    same_as(model, bytejit.compile(model, backend="eager"), x)
    return ops


def test_modules_of_one_class_share_a_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[fusing.Shapes] = []
    real = fusing.Shapes.__init__
    monkeypatch.setattr(fusing.Shapes, "__init__", lambda self, asked: (made.append(self), real(self, asked))[1])
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
    ops = steps_of(model, torch.randn(3, 4), monkeypatch)
    assert ops.count(OP["WALK"]) == 7 and len(made) == 2
    assert [len(shapes._made) for shapes in made] == [1, 1]


def test_dicts_that_lie_otherwise_are_looked_into_key_by_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "dict_values", lambda: None)
    ops = steps_of(nn.Sequential(Part(), Part()), torch.randn(3, 4), monkeypatch)
    assert OP["WALK"] not in ops and ops.count(OP["HAS"]) > 10


def test_dicts_are_read_as_they_lie() -> None:
    place = layouts.dict_values()
    assert place == (8 if sys.version_info >= (3, 13) else 0)
    for found in layouts.sample_dicts():
        read = layouts.read_dict(found, place)
        assert read is None or sorted(read) == sorted((id(k), id(v)) for k, v in found.items())


def test_samples_of_dicts_are_not_seen_by_the_programs_hooks() -> None:
    seen: list[str] = []
    registered = torch.nn.modules.module
    hooks = [
        register(lambda module, name, value: seen.append(name))
        for register in (
            registered.register_module_parameter_registration_hook,
            registered.register_module_buffer_registration_hook,
            registered.register_module_module_registration_hook,
        )
    ]
    layouts.sample_dicts()
    for hook in hooks:
        hook.remove()
    assert not seen


def test_a_layout_of_dicts_that_is_another_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    layouts.dict_values.cache_clear()
    monkeypatch.setattr(layouts, "read_dict", lambda found, place: [(ctypes.c_void_p.from_address(id(found)).value, 0)])
    assert layouts.dict_values() is None
    layouts.dict_values.cache_clear()


def test_reading_dicts_draws_no_random_numbers() -> None:
    """Where a process asks for the layout first, a compile is in the midst of a program that may have set a seed"""
    before = torch.get_rng_state()
    layouts.dict_values.cache_clear()
    assert layouts.dict_values() is not None
    assert torch.equal(torch.get_rng_state(), before)


class Lengths(nn.Module):
    """Asks for lengths and truths of dicts, of one of them for both."""

    def __init__(self) -> None:
        super().__init__()
        self.none, self.ordered, self.one, self.name = {}, collections.OrderedDict(), {1: 2}, "lengths"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = len(self.none) + 2 * len(self.ordered) + 4 * len(self.one) + 8 * isinstance(self.ordered, collections.OrderedDict)
        return (x + n if not self.none else x - n) * len(self.name)


CHANGED = {
    "an empty one filled": lambda m: m.none.update({3: 4}),
    "an ordered one filled": lambda m: m.ordered.update({3: 4}),
    "a full one emptied": lambda m: m.one.clear(),
    "a full one longer": lambda m: m.one.update({3: 4}),
    "another class": lambda m: setattr(m, "ordered", {}),
    "a class of its own": lambda m: setattr(m, "none", Odd()),
    "a list": lambda m: setattr(m, "none", []),
    "a full list": lambda m: setattr(m, "none", [1]),
    "a dict as empty": lambda m: setattr(m, "none", {}),
}


@pytest.mark.parametrize("change", CHANGED)
def test_empty_dicts_whose_length_is_asked_for(change: str) -> None:
    model, f, x = warmed(Lengths())
    CHANGED[change](model)
    same_as(model, f, x)
    model.none, model.ordered, model.one = {}, collections.OrderedDict(), {1: 2}
    before = compiles()
    same_as(model, f, x)
    assert compiles() == before


@pytest.mark.parametrize("put", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("name", ["layers.1", "layers.0.self_attn", "layers.1.linear2", "layers.0.norm1", "layers.1.dropout"])
def test_hooks_put_on_a_part_of_an_encoder_are_called(name: str, put: str) -> None:
    """Its forward asks each module for the lengths of its hooks."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, f, x = warmed(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval(), torch.randn(2, 3, 8))
    called: list[int] = []
    handle = getattr(model.get_submodule(name), put)(lambda *args: called.append(1))
    torch.testing.assert_close(f(x), model(x))
    assert called == [1, 1]
    handle.remove()
    before = compiles()
    torch.testing.assert_close(f(x), model(x))
    assert called == [1, 1] and compiles() == before


def test_an_empty_dict_is_one_step() -> None:
    steps = [
        (OP["ARG"], 0),
        (OP["ITEM"], 0, 7),
        (OP["TYPE_IS"], 1, id(dict)),
        (OP["LEN"], 1, 0),
        (OP["TRUE"], 1, 0),
        (OP["ITEM"], 0, 8),
        (OP["TYPE_IS"], 2, id(dict)),
        (OP["LEN"], 2, 1),
        (OP["DONE"], 0),
    ]
    done, slots = fusing.fused(steps, [])
    assert [s[0] for s in done] == [OP[n] for n in ("ARG", "ITEM_EMPTY", "ITEM", "TYPE_IS", "LEN", "DONE")] and slots == 2
