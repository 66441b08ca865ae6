"""Layers and metrics of libraries that people use with torch, in one graph. Skipped where the library is not installed."""

from __future__ import annotations

import copy
import importlib.util

import pytest
import torch

import bytejit
from bytejit.runtime.origins import settings_of

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


def lightning_module():
    """A class of modules that log values under six names, in training and validation."""
    if importlib.util.find_spec("torchvision"):
        torchvision()
    name = "lightning" if importlib.util.find_spec("lightning") else "pytorch_lightning"
    lightning = pytest.importorskip(name)

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, i):
            loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
            self.log("loss", loss)
            self.log("rate", 0.1, on_epoch=True)
            return loss

        def validation_step(self, batch, i):
            loss = torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])
            self.log("val_loss", loss, prog_bar=True)
            self.log_dict({"twice": loss * 2, "thrice": loss * 3, "index": i})

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return lightning, Module()


def with_lightning(compiled, whole=False):
    lightning, module = lightning_module()
    if compiled and not whole:
        module.net = torch.compile(module.net, backend="eager")
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    given = torch.compile(module, backend="eager") if compiled and whole else module
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", **quiet)
    trainer.fit(given, batches(), batches())
    logged = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return [p.detach() for p in module.parameters()], logged


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
    assert not bytejit.counters.total("fallbacks")


def test_accelerates_settings_reach_the_compiler():
    """Regions of a model, all settings of the plugin, saved and loaded states."""
    accelerate = pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.ModuleList(net() for _ in range(3)), torch.nn.Identity())
    model.forward = lambda x: sum(layer(x) for layer in model[0])
    x = torch.randn(3, 4)
    with bytejit.patch_torch_compile():
        compiled = accelerate.utils.compile_regions(model, backend="eager", mode="reduce-overhead")
        torch.testing.assert_close(compiled[0][1](x), model[0][1](x))
        accelerate.state.AcceleratorState._reset_state(True)
        settings = {"mode": "reduce-overhead", "fullgraph": True, "dynamic": False, "backend": "inductor"}
        run = accelerate.Accelerator(cpu=True, dynamo_plugin=accelerate.utils.TorchDynamoPlugin(**settings))
        plain = net()
        prepared = run.prepare(plain)
        assert settings_of(prepared).nopython and settings_of(prepared).options.mode == "reduce-overhead"
        assert list(run.get_state_dict(prepared)) == list(plain.state_dict()) and run.unwrap_model(prepared)(x).shape == (3, 1)


def test_the_trainer_of_transformers(tmp_path):
    """`torch_compile=True`: the same losses, and a checkpoint that loads as the plain model."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    if importlib.util.find_spec("torchvision"):
        torchvision()
    data = [{"input_ids": (torch.arange(6) * 7 + i) % 32, "labels": (torch.arange(6) * 7 + i) % 32} for i in range(8)]

    def trained(compiled):
        torch.manual_seed(0)
        sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32)
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, pad_token_id=0, max_position_embeddings=32))
        backend = {"torch_compile": True, "torch_compile_backend": "eager"} if compiled else {}
        quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True}
        given = transformers.TrainingArguments(
            str(tmp_path), max_steps=3, save_steps=3, per_device_train_batch_size=4, **quiet, **backend
        )
        trainer = transformers.Trainer(model, given, train_dataset=data)
        trainer.train()
        saved = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "checkpoint-3")
        torch.testing.assert_close(list(saved.parameters()), list(model.parameters()))
        return trainer.evaluate(data)["eval_loss"]

    want = trained(False)
    before = bytejit.counters["graphs"]["eager"]
    with bytejit.patch_torch_compile():
        assert abs(trained(True) - want) < 1e-5
    assert bytejit.counters["graphs"]["eager"] > before


# ---- pipelines of diffusers ----------------------------------------------------------------------------------------------------
def pipeline():
    """A text-to-image pipeline of the smallest sizes, with random weights."""
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(0)
    blocks = {"block_out_channels": (4, 8), "layers_per_block": 1, "norm_num_groups": 2}
    unet = diffusers.UNet2DConditionModel(
        **blocks, sample_size=8, cross_attention_dim=16, attention_head_dim=4, in_channels=4, out_channels=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    vae = diffusers.AutoencoderKL(
        **blocks, latent_channels=4, down_block_types=["DownEncoderBlock2D"] * 2, up_block_types=["UpDecoderBlock2D"] * 2
    )
    made = diffusers.StableDiffusionPipeline(
        vae=vae.eval(), unet=unet.eval(), scheduler=diffusers.DDIMScheduler(), text_encoder=None, tokenizer=None,
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    )  # fmt: skip
    made.set_progress_bar_config(disable=True)
    return made


def picture_of(made):
    words = torch.randn(1, 5, 16, generator=torch.Generator().manual_seed(1))
    return torch.from_numpy(
        made(
            prompt_embeds=words, negative_prompt_embeds=words * 0, generator=torch.Generator().manual_seed(0),
            num_inference_steps=2, height=16, width=16, output_type="np",
        ).images
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("way", ["parts", "in place"])
def test_a_pipeline_of_diffusers(way):
    pytest.importorskip("diffusers")
    if importlib.util.find_spec("torchvision"):
        torchvision()
    want, made = picture_of(pipeline()), pipeline()
    with bytejit.patch_torch_compile():
        if way == "parts":
            made.unet.to(memory_format=torch.channels_last)
            made.unet = torch.compile(made.unet, backend="aot_eager", fullgraph=True)
            made.vae.decode = torch.compile(made.vae.decode, backend="aot_eager", fullgraph=True)
        else:
            made.unet.compile(backend="aot_eager", fullgraph=True)
            made.vae.decoder.compile(backend="aot_eager")
        torch.testing.assert_close(picture_of(made), want, atol=1e-3, rtol=1e-3)
    assert bytejit.counters.total("graphs") == 2 and not bytejit.counters.total("breaks"), bytejit.counters
