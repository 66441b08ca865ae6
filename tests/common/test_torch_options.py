"""torch.compile's names of options and logs are taken, or warned of once; what it does not know either is an error."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest
import torch

import bytejit
from bytejit.common import caches, torch_options
from bytejit.common.options import Options
from bytejit.runtime.origins import settings_of


def options(mode: str | None = None, **given: object) -> Options:
    """The options of a function compiled with a mode and options, dots in names written as __."""
    given = {name.replace("__", "."): value for name, value in given.items()}
    return settings_of(bytejit.compile(lambda x: x + 1, backend="eager", mode=mode, options=given)).options


def test_names_with_a_meaning_here():
    assert options(triton__cudagraphs=True).cudagraphs is True and options(triton__cudagraphs=False).cudagraphs is False
    assert options(max_autotune=True).mode == "max-autotune-no-cudagraphs" and options(max_autotune=False).mode == "default"
    assert options(**{"max-autotune": True}).tune
    assert options(freezing=True).freeze and options(trace__enabled=True).debug
    both = options(max_autotune=True, triton__cudagraphs=True)
    assert both.tune and both.use_cudagraphs


def test_a_mode_beside_options():
    assert options("reduce-overhead", max_autotune=True).mode == "max-autotune"
    assert options("default", max_autotune=True).mode == "max-autotune-no-cudagraphs"
    assert options("max-autotune", max_autotune=True).mode == "max-autotune"
    assert options("reduce-overhead", epilogue_fusion=True).mode == "reduce-overhead"


def test_names_without_one_are_warned_of_once():
    caches.clear()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            options(epilogue_fusion=True, shape_padding=False, guard_filter_fn=lambda guards: guards)
    assert sorted(str(w.message).split("'")[1] for w in found) == ["epilogue_fusion", "guard_filter_fn", "shape_padding"]


def test_names_that_nobody_knows_are_errors():
    for name in ("max_autotun", "triton.cudagraph", "cudagraphs_", "triton"):
        with pytest.raises(ValueError, match="unknown option"):
            options(**{name: True})


def test_the_names_of_torch_are_its_own():
    import torch._inductor.config as config

    real = {name for name in config.get_config_copy() if not name.startswith("_")}
    assert real <= torch_options.names_of_torch() | {"TYPE_CHECKING"}, real - torch_options.names_of_torch()


def test_name_and_no_backend():
    f = bytejit.compile(lambda x: torch.relu(x) + 1, name="mine", backend=None)
    assert torch.equal(f(torch.ones(3)), torch.full((3,), 2.0))


# ---- logs ------------------------------------------------------------------------------------------------------------
CODE = """
import torch, bytejit
def f(x, n):
    x = torch.relu(x) + n
    bytejit.graph_break()
    return x * 2
c = bytejit.compile(f)
c(torch.ones(3), 1); c(torch.ones(3), "a" and 2); c(torch.ones(3, dtype=torch.float64), 2)
"""


@pytest.mark.parametrize(
    ("asked", "heads"),
    [
        ("recompiles,+dynamo,graph_breaks", {"recompiles", "breaks"}),
        ("graph_code,output_code,guards", {"graph", "code", "guards"}),
        ("aot_graphs", set()),
    ],
)
def test_torch_logs(asked, heads):
    env = {**os.environ, "TORCH_LOGS": asked}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stderr
    found = {line.split("]")[0].removeprefix("[bytejit ") for line in done.stderr.splitlines() if line.startswith("[bytejit ")}
    assert found == heads, done.stderr
    if "output_code" in asked:
        assert "static void k0" in done.stderr and "data_ptr()" in done.stderr  # the kernels, and what calls them


def test_logs_that_the_program_asks_torch_for(capfd):
    try:
        torch._logging.set_logs(graph_breaks=True)
        exec(CODE, {})
    finally:
        torch._logging.set_logs()
    assert "[bytejit breaks]" in capfd.readouterr().err
