"""`bytejit.backends.aot`: user backends that take ATen graphs, the forward graph and, where gradients are needed, the backward
graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import fx

from bytejit.codegen.aten.graph import Aten
from bytejit.codegen.aten.rewrite import copy_graph
from bytejit.codegen.aten.run import run_aten
from bytejit.codegen.loops import index as ix
from bytejit.common.errors import BackendFailed, backend_name
from bytejit.common.graph_info import info_of
from bytejit.common.graph_modules import module_of
from bytejit.common.spec import Spec
from bytejit.runtime.ownership import UserError

from .surround import without_autocast
from .training import from_aten

Compile = Callable[[fx.GraphModule, Sequence], Callable]


class Flat:
    """A user's callable as the one call of a graph: the inputs -> the flat tuple of values."""

    __name__ = "compiled"

    def __init__(self, call: Callable) -> None:
        self.call = call

    def __str__(self) -> str:
        return self.__name__

    def __call__(self, *inputs: object) -> object:
        return self.call(*inputs)


def aot_backend(forward: Compile, backward: Compile | None) -> Callable:
    """The backend that `bytejit.backends.aot` returns."""

    def backend(gm: fx.GraphModule, example_inputs: list) -> Callable:
        def build(part: fx.GraphModule, aten: Aten) -> Callable:
            if info_of(part).is_backward:  # called by the program's `backward()`
                return without_autocast(part, compiled(aten, backward or forward))
            return without_autocast(part, compiled(aten, partial(raising_as_the_programs, forward)))

        return from_aten(gm, build)

    return backend


def raising_as_the_programs(compile: Compile, gm: fx.GraphModule, examples: Sequence) -> Callable:
    """Calls a compiler of the program's own within a compile. Raises: UserError with what it raises."""
    try:
        made = compile(gm, examples)
    except Exception as e:
        raise UserError(e) from None
    if not callable(made):
        raise UserError(BackendFailed(backend_name(compile), f"returned {type(made).__name__}, not a callable"))
    return made


def compiled(aten: Aten, compile: Compile) -> Callable:
    """The callable of a graph whose flat tuple the user's compiler computes. Raises: Undecided for symbolic sizes."""
    inputs = [n for n in aten.graph.nodes if n.op == "placeholder"]
    examples = [example(n.meta.get("spec")) for n in inputs]
    return with_outputs(aten, compile(module_of(copy_graph(aten.graph)), examples))


def with_outputs(aten: Aten, call: Callable) -> Callable:
    """The callable of a graph whose flat tuple `call` computes from the inputs and constants."""
    graph = fx.Graph()
    given = []
    for n in aten.graph.nodes:
        if n.op == "placeholder":
            given.append(graph.placeholder(n.name))
            given[-1].meta.update(n.meta)
    made = graph.call_function(Flat(call), tuple(given))
    flat = list(aten.graph.nodes)[-1].args[0]
    graph.output(tuple(graph.call_function(ResultItem(i), (made,)) for i in range(len(flat))))
    return run_aten(replace(aten, graph=graph))


class ResultItem(Flat):
    """One value of a flat tuple."""

    def __init__(self, index: int) -> None:
        super().__init__(lambda flat: flat[index])
        self.__name__ = f"item{index}"


def example(spec: object) -> object:
    """A tensor without memory that looks like an input. Raises: Undecided."""
    if not isinstance(spec, Spec) or not all(isinstance(n, int) for n in (*spec.shape, *spec.stride)):
        raise ix.Undecided("a backend of the user's own takes sizes that are known")
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")
