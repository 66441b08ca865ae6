"""A compiled module is still what it was: class, state, hooks, copies, pickles; the original stays usable."""

from __future__ import annotations

import copy
import inspect
import io
import pickle

import pytest
import torch
from torch import nn

import bytejit
from bytejit.runtime.module import settings_of


class Net(nn.Module):
    """Counts its calls, so that state written by forward is seen."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(1))
        self.calls = 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return self.lin(x).relu() * scale


class Registered(nn.Module):
    """A base class that lists its subclasses, as model zoos do."""

    known: list[type] = []

    def __init_subclass__(cls, **kwargs: object) -> None:
        Registered.known.append(cls)


class Child(Registered):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


@pytest.fixture
def net() -> Net:
    return Net().eval()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 4)


def compiled(m: nn.Module, **settings: object) -> nn.Module:
    return bytejit.compile(m, backend="eager", **settings)


def test_it_is_what_it_was(net: Net) -> None:
    c = compiled(net)
    assert isinstance(c, Net) and c.__class__ is Net and type(c).__name__ == "Net" and type(c).__module__ == __name__
    assert repr(c) == repr(net)
    assert list(c.state_dict()) == list(net.state_dict()) == ["seen", "lin.weight", "lin.bias"]
    assert [n for n, _ in c.named_parameters()] == [n for n, _ in net.named_parameters()]
    assert all(a is b for a, b in zip(c.parameters(), net.parameters()))
    assert [n for n, _ in c.named_modules()] == ["", "lin"]
    assert type(net) is Net


def test_same_results_and_same_state(net: Net, x: torch.Tensor) -> None:
    c = compiled(net)
    with torch.no_grad():
        for module in (c, net, c):
            torch.testing.assert_close(module(x), net.lin(x).relu())
        torch.testing.assert_close(c(x, scale=2.0), net.lin(x).relu() * 2)
        torch.testing.assert_close(c.forward(x), net.lin(x).relu())
    assert net.calls == c.calls == 5


def test_state_is_shared_both_ways(net: Net, x: torch.Tensor) -> None:
    c = compiled(net)
    c.train()
    assert net.training and net.lin.training
    net.eval()
    assert not c.training
    c.extra = nn.Linear(4, 2)
    assert net.extra is c.extra and "extra.weight" in net.state_dict()
    net.note = "x"
    assert c.note == "x"
    del c.note
    assert not hasattr(net, "note")
    assert c.to(torch.float64) is c
    assert net.lin.weight.dtype is torch.float64
    with torch.no_grad():
        assert c(x.double()).dtype is torch.float64
        net.lin.weight.zero_()
        net.lin.bias.fill_(2)
        assert (c(x.double()) == 2).all()
        net.lin = nn.Linear(4, 7)
        assert c(x).shape == (3, 7)
    c.load_state_dict(c.state_dict())


def test_hooks_run_once_on_each(net: Net, x: torch.Tensor) -> None:
    c = compiled(net)
    log: list[str] = []
    handles = [
        net.register_forward_pre_hook(lambda m, a: log.append("pre")),
        c.register_forward_hook(lambda m, a, out: log.append("post") or out + 1),
    ]
    with torch.no_grad():
        want = net.lin(x).relu() + 1
        torch.testing.assert_close(c(x), want)
        assert log == ["pre", "post"]
        torch.testing.assert_close(net(x), want)
        assert log == ["pre", "post"] * 2
        for handle in handles:
            handle.remove()
        torch.testing.assert_close(c(x), want - 1)
    assert log == ["pre", "post"] * 2


def test_forward_set_on_the_instance(x: torch.Tensor) -> None:
    net = Net()
    c = compiled(net)
    with torch.no_grad():
        c(x)
        net.forward = lambda x: x - 1
        torch.testing.assert_close(c(x), x - 1)
        del net.forward
        torch.testing.assert_close(c(x), net.lin(x).relu())


def test_deepcopy_is_compiled_and_apart(net: Net, x: torch.Tensor) -> None:
    c = compiled(net)
    net.me = [c]  # a state that refers back to the compiled module
    d = copy.deepcopy(c)
    assert isinstance(d, Net) and type(d) is not Net
    assert d.me[0].lin is d.lin and d.lin is not c.lin
    with torch.no_grad():
        d.lin.weight.zero_()
        assert not torch.equal(d(x), c(x))
        torch.testing.assert_close(c(x), net.lin(x).relu())
    both = copy.deepcopy({"a": c, "b": c})
    assert both["a"] is both["b"]
    shallow = copy.copy(c)
    assert shallow.lin is c.lin and type(shallow) is not Net
    shallow.only = 1
    assert not hasattr(net, "only")


def test_pickles_and_torch_save_load_as_plain_modules(net: Net, x: torch.Tensor) -> None:
    c = compiled(net)
    file = io.BytesIO()
    torch.save(c, file)
    file.seek(0)
    for loaded in (torch.load(file, weights_only=False), pickle.loads(pickle.dumps(c))):
        assert type(loaded) is Net
        with torch.no_grad():
            torch.testing.assert_close(loaded(x), net(x))
    outer = nn.Sequential(c, nn.ReLU())
    assert type(pickle.loads(pickle.dumps(outer))[0]) is Net


def test_compiled_twice_is_compiled_once(net: Net) -> None:
    c = compiled(net)
    assert compiled(c) is c
    other = bytejit.compile(c, backend="aot_eager")
    assert other is not c and other.lin is net.lin and type(other).__mro__[1] is Net


def test_a_compiled_module_inside_a_plain_one(x: torch.Tensor) -> None:
    inner = Net().eval()
    outer = nn.Sequential(compiled(inner), nn.Sigmoid())
    with torch.no_grad():
        torch.testing.assert_close(outer(x), torch.sigmoid(inner.lin(x).relu()))
        torch.testing.assert_close(compiled(outer)(x), torch.sigmoid(inner.lin(x).relu()))
    assert list(outer.state_dict()) == ["0.seen", "0.lin.weight", "0.lin.bias"]


def test_containers_and_super(x: torch.Tensor) -> None:
    class Twice(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + super(Twice, self).forward(x)

    twice = Twice().eval()
    c = compiled(twice)
    with torch.no_grad():
        torch.testing.assert_close(c(x), 2 * twice.lin(x).relu())
    s = compiled(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
    s.append(nn.Linear(4, 2))
    assert len(s) == 3 and isinstance(s[:2], nn.Sequential)
    with torch.no_grad():
        assert s(x).shape == (3, 2)


def test_no_subclass_is_registered_with_the_user() -> None:
    before = list(Registered.known)
    c = compiled(Child())
    assert Registered.known == before and isinstance(c, Child)
    assert torch.equal(c(torch.zeros(2)), torch.ones(2))
    c.__class__ = Child
    assert c.__class__ is Child and Registered.known == before and torch.equal(c(torch.zeros(2)), torch.ones(2))


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "gone"])
def test_a_class_taken_later_is_the_originals_too(kept: bool) -> None:
    """A lazy module takes another class in its first call, a parametrization gives one: the module stays compiled."""
    original = nn.LazyLinear(3)
    c = compiled(original)
    if not kept:
        del original
    with torch.no_grad():
        got = [c(torch.ones(2, 4)) for _ in range(3)][-1]
        assert c.__class__ is nn.Linear and settings_of(c) is not None
        assert not kept or type(original) is nn.Linear
        torch.testing.assert_close(got, torch.nn.functional.linear(torch.ones(2, 4), c.weight, c.bias))
        torch.nn.utils.parametrize.register_parametrization(c, "weight", nn.Tanh())
        assert c.__class__.__name__ == "ParametrizedLinear" and settings_of(c) is not None
        torch.testing.assert_close(c(torch.ones(2, 4)), torch.nn.functional.linear(torch.ones(2, 4), c.weight, c.bias))
        assert not kept or torch.equal(original(torch.ones(2, 4)), c(torch.ones(2, 4)))
    with pytest.raises(TypeError, match="__class__"):
        c.__class__ = int


def test_instances_of_one_class_are_no_recompiles(x: torch.Tensor) -> None:
    nets = [compiled(Net().eval()) for _ in range(12)]  # more than recompile_limit
    with torch.no_grad():
        for n in nets:
            torch.testing.assert_close(n(x), n.lin(x).relu())
    assert bytejit.counters.total("recompiles") == 0 and bytejit.counters.total("fallbacks") == 0


def test_gradients_reach_the_parameters(net: Net, x: torch.Tensor) -> None:
    c = compiled(net)
    c(x).sum().backward()
    got = net.lin.weight.grad.clone()
    net.zero_grad()
    net(x).sum().backward()
    torch.testing.assert_close(got, net.lin.weight.grad)


def test_script_modules_are_declined() -> None:
    with pytest.raises(TypeError, match="nn.Module it was made from"):
        bytejit.compile(torch.jit.script(nn.Linear(2, 2)))


def test_data_parallel(net: Net, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(nn.DataParallel(compiled(net))(x).cpu(), net.cpu().lin(x).relu())  # it moves the net
        torch.testing.assert_close(compiled(net)._replicate_for_data_parallel()(x), net.lin(x).relu())


class Counting(nn.Module):
    """Counts in its class, found through the instance."""

    made, broken = 0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        type(self).made += 1
        self.same = type(self) is Counting
        if x.sum() > 0:
            type(self).broken += 1
        return x + 1


def test_class_attributes_set_through_the_instance_reach_the_class(x: torch.Tensor) -> None:
    m = bytejit.compile(Counting(), backend="eager")
    m(x.abs() + 1)
    m(x.abs() + 1)
    assert (Counting.made, Counting.broken, type(m).made) == (2, 2, 2)
    assert m.same
    type(m).made = 7
    assert Counting.made == 7
    del type(m).made
    assert not hasattr(Counting, "made")
    Counting.made = 0


def test_a_framework_calls_the_steps_of_a_module() -> None:
    """Lightning's Trainer calls `training_step`, which is compiled with the module; what its own class has runs as it is."""

    class LightningModule(torch.nn.Module):
        __module__ = "pytorch_lightning.core.module"

        def test_step(self, x):
            return x + 1

        test_step.__module__ = __module__

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 4)

        def training_step(self, batch, i, *, scale=2):
            x, y = batch
            self.seen = i
            return (self.net(x).relu() - y).abs().sum() * scale

        @torch.compiler.disable
        def validation_step(self, x):
            return x

    m, x = Module(), torch.randn(3, 4)
    c = bytejit.compile(m, backend="eager")
    assert isinstance(c, Module) and inspect.signature(c.training_step) == inspect.signature(m.training_step)
    torch.testing.assert_close(c.training_step((x, x), 5, scale=3), m.training_step((x, x), 5, scale=3))
    assert m.seen == 5 and bytejit.counters["graphs"]["eager"] == 1 and not bytejit.counters["breaks"]
    assert type(c).test_step is LightningModule.test_step and type(c).validation_step is Module.validation_step


@pytest.fixture
def alone():
    """A process group of this process."""
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available():
        pytest.skip("torch without torch.distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def trained(wrap) -> tuple[list[torch.Tensor], int]:
    """The parameters after three steps of what `wrap` makes of a module, and the breaks of the second and third."""
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 1))
    model, optimizer = wrap(m), torch.optim.SGD(m.parameters(), lr=0.1)
    x = torch.randn(6, 4)
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in m.parameters()], bytejit.counters.total("breaks")


@pytest.mark.filterwarnings("ignore")
def test_distributed_data_parallel(alone) -> None:
    """DistributedDataParallel around a compiled module, and compiled: what it does around the module breaks the graph."""
    parallel = torch.nn.parallel.DistributedDataParallel
    want, _ = trained(parallel)
    made, breaks = trained(lambda m: parallel(bytejit.compile(m)))
    torch.testing.assert_close(made, want)
    assert bytejit.counters["graphs"]["inductor"] == 1 and not breaks
    bytejit.reset()
    made, breaks = trained(lambda m: bytejit.compile(parallel(m)))
    torch.testing.assert_close(made, want)
    assert bytejit.counters["graphs"]["inductor"] == 1 and breaks < 15
    assert all("_pre_forward" in b or "_post_forward" in b or "profiler" in b for b in bytejit.counters["breaks"])
