"""torch's own table of modules against eager: results, gradients of inputs and parameters, buffers, errors; with other sizes too.

python -m tests.opinfo --modules --only nn.LSTM

A row is a module in train or eval mode, with static or symbolic sizes. Each of its samples is built, compiled and called with its
input, with an input of twice the size in its first dim, and with the first again.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

import bytejit

from .harness import Ran, Row, copied, difference, tensors
from .twists import mapped

MODES = tuple((training, dynamic) for training in (True, False) for dynamic in (None, True))


@dataclass(frozen=True)
class ModuleRow:
    """A module of the table: `nn.Linear`, in train mode, with symbolic sizes."""

    name: str
    training: bool
    dynamic: bool | None
    device: str = "cpu"

    @property
    def setting(self) -> str:
        where = "" if self.device == "cpu" else f" {self.device}"
        return ("train" if self.training else "eval") + (" dynamic" if self.dynamic else "") + where


@cache
def modules() -> dict[str, Any]:
    """torch's table: the ModuleInfo of each module by its name."""
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


def rows(only: list[str] | None = None, device: str = "cpu") -> list[ModuleRow]:
    """All rows, or those of some modules."""
    chosen = [n for n, info in modules().items() if torch.float32 in info.supported_dtypes(device) and (not only or n in only)]
    return [ModuleRow(n, *mode, device) for n in chosen for mode in MODES]


def doubled(x: object) -> object:
    """Each tensor twice, along its first dim."""
    return mapped(x, lambda t: torch.cat([t.detach()] * 2).requires_grad_(t.requires_grad) if t.dim() else t)


def built(row: ModuleRow, count: int) -> Iterator[tuple[torch.nn.Module, tuple]]:
    """`count` of a row's samples, spread over all of them: (module, (args, kwargs))."""
    info = modules()[row.name]
    torch.manual_seed(0)
    made = info.module_inputs_func(info, device=row.device, dtype=torch.float32, requires_grad=True, training=row.training)
    made = [sample for sample in made if sample.forward_input is not None]
    for sample in made[:: max(1, len(made) // count)][:count]:
        how, given = sample.constructor_input, sample.forward_input
        module = info.module_cls(*how.args, **how.kwargs).to(row.device, torch.float32).train(row.training)
        yield module, (tuple(given.args), dict(given.kwargs))


def compared(row: ModuleRow, module: torch.nn.Module, given: tuple) -> str:
    """What differs between a module and its compiled copy; "" when nothing does."""
    twin = copy.deepcopy(module)
    bytejit.reset()
    bytejit.counters.clear()
    compiled = bytejit.compile(twin, dynamic=row.dynamic)
    for inputs in (given, doubled(given), given):
        want = _run(module, module, inputs)
        with bytejit.config.patch(suppress_errors=True):
            got = _run(twin, compiled, inputs)
        bad = _differ(want, got) or difference(_state(module), _state(twin), "state")
        if bad:
            return bad
        if bytejit.counters["faults"]:
            return f"fault: {next(iter(bytejit.counters['faults']))}"
    return ""


def _state(module: torch.nn.Module) -> list[torch.Tensor]:
    return tensors(dict(module.state_dict()))


def _run(module: torch.nn.Module, call: Any, inputs: tuple) -> Ran:
    """A call on copies of the inputs; gradients of a random projection for inputs and parameters."""
    args, kwargs = copied(inputs)
    torch.manual_seed(0)
    try:
        out = call(*args, **kwargs)
        given = tensors([args, kwargs])
        leaves = [t for t in (*given, *module.parameters()) if t.requires_grad]
        made = [t for t in tensors(out) if t.requires_grad]
        torch.manual_seed(1)
        grads = torch.autograd.grad(sum((t * torch.randn_like(t)).sum() for t in made), leaves, allow_unused=True) if made else ()
        return Ran(None, out, given, list(grads))
    except Exception as e:
        return Ran(e)


def _differ(want: Ran, got: Ran) -> str:
    if want.raised is not None or got.raised is not None:
        same = type(want.raised) is type(got.raised) and str(want.raised) == str(got.raised)
        return "" if same else f"raises {got.raised!r} for {want.raised!r}"[:300]
    if [g is None for g in want.grads] != [g is None for g in got.grads]:
        return "others have gradients"
    return (
        difference(want.out, got.out, "output")
        or difference(want.inputs, got.inputs, "input")
        or difference(want.grads, got.grads, "gradient")
    )


def run_module(row: ModuleRow, count: int = 3) -> Row:
    """Compares `count` samples of a module."""
    found = Row(row.name, row.setting)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module, given in built(row, count):
            bad = compared(row, module, given)
            if bad:
                found.bad.append(bad)
            else:
                found.ok += 1
    return found
