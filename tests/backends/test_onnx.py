"""The backends onnxrt and openvino: each row of the table, cuts, sizes, writes and models, against eager."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
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
