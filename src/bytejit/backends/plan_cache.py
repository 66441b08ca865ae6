"""Plans of graphs on disk. A graph that was planned before, in this process or another, is not lowered, fused and scheduled
again.

A plan is kept as data (`plan_data.py`) with the text of its kernels and without their expressions, under the hash of all that
decides it: every node of the ATen graph with its arguments, specs and place in the user's code, the device, torch's version and
the code that plans.
Graphs with sizes that are known at the call only are planned each time.
"""

from __future__ import annotations

import functools
import operator
from pathlib import Path
from typing import Any

import torch

from bytejit.backends import plan_data
from bytejit.backends.plan_data import NotKept
from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.loops.plan import Plan
from bytejit.common.options import Options
from bytejit.common.plain_types import JSON_TYPES
from bytejit.common.registry import count
from bytejit.common.spec import Spec
from bytejit.kernels.disk import digest, disk_of

WRITTEN = (*JSON_TYPES, complex, torch.dtype, torch.device, torch.layout, torch.memory_format)
HERE = Path(__file__).parent.parent
OTHERS = ("common/dtypes.py", "common/spec.py", "common/where.py", "backends/plan_data.py")  # what decides plans, besides codegen


@functools.cache
def planner() -> str:
    """The hash of the code that plans and prints kernels."""
    files = sorted((HERE / "codegen").rglob("*.py"))
    return digest(torch.__version__, *(f.read_bytes() for f in (*files, *(HERE / f for f in OTHERS))))


def key_of(aten: Aten, *facts: object) -> str | None:
    """The key of a graph's plan; None where the graph's text does not determine it: it is then planned each time. facts: what
    else the plan depends on, as text: the device, the largest size of a tile."""
    names: dict[torch.fx.Node, str] = {}
    try:
        lines = [_line(node, names) for node in aten.graph.nodes]
        lines += [_text(m.input, names) + _text(m.position, names) for m in aten.mutations]
    except NotKept:
        return None
    # what no output shows may be overwritten
    shown = [getattr(getattr(o, "of", o), "position", None) for o in aten.outputs]
    flags = (shown, len(aten.constants), torch.are_deterministic_algorithms_enabled())
    return digest(planner(), repr(facts), repr(flags), *lines)


def _line(node: torch.fx.Node, names: dict[torch.fx.Node, str]) -> str:
    names[node] = f"n{len(names)}"
    if node.op == "call_function":
        if not isinstance(node.target, torch._ops.OpOverload) and node.target is not operator.getitem:
            raise NotKept
        target = str(node.target)
    elif node.op in ("placeholder", "output"):
        target = node.op
    else:
        raise NotKept
    where = node.meta.get("where")
    place = f"{getattr(where, 'file', where)}:{getattr(where, 'line', 0)}"
    return " ".join(
        (
            target,
            _text(node.args, names) if node.op != "placeholder" else "",
            _text(tuple(node.kwargs.items()), names),
            _text(node.meta.get("spec"), names),
            place,
        )
    )


def _text(value: object, names: dict[torch.fx.Node, str]) -> str:
    """A text of the value that differs from the text of every other value. Raises: NotKept."""
    if isinstance(value, torch.fx.Node):
        return names[value]
    if isinstance(value, Spec):
        return f"spec{_text((value.shape, value.stride, value.dtype, value.device), names)}"
    if isinstance(value, (tuple, list)):
        return f"({','.join(_text(v, names) for v in value)})"
    if type(value) in WRITTEN:
        return repr(value)
    raise NotKept


def load(key: str, options: Options) -> tuple[Plan, Any] | None:
    """The (plan, source) that `keep` stored, its kernels without nests and schedules; None where there is none."""
    body = disk_of(options.cache_path, options.cache_mb).read(key + ".plan")
    if body is None:
        return None
    try:
        return plan_data.read(body)
    except plan_data.Damaged as error:
        count("cache", f"a plan on disk is not understood: {error}")
        return None


def keep(key: str, plan: Plan, source: Any, options: Options) -> None:
    """Put a plan and its source on disk, where all sizes in it are numbers."""
    if plan.symbols:
        return
    try:
        body = plan_data.pack(plan, source)
    except plan_data.NotKept as error:
        count("cache", f"a plan is not kept: {error}")
        return
    disk_of(options.cache_path, options.cache_mb).write(key + ".plan", body)
