"""Real architectures, each in one graph with outputs as eager gives them."""

import os

import pytest
import torch

from ..programs import targets
from . import zoo

FULL = os.environ.get("BYTEJIT_TEST_SLOW") == "1"
QUICK = [m for m in zoo.MODELS if not m.slow]
SLOW = [m for m in zoo.MODELS if m.slow]
COMPILED = ("tv_resnet18", "timm_vit_tiny_patch16_224", "timm_convnext_atto", "hf_Bert", "hf_GPT2")


@pytest.fixture(autouse=True)
def fresh_compiler():
    targets.reset()
    with targets.strict(), torch.no_grad():
        yield
    targets.reset()


def tensors(out) -> list[torch.Tensor]:
    """The floating tensors of an output, in order."""
    leaves = torch.utils._pytree.tree_leaves(dict(out) if hasattr(out, "keys") else out)
    return [t for t in leaves if isinstance(t, torch.Tensor) and t.is_floating_point()]


def scaled_error(got, want) -> float:
    """Largest error, over the largest value of its tensor."""
    worst = 0.0
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
        worst = max(worst, ((a - b).abs().max() / b.abs().max().clamp(min=1e-6)).item())
    return worst


def one_graph(model, backend, limit):
    """Compile `model` under nopython=True, run it twice on each of two inputs, compare with eager."""
    pytest.importorskip(model.needs) if model.needs not in ("torchvision", "timm") else zoo.torchvision()
    net, args, kwargs = zoo.build(model)
    counter = targets.Counter(backend)
    f = targets.compiled(net, counter, nopython=True)
    for seed in range(2):
        want, got = net(*args, **kwargs), f(*args, **kwargs)
        assert type(got).__name__ == type(want).__name__
        error = scaled_error(tensors(got), tensors(want))
        assert error <= limit, f"{model}: error {error:.2e}, at most {limit:.0e} allowed"
        torch.manual_seed(seed + 5)
        args = tuple(torch.randn_like(a) for a in args)
        kwargs = {k: torch.randint_like(v, 3, 90) for k, v in kwargs.items()}
    if targets.TARGET != "plain":
        assert counter.count == 1, f"{counter.count} graphs"


@pytest.mark.parametrize("model", QUICK, ids=repr)
def test_one_graph_eager(model):
    """One graph, run by torch: the same numbers"""
    one_graph(model, "eager", 1e-6)


@pytest.mark.cxx
@pytest.mark.parametrize("model", [m for m in QUICK if m.name in COMPILED], ids=repr)
def test_one_graph_inductor(model):
    """One graph, through our kernels"""
    one_graph(model, "inductor", 1e-4)


@pytest.mark.models
@pytest.mark.skipif(not FULL, reason="full-size models: BYTEJIT_TEST_SLOW=1")
@pytest.mark.parametrize("backend", ("eager", "inductor"))
@pytest.mark.parametrize("model", SLOW, ids=repr)
def test_full_size(model, backend):
    """Full-size models: one graph, right"""
    one_graph(model, backend, 1e-6 if backend == "eager" else 1e-3)


@pytest.mark.skipif(targets.TARGET == "plain", reason="nothing is compiled")
def test_training_gradients():
    """Gradients of a compiled ResNet-18 in training mode are eager's"""
    net, args, _ = zoo.build(QUICK[0])
    net.train()
    with torch.enable_grad():
        grads = []
        for f in (net, targets.compiled(net, "eager")):
            net.zero_grad()
            f(*args).square().mean().backward()
            grads.append([p.grad.clone() for p in net.parameters()])
    assert scaled_error(grads[1], grads[0]) < 1e-5


def test_output_depends_on_input():
    """The builder leaves no model whose output ignores its input"""
    net, args, kwargs = zoo.build(next(m for m in QUICK if m.name == "hf_Bert"))
    other = {k: torch.randint_like(v, 3, 90) for k, v in kwargs.items()}
    assert not torch.allclose(tensors(net(**kwargs))[0], tensors(net(**other))[0])
