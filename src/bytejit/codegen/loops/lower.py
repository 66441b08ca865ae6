"""Functional ATen graph -> loop IR: a kernel for each op, an index map for each view, an extern call for each op without a row.

`lower(aten)` walks the graph once. Each node becomes a `Value`: a buffer and, for views, a map from the value's
coordinates to the buffer's. The rows of the op table say how (`Op.lower`, or the default for pointwise rows); they
are given the `Lowering` as `ctx`. Nothing is fused here: codegen/loops/passes/fuse.py inlines and merges.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch

from bytejit.codegen.loops.expr import Expr
from bytejit.codegen.loops.lowering import LibraryIsBetter, Lowering, NoRule
from bytejit.codegen.ops.calls import of_other_dtype, of_unlike_dtypes, row_of, stays
from bytejit.codegen.ops.table import Op
from bytejit.codegen.ops.writes import written
from bytejit.common.dtypes import DTYPES, NARROW, acc_dtype
from bytejit.common.errors import Bug
from bytejit.common.interrupts import poll
from bytejit.common.spec import Spec

from . import index as ix
from .index import Index
from .ir import Extern, Loops, MutationCopy, Result
from .sizes import Real
from .value import Value, ir_dtype, promote


def lower_pointwise(ctx: Lowering, row: Op, *args: Any, **kwargs: Any) -> Value:
    """The default of pointwise rows: positional arguments (tensors, numbers) are broadcast, and computed in the dtype that the
    row's rule says. Raises: NoRule."""
    if kwargs or len(args) != row.arity:
        raise NoRule(f"{row.name}: {len(args)} arguments and {sorted(kwargs)}")
    common = ir_dtype(ctx.spec())
    if row.dtype in ("bool", "arg"):
        common = promote(list(args) if row.dtype == "bool" else [args[0]])
    dtype = acc_dtype(common)
    if dtype not in row.dtypes or common not in row.dtypes:
        raise NoRule(f"{row.name} of {common}")
    result = "b8" if row.dtype == "bool" else dtype

    def operand(i: int, a: Any, c: tuple) -> Expr:
        rounded = i in row.rounds and common in NARROW
        return ctx.cast(ctx.rounded(ctx.read(a, c), common), dtype) if rounded else ctx.read(a, c, dtype)

    return ctx.map(lambda c: ctx.cons.op(row.name, tuple(operand(i, a, c) for i, a in enumerate(args)), result, ctx.where))


def supported(specs: Any) -> bool:
    """Whether kernels can hold values of these specs."""
    if isinstance(specs, (tuple, list)):
        return all(map(supported, specs))
    return specs is None or not isinstance(specs, Spec) or ir_dtype(specs) in DTYPES


def lower(aten: Any) -> Loops:
    """The loops of a functional ATen graph. aten: an `Aten`; its graph, outputs and mutations are read. Raises: Bug for a node
    that no ATen graph has."""
    ctx = Lowering()
    ctx.home = home_of(aten.graph)
    env: dict[Any, Any] = {}
    outputs: tuple[Any, ...] = next((n.args[0] for n in reversed(aten.graph.nodes) if n.op == "output"), ())
    ctx.written = written(outputs, aten.mutations, aten.graph.nodes if ctx.home == "cpu" else ())
    for node in aten.graph.nodes:
        poll()
        ctx.node, ctx.where = node, node.meta.get("where")
        if node.op == "placeholder":
            env[node] = _placeholder(ctx, node)
        elif node.op == "call_function":
            if not node.users and not stays(node):
                continue
            env[node] = lower_node(ctx, node, env)
        elif node.op != "output":
            raise Bug(f"lower: {node.op} {node.target} is not part of an ATen graph, at {ctx.where}")
    results = _outputs(ctx, outputs, env, aten.mutations)
    exposed = {getattr(getattr(o, "of", o), "position", None) for o in aten.outputs}
    mutations = tuple(MutationCopy(m.input, m.position) for m in aten.mutations)
    private = frozenset(m.position for m in mutations) - exposed
    return Loops(tuple(ctx.inputs), ctx.buffers, tuple(ctx.steps), results, mutations, private, ctx.symbols, ctx.cons)


def _placeholder(ctx: Lowering, node: Any) -> Value | Index | None:
    spec = node.meta.get("spec")
    if not isinstance(spec, Spec):
        ctx.inputs.append(None)
        if isinstance(spec, Real) and spec.symbol:
            ctx.symbols[spec.symbol] = len(ctx.inputs) - 1
        for name, symbol in ix.symbols(spec).items():
            if spec == ix.index(symbol):
                ctx.symbols[name] = len(ctx.inputs) - 1
        return spec
    b = ctx.buffer(spec.shape, ir_dtype(spec), spec.stride, "input", name=f"p{len(ctx.inputs)}")
    ctx.inputs.append(b.name)
    if "numbers" in node.meta:
        ctx.row = b.name, node.meta["numbers"]
    return Value(b.name, spec.shape, b.dtype)


def lower_node(ctx: Lowering, node: Any, env: dict[Any, Any]) -> Any:
    """The value (or tuple of values) of one call: by its row, else as an extern call."""
    args = torch.fx.map_arg(node.args, env.__getitem__)
    kwargs = torch.fx.map_arg(dict(node.kwargs), env.__getitem__)
    if node.target is operator.getitem:
        return args[0][args[1]]
    target = str(node.target)
    row = row_of(node)
    library = row is not None and row.kind == "extern"
    nothing = _is_empty(node.meta["spec"])
    if row is not None and not library and nothing and not row.refuses and not of_other_dtype(row, node):
        # no rule for a result without elements: for a view of an empty tensor it would divide by zero
        return ctx.map(lambda c: ctx.const(0, acc_dtype(ir_dtype(node.meta["spec"]))))
    if ctx.home != "cpu" and ctx.device() == ctx.home and target != TO_COPY:
        args = _copy_to_home(ctx, args)
    if row is not None and not library and not nothing and supported(node.meta["spec"]) and _same_device(ctx, args):
        mark = len(ctx.steps)
        try:
            if row.lower is not None:
                return row.lower(ctx, *args, **kwargs)
            return lower_pointwise(ctx, row, *args, **kwargs)
        except (NoRule, ix.Undecided) as reason:
            library = isinstance(reason, LibraryIsBetter)
            del ctx.steps[mark:]  # the pass drop_dead removes the buffers that nothing writes now
    if target == ATTENTION and ctx.home != "cpu":
        args, kwargs = _with_dense_mask(ctx, args, kwargs)
    fails = row is not None and (row.refuses or of_unlike_dtypes(row, node))
    why = "no row" if not library else "library, may fail" if fails else "library"
    return ctx.extern(target, args, kwargs, row, why)


def _is_empty(spec: Any) -> bool:
    """Whether a result is a tensor without elements whatever the inputs are."""
    return isinstance(spec, Spec) and supported(spec) and any(isinstance(n, int) and n == 0 for n in spec.shape)


ATTENTION = "aten.scaled_dot_product_attention.default"


def _with_dense_mask(ctx: Lowering, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments of an attention with its mask as the GPU's fused kernels take it: floats, not bools, with stride 1 in the
    last dim. It is made once for all layers. torch would convert a mask of bools in each layer, and does not use those kernels
    for a mask with another stride."""
    mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
    if not isinstance(mask, Value) or mask.dtype not in DTYPES:
        return args, kwargs
    given: Value = mask
    if mask.dtype != "b8" and mask.shape and ctx.as_view(mask).stride[-1] == 1:
        return args, kwargs
    key = replace(mask, shape=(*mask.shape, args[0].dtype))
    if key not in ctx.brought:
        dtype = args[0].dtype
        if mask.dtype == "b8":
            low, zero = (ctx.const(x, acc_dtype(dtype)) for x in (float("-inf"), 0.0))
            made = ctx.pointwise(
                mask.shape, dtype, lambda c: ctx.op("select", ctx.read(given, c, "b8"), zero, low, dtype=acc_dtype(dtype))
            )
        else:
            made = ctx.copy(mask)
        ctx.brought[key] = made
    mask = ctx.brought[key]
    return ((*args[:3], mask, *args[4:]), kwargs) if len(args) > 3 else (args, {**kwargs, "attn_mask": mask})


TO_COPY = "aten._to_copy.default"


def home_of(graph: Any) -> str:
    """The device that a graph's kernels run on: the device of the first tensor that is not on the CPU, else "cpu"."""
    for node in graph.nodes:
        specs = node.meta.get("spec")
        for spec in specs if isinstance(specs, (tuple, list)) else (specs,):
            if isinstance(spec, Spec) and spec.device.type != "cpu":
                return str(spec.device)
    return "cpu"


def _copy_to_home(ctx: Lowering, args: Any) -> Any:
    """The operands, with 0-dim tensors on the CPU copied to the GPU, each once: torch treats such tensors as numbers."""
    if isinstance(args, (tuple, list)):
        return tuple(_copy_to_home(ctx, a) for a in args)
    if not isinstance(args, Value) or args.shape or ctx.buffers[args.buffer].device == ctx.home or args.dtype not in DTYPES:
        return args
    if args not in ctx.brought:
        b = ctx.buffer((), args.dtype, (), "extern", ctx.home)
        ctx.steps.append(
            Extern(
                ctx.name("e"),
                TO_COPY,
                (ctx.as_view(args),),
                (("device", torch.device(ctx.home)),),
                (b.name,),
                False,
                "library",
                ctx.where,
            )
        )
        ctx.brought[args] = Value(b.name, (), args.dtype)
    return ctx.brought[args]


def _same_device(ctx: Lowering, args: Any) -> bool:
    device = ctx.device()
    ok = device == ctx.home

    def check(v: Any) -> None:
        nonlocal ok
        if isinstance(v, Value):
            ok = ok and ctx.buffers[v.buffer].device == device and v.dtype in DTYPES
        elif isinstance(v, (tuple, list)):
            for x in v:
                check(x)

    check(args)
    return ok


def _outputs(ctx: Lowering, nodes: tuple, env: dict[Any, Any], mutations: tuple) -> tuple[Result, ...]:
    """The flat outputs. A buffer that holds one becomes an `output`. A value is copied where two outputs may not share memory."""
    taken: dict[str, Any] = {}
    results = []
    written = {m.position for m in mutations}
    for position, node in enumerate(nodes):
        if not isinstance(node, torch.fx.Node):
            results.append(Result(None, node))
            continue
        v = env[node]
        if not isinstance(v, Value):
            results.append(Result(None, v))
            continue
        ctx.node, ctx.where = node, node.meta.get("where")
        b = ctx.buffers[v.buffer]
        shared = b.name in taken or b.kind == "input"
        if (
            (shared and (v.elided or taken.get(b.name) not in (None, node) and v.map is None))
            or (b.kind == "input" and position in written)
            or b.dtype not in DTYPES
            and v.map is not None
        ):
            v = ctx.copy(v, node.meta["spec"].stride)
            b = ctx.buffers[v.buffer]
        view = ctx.as_view(v)
        b = ctx.buffers[view.buffer]
        taken[b.name] = node
        if b.kind == "temp":
            ctx.buffers[b.name] = replace(b, kind="output")
        results.append(Result(view))
    return tuple(results)
