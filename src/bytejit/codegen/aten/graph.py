"""What `normalise` gives: a functional ATen graph, and how user outputs and mutations are made from its values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from bytejit.codegen.loops.sizes import Sizes
from bytejit.common.errors import Bug
from bytejit.common.light_dataclass import light_dataclass
from bytejit.common.spec import Spec


@light_dataclass(frozen=True)
class OutputValue:
    """A user output: the value at `position` of the graph's output tuple. version: how many of the program's writes it counts."""

    position: int
    version: int = 0


@light_dataclass(frozen=True)
class Input:
    """A user output: the input tensor itself. Indices past the last input count `Aten.constants`."""

    index: int


@light_dataclass(frozen=True)
class Alias:
    """A user output: a view of `of`. Units: elements; sizes may be symbolic. offset: from `of`'s first element, not from the
    start of its storage. dtype: of the view, if it is another. apart: writes into the view do not change the version of `of`,
    as for `.data`; all outputs with the same number share a version. detached: for autograd it is not a view, as what
    `.detach()` returns; number: of that tensor, which others may be views of. version: as in `OutputValue`; 0: that of an input.
    behind: for autograd it is a view of that tensor, which is detached from `of`, and begins `inside` elements from its first
    one. kind: how autograd says that the view was made, where it is made in another way now (a name of `CreationMeta`)."""

    of: OutputValue | Input
    size: tuple
    stride: tuple
    offset: int
    dtype: torch.dtype | None = None
    apart: int | None = None
    detached: bool = False
    version: int = 0
    number: int | None = None
    behind: Alias | None = None
    inside: Any = 0
    kind: str | None = None


def memory_as(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The memory of a tensor from its first element on, as a flat tensor of another dtype. Parts of complex numbers, and numbers
    made of parts, are a view for autograd; all others are not."""
    unit = max(x.itemsize, dtype.itemsize)
    behind = x.untyped_storage().nbytes() - x.storage_offset() * x.itemsize
    count = behind // unit * unit // x.itemsize
    if x.is_complex() and dtype is x.dtype.to_real():
        return torch.view_as_real(x.as_strided((count,), (1,))).as_strided((2 * count,), (1,))
    if dtype.is_complex and x.dtype is dtype.to_real():
        return torch.view_as_complex(x.as_strided((count // 2, 2), (2, 1)))
    return x.as_strided((count,), (1,)).view(dtype)


# operators whose argument at that position is such an offset, None for 0; torch's own counts from the storage's first element
OFFSETS = {torch.ops.aten.as_strided.default: 3, torch.ops.aten.as_strided_scatter.default: 4}


@light_dataclass(frozen=True)
class Const:
    """A user output that is no tensor of the graph."""

    value: object


@light_dataclass(frozen=True)
class OutputNumber:
    """A user output: a number that is known at the call only: a size (`Index`) or a `sizes.Real`."""

    value: object


def sized(graph: torch.fx.Graph) -> Sizes:
    """Symbolic numbers of the tracer become sizes of codegen in a graph's arguments and specs. Returns what converts them."""
    sizes = Sizes()
    for node in graph.nodes:
        if "spec" in node.meta:
            node.meta["spec"] = sizes(node.meta["spec"])
        if node.op == "call_function":
            node.args, node.kwargs = sizes(node.args), sizes(dict(node.kwargs))
    return sizes


Out = OutputValue | Input | Alias | Const | OutputNumber


def base_of(out: Out) -> Out:
    """Returns what an output is a view of, or the output itself."""
    return out.of if isinstance(out, Alias) else out


def positions(out: Out) -> tuple[int, ...]:
    """The value that an output needs, if any."""
    base = base_of(out)
    return (base.position,) if isinstance(base, OutputValue) else ()


def same(number: int) -> int:
    """The number itself: for `renumbered`."""
    return number


def renumbered(out: Out, value: Callable[[int], int] = same, input: Callable[[int], int] = same) -> Out:
    """An output with other numbers: of its value, and of its input."""

    def at(of: OutputValue | Input) -> OutputValue | Input:
        return replace(of, position=value(of.position)) if isinstance(of, OutputValue) else Input(input(of.index))

    if isinstance(out, Alias):
        behind = out.behind and replace(out.behind, of=at(out.behind.of))
        return replace(out, of=at(out.of), behind=behind)
    return at(out) if isinstance(out, (OutputValue, Input)) else out


@light_dataclass(frozen=True)
class Mutation:
    """At the end the value at `position` is copied into input `input`. writes: how many of the program's its version counts
    (none of those through `.data`)."""

    input: int
    position: int
    writes: int = 1


@light_dataclass(frozen=True)
class Aten:
    """A functional ATen graph. See docs/architecture.md section 5.

    graph: placeholders (the inputs, then one for each of `constants`), calls of ATen overloads and
    `operator.getitem`, one output
    node with a flat tuple. No op writes into its arguments. `as_strided` counts its offset from its argument's
    first element.
    Values that an output exposes are neither placeholders nor views, and two outputs never expose one value under
    two storages.
    single: the traced graph returned one value, not a tuple.
    """

    graph: torch.fx.Graph
    outputs: tuple[Out, ...]
    mutations: tuple[Mutation, ...] = ()
    constants: tuple[torch.Tensor, ...] = ()
    single: bool = False

    def __repr__(self) -> str:
        return f"Aten({len(self.graph.nodes)} nodes, outputs {list(self.outputs)}, mutations {list(self.mutations)})"

    def inputs(self) -> list[torch.fx.Node]:
        """The placeholders of what the caller passes."""
        found = [n for n in self.graph.nodes if n.op == "placeholder"]
        return found[: len(found) - len(self.constants)]

    def old_grads(self) -> dict[int, tuple[int, ...]]:
        """Inputs whose `.grad` dies at the end of a call, and is not read -> the value that takes its place, if it is one."""
        found = {i: n.meta["new_grad"] for i, n in enumerate(self.inputs()) if "new_grad" in n.meta}
        return {i: positions(self.outputs[at]) for i, at in found.items()}

    def is_boxed(self) -> bool:
        """Whether the caller gives its inputs up, in a list that the call empties: a backward graph frees what was saved as soon
        as nothing reads it any more."""
        return any("boxed" in n.meta for n in self.inputs())

    def text(self) -> str:
        """The graph in lines: `v3: f32[2,4] = add.Tensor(p0, 1)  # model.py:14`; the last lines name outputs
        and mutations.
        """
        return text(self)


def text(aten: Aten) -> str:
    """See `Aten.text`."""
    names: dict[torch.fx.Node, str] = {}
    lines = []
    for node in aten.graph.nodes:
        if node.op == "output":
            lines.append(f"return {_show(node.args[0], names)}")
            continue
        names[node] = name = f"p{len(lines)}" if node.op == "placeholder" else f"v{len(lines)}"
        spec = node.meta.get("spec")
        call = "input" if node.op == "placeholder" else _call(node, names)
        where = node.meta.get("where")
        place = f"  # {getattr(where, 'short', where)}" if where is not None else ""
        lines.append(f"{name}: {_show_spec(spec)} = {call}{place}")
    lines += [f"out {i}: {out!r}" for i, out in enumerate(aten.outputs)]
    lines += [f"write p{m.input}: position {m.position}" for m in aten.mutations]
    return "\n".join(lines) + "\n"


def _show_spec(spec: Any) -> str:
    return "(" + ", ".join(map(_show_spec, spec)) + ")" if isinstance(spec, (tuple, list)) else repr(spec)


def _call(node: torch.fx.Node, names: dict) -> str:
    if node.target is operator.getitem:
        return f"{names[node.args[0]]}[{node.args[1]}]"
    args = [_show(a, names) for a in node.args] + [f"{k}={_show(v, names)}" for k, v in node.kwargs.items()]
    target = str(node.target).removeprefix("aten.").removesuffix(".default")
    return f"{target}({', '.join(args)})"


def _show(value: Any, names: dict) -> str:
    if isinstance(value, torch.fx.Node):
        return names[value]
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_show(v, names) for v in value) + "]"
    if isinstance(value, torch.ScriptObject):
        return type(value).__name__  # its own text holds an address
    return str(value).removeprefix("torch.") if isinstance(value, (torch.dtype, torch.memory_format)) else repr(value)


def _check_part(node: torch.fx.Node) -> None:
    """Raises: Bug for a part that lies otherwise than the operation before it says: who reads the one would misread the other."""
    whole, index = node.args
    specs = whole.meta.get("spec")
    own = specs[index] if isinstance(specs, (tuple, list)) and index < len(specs) else None
    if own is not None and own != node.meta.get("spec"):
        raise Bug(f"{whole.target} makes its result {index} as {own}, and its reader takes it as {node.meta.get('spec')}")


def check(aten: Aten) -> Aten:
    """Returns `aten` when it is a legal functional graph. Raises: Bug naming the first node that is not."""
    nodes = list(aten.graph.nodes)
    inputs = sum(n.op == "placeholder" for n in nodes)
    outputs = nodes[-1].args[0]
    for node in nodes[:-1]:
        if node.op == "placeholder":
            continue
        if node.op != "call_function":
            raise Bug(f"normalise: {node.op} {node.target} in an ATen graph, from {node.meta.get('where')}")
        if node.target is not operator.getitem and node.target._schema.is_mutable:
            raise Bug(f"normalise: {node.target} writes into its arguments, from {node.meta.get('where')}")
        if not isinstance(node.meta.get("spec"), (Spec, tuple, list, type(None))):
            raise Bug(f"normalise: {node.target} has the spec {node.meta.get('spec')!r}")
        if node.target is operator.getitem:
            _check_part(node)
    for out in aten.outputs:
        base = out.of if isinstance(out, Alias) else out
        if isinstance(base, OutputValue) and not isinstance(outputs[base.position], torch.fx.Node):
            raise Bug(f"normalise: {out} names {outputs[base.position]!r}, which is no tensor")
        if isinstance(base, Input) and base.index >= inputs:
            raise Bug(f"normalise: {out} of a graph with {inputs} inputs")
    for write in aten.mutations:
        if write.input >= inputs or not isinstance(outputs[write.position], torch.fx.Node):
            raise Bug(f"normalise: {write} of a graph with {inputs} inputs and {len(outputs)} outputs")
    return aten
