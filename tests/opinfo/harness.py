"""One row of torch's operator table, in one setting, against eager: values, dtypes, shapes, strides, inputs written, gradients.

    python -m tests.opinfo --only add --dtypes float32 --dynamic

A row is an operator, a dtype and a `Setting`. Each of its samples is compiled anew and run once.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch

import bytejit

from .twists import mapped, twisted

# what is left to memory's earlier contents, or to another stream of random numbers by design
SKIP = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "resize_", "resize_as_"}
EAGER_CRASHES = {("_chunk_cat", "single")}  # reads sizes that tensors without dims do not have: a segmentation fault
VARIANTS = ("function", "inplace", "out")
HALF = (torch.float16, torch.bfloat16)
MOST_SAMPLES = 40
ASSERTED = "device-side assert"  # in torch's text


@dataclass(frozen=True)
class Setting:
    """How rows are run. variant: one of VARIANTS; twist: one of twists.TWISTS, or "" for the samples as they are."""

    dtype: str = "float32"
    device: str = "cpu"
    dynamic: bool = False
    grad: bool = False
    variant: str = "function"
    twist: str = ""

    @property
    def name(self) -> str:
        """`float32`, `float32 dynamic grad`, `int64 inplace transposed`, `float32 cuda`."""
        said = [
            self.dtype,
            self.device if self.device != "cpu" else "",
            "dynamic" if self.dynamic else "",
            "grad" if self.grad else "",
            self.variant if self.variant != "function" else "",
            self.twist,
        ]
        return " ".join(filter(None, said))


@dataclass
class Row:
    """What came of an operator in a setting. bad: what failed, a line a sample; notes: what ran through torch, breaks."""

    op: str
    setting: str
    ok: int = 0
    bad: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Ran:
    """One run: `raised`, or what it returned, its inputs afterwards and their gradients."""

    raised: BaseException | None = None
    out: Any = None
    inputs: list = field(default_factory=list)
    grads: list = field(default_factory=list)


@cache
def operators() -> dict[str, Any]:
    """torch's table: the OpInfo of each operator by its name, `div.floor_rounding`."""
    from .table import op_db

    def name(op: Any) -> str:
        return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name

    return {name(op): op for op in op_db if op.name not in SKIP}


def applies(op: Any, setting: Setting) -> bool:
    """Whether an operator can be run in a setting."""
    dtype = getattr(torch, setting.dtype)
    if dtype not in op.supported_dtypes(setting.device) or (op.name, setting.twist) in EAGER_CRASHES:
        return False
    if setting.grad and (not op.supports_autograd or not (dtype.is_floating_point or dtype.is_complex)):
        return False
    if setting.variant == "out":
        return bool(op.supports_out)
    return setting.variant != "inplace" or op.inplace_variant is not None


def tensors(x: object) -> list[torch.Tensor]:
    """All tensors in nested tuples, lists and dicts, in order."""
    if isinstance(x, torch.Tensor):
        return [x]
    parts = x.values() if isinstance(x, dict) else x if isinstance(x, (list, tuple)) else ()
    return [t for part in parts for t in tensors(part)]


def copied(x: object) -> object:
    """`x` with tensors of its own that lie in memory as the given ones do, gaps and overlaps too."""
    if isinstance(x, torch.Tensor):
        if x.layout != torch.strided or x.is_meta or x.is_conj() or x.is_neg():
            return x.detach().clone().requires_grad_(x.requires_grad)
        store = x.detach().untyped_storage().clone()
        out = torch.empty(0, dtype=x.dtype, device=x.device).set_(store, x.storage_offset(), x.shape, x.stride())
        return out.requires_grad_(x.requires_grad)
    if isinstance(x, (list, tuple)):
        parts = [copied(v) for v in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return {k: copied(v) for k, v in x.items()} if isinstance(x, dict) else x


def run(f: Callable, inputs: tuple, grad: bool) -> Ran:
    """Calls `f` on copies of (input, args, kwargs), with the same random numbers each time."""
    x, args, kwargs = copied(inputs)
    torch.manual_seed(0)
    random.seed(0)
    try:
        with torch.set_grad_enabled(grad):
            out = f(x, *args, **kwargs)
            given = tensors([x, args, kwargs])
            return Ran(None, out, given, gradients(out, given) if grad else [])
    except Exception as e:
        return Ran(e)


def gradients(out: object, given: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Gradients of a random projection of the results."""
    leaves = [t for t in given if t.requires_grad and t.is_leaf]
    outs = [t for t in tensors(out) if t.requires_grad]
    if not leaves or not outs:
        return []
    torch.manual_seed(1)
    loss = sum((t * torch.randn_like(t)).sum() for t in outs)
    return list(torch.autograd.grad(loss.real if loss.is_complex() else loss, leaves, allow_unused=True))


def _steps(t: torch.Tensor) -> list[tuple[int, int]]:
    return [(n, s) for n, s in zip(t.shape, t.stride()) if n > 1] if t.numel() else []


def difference(want: object, got: object, what: str, tolerance: float = 1.0) -> str:
    """What tells two results apart; "" when nothing does."""
    if type(want) is not type(got) and not isinstance(want, torch.Tensor):
        return f"{what}: {type(got).__name__} for {type(want).__name__}"
    wants, gots = tensors(want), tensors(got)
    if len(wants) != len(gots):
        return f"{what}: {len(gots)} tensors for {len(wants)}"
    for i, (a, b) in enumerate(zip(wants, gots)):
        bad = _tensors_differ(a, b, tolerance, layout=what != "gradient")
        if bad:
            return f"{what} {i}: {bad}"
    if not wants and not isinstance(want, (torch.Tensor, list, tuple, dict)) and want != got and want == want:
        return f"{what}: {got!r} for {want!r}"
    return ""


def _tensors_differ(a: torch.Tensor, b: torch.Tensor, tolerance: float, layout: bool) -> str:
    if (a.dtype, a.shape, a.device, a.layout) != (b.dtype, b.shape, b.device, b.layout):
        return f"{b.dtype}{tuple(b.shape)} {b.device} for {a.dtype}{tuple(a.shape)} {a.device}"
    if layout and a.layout == torch.strided and _steps(a) != _steps(b):
        return f"strides {b.stride()} for {a.stride()} of {tuple(a.shape)}"
    if a.requires_grad != b.requires_grad:
        return f"requires_grad {b.requires_grad} for {a.requires_grad}"
    if a.is_meta:
        return ""
    rtol, atol = (2e-2, 2e-2) if a.dtype in HALF else (2e-5 if a.device.type == "cpu" else 1e-4, 2e-5)
    try:
        torch.testing.assert_close(b, a, equal_nan=True, rtol=rtol * tolerance, atol=atol * tolerance, check_stride=False)
    except AssertionError as e:
        return " ".join(str(e).split())[:160]
    return ""


def _overlaps(t: torch.Tensor) -> bool:
    return t.layout == torch.strided and any(n > 1 and s == 0 for n, s in zip(t.shape, t.stride()))


def shares(out: object, given: list[torch.Tensor]) -> list[int | None]:
    """For each tensor of a result the first of the inputs whose memory it lies in."""
    places = {
        t.untyped_storage().data_ptr(): i for i, t in reversed(list(enumerate(given))) if t.layout == torch.strided and t.numel()
    }
    return [places.get(t.untyped_storage().data_ptr()) if t.layout == torch.strided and t.numel() else None for t in tensors(out)]


def callable_of(op: Any, setting: Setting) -> Callable:
    """The operator as a function of a program."""
    fn = op.inplace_variant if setting.variant == "inplace" else op.op

    def call(*args, **kwargs):
        return fn(*args, **kwargs)

    return call


def _with_out(op: Any, inputs: tuple) -> tuple | None:
    """The inputs with memory of the result's shape as `out`; None for a result that has none."""
    plain = run(op.op, inputs, False)
    made = tensors(plain.out) if plain.raised is None else []
    if not made or isinstance(plain.out, list):
        return None
    outs = tuple(torch.full_like(t, 1) for t in made)
    x, args, kwargs = inputs
    return x, args, {**kwargs, "out": outs[0] if isinstance(plain.out, torch.Tensor) else outs}


class EagerAsserts(Exception):
    """A kernel of torch's ended with a device-side assert: this process can use the device no more."""


def _settled(device: str) -> bool:
    """Whether all that was enqueued ran."""
    try:
        if device == "cuda":
            torch.cuda.synchronize()
    except RuntimeError as e:
        if ASSERTED in str(e):
            return False
        raise
    return True


def compare(op: Any, setting: Setting, inputs: tuple, tolerance: float = 1.0) -> tuple[str, str] | None:
    """(what differs or "", notes) of one sample; None where eager gives no one result to compare with."""
    if setting.variant == "out":
        inputs = _with_out(op, inputs)
        if inputs is None:
            return None
    f = callable_of(op, setting)
    want = run(f, inputs, setting.grad)
    if not _settled(setting.device):
        raise EagerAsserts
    if want.raised is None:
        again = run(f, inputs, setting.grad)
        if difference(want.out, again.out, "output") or difference(want.inputs, again.inputs, "input"):
            return None
        if any(_overlaps(t) and difference(t, s, "input") for t, s in zip(tensors(inputs), want.inputs)):
            return None  # a write to one place from several elements: the last one wins, whichever that is
    bytejit.reset()
    bytejit.counters.clear()
    compiled = bytejit.compile(callable_of(op, setting), dynamic=True if setting.dynamic else None)
    with bytejit.config.patch(suppress_errors=True):
        got = run(compiled, inputs, setting.grad)
    counts = {k: list(v)[:3] for k, v in bytejit.counters.items() if v}
    if counts.get("faults"):
        return f"fault: {counts['faults'][0]}", ""
    notes = "; ".join(f"{k} {v}" for k, v in counts.items() if k in ("fallbacks", "breaks"))
    misfit = next((text for text in bytejit.counters["externs"] if "than inferred" in text), "")
    bad = _compare_runs(want, got, tolerance)
    few = getattr(torch, setting.dtype) in HALF or setting.twist == "mixed"  # digits
    if "not close" in bad and few and _as_near(want, got, run(f, _wide(inputs), False)):
        bad = ""
    return bad or misfit, notes


def _wide(inputs: object) -> object:
    """The inputs with tensors of few digits as float64."""
    return mapped(inputs, lambda t: t.detach().double() if t.dtype in HALF else t)


def _as_near(want: Ran, got: Ran, exact: Ran) -> bool:
    """Whether results of few digits are as near to those of float64 inputs as eager's are, or nearer."""
    if want.raised is not None or got.raised is not None or exact.raised is not None:
        return False
    trios = list(zip(tensors([want.out, want.inputs]), tensors([got.out, got.inputs]), tensors([exact.out, exact.inputs])))
    if any(not a.shape == b.shape == e.shape for a, b, e in trios):
        return False
    return all(_distance(b, e) <= _distance(a, e) for a, b, e in trios if a.is_floating_point())


def _distance(t: torch.Tensor, exact: torch.Tensor) -> float:
    return (t.double() - exact.double()).abs().max().item() if t.numel() else 0.0


def _compare_runs(want: Ran, got: Ran, tolerance: float) -> str:
    if want.raised is not None or got.raised is not None:
        if got.raised is None:
            return f"returns where eager raises {type(want.raised).__name__}: {str(want.raised)[:100]}"
        if type(want.raised) is not type(got.raised):
            return f"raises {type(got.raised).__name__}: {str(got.raised)[:160]} for {type(want.raised).__name__}"
        return ""
    bad = difference(want.out, got.out, "output", tolerance) or difference(want.inputs, got.inputs, "input", tolerance)
    if not bad and shares(want.out, want.inputs) != shares(got.out, got.inputs):
        bad = f"lies in the memory of inputs {shares(got.out, got.inputs)} for {shares(want.out, want.inputs)}"
    if not bad and [g is None for g in want.grads] != [g is None for g in got.grads]:
        bad = "other inputs have gradients"
    return bad or difference(want.grads, got.grads, "gradient", tolerance)


def samples(op: Any, setting: Setting, count: int) -> list[tuple]:
    """`count` of an operator's samples, spread over all of them, as (input, args, kwargs)."""
    torch.manual_seed(0)
    random.seed(0)
    dtype, found = getattr(torch, setting.dtype), []
    for sample in op.sample_inputs(setting.device, dtype, requires_grad=setting.grad):
        if setting.variant == "inplace" and sample.broadcasts_input:
            continue
        found.append((sample.input, tuple(sample.args), dict(sample.kwargs)))
        if len(found) > MOST_SAMPLES:
            break
    chosen = found[:: max(1, len(found) // count)][:count]
    if setting.twist:
        chosen = [twisted(setting.twist, s, f"{op.name} {setting.name} {i}") for i, s in enumerate(chosen)]
    return chosen


def run_row(name: str, setting: Setting, count: int = 3, tolerance: float = 1.0) -> Row:
    """Compares `count` samples of an operator."""
    row = Row(name, setting.name)
    op = operators()[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for inputs in samples(op, setting, count):
            try:
                found = compare(op, setting, inputs, tolerance)
            except EagerAsserts:
                row.notes.append(f"eager: {ASSERTED}")
                break
            if found is None:
                continue
            if found[0]:
                row.bad.append(found[0])
            else:
                row.ok += 1
            if found[1]:
                row.notes.append(found[1])
    return row
