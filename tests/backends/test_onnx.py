"""The backends onnxrt and openvino: each row of the table, cuts, sizes, writes and models, against eager."""

from __future__ import annotations

import copy
import operator
from typing import Any

import pytest
import torch
from compat import import_torchvision
from torch import fx
from torch.utils import _pytree as pytree

import bytejit
from bytejit.backends.surround import fakes_of
from bytejit.codegen.aten.normalise import normalise
from bytejit.codegen.onnx.table import refuses, rows
from bytejit.common import registry
from bytejit.common.dtypes import short_dtype
from bytejit.common.spec import Spec
from bytejit.fake.tensor import fake_of_spec

from .onnx_cases import FAMILIES, Case

onnx = pytest.importorskip("onnx", reason="the package onnx is not installed: pip install onnx onnxruntime openvino")
ENGINES = ("onnxrt", "openvino")


@pytest.fixture(params=ENGINES)
def backend(request: pytest.FixtureRequest) -> str:
    package = {"onnxrt": "onnxruntime"}.get(request.param, request.param)
    pytest.importorskip(package, reason=f"the package {package} is not installed")
    return request.param


def graph_of(cases: list[Case]) -> tuple[fx.GraphModule, list[torch.Tensor], list[str]]:
    """A traced graph of some calls, as the tracer gives it to a backend; its inputs; the call of each output, as text."""
    graph, inputs, made = fx.Graph(), [], {}

    def given(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        if id(x) not in made:
            made[id(x)] = graph.placeholder(f"x{len(inputs)}")
            made[id(x)].meta["val"] = fake_of_spec(Spec.of(x))
            inputs.append(x)
        return made[id(x)]

    placed = [pytree.tree_map(given, case[1:]) for case in cases]
    outputs: list[fx.Node] = []
    texts: list[str] = []
    for case, (args, settings) in zip(cases, placed):
        call, result = graph.call_function(case[0], args, settings), case[0](*case[1], **case[2])
        if isinstance(result, torch.Tensor):
            ends = [call]
        else:  # of a pool's positions there are none
            items = range(1 if case[0] is torch.ops.aten.max_pool2d_with_indices.default else len(result))
            ends = [graph.call_function(operator.getitem, (call, i)) for i in items]
            result = result[0]
        if result._base is not None:  # a view that nothing reads is no work of the graph
            ends = [graph.call_method("clone", (end,)) for end in ends]
        outputs += ends
        texts += [text_of(case)] * len(ends)
    graph.output(tuple(outputs))
    return fx.GraphModule(torch.nn.Module(), graph), inputs, texts


def text_of(case: Case) -> str:
    def shown(x: Any) -> str:
        return f"{short_dtype(x.dtype)}{list(x.shape)}" if isinstance(x, torch.Tensor) else repr(x)

    return f"{case[0]}({', '.join(map(shown, pytree.tree_leaves(case[1])))}, {case[2]})"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.__name__)
def test_each_row_is_eager(backend, family) -> None:
    gm, inputs, texts = graph_of(family())
    if backend == "openvino":  # its kernels lose nan: docs/backends.md
        inputs = [t.nan_to_num(1.0, torch.inf, -torch.inf) if t.is_floating_point() else t for t in inputs]
    want = gm.forward(*inputs)
    got = registry.lookup_backend(backend)(gm, inputs)(*inputs)
    wrong = []
    for text, a, b in zip(texts, got, want, strict=True):
        try:
            torch.testing.assert_close(a, b, equal_nan=True, check_stride=True)
        except AssertionError as e:
            wrong.append(f"{text}: {e}")
    assert not wrong, f"{len(wrong)} of {len(texts)}\n" + "\n".join(wrong)
    assert not bytejit.counters["fallbacks"], bytejit.counters
    stays = [what for what in bytejit.counters["externs"] if "OpenVINO does not keep" not in what]
    assert not stays, stays


def test_each_row_has_a_case() -> None:
    seen, refused = set(), {}
    for family in FAMILIES:
        gm, _, _ = graph_of(family())
        for node in normalise(gm, fakes_of(gm)).graph.nodes:
            if node.op == "call_function" and node.target is not operator.getitem:
                seen.add(node.target)
                if reason := refuses(node):
                    refused[str(node.target), node.args] = reason
    assert set(rows()) <= seen, sorted(map(str, set(rows()) - seen))
    assert refused == {}


# ---- whole programs --------------------------------------------------------------------------------------------------
def test_resnet_and_bert_are_eager(backend) -> None:
    models = import_torchvision().models
    import transformers

    small = {"vocab_size": 200, "hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 32}
    config = transformers.BertConfig(num_hidden_layers=2, num_attention_heads=4, **small)
    cases = (
        (models.resnet18(num_classes=10), torch.randn(2, 3, 32, 32), {"freeze": True}),
        (transformers.BertModel(config), torch.randint(0, 200, (2, 16)), {}),
    )
    for model, x, options in cases:
        with torch.no_grad():
            want = model.eval()(x)
            got = bytejit.compile(model, backend=backend, options=options)(x)
        torch.testing.assert_close(*(pytree.tree_leaves(dict(o) if isinstance(o, dict) else o) for o in (got, want)))
    assert not bytejit.counters["fallbacks"], bytejit.counters
    assert backend == "openvino" or not bytejit.counters["externs"], bytejit.counters


def test_what_has_no_form_stays_with_torch(backend) -> None:
    def program(x):
        return torch.special.i0(x.exp() + 1).sin() * 2, torch.linalg.det(x @ x.t())

    x = torch.rand(4, 4)
    torch.testing.assert_close(bytejit.compile(program, backend=backend, fullgraph=True)(x), program(x))
    assert any("i0" in what and what.startswith(backend) for what in bytejit.counters["externs"]), bytejit.counters


def test_nothing_to_take_is_counted(backend) -> None:
    x = torch.ones(2)
    torch.testing.assert_close(bytejit.compile(lambda x: torch.special.i0(x), backend=backend)(x), torch.special.i0(x))
    assert bytejit.counters["fallbacks"][f"a graph runs through torch: {backend} takes none of its operations"] == 1


def test_one_model_for_all_sizes(backend) -> None:
    def program(x, w):
        y = torch.softmax(x @ w, -1).view(-1, 2, w.shape[1] // 2)
        return y.sum(1) * x.shape[0], torch.cat([x, x], 0)[1:], x.new_zeros(x.shape[0] + 1)

    compiled = bytejit.compile(program, backend=backend, dynamic=True, fullgraph=True)
    for n in (3, 5, 8):
        x, w = torch.randn(n, 4), torch.randn(4, 6)
        torch.testing.assert_close(compiled(x, w), program(x, w), check_stride=True)
    assert bytejit.counters["graphs"] == {backend: 1} and not bytejit.counters["fallbacks"], bytejit.counters


def test_writes_aliases_and_layouts(backend) -> None:
    def program(x, y):
        x.mul_(2)
        z = (x.t() + y).relu()
        z[0] += 1
        return z, z[1:], x, x.t(), y.exp().permute(1, 0).contiguous()

    compiled = bytejit.compile(program, backend=backend, fullgraph=True)
    pairs = [(torch.randn(3, 4), torch.randn(8, 6)[::2, ::2]) for _ in range(2)]
    for x, y in pairs:
        ours, theirs = (x.clone(), y), (x.clone(), y)
        got, want = compiled(*ours), program(*theirs)
        torch.testing.assert_close(got, want, check_stride=True)
        torch.testing.assert_close(ours, theirs)
        memory = [t.untyped_storage().data_ptr() for t in got]
        assert got[2] is ours[0] and memory[0] == memory[1] and memory[2] == memory[3] == ours[0].untyped_storage().data_ptr()


def test_gradients(backend) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 3))
    other = copy.deepcopy(model)
    compiled = bytejit.compile(model, backend=backend)
    x = torch.randn(5, 6)
    compiled(x).square().mean().backward()
    other(x).square().mean().backward()
    for a, b in zip(model.parameters(), other.parameters()):
        torch.testing.assert_close(a.grad, b.grad)


def test_a_written_frozen_weight_is_seen(backend) -> None:
    model = torch.nn.Linear(4, 3)
    compiled = bytejit.compile(model, backend=backend, options={"freeze": True})
    x = torch.randn(2, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        model.weight.mul_(3)
        torch.testing.assert_close(compiled(x), model(x))
    assert bytejit.counters["recompiles"]["a frozen weight was written"] == 1


def test_an_index_out_of_range_raises(backend) -> None:
    compiled = bytejit.compile(lambda w, i: torch.nn.functional.embedding(i, w) * 2, backend=backend)
    w = torch.randn(4, 3)
    torch.testing.assert_close(compiled(w, torch.tensor([3, 0])), w[[3, 0]] * 2)
    for wrong in (4, -1):
        with pytest.raises(IndexError):
            compiled(w, torch.tensor([wrong, 0]))
