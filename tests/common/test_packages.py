"""Backends of packages that are missing or too old say so, and what to install."""

from __future__ import annotations

import sys

import pytest
import torch

import bytejit
from bytejit.common import packages, registry
from bytejit.common.packages import Package


def test_a_missing_package_is_named(monkeypatch) -> None:
    monkeypatch.setitem(packages.NEEDS, "onnxrt", (Package("onnx", "1.15"), Package("bytejit_nothing", "2.0", "nothing")))
    monkeypatch.setitem(registry.BACKENDS, "onnxrt", "bytejit.backends.onnxrt:onnxrt")
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(bytejit.exc.MissingPackage) as raised:
        bytejit.compile(lambda x: x.sin(), backend="onnxrt")(torch.ones(2))
    assert str(raised.value) == (
        "backend 'onnxrt' cannot be used\n"
        "  why    onnx is not installed, 1.15 or newer is needed\n"
        "  why    bytejit_nothing is not installed, 2.0 or newer is needed\n"
        '  do     pip install "onnx>=1.15" "nothing>=2.0"'
    )
    assert isinstance(raised.value, ImportError) and raised.value.backend == "onnxrt"


def test_a_package_too_old_is_named() -> None:
    assert Package("torch", "1.0").fault() == ""
    assert Package("torch", "99.1").fault().startswith("is version ")
    assert packages.numbers("2026.4.1-22982") == (2026, 4, 1) and packages.numbers("1.15rc1") == (1, 15)
    assert packages.missing("eager") == {}


def test_a_users_backend_of_the_same_name_needs_nothing(monkeypatch) -> None:
    monkeypatch.setitem(packages.NEEDS, "mine", (Package("bytejit_nothing", "1.0"),))
    monkeypatch.setitem(registry.BACKENDS, "mine", "torch.fx:GraphModule")
    assert registry.lookup_backend("mine") is torch.fx.GraphModule
