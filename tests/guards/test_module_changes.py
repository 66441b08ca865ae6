"""Every kind of change to a module tree between two calls is seen by the compiled checks, and what changes nothing that was
read compiles nothing anew."""

from __future__ import annotations

import collections
import gc
import weakref

import pytest
import torch
from torch import nn

import bytejit
from bytejit.common.options import Options
from bytejit.guards.native_checker import CHECKER
from bytejit.kernels.build_cpp import build

SCALE = 2.0


class Part(nn.Module):
    def __init__(self, n: int = 4):
        super().__init__()
        self.linear, self.drop = nn.Linear(n, n), nn.Dropout(0.0)
        self.register_buffer("shift", torch.ones(n))
        self.factor, self.sizes = 3, {"a": 1, "b": 2}

    def forward(self, x):
        x = self.drop(self.linear(x)) * self.factor + self.shift * SCALE
        return x + 1 if self.training else x - sum(self.sizes.values())


class Twice(Part):
    def forward(self, x):
        return super().forward(x) * 2


def tree() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Part() for _ in range(4)), nn.Sequential(Part(), nn.ReLU()))


@pytest.fixture(autouse=True)
def compiled_checks():
    before = CHECKER._build, CHECKER._calls
    CHECKER.install(lambda text: build([text], Options()).calls[0])
    bytejit.reset()
    yield
    CHECKER._build, CHECKER._calls = before


def warmed():
    """A tree, its compiled form after a few calls, and an input."""
    model = tree()
    f, x = bytejit.compile(model, backend="eager"), torch.randn(3, 4)
    for _ in range(3):
        assert torch.equal(f(x), model(x))
    return model, f, x


def replaced_class(m):
    m[1].__class__ = Twice


def replaced_dict(m):
    m[1].__dict__ = {**m[1].__dict__, "factor": 7}


def own_forward(m):
    m[2].forward = lambda x: x * 5


def cast(m):
    m[0].linear.weight.data = m[0].linear.weight.data.double()
    m[0].linear.bias.data = m[0].linear.bias.data.double()
    m[0].register_forward_pre_hook(lambda mod, args: (args[0].double(),))
    for part in (*m[1:4], m[4][0]):
        part.double()


CHANGES = {
    "parameter": lambda m: setattr(m[1].linear, "weight", nn.Parameter(torch.ones(4, 4))),
    "parameter in its dict": lambda m: m[1].linear._parameters.update(bias=nn.Parameter(torch.ones(4))),
    "parameter's shape": lambda m: setattr(m[1].linear.bias, "data", torch.ones(1)),
    "parameter's strides": lambda m: setattr(m[1].linear.weight, "data", m[1].linear.weight.data.t()),
    "no bias": lambda m: setattr(m[3].linear, "bias", None),
    "buffer": lambda m: setattr(m[1], "shift", torch.zeros(4)),
    "buffer's dtype": lambda m: m[1]._buffers.update(shift=torch.zeros(4, dtype=torch.int64)),
    "attribute": lambda m: setattr(m[4][0], "factor", 4),
    "attribute of another type": lambda m: setattr(m[4][0], "factor", 3.0),
    "attribute deleted": lambda m: (delattr(m[1], "factor"), setattr(type(m[1]), "factor", 6)),
    "item of a dict": lambda m: m[2].sizes.update(a=9),
    "new item of a dict": lambda m: m[2].sizes.update(c=9),
    "training flag": lambda m: m[4][0].eval(),
    "training flag of a leaf": lambda m: setattr(m[3].drop, "training", False),
    "all flags": lambda m: m.eval(),
    "submodule": lambda m: setattr(m[1], "drop", nn.Tanh()),
    "submodule in its dict": lambda m: m._modules.update({"2": nn.ReLU()}),
    "submodule gone": lambda m: m._modules.pop("3"),
    "another submodule": lambda m: m.append(nn.Tanh()),
    "order of submodules": lambda m: m._modules.update({"0": m._modules.pop("0")}),
    "hook": lambda m: m[1].linear.register_forward_hook(lambda mod, args, out: out * 2),
    "pre-hook": lambda m: m[4][0].register_forward_pre_hook(lambda mod, args: (args[0] * 2,)),
    "hooks' dict": lambda m: setattr(m[2], "_forward_hooks", collections.OrderedDict({1: lambda mod, args, out: out * 2})),
    "forward of an instance": own_forward,
    "class of an instance": replaced_class,
    "dict of an instance": replaced_dict,
    "dtype": cast,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_seen(name):
    model, f, x = warmed()
    CHANGES[name](model)
    try:
        for _ in range(3):
            assert torch.equal(f(x), model(x))
    finally:
        if "factor" in vars(Part):
            del Part.factor


def test_a_class_patched_is_seen(monkeypatch):
    model, f, x = warmed()
    monkeypatch.setattr(Part, "forward", lambda self, x: self.linear(x))
    for _ in range(3):
        assert torch.equal(f(x), model(x))
    monkeypatch.undo()
    for _ in range(3):
        assert torch.equal(f(x), model(x))


def test_defaults_and_code_of_a_function_are_seen():
    def body(x, by=2):
        return x * by

    model = tree()
    model[1].forward = body
    f, x = bytejit.compile(model, backend="eager"), torch.randn(3, 4)
    for by in (2, 3, 2):
        body.__defaults__ = (by,)
        for _ in range(3):
            assert torch.equal(f(x), model(x))
    body.__code__ = (lambda x, by=2: x - by).__code__
    for _ in range(3):
        assert torch.equal(f(x), model(x))


def test_a_cell_and_a_global_are_seen(monkeypatch):
    model, x = tree(), torch.randn(3, 4)
    call = lambda x: model(x) * SCALE
    f = bytejit.compile(call, backend="eager")
    for scale in (2.0, 3.0, 2.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        for _ in range(3):
            assert torch.equal(f(x), call(x))
    model = tree().eval()
    for _ in range(3):
        assert torch.equal(f(x), call(x))


def test_a_change_taken_back_needs_no_new_compile():
    model, f, x = warmed()
    before = bytejit.counters.total("graphs")
    for _ in range(12):
        model.eval()
        assert torch.equal(f(x), model(x))
        model.train()
        assert torch.equal(f(x), model(x))
    assert bytejit.counters.total("graphs") == before + 1


def test_globals_that_change_between_calls_compile_nothing(monkeypatch):
    model, f, x = warmed()
    for i in range(20):
        monkeypatch.setitem(globals(), "_step", i)
        assert torch.equal(f(x), model(x))
    assert not bytejit.counters["recompiles"]


def test_equal_names_that_are_other_objects_compile_nothing():
    """Dicts made anew, as from a file: the same names, but no name is the object that it was."""
    model, f, x = warmed()
    for part in (model[1], model[1].linear):
        part.__dict__ = {str(k.encode(), "ascii"): v for k, v in vars(part).items()}
        part._parameters = {str(k.encode(), "ascii"): v for k, v in part._parameters.items()}
        part._modules = {str(k.encode(), "ascii"): v for k, v in part._modules.items()}
    assert torch.equal(f(x), model(x))
    assert not bytejit.counters["recompiles"]
    model[1].__dict__[str(b"forward", "ascii")] = lambda x: x * 5
    assert torch.equal(f(x), model(x))


def test_an_attribute_written_each_call_compiles_nothing():
    model, f, x = warmed()
    for i in range(20):
        model[3].seen = i
        assert torch.equal(f(x), model(x))
    assert not bytejit.counters["recompiles"]
    model[3].factor = 9
    assert torch.equal(f(x), model(x))
    model[3].linear.weight = nn.Parameter(torch.ones(4, 4))
    assert torch.equal(f(x), model(x))


def test_one_code_on_several_modules():
    models = [tree(), tree(), tree().eval()]
    fs, x = [bytejit.compile(m, backend="eager") for m in models], torch.randn(3, 4)
    for _ in range(4):
        for m, f in zip(models, fs):
            assert torch.equal(f(x), m(x))
    models[1][2].factor = 11
    for _ in range(2):
        for m, f in zip(models, fs):
            assert torch.equal(f(x), m(x))


def test_nothing_is_kept_alive():
    model, f, x = warmed()
    held = weakref.ref(model[1].linear), weakref.ref(model[1].linear.weight), weakref.ref(model)
    model[1].linear = nn.Linear(4, 4)
    gc.collect()
    assert held[0]() is None and held[1]() is None
    assert torch.equal(f(x), model(x))
    del model, f
    gc.collect()
    assert held[2]() is None


def test_an_object_replaced_at_its_own_address():
    """Freed and made anew until the allocator gives the same place again."""
    model, f, x = warmed()
    for _ in range(50):
        model[1].sizes = None
        model[1].sizes = {"a": 1, "b": 5}
        assert torch.equal(f(x), model(x))
        model[1].sizes = {"a": 1, "b": 2}
        assert torch.equal(f(x), model(x))


def test_a_property_over_the_tree():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = tree()

        @property
        def gain(self):
            return self.inner[1].factor

        def forward(self, x):
            return self.inner(x) * self.gain

    model, x = Odd(), torch.randn(3, 4)
    f = bytejit.compile(model, backend="eager")
    for factor in (3, 3, 3, 4, 4, 3):
        model.inner[1].factor = factor
        assert torch.equal(f(x), model(x))


def test_code_within_the_walk_that_breaks_up_the_tree():
    """What guards compare may run anything: a key's comparison here replaces all submodules while the walk is on."""

    class Key(str):
        __hash__ = str.__hash__
        act = None

        def __eq__(self, other):
            if Key.act:
                act, Key.act = Key.act, None
                act()
            return str.__eq__(self, other)

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.table = tree(), {Key("gain"): 2.0}

        def forward(self, x):
            return self.inner(x) * self.table["gain"]

    model, x = Odd(), torch.randn(3, 4)
    f = bytejit.compile(model, backend="eager")
    for i in range(8):

        def act():
            model.inner = tree()
            gc.collect()

        Key.act = act if i >= 3 else None
        f(x)
        Key.act = None
        assert torch.equal(f(x), model(x))


def test_a_new_argument_each_call_in_a_tuple_at_the_same_address():
    model = tree()
    f = bytejit.compile(model, backend="eager")
    with torch.no_grad():
        for _ in range(8):
            x = torch.randn(2, 4)  # the one before is freed, and so is the tuple that `*args` made of it
            torch.testing.assert_close(f(x), model(x))
    assert len(bytejit.counters["recompiles"]) == 0
