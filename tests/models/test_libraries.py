"""Layers and metrics of libraries that people use with torch, in one graph. Skipped where the library is not installed."""

from __future__ import annotations

import copy
import importlib.util

import pytest
import torch

import bytejit

from .zoo import torchvision

EDGES = torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, 2]])
NODES = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
LIKELY = torch.rand(8, 3, generator=torch.Generator().manual_seed(1)).softmax(-1)
CLASSES = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])


@pytest.mark.parametrize("name", ["GCNConv", "GATConv", "GATv2Conv", "SAGEConv", "GraphConv", "TransformerConv", "SGConv"])
def test_layers_of_graphs(name):
    layers = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    layer = getattr(layers, name)(6, 5)
    twin = copy.deepcopy(layer)
    made = bytejit.compile(layer, backend="aot_eager", fullgraph=True)(NODES, EDGES)
    want = twin(NODES, EDGES)
    torch.testing.assert_close(made, want)
    made.sum().backward()
    want.sum().backward()
    for p, q in zip(layer.parameters(), twin.parameters()):
        torch.testing.assert_close(p.grad, q.grad)


def torchmetrics():
    """torchmetrics, which imports torchvision where that is installed."""
    if importlib.util.find_spec("torchvision"):
        torchvision()
    return pytest.importorskip("torchmetrics")


def test_metrics():
    metrics = torchmetrics()

    def made():
        return metrics.MetricCollection(
            [
                metrics.classification.MulticlassAccuracy(num_classes=3),
                metrics.classification.MulticlassConfusionMatrix(num_classes=3),
            ]
        )

    plain, compiled = made(), made()
    step = bytejit.compile(lambda p, y: compiled(p, y), backend="aot_eager", fullgraph=True)
    for i in range(2):
        want = plain(LIKELY.roll(i, 0), CLASSES)  # first: the library compares versions in its first call
        torch.testing.assert_close(step(LIKELY.roll(i, 0), CLASSES), want)
    torch.testing.assert_close(compiled.compute(), plain.compute())


def test_errors_of_regression():
    metrics = torchmetrics()
    plain, compiled = metrics.MeanSquaredError(), metrics.MeanSquaredError()

    def f(a, b):
        compiled.update(a, b)
        return compiled.compute()

    for i in range(2):
        plain.update(NODES[i], NODES[i + 1])
        made = bytejit.compile(f, backend="aot_eager", fullgraph=True)(NODES[i], NODES[i + 1])
        torch.testing.assert_close(made, plain.compute())


def test_einops():
    einops = pytest.importorskip("einops")

    def f(x):
        y = einops.rearrange(x, "b (h w) c -> b c h w", h=2)
        return (
            einops.reduce(y, "b c h w -> b c", "max"),
            einops.repeat(x, "b n c -> b n c k", k=2),
            einops.pack([x, x], "b * c")[0],
        )

    x = NODES.reshape(1, 4, 6)
    want = f(x)  # first: the library imports its part for torch in its first call
    torch.testing.assert_close(bytejit.compile(f, backend="aot_eager", fullgraph=True)(x), want)


# ---- training loops of libraries, with torch.compile replaced ------------------------------------------------------------------
def net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def batches():
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8)


def with_accelerate(compiled):
    accelerate = pytest.importorskip("accelerate")
    accelerate.state.AcceleratorState._reset_state(True)
    plugin = accelerate.utils.TorchDynamoPlugin(backend="eager") if compiled else None
    run = accelerate.Accelerator(cpu=True, dynamo_plugin=plugin)
    model = net()
    model, optimizer, data = run.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), batches())
    for x, y in data:
        optimizer.zero_grad()
        run.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
    return [p.detach() for p in run.unwrap_model(model).parameters()]


def with_lightning(compiled, whole=False):
    if importlib.util.find_spec("torchvision"):
        torchvision()
    name = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"
    lightning = pytest.importorskip(name)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = torch.compile(net(), backend="eager") if compiled and not whole else net()

        def training_step(self, batch, i):
            loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    module = Module()
    given = torch.compile(module, backend="eager") if compiled and whole else module
    lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(given, batches())
    return [p.detach() for p in module.parameters()]


def with_a_lightning_module(compiled):
    return with_lightning(compiled, whole=True)


@pytest.mark.parametrize("train", [with_accelerate, with_lightning, with_a_lightning_module])
@pytest.mark.filterwarnings("ignore")
def test_training_loops(train):
    want = train(False)
    before = bytejit.counters["graphs"]["eager"]
    with bytejit.patch_torch_compile():
        made = train(True)
    torch.testing.assert_close(made, want)
    assert bytejit.counters["graphs"]["eager"] > before
