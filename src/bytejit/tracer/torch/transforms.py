"""torch.func's transforms in a region: `vmap`, `grad`, `vjp`, `jvp`, and through them `jacrev`, `jacfwd` and `hessian`.

torch's own Python around them is inlined; the functions that enter and leave a level of functorch are replaced by functions of
this module. The transformed function is traced once, on tensors as they look inside of the transform; what it added to the
graph is put into a graph of its own, which one node runs under torch's own transform. So a graph that runs op by op does what
torch does, and `normalise` looks through the transform down to plain operations.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._functorch import eager_transforms, vmap
from torch._functorch.eager_transforms import _replace_args, _slice_argnums
from torch.utils._pytree import tree_flatten, tree_unflatten

from bytejit.common import registry
from bytejit.common.graph_modules import module_of
from bytejit.fake.tensor import fake_of_spec, spec_of
from bytejit.shapes.symbols import is_symbolic
from bytejit.tracer.core.models import STAYING, models, replaces
from bytejit.tracer.core.signals import Break, Raised
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import (
    DELETED,
    NONE,
    DictVar,
    FuncVar,
    Lazy,
    TensorVar,
    Var,
    expect,
)
from bytejit.tracer.objects.containers import real_key
from bytejit.tracer.objects.reachable import reachable
from bytejit.tracer.torch.transformed import draws, transformed

from .checkpoints import begin
from .transform_levels import DIFFERENTIATES, Level


def transform(kind: str, flat: Callable, leaves: list, user: Any, options: Callable[[], tuple]) -> Sequence:
    """The tensors that `kind` of the function `flat`, from tensors to a list of tensors, makes of `leaves`. Known to the
    tracer only. user: the program's function within `flat`, which must change nothing. options(): asked after the trace."""
    raise NotImplementedError


# ---- torch's functions, as Python that is inlined ----------------------------------------------------------------------------
@replaces(vmap._flat_vmap)
def flat_vmap(
    func: Callable,
    batch_size: int,
    flat_in_dims: list,
    flat_args: list,
    args_spec: Any,
    out_dims: Any,
    randomness: str,
    **kwargs: Any,
) -> Any:
    made: list = []

    def flat(*given: Any) -> list:
        rest = iter(given)
        batched = [a if d is None else next(rest) for a, d in zip(flat_args, flat_in_dims)]
        leaves, spec = tree_flatten(func(*tree_unflatten(batched, args_spec), **kwargs))
        made.append(spec)
        return leaves

    def options() -> tuple:
        where = vmap._broadcast_to_and_flatten(out_dims, made[0])
        if where is None or any([d is None for d in where]):
            registry.graph_break("out_dims of torch.vmap")
        return tuple([d for d in flat_in_dims if d is not None]), tuple(where), randomness

    mapped = [a for a, d in zip(flat_args, flat_in_dims) if d is not None]
    return tree_unflatten(transform("vmap", flat, mapped, func, options), made[0])


def with_leaves(
    func: Callable, args: Any, argnums: int | tuple[int, ...] | None, spec: Any, kwargs: Any, has_aux: bool, made: list
) -> Callable:
    """`func` as a function of the leaves of its differentiated arguments; notes how its result is built in `made`."""

    def flat(*given: Any) -> list:
        new = tree_unflatten(list(given), spec)
        every = new if argnums is None else _replace_args(args, (new,) if type(argnums) is int else new, argnums)
        result, aux = func(*every, **kwargs), None
        if has_aux:
            if type(result) is not tuple or len(result) != 2:
                registry.graph_break("a function of torch.func with has_aux that returns no pair")
            result, aux = result
        leaves, shape = tree_flatten(result)
        extra, aux_shape = tree_flatten(aux if has_aux else ())
        if not all([isinstance(v, torch.Tensor) for v in extra]):
            registry.graph_break("a function of torch.func whose aux is no tensor")
        if not made:  # vjp_fn calls it again
            made.append((len(leaves), shape, aux_shape))
        return [*leaves, *extra]

    return flat


def rebuilt(made: list, values: Sequence) -> tuple:
    """The result and the aux of a function from `with_leaves`, rebuilt from the tensors that it returned."""
    n, shape, aux_shape = made[0]
    return tree_unflatten(list(values[:n]), shape), tree_unflatten(list(values[n:]), aux_shape)


@replaces(eager_transforms.grad_and_value_impl)
def grad_and_value(func: Callable, argnums: int | tuple[int, ...], has_aux: bool, args: Any, kwargs: Any) -> tuple:
    differentiated = _slice_argnums(args, argnums, as_tuple=False)
    argnums = eager_transforms._validate_and_wrap_argnums(argnums, len(args))
    leaves, spec = tree_flatten(differentiated)
    made: list = []
    flat = with_leaves(func, args, argnums, spec, kwargs, has_aux, made)
    values = transform("grad", flat, leaves, func, lambda: (made[0][0],))
    result, aux = rebuilt(made, values[len(leaves) :])
    grads = tree_unflatten(list(values[: len(leaves)]), spec)
    return (grads, (result, aux)) if has_aux else (grads, result)


@replaces(eager_transforms._vjp_with_argnums)
def vjp(func: Callable, *primals: Any, argnums: int | tuple[int, ...] | None = None, has_aux: bool = False) -> tuple:
    differentiated = primals if argnums is None else _slice_argnums(primals, argnums, as_tuple=False)
    if argnums is not None:
        argnums = eager_transforms._validate_and_wrap_argnums(argnums, len(primals))
    leaves, spec = tree_flatten(differentiated)
    made: list = []
    flat = with_leaves(func, primals, argnums, spec, {}, has_aux, made)
    values = transform("forward", flat, leaves, func, lambda: (made[0][0],))
    result, aux = rebuilt(made, values)
    count, shape = made[0][0], made[0][1]

    def vjp_fn(cotangents: Any, retain_graph: bool | None = True, create_graph: bool | None = None) -> Any:
        given, given_shape = tree_flatten(cotangents)
        if given_shape != shape:
            registry.graph_break("cotangents of torch.func.vjp of another structure than the result")
        grads = transform("vjp", flat, [*leaves, *given], func, lambda: (len(leaves), count))
        return tree_unflatten(list(grads), spec)

    return (result, vjp_fn, aux) if has_aux else (result, vjp_fn)


STAYING.set(next(c for c in vjp.__code__.co_consts if type(c) is types.CodeType and c.co_name == "vjp_fn"), True)


@replaces(eager_transforms._jvp_with_argnums)
def jvp(
    func: Callable,
    primals: Any,
    tangents: Any,
    argnums: int | tuple[int, ...] | None,
    *,
    strict: bool = False,
    has_aux: bool = False,
) -> tuple:
    if strict or type(primals) is not tuple:
        registry.graph_break("torch.func.jvp, strict")
    differentiated = primals if argnums is None else _slice_argnums(primals, argnums)
    if argnums is not None:
        argnums = eager_transforms._validate_and_wrap_argnums(argnums, len(primals))
    leaves, spec = tree_flatten(differentiated)
    given, given_spec = tree_flatten(tangents)
    if given_spec != spec:
        registry.graph_break("tangents of torch.func.jvp of another structure than the primals")
    made: list = []
    args_of = (
        with_leaves(func, primals, argnums, spec, {}, has_aux, made)
        if not isinstance(argnums, int)
        else with_leaves(func, primals, (argnums,), spec, {}, has_aux, made)
    )
    values = transform("jvp", args_of, [*leaves, *given], func, lambda: (len(leaves), made[0][0]))
    count, shape = made[0][0], made[0][1]
    pushed = tree_unflatten(list(values[count : 2 * count]), shape)
    result, aux = rebuilt(made, [*values[:count], *values[2 * count :]])
    return (result, pushed, aux) if has_aux else (result, pushed)


@models(vmap.lazy_load_decompositions)
def load_decompositions(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    vmap.lazy_load_decompositions()
    return NONE


# ---- the node -----------------------------------------------------------------------------------------------------------------
def given(x: torch.Tensor, *places: int) -> torch.Tensor:
    """Marks a tensor inside of the transform while a function is traced."""
    raise AssertionError("taken out of the graph when the trace of the function ends")


@models(transform)
def traced(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    kind, flat, user, options = t.const(args[0]), args[1], args[3], args[4]
    leaves = [t.values.real(v) for v in t.iteration.iterate(args[2])]
    if not leaves or not all(isinstance(v, TensorVar) and v.node is not None for v in leaves):
        raise Break(f"torch.func.{kind} of a value that is not a tensor")
    if t.overrides.modes and kind != "vmap" or t.inference:  # modes are asked about torch.autograd.grad within the others
        raise Break(f"torch.func.{kind} under a mode")
    grad, first = torch.is_grad_enabled(), len(t.graph.nodes)
    before = {v: v.fake._version for v in t.by_fake.values() if not v.fake.is_inference()}
    reached, outer, deferred = (
        reachable([user]),
        t.effects.touched,
        (t.deferred.count, len(t.effects.globals_written), len(t.effects.classes_written), len(t.effects.data_set)),
    )
    t.effects.touched = Touched()
    torch._C._set_grad_enabled(grad or kind in DIFFERENTIATES)  # as torch's own transforms do
    try:
        result, asked = inside(t, kind, flat, leaves, options)
    finally:
        torch._C._set_grad_enabled(grad)
        changed = t.effects.touched
        t.effects.touched = changed.within(outer)
    if (
        any(v.fake._version != n for v, n in before.items())
        or deferred != (t.deferred.count, len(t.effects.globals_written), len(t.effects.classes_written), len(t.effects.data_set))
        or kind == "vjp"
        and any((v.source is not None or key in reached) and not changed.same(key) for key, v in changed.items())
    ):
        raise Break(f"torch.func.{kind} of a function that has side effects")
    return one_node(t, kind, leaves, result, asked, list(t.graph.nodes)[first:])


class Touched(dict):
    """What a function changes, and the former contents of dicts: torch's functional_call restores a module's tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.before: dict[int, dict] = {}

    def __setitem__(self, key: int, v: Var) -> None:
        if key not in self and isinstance(v, DictVar):
            self.before[key] = held_by(v)
        super().__setitem__(key, v)

    def within(self, outer: dict[int, Var]) -> dict[int, Var]:
        """Merges these into `outer`, of which they are a part."""
        if not isinstance(outer, Touched):
            return {**outer, **self}
        both = Touched()
        both.before = {**self.before, **outer.before}
        dict.update(both, {**outer, **self})
        return both

    def same(self, key: int) -> bool:
        """Whether a dict holds what it held before."""
        before = self.before.get(key)
        if before is None:
            return False
        after = held_by(self[key])
        real = self[key].real if type(self[key].real) is dict else {}
        return all(before.get(k, real.get(real_key(k))) is after.get(k, real.get(real_key(k))) for k in (*before, *after))


def held_by(d: DictVar) -> dict:
    """Keys of a dict that were looked at or changed, and what stands for their values: the object where it is from outside."""
    found: dict = dict.fromkeys(d.deleted, DELETED)
    for key, (_, v) in d.items.items():
        v = v if type(v) is not Lazy or v.var is None else v.var
        found[key] = v.obj if type(v) is Lazy else v.real if isinstance(v, TensorVar) and v.real is not None else v
    return found


def inside(t: Tracer, kind: str, flat: Var, leaves: list, options: Var) -> tuple[list, tuple]:
    """Trace the function on tensors as they are inside; what it returns, and the options of the transform."""
    count = len(leaves)
    dims = None
    if kind == "vmap":  # the first of the options is known before: how the leaves are mapped
        dims = [
            t.const(t.values.real(d))
            for d in t.iteration.iterate(cell_of(t, flat, "flat_in_dims"))
            if not t.comparisons.is_same(t.values.real(d), NONE)
        ]
    elif kind in ("vjp", "jvp"):
        made = cell_of(t, flat, "spec")
        count = t.const(t.attributes.getattr(made, "num_leaves"))
    inner = [entered(t, v, None if dims is None else dims[i], kind) for i, v in enumerate(leaves[:count])]
    marks = [v.node for v in inner]
    versions = [v.fake._version for v in inner]
    t.levels.append(Level(kind, tuple(inner)))
    try:
        with t.deferred.part():
            result = [t.values.real(v) for v in t.iteration.iterate(t.calls.call(flat, list(inner), {}))]
    except Raised as e:
        raise Break(f"torch.func.{kind} of a function that raises {e.exc.cls.__name__}") from None
    finally:
        t.levels.pop()
    if [v.fake._version for v in inner] != versions:
        raise Break(f"torch.func.{kind} of a function that writes into its arguments")
    if not result or not all(isinstance(v, TensorVar) and v.node is not None for v in result):
        raise Break(f"torch.func.{kind} of a function that returns values other than tensors")
    return [marks, result], t.const(t.calls.call(options, [], {}))


def cell_of(t: Tracer, fn: Var, name: str) -> Var:
    """Returns the value of a variable of a function that was made in this module."""
    made = expect(fn, FuncVar)
    return t.values.real(made.closure[made.code.co_freevars.index(name)].content)


def entered(t: Tracer, v: TensorVar, dim: int | None, kind: str) -> TensorVar:
    """A tensor as it is inside of a transform. Raises: Break."""
    fake = v.fake
    wants = kind in DIFFERENTIATES or torch.is_grad_enabled() and fake.requires_grad
    if dim is not None:
        with torch.no_grad():
            fake = t.tensors.run_fake(torch.select, (fake, dim, 0), {})
    if wants and not (fake.is_floating_point() or fake.is_complex()):
        raise Break(f"torch.func.{kind} with respect to a tensor of {fake.dtype}")
    made = fake_of_spec(spec_of(fake), wants)
    node = t.graph.call_function(given, (v.node,))
    node.meta["val"], node.meta["where"] = made, t.tensors.where()
    var = t.by_fake[id(made)] = TensorVar(node, made)
    return var


def one_node(t: Tracer, kind: str, leaves: list, result: list, options: tuple, nodes: list) -> Var:
    """The node that stands for what the function added to the graph."""
    marks, outputs = result
    moved = [n for n in nodes if n.op != "placeholder" and not is_symbolic(n.meta.get("val"))]
    held = set(moved)
    taken = dict.fromkeys(i for n in moved if n not in marks for i in n.all_input_nodes if i not in held)
    taken.update(dict.fromkeys(v.node for v in outputs if v.node not in held))
    if any(n.target is begin for n in moved):
        raise Break(f"torch.utils.checkpoint under torch.func.{kind}")
    if kind in ("forward", "vjp") and any(draws(n) for n in moved):
        raise Break("torch.func.vjp of a function that draws random numbers")
    part = torch.fx.Graph()
    copies = {n: part.placeholder(n.name) for n in (*marks, *taken)}
    for n in moved:
        if n not in copies:
            copies[n] = part.node_copy(n, copies.__getitem__)
    part.output([copies[v.node] for v in outputs])
    for v in [v for v in t.by_fake.values() if v.node in held]:
        v.node, t.escaped[id(v)] = None, t.limits.steps  # a value that was kept is of no use outside
        t.keep.append(t.by_fake.pop(id(v.fake)))
    t.sizes.erase(moved)
    target = transformed(kind, module_of(part), len(leaves), options)
    args = (*(v.node for v in leaves), *taken)
    made = t.tensors.run_fake(target, tuple(n.meta["val"] for n in args), {})
    node = t.tensors.add_node(target, None, args, {})
    node.meta["val"] = made
    return t.tensors.wrap_result(node, made)
