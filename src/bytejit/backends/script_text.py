"""A functional ATen graph as TorchScript: the source of one function, whose arguments are typed by the operators' schemas.

TorchScript chooses the overload of an operator by the types of its arguments. A size that is a symbol is an int argument.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from bytejit.codegen.aten.graph import OFFSETS
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.index import Index
from bytejit.codegen.loops.sizes import Real, SizeText
from bytejit.codegen.ops.calls import acts, stays
from bytejit.common.spec import Spec
from bytejit.common.text import first_line

# the result's dtype is the first argument's, or is written out, whatever the number is
KEEP_DTYPE = frozenset(
    {
        torch.ops.aten.masked_fill.Scalar,
        torch.ops.aten.fill.Scalar,
        torch.ops.aten.constant_pad_nd.default,
        torch.ops.aten.full.default,
    }
)
ANNOTATED = frozenset({"List[int]", "List[float]", "List[bool]", "List[Tensor]", "List[Optional[Tensor]]"})


class ScriptRefused(Exception):
    """TorchScript cannot run a graph, or would not run it as torch does. The message says why."""


def scripted(graph: fx.Graph) -> tuple[Callable, str]:
    """A function of the graph's inputs that returns its flat tuple, run by TorchScript; and its source. Raises: ScriptRefused."""
    source, read, fixed = ScriptText(graph).written()
    try:
        run = torch.jit.CompilationUnit(source).run
    except RuntimeError as e:
        raise ScriptRefused(f"TorchScript refuses it: {first_line(e)}") from None

    def call(*inputs: Any) -> Sequence:
        made = run(*[inputs[i] for i in read])
        # TorchScript computes once what depends on no input, and returns the same tensor each time
        return [t.clone() if k in fixed else t for k, t in enumerate(made)] if fixed else made

    return call, source


def fixed_values(graph: fx.Graph, varying: Callable[[fx.Node], bool] = lambda n: True) -> frozenset[int]:
    """Positions of the flat tuple whose values depend on no input of `varying`, and so are the same in every call."""
    moving: set[fx.Node] = set()
    for n in graph.nodes:
        if n.op == "placeholder" and varying(n) or acts(n) or not moving.isdisjoint(n.all_input_nodes):
            moving.add(n)
    return frozenset(k for k, value in enumerate(list(graph.nodes)[-1].args[0]) if value not in moving)


def unread_effects(graph: fx.Graph) -> str:
    """The first call that is made only for its effect or check, which TorchScript would remove; "" when there is none."""
    return next((str(n.target) for n in graph.nodes if n.op == "call_function" and not n.users and stays(n)), "")


def turns_int(node: fx.Node, types: Mapping[str, str]) -> bool:
    """Whether a Python bool stands where a call takes any number, and no tensor of a larger dtype decides the result's."""
    given = [*zip(types, node.args), *node.kwargs.items()]
    specs = [n.meta.get("spec") for n in node.all_input_nodes]
    return any(isinstance(v, bool) and "number" in types[name] for name, v in given) and all(
        isinstance(s, Spec) and s.dtype is torch.bool for s in specs
    )


class ScriptText:
    """Prints one graph."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self.text: dict[fx.Node, str] = {}
        self.symbols: dict[str, str] = {}
        self.sizes = SizeText(self.symbol)

    def written(self) -> tuple[str, tuple[int, ...], frozenset[int]]:
        """The source, the inputs that it takes, and the positions of its result that no input decides. Raises: ScriptRefused."""
        if effect := unread_effects(self.graph):
            raise ScriptRefused(f"{effect} is called for its effect")
        *nodes, last = self.graph.nodes
        inputs = [n for n in nodes if n.op == "placeholder"]
        taken = [(i, text) for i, n in enumerate(inputs) if (text := self.parameter(n, f"p{i}"))]
        lines = [f"def run({', '.join(text for _, text in taken)}):"]
        for i, node in enumerate(nodes):
            if node.op == "call_function":
                self.text[node] = f"v{i}"
                lines.append(f"    v{i} = {self.call(node)}")
        flat = last.args[0]
        if not all(isinstance(v, fx.Node) for v in flat):
            raise ScriptRefused("it returns a number")
        lines.append(f"    return ({''.join(self.text[v] + ', ' for v in flat)})")
        return "\n".join(lines) + "\n", tuple(i for i, _ in taken), fixed_values(self.graph)

    def parameter(self, node: fx.Node, name: str) -> str:
        """The declaration of an input; "" for one that nothing reads and that is no number."""
        spec = node.meta.get("spec")
        self.text[node] = name
        if isinstance(spec, Spec):
            return f"{name}: Tensor" if node.users else ""
        if isinstance(spec, Real):
            self.symbols[spec.symbol] = name
            return f"{name}: float"
        names = [s for s, symbol in ix.symbols(spec).items() if spec == ix.index(symbol)]
        if not names:
            if node.users:
                raise ScriptRefused(f"input {node.name} is no tensor")
            return ""
        self.symbols[names[0]] = name
        return f"{name}: int"

    def symbol(self, name: str, text: str = "") -> str:
        """Returns the text of a size symbol."""
        if text:
            return self.sizes.words(text)
        if name not in self.symbols:
            raise ScriptRefused(f"the size {name} is no input")
        return self.symbols[name]

    def call(self, node: fx.Node) -> str:
        """A call of an operator, or an item of what one returned."""
        if node.target is operator.getitem:
            return f"{self.text[node.args[0]]}[{node.args[1]}]"
        if not isinstance(node.target, torch._ops.OpOverload):
            raise ScriptRefused(f"{node.target} is no operator of torch's")
        schema = node.target._schema
        types = {a.name: str(a.type) for a in schema.arguments}
        if node.target not in KEEP_DTYPE and "dtype" not in node.kwargs and turns_int(node, types):
            raise ScriptRefused(f"{node.target} of a bool: TorchScript takes it for an int")
        given = [self.value(v, str(a.type)) for v, a in zip(node.args, schema.arguments)]
        kwargs = dict(node.kwargs)
        if node.target is torch.ops.aten.full.default:
            kwargs["dtype"] = node.meta["spec"].dtype  # TorchScript takes True for 1
        given += [f"{k}={self.value(v, types[k])}" for k, v in kwargs.items()]
        at = OFFSETS.get(node.target)
        if at:
            given[at:] = [f"{given[0]}.storage_offset() + {given[at] if len(given) > at else 0}"]
        return f"torch.ops.{schema.name.replace('::', '.')}({', '.join(given)})"

    def value(self, value: Any, of: str) -> str:
        """An argument. of: its type in the schema."""
        if isinstance(value, fx.Node):
            return self.text[value]
        if isinstance(value, (list, tuple)):
            of = of[len("Optional[") : -1] if of.startswith("Optional[") else of
            text = "[" + ", ".join(self.value(v, of.removeprefix("List[").removesuffix("]")) for v in value) + "]"
            return f"torch.jit.annotate({of}, {text})" if of in ANNOTATED else text
        if isinstance(value, (Index, Real)):
            return f"float({self.sizes(value)})" if "float" in of else self.sizes(value)
        if value is None or isinstance(value, (bool, str)):
            return repr(value)
        if isinstance(value, int):
            return repr(float(value)) if "float" in of else repr(value)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if isinstance(value, complex):
            return f"complex({self.value(value.real, 'float')}, {self.value(value.imag, 'float')})"
        if isinstance(value, torch.device):
            return f'torch.device("{value}")'
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        raise ScriptRefused(f"a {type(value).__name__} is an argument")
