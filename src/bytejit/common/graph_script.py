"""Graphs as Python files: one that runs by itself, or one whose first line says that it is to be read only, and why."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from .spec import span_of
from .special_cases import module_of
from .where import Where, with_source

MANY = 64  # elements: the values of larger integer tensors are not written out
NUMBERS = (bool, int, float, complex, str, type(None))
TORCH = (torch.dtype, torch.device, torch.memory_format, torch.layout)
READ_ONLY = "# To be read only: "
BY_ITSELF = "# Runs by itself"


class NoText(Exception):
    """A value that cannot be written as Python text: which, and why."""


def read_only(why: str, text: str, comment: str = "#") -> str:
    """A file's text below a first line that says that it cannot be run."""
    return f"{READ_ONLY.replace('#', comment)}{why}\n{text}"


def stack_trace(node: torch.fx.Node) -> str | None:
    """The user's line of a node, as a traceback has it; None for a node that came of none."""
    where = node.meta.get("where")
    if not isinstance(where, Where):
        return None
    where = with_source(where)
    return f'  File "{where.file}", line {where.line}, in {where.function}\n    {where.source.strip()}\n'


# ---- values ----------------------------------------------------------------------------------------------------------
def value_text(x: Any) -> str:
    """An expression for a value like `x`; a tensor has its form, with random elements. Raises: NoText."""
    if isinstance(x, torch.Tensor):
        return tensor_text(x)
    if isinstance(x, float) and not math.isfinite(x):
        return f'float("{x}")'
    if type(x) in NUMBERS:
        return repr(x)
    if isinstance(x, torch.device):
        return f'torch.device("{x}")'
    if isinstance(x, TORCH):
        return str(x)
    if isinstance(x, (torch.SymInt, torch.SymFloat)):
        return repr(x.node.hint)
    if type(x) in (tuple, list):
        inside = ", ".join(map(value_text, x))
        return f"[{inside}]" if type(x) is list else f"({inside},)" if len(x) == 1 else f"({inside})"
    raise NoText(f"a {type(x).__qualname__}")


def tensor_text(x: torch.Tensor) -> str:
    """`torch.randn(4, 16)` and the like. Integers lie between the least and the greatest of `x`. Raises: NoText."""
    if type(x) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise NoText(f"a {type(x).__qualname__}")
    if x.layout is not torch.strided or x.is_quantized or x.device.type == "meta":
        raise NoText(f"a tensor of layout {x.layout} on {x.device}")
    x = x.detach()
    if x.is_contiguous():
        return elements_text(x, tuple(x.shape))
    return f"{elements_text(x, (span_of(x.shape, x.stride()),))}.as_strided({tuple(x.shape)}, {tuple(x.stride())})"


def elements_text(x: torch.Tensor, shape: tuple[int, ...]) -> str:
    """A contiguous tensor of a shape with elements such as `x` has."""
    where = "" if x.device.type == "cpu" else f', device="{x.device}"'
    size = f"({shape[0]},)" if len(shape) == 1 else str(shape)
    if x.dtype == torch.bool:
        return f"(torch.rand({size}{where}) < 0.5)"
    if x.is_complex() or x.is_floating_point():
        dtype = "" if x.dtype == torch.float32 else f", dtype={x.dtype}"
        whole = x.float() if x.is_floating_point() and x.dtype.itemsize < 2 else x
        positive = not x.is_complex() and x.numel() > 0 and bool((whole >= 0).all())
        made = f"torch.{'rand' if positive else 'randn'}({size}"
        return f"{made}{where}).to({x.dtype})" if x.dtype.itemsize < 2 else f"{made}{dtype}{where})"
    if x.numel() <= MANY and shape == tuple(x.shape):
        return f"torch.tensor({x.tolist()}, dtype={x.dtype}{where})"
    low, high = (int(x.min()), int(x.max())) if x.numel() else (0, 0)
    return f"torch.randint({low}, {high + 1}, {size}, dtype={x.dtype}{where})"


# ---- names -----------------------------------------------------------------------------------------------------------
def imports_text(names: Mapping[str, Any]) -> list[str]:
    """Lines that bind each name to its value. Raises: NoText for one that no import reaches."""
    lines = {"import torch": None}
    for name, value in names.items():
        if isinstance(value, types.ModuleType):
            lines[f"import {value.__name__}" if name == value.__name__ else f"import {value.__name__} as {name}"] = None
        elif isinstance(value, float):
            lines[f'{name} = float("{value}")'] = None
        else:
            module, path = reached(value)
            lines[f"import {module}"] = None
            lines[f"{name} = {path}"] = None
    imports = [line for line in lines if line.startswith("import ")]
    return imports + [line for line in lines if line not in imports]


def reached(value: Any) -> tuple[str, str]:
    """(module, dotted path) by which a function or class can be had in another process. Raises: NoText."""
    module, name = module_of(value), getattr(value, "__qualname__", None)
    found = sys.modules.get(module) if isinstance(module, str) else None
    for part in name.split(".") if isinstance(name, str) else [""]:
        found = getattr(found, part, None)
    if found is not value or module == "__main__":
        raise NoText(f"{name or type(value).__qualname__} of the program's")
    return str(module), f"{module}.{name}"


# ---- files -----------------------------------------------------------------------------------------------------------
RUN = '''

def inputs():
    """Like the inputs of the call that was traced, with random elements."""
    torch.manual_seed(0)
    return (
{inputs}
    )


if __name__ == "__main__":
    torch.set_grad_enabled({grad})
    wanted = {cls}()(*inputs())
    print(*wanted, sep="\\n")
    import bytejit

    found = bytejit.compile({cls}())(*inputs())
    for i, (a, b) in enumerate(zip(wanted, found)):
        if isinstance(a, torch.Tensor):
            far = (a.double() - b.double()).abs().max().item() if a.numel() else 0
            print(f"output {{i}}, eager and compiled: largest difference {{far}}")
'''


def graph_file(gm: torch.fx.GraphModule, examples: Sequence, where: Where, grad: bool) -> str:
    """A traced graph as a file that runs it, in eager and compiled, on inputs like the examples."""
    for node in gm.graph.nodes:
        if "stack_trace" not in node.meta and (trace := stack_trace(node)) is not None:
            node.meta["stack_trace"] = trace
    text = gm.print_readable(print_output=False).strip("\n")
    try:
        inside = [str(n.target) for n in gm.graph.nodes if n.op in ("get_attr", "call_module")]
        if inside:
            raise NoText(f"{inside[0]} of the graph's")
        names = [n.name for n in gm.graph.nodes if n.op == "placeholder"]
        given = input_lines(zip(names, examples, strict=True))
        used = set(text.replace(".", " ").replace("(", " ").replace(",", " ").replace(")", " ").replace("[", " ").split())
        known = {k: v for k, v in gm.graph.python_code("self").globals.items() if k in used}
        imports = imports_text(known)
    except (NoText, RuntimeError, ValueError) as e:
        return read_only(f"it holds {e}, which this file cannot make again. {where}", text)
    head = [f"{BY_ITSELF}. {where}", "", *imports, "", "", ""]
    return "\n".join(head) + text + "\n" + RUN.format(inputs=given, grad=grad, cls=type(gm).__name__.split(".")[0])


def input_lines(named: Iterable[tuple[str, object]]) -> str:
    """The inputs of a script, a line each. Raises: NoText."""
    return "\n".join(f"        {value_text(x)},  # {name}" for name, x in named)
