"""Names of backends: which can be used here, why not the others, and what to use in place of those of earlier times."""

from __future__ import annotations

import pytest
import torch

import bytejit
from bytejit import verify
from bytejit.common import packages, registry
from bytejit.common.former_backends import FORMER
from bytejit.common.packages import Package

# names of TorchDynamo's documents, of all times
DOCUMENTED = set(
    "eager aot_eager inductor cudagraphs ts aot_ts ofi onnxrt openvino tvm tensorrt fx2trt ipex nvfuser aot_nvfuser "
    "aot_ts_nvfuser nvprims_nvfuser".split()
)


@pytest.mark.parametrize("name", sorted(FORMER))
def test_a_name_of_earlier_times_says_what_to_use(name: str) -> None:
    for choose in (lambda: bytejit.compile(torch.sin, backend=name), lambda: bytejit.optimize(name)):
        with pytest.raises(ValueError) as raised:
            choose()
        assert isinstance(raised.value, bytejit.exc.BadSetting)
        first, why, do = str(raised.value).splitlines()
        assert first == f"bytejit has no backend {name!r}"
        assert why == f"  why    {FORMER[name].was}" and do == f"  do     use {FORMER[name].instead}"
        assert raised.traceback[0].path.samefile(__file__)  # the error's place is the program's call
    used = [word.strip("',") for word in FORMER[name].instead.split() if word.startswith("'")]
    assert used and set(used) <= set(registry.BACKENDS)


def test_a_programs_own_backend_may_have_such_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "BACKENDS", dict(registry.BACKENDS))
    bytejit.register_backend(lambda gm, example_inputs: gm.forward, name="tensorrt")
    assert torch.equal(bytejit.compile(lambda x: x + 1, backend="tensorrt")(torch.ones(2)), torch.full((2,), 2.0))
    assert "tensorrt" in bytejit.list_backends() and bytejit.backends_table()["tensorrt"].available


def test_the_table_has_every_documented_name() -> None:
    table = bytejit.backends_table()
    assert set(table) >= DOCUMENTED and list(table) == sorted(table)
    assert bytejit.list_backends() == [name for name, row in table.items() if row.available]
    for name, row in table.items():
        assert row.available == (not row.why) and bool(row.why) == bool(row.do), name
        assert row.former == (name in FORMER)


def test_a_missing_package_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packages.NEEDS, "onnxrt", (Package("bytejit_nothing", "2.0", "nothing"),))
    monkeypatch.setitem(registry.BACKENDS, "onnxrt", "bytejit.backends.onnxrt:onnxrt")
    row = bytejit.backends_table()["onnxrt"]
    assert row == (False, "bytejit_nothing is not installed, 2.0 or newer is needed", 'pip install "nothing>=2.0"', False)
    assert "onnxrt" not in bytejit.list_backends()


def test_verify_has_a_row_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(packages.NEEDS, "onnxrt", (Package("bytejit_nothing", "2.0"),))
    monkeypatch.setitem(registry.BACKENDS, "onnxrt", "bytejit.backends.onnxrt:onnxrt")
    monkeypatch.setattr(verify, "check_compiler", lambda options: verify.Finding("C++ compiler", "works", ""))
    rows = {c.name: c for c in verify.checks(["aot_ts", "onnxrt", "nvfuser"])}
    assert rows["aot_ts on cpu"].state == "works"
    assert ("aot_ts on cuda" in rows) == torch.cuda.is_available()
    assert rows["onnxrt"].state == "missing" and rows["onnxrt"].do == 'pip install "bytejit_nothing>=2.0"'
    assert rows["nvfuser"].state == "none" and rows["nvfuser"].do.startswith("use backend 'inductor'")
