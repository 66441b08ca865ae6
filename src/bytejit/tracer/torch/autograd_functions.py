"""torch.autograd.Function: without gradients its forward is inlined; with them one node of the graph applies it.

Under gradients the forward is traced all the same, for its guards, for what it returns, and to see that it does nothing
but compute; its nodes are then replaced by the one node, which runs the user's own `apply` with its own context, or, for a
backend that records it, both passes as they were traced (`autograd_passes.py`).
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from bytejit.common.applied import Applied, TracedPasses
from bytejit.guards.sources import Ref
from bytejit.tracer.core.constants import NotConstant, is_constant, to_python
from bytejit.tracer.core.descriptions import words
from bytejit.tracer.core.models import models, replaces
from bytejit.tracer.core.signals import Break
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import CellVar, FuncVar, InstanceVar, Known, MethodVar, SeqVar, SymVar, TensorVar, Var, expect
from bytejit.tracer.objects.class_facts import class_lookup
from bytejit.tracer.objects.code_reach import walk
from bytejit.tracer.objects.library import real_object

from .autograd_passes import ApplyCall, number_or_constant, traced_passes
from .effects_of_calls import has_external_effects, without_gradients
from .transform_levels import check_rules, requires_gradients

Make: TypeAlias = Callable[[], Any]
OBJECTS = (FuncVar, MethodVar, InstanceVar)
# values that cannot be written in the text of a graph
SPELLED_BY_NONE = (types.BuiltinFunctionType, types.MethodDescriptorType, type, types.ModuleType)


class Context:
    """The ctx that a forward gets while it is traced. Attributes are named as torch's own: others are the program's."""

    def __init__(self, needs_input_grad: tuple) -> None:
        self.needs_input_grad = needs_input_grad
        self.non_differentiable: tuple = ()
        self.dirty_tensors: tuple = ()
        self.to_save: tuple = ()
        self.materialize_grads = True

    def save_for_backward(self, *tensors: Sequence) -> None:
        self.saved_tensors = self.to_save = tensors

    def save_for_forward(self, *tensors: Sequence) -> None:
        pass

    def mark_dirty(self, *tensors: Sequence) -> None:
        self.dirty_tensors = tensors

    def mark_non_differentiable(self, *tensors: Sequence) -> None:
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: Any) -> None:
        self.materialize_grads = value


def apply_as_stored() -> object:
    """`apply` as stored in `torch.autograd.Function`: a Python function before torch 2.14, a descriptor since."""
    found = class_lookup(torch.autograd.Function, "apply")[0]
    return found.__func__ if isinstance(found, classmethod) else found


@replaces(apply_as_stored())
def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    check_rules(cls)
    needs = tuple(isinstance(a, torch.Tensor) and requires_gradients(a) for a in args)
    if torch.is_grad_enabled() and any(needs) and not kwargs:
        return with_backward(cls, needs, args)
    if not torch.is_grad_enabled():
        return without_backward(cls, Context(needs), args, kwargs)
    if kwargs:
        return with_keywords(cls)
    torch._C._set_grad_enabled(False)  # its forward may use other tensors than the arguments
    try:
        return without_backward(cls, Context(needs), args, kwargs)
    finally:
        torch._C._set_grad_enabled(True)


def without_backward(cls: Any, ctx: Any, args: Any, kwargs: Any) -> Any:
    """What `apply` makes of the forward's results: an argument that is returned is another tensor, a view of it."""

    def apart(x: Any) -> Any:
        given = isinstance(x, torch.Tensor) and any([x is a for a in args]) and not any([x is d for d in ctx.dirty_tensors])
        return x.view_as(x) if given else x

    found = run_forward(cls, ctx, args, kwargs)
    return tuple([apart(x) for x in found]) if type(found) is tuple else apart(found)


def run_forward(cls: Any, ctx: Any, args: Any, kwargs: Any) -> Any:
    if cls.setup_context is torch.autograd.Function.setup_context:
        return cls.forward(ctx, *args, **kwargs)
    outputs = cls.forward(*args, **kwargs)
    cls.setup_context(ctx, args, outputs)
    return outputs


def with_backward(cls: Any, needs: Any, args: Any) -> Any:
    """Stands for the call that becomes a node."""
    raise AssertionError("only traced")


def with_keywords(cls: Any) -> Any:
    """Stands for a call with keyword arguments under gradients."""
    raise AssertionError("only traced")


@models(with_keywords)
def refuse_keywords(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    raise Break(f"{expect(args[0], Known).obj.__name__}.apply with keyword arguments under gradients")


@models(with_backward)
def record(t: Tracer, args: list[Var], kwargs: dict[str, Var]) -> Var:
    cls: type = expect(args[0], Known).obj
    args_given = expect(args[2], SeqVar)
    given = [t.values.real(a) for a in args_given.items]
    if cls in t.made_classes or has_external_effects(t) and may_see_changes(t, cls, given):
        raise Break(f"{cls.__name__}.apply, an autograd function, after a change that its forward may see")
    held: dict[int, Make] = {}
    try:
        for i, a in enumerate(given):
            if (
                isinstance(a, OBJECTS)
                and getattr(a, "base", None) is None
                or type(a) is Known
                and isinstance(a.obj, SPELLED_BY_NONE)
            ):
                held[i] = object_at_run_time(t, a)
        node_args = tuple(None if i in held else t.tensors.to_node_arg(a) for i, a in enumerate(given))
    except NotConstant as e:
        raise Break(f"{cls.__name__}.apply of {e}") from None
    before = len(t.graph.nodes)
    result, ctx = traced_forward(t, cls, args[0], args[1], args_given)
    parts = result.items if isinstance(result, SeqVar) and result.cls is tuple else None
    single, outputs = parts is None, [t.values.real(o) for o in ([result] if parts is None else parts)]
    if not all(isinstance(o, (TensorVar, SymVar)) or isinstance(o, Known) and is_constant(o.obj) for o in outputs):
        raise Break(f"{cls.__name__}.apply, which returns values other than tensors")
    noted = map(t.values.real, t.iteration.iterate(t.attributes.getattr(ctx, "non_differentiable")))
    marked = [expect(m, TensorVar, f"{cls.__name__}.apply, which marks values other than tensors") for m in noted]
    forward = list(t.graph.nodes)[before:]
    passes: TracedPasses | None = None
    extra: tuple = ()
    if cls not in t.job.left_to_torch:
        passes, extra = traced_passes(t, ApplyCall(cls, args[0], ctx, given, outputs, single, [*marked]), forward)
    t.sizes.erase(node for node in list(t.graph.nodes)[before:] if node.op != "placeholder")
    inputs = [a.fake for a in given if isinstance(a, TensorVar)]
    fakes = iter(attached([o.fake for o in outputs if isinstance(o, TensorVar)], [m.fake for m in marked], inputs))
    made = [next(fakes) if isinstance(o, TensorVar) else number_or_constant(o) for o in outputs]
    for fake in made:
        t.by_fake.pop(id(fake), None)
    target = Applied(cls.__name__, applied(cls, held), len(node_args), passes, t.job.left_to_torch.get(cls, False))
    node = t.tensors.add_node(target, None, (*node_args, *extra), {})
    node.meta["val"] = made[0] if single else tuple(made)
    return t.tensors.wrap_result(node, node.meta["val"])


def may_see_changes(t: Tracer, cls: type, given: list[Var]) -> bool:
    """Whether the passes of a function may see, or change once more, what the region has changed outside."""
    if t.effects.globals_written or t.effects.classes_written or not all(isinstance(a, (TensorVar, Known)) for a in given):
        return True
    objects = [a.obj for a in given if isinstance(a, Known)]
    return t.program_operators.sees_changes(walk([cls, *cls.__mro__, *objects]))


def traced_forward(t: Tracer, cls: type, cls_var: Var, needs: Var, args: SeqVar) -> tuple[Var, Var]:
    """Traces the forward. Returns its result and its context. Raises: Break."""

    def run() -> tuple[Var, Var]:
        ctx = t.calls.call_python(Context, [needs])
        return t.values.real(t.calls.call(t.values.constant(run_forward), [cls_var, ctx, args, t.calls.model({})], {})), ctx

    (result, ctx), changes = without_gradients(t, run)
    if changes or t.subscripts.length(t.attributes.getattr(ctx, "dirty_tensors")):
        raise Break(f"{cls.__name__}.apply, an autograd function whose forward has side effects")
    return result, ctx


class _Attach(torch.autograd.Function):
    """Makes fakes the results of an autograd function."""

    @staticmethod
    def forward(ctx: Any, outputs: Any, marked: Any, *inputs: Any) -> tuple:
        ctx.mark_non_differentiable(*marked)
        ctx.inputs = [x.detach() for x in inputs]
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple:
        """Fakes of the results of the program's own backward: each looks like its input."""
        return None, None, *(torch.empty_like(x) if needs else None for x, needs in zip(ctx.inputs, ctx.needs_input_grad[2:]))


def attached(outputs: list, marked: list, inputs: list) -> tuple:
    """The outputs as they come out of `apply`: with a grad_fn unless marked, views where an input is returned."""
    return _Attach.apply(outputs, marked, *inputs)


def applied(cls: type, held: dict[int, Make]) -> Callable:
    """The callable that calls `apply`. It does not keep the user's class alive. held: what gives arguments that are objects."""
    ref = Ref(cls)
    return lambda *args: ref.get().apply(*[held[i]() if i in held else a for i, a in enumerate(args)])


def object_at_run_time(t: Tracer, v: Var) -> Make:
    """Returns a function that fetches an object from outside, or makes a function of the region anew, from such objects and
    constants. No object of the user's is kept alive. Raises: NotConstant."""
    v = t.values.real(v)
    if isinstance(v, MethodVar):
        function, of = object_at_run_time(t, v.func), object_at_run_time(t, v.self)
        return lambda: types.MethodType(function(), of())
    if isinstance(v, FuncVar) and v.real is None and not v.attrs and not v.kwdefaults:
        return function_at_run_time(t, v)
    if isinstance(v, (FuncVar, InstanceVar)) and id(v) not in t.effects.touched:
        real = real_object(t, v)
        t.guard("ID_IS", v.source, real)
        return Ref(real).get
    real = to_python(t, v, classes=True)
    if not isinstance(v, Known) and not is_constant(real):  # one that the region makes, and may change
        raise NotConstant(words(v))
    return lambda: real


def function_at_run_time(t: Tracer, v: FuncVar) -> Make:
    """Returns a function that makes a function of the region anew. Raises: NotConstant."""
    contents = [expect(t.values.real(c), CellVar).content for c in v.closure]
    if any(c is None for c in contents):
        raise NotConstant("a function whose variables are not all assigned")
    cells = [object_at_run_time(t, c) for c in contents if c is not None]
    defaults = [object_at_run_time(t, d) for d in v.defaults]
    code, scope, name = v.code, v.globals, v.name

    def make() -> types.FunctionType:
        closure = tuple(types.CellType(c()) for c in cells)
        return types.FunctionType(code, scope, name, tuple(d() for d in defaults) or None, closure)

    return make
