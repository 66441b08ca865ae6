"""Numbers that are known only at the call and that kernels on a GPU read (a learning rate, a temperature) become one row of
memory on the GPU: `f64[n]`, an input of the graph.

A number passed by value is fixed in a recorded CUDA graph. A kernel that reads it from memory is recorded once for all values.
Arguments of library calls stay numbers.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.sizes import Real, SizeText
from bytejit.codegen.ops.calls import kind_of
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec

from .graph import Aten, renumbered
from .rewrite import copy_graph, spec_or_none


@light_dataclass(frozen=True)
class NumberRow:
    """A graph whose input after the caller's own is the row. pack(inputs): the numbers as bytes; count: how many."""

    aten: Aten
    count: int
    pack: Callable[..., bytes]


def number_row(aten: Aten, device: torch.device) -> NumberRow | None:
    """The graph with the numbers that its kernels on `device` may read as a row; None where there are none."""
    nodes, inputs = list(aten.graph.nodes), aten.inputs()
    given = len(inputs)
    names = dict(_names(inputs))
    texts = list(dict.fromkeys(r.text for n in nodes if _in_kernels(n, device) for r in _reals((n.args, n.kwargs))))
    texts = [t for t in texts if set(re.findall(r"\b[sf]\d+\b", t)) <= names.keys()]
    if not texts:
        return None
    graph = copy_graph(aten.graph)
    last = [n for n in graph.nodes if n.op == "placeholder"][given - 1]  # there is one: a number comes from an input
    with graph.inserting_after(last):
        row = graph.placeholder("numbers")
    row.meta["spec"] = Spec((len(texts),), (1,), torch.float64, device)
    row.meta.update(numbers=tuple(texts), fresh=True)
    outputs = tuple(renumbered(o, input=lambda i: i + (i >= given)) for o in aten.outputs)
    made = replace(aten, graph=graph, outputs=outputs)
    return NumberRow(made, len(texts), _packer(texts, names))


def _in_kernels(node: fx.Node, device: torch.device) -> bool:
    """Whether a call may become part of a kernel."""
    spec = spec_or_none(node)
    return node.op == "call_function" and spec is not None and spec.device == device and kind_of(node) not in (None, "extern")


def _reals(value: Any) -> Iterator[Real]:
    if isinstance(value, Real):
        yield value
    elif isinstance(value, (tuple, list)):
        for v in value:
            yield from _reals(v)
    elif isinstance(value, dict):
        yield from _reals(list(value.values()))


def _names(inputs: list[fx.Node]) -> Iterator[tuple[str, str]]:
    """The symbols whose values are inputs, with the text of each input."""
    for i, node in enumerate(inputs):
        spec = node.meta.get("spec")
        if isinstance(spec, Real):
            yield spec.symbol, f"inputs[{i}]"
        elif not isinstance(spec, Spec):
            yield from ((name, f"inputs[{i}]") for name, symbol in ix.symbols(spec).items() if spec == ix.index(symbol))


def _packer(texts: list[str], names: dict[str, str]) -> Callable[..., bytes]:
    sizes = SizeText(lambda name, text="": names[name])
    values = ", ".join(map(sizes.words, texts))
    space = {"math": math, "pack": struct.Struct(f"{len(texts)}d").pack}
    made: Callable[..., bytes] = eval(f"lambda *inputs: pack({values})", space)
    return made
