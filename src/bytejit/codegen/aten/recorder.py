"""Records the ATen ops of a running program as a functional graph: writes become new versions of a storage's value.

Each fake carries a `Bound`: where its value comes from. A `Root` is one storage with the graph node of its present
value; a view is a
parent bound and a view op. A write through a view puts the new value back up to the root and bumps the root's
version; other views
of it are made again from the root when they are next read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from bytejit.codegen.aten.recorded_values import Bound, Root
from bytejit.codegen.loops.sizes import same
from bytejit.codegen.ops.calls import is_view
from bytejit.common.spec import contiguous_stride
from bytejit.fake import foreach
from bytejit.fake.rules.errors import DataDependent
from bytejit.fake.tensor import Fake, count_writes, infer, spec_of
from bytejit.shapes import symbols

from .graph_writer import GraphWriter
from .mutation import (
    REFUSED,
    RESHAPING,
    CannotNormalise,
    as_out,
    fitted,
    functional_of,
    same_stride,
    with_defaults,
)
from .overload_plans import PLANS
from .refused_calls import reaches_past

aten = torch.ops.aten
SEEDED = torch.Tag.nondeterministic_seeded


class Recorder(GraphWriter):
    """The mode under which a graph is executed to record it."""

    def plan_of(self, func: Any) -> Callable[[GraphWriter, Any, tuple, dict], Any]:
        """Returns how an op is recorded; found once."""
        plan = _PLANS.get(func)
        if plan is None:
            plan = _PLANS[func] = _plan(func)
        return plan


# --- how each op is recorded ----------------------------------------------------------------------

_PLANS: dict[object, Callable] = {}
_KERNELS = ("aten::silu_backward",)  # which torch defines by others, and eager runs in a kernel
# views that do not say so in their schemas (torch's own cells of LSTM and GRU are written with them)
_UNSAFE = ("aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_split_with_sizes")


def _plan(func: Any) -> Callable:
    schema = func._schema
    if schema.name in REFUSED:
        return _refuse
    if not torch._C._dispatch_has_kernel(func.name()):
        return _asked
    if func in PLANS:
        return PLANS[func](_functional)
    if schema.name in _SPECIAL:
        return _SPECIAL[schema.name]
    if schema.name in RESHAPING:
        return _reshape_in_place
    if schema.name.startswith(foreach.PREFIX) and not schema.is_mutable:
        return _each
    if schema.is_mutable:
        return _out if any(a.is_out for a in schema.arguments) else _in_place
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    if composed and schema.name not in _KERNELS:
        return _composite  # from within another op's decomposition; `to` and `contiguous` only sometimes are views
    if schema.name in _UNSAFE:
        return _view
    if is_view(func):
        return _followed_view
    return _functional


def _asked(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    """Answers what torch's C++ asks of a tensor with symbolic sizes (`aten.size`, `aten.stride`), which is no op of the graph."""
    return infer(func, args, kwargs)


def _refuse(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    raise CannotNormalise(f"{func}: changes which storage a tensor has")


def _functional(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    rule = rec.decompositions.get(func)
    if rule is not None:
        out = rule(rec, *args, **kwargs)
        if out is not NotImplemented:
            return out
    return rec.new(func, args, kwargs)


def _composite(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    """An op that torch itself defines by others. It arrives here whole only in inference mode."""
    try:
        with rec:
            return func.decompose(*args, **kwargs)
    except DataDependent as e:
        if func._schema.is_mutable:
            raise CannotNormalise(f"{func} within inference mode: {e}") from None
        return rec.new(func, args, kwargs)


def _followed_view(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    """A view that autograd knows as one."""
    x = args[0]
    if rec.follows:
        (x._base if x._is_view() else x).viewed = True
    return _view(rec, func, args, kwargs)


def _view(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    x = args[0]
    out = infer(func, args, kwargs)
    args = (*args, *kwargs.values())
    name = func._schema.name.replace("::unsafe_", "::")
    if isinstance(out, (list, tuple)):
        _pieces(rec, x, name, args, out)
        return out
    if name in ("aten::alias", "aten::detach", "aten::lift_fresh"):
        out.bound = x.bound
        return out
    if name == "aten::as_strided":
        return _strided(rec, x, out)
    rest = args[1:]
    if name in ("aten::_unsafe_view", "aten::_reshape_alias"):
        func, rest = aten.view.default, (list(args[1]),)
    out.bound = Bound(x.bound.root, x.bound, func, rest, spec_of(out), rec.where)
    return out


def _strided(rec: GraphWriter, x: Fake, out: Fake) -> Fake:
    """as_strided counts in the memory of the root, whatever views are between: it is a view of the root, in the root's dtype, and
    that one in x's dtype. Raises: CannotNormalise where x's elements are no elements of the root."""
    m, root, whole = out.m, x.bound.root, x.bound.whole()
    if m.dtype.itemsize != root.spec.dtype.itemsize:
        raise CannotNormalise("as_strided: of a view whose elements have another size than its base's")
    offset = m.offset - root.offset
    if offset < 0:
        raise CannotNormalise("as_strided: reaches before the first element of its base")
    if reaches_past(root.spec, offset, m.shape, m.stride):
        raise CannotNormalise("as_strided: reaches past the last element of its base")
    out.bound = whole
    if not (same(offset, 0) and same(m.shape, root.spec.shape) and same_stride(m.shape, m.stride, root.spec.stride)):
        spec = replace(spec_of(out), dtype=root.spec.dtype)
        out.bound = Bound(root, whole, aten.as_strided.default, (list(m.shape), list(m.stride), offset), spec, rec.where)
    if m.dtype is not root.spec.dtype:
        out.bound = Bound(root, out.bound, aten.view.dtype, (m.dtype,), spec_of(out), rec.where)
    return out


def _pieces(rec: GraphWriter, x: Fake, name: str, args: tuple, out: Any) -> None:
    """split and unbind: each piece a slice or a select, so that unused ones cost nothing."""
    dim = args[-1] if len(args) == (2 if name == "aten::unbind" else 3) else 0
    parent = x.bound
    start = 0
    rest: tuple
    for i, piece in enumerate(out):
        if name == "aten::unbind":
            func, rest = aten.select.int, (dim, i)
        elif name in ("aten::split", "aten::split_with_sizes"):
            size = piece.m.shape[dim]
            func, rest = aten.slice.Tensor, (dim, start, start + size)
            start = start + size
        else:
            raise CannotNormalise(f"{name}: several views at once")
        piece.bound = Bound(parent.root, parent, func, rest, spec_of(piece), rec.where)


def _in_place(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    rule = rec.decompositions.get(func)
    if rule is not None:
        return rule(rec, *args, **kwargs)
    schema = func._schema
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if len(written) != 1 or schema.arguments[0] not in written:
        return _beside_results(rec, func, args, kwargs)
    x = args[0]
    if not isinstance(x, Fake):
        return _foreach(rec, func, args, kwargs)
    op = functional_of(func)
    new = rec.record(op, with_defaults(func, op, args, kwargs), kwargs)
    _holds(func, x, new)
    rec.write(x, rec.value(new.bound))
    return x


def _beside_results(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    """An op that writes into operands beside what it returns: its functional form returns their new values behind the results,
    as `noise_out` for `noise`. Raises: CannotNormalise."""
    schema, op = func._schema, functional_of(func)
    given = {a.name: v for a, v in zip(schema.arguments, args)} | kwargs
    named = [r.name for r in op._schema.returns]
    news = rec.record(op, args, kwargs)
    if not isinstance(news, (list, tuple)) or not all(isinstance(new, Fake) for new in news):
        raise CannotNormalise(f"{func}: writes into lists of tensors")
    found = list(news[: len(schema.returns)])
    for a in schema.arguments:
        if a.alias_info is None or not a.alias_info.is_write:
            continue
        x, sets = given[a.name], a.alias_info.before_set
        at = [i for i, r in enumerate(schema.returns) if r.alias_info is not None and r.alias_info.before_set == sets]
        if not at and f"{a.name}_out" not in named:
            raise CannotNormalise(f"{func}: writes into {a.name}")
        new = news[at[0] if at else named.index(f"{a.name}_out")]
        _holds(func, x, new)
        rec.write(x, rec.value(new.bound))
        for i in at:
            found[i] = x
    return found[0] if len(found) == 1 else tuple(found)


def _holds(func: Any, x: Fake, new: Fake) -> None:
    """Raises: CannotNormalise where eager raises an error because a write would put floats into an integer tensor."""
    if not torch.can_cast(new.m.dtype, x.m.dtype):
        raise CannotNormalise(f"{func}: {x.m.dtype} cannot hold its result")


def _drawn(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    """bernoulli_(p) draws in the order of memory, and its functional op in that of the sizes. normal_ draws in another way
    into memory with gaps, which its functional op's result does not have."""
    x, rest = args[0], args[1:]
    strides = [symbols.hint(s) for s in x.m.stride]
    order = sorted(range(len(strides)), key=lambda d: -strides[d])
    permuted = order != list(range(len(order)))
    if func is aten.bernoulli_.float and permuted:
        _in_place(rec, func, (_view(rec, aten.permute.default, (x, order), {}), *rest), kwargs)
        return x
    if func is aten.normal_.default and not permuted and not same_stride(x.m.shape, x.m.stride, contiguous_stride(x.m.shape)):
        raise CannotNormalise("normal_: draws into a view with gaps")
    return _in_place(rec, func, args, kwargs)


def _each(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    """An op on a list of tensors: the op of each, else the whole."""
    with rec:
        calls = foreach.calls_of(func, args, kwargs)
    return rec.new(func, args, kwargs) if calls is None else [rec.record(*call) for call in calls]


def _foreach(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    op, parts = functional_of(func), [(slice(None), args, kwargs)]
    if _reads_what_it_writes(args, kwargs):
        with rec:
            parts = [(slice(i, i + 1), *_part(i, len(args[0]), args, kwargs)) for i in range(len(args[0]))]
    for which, some, options in parts:
        for x, new in zip(args[0][which], rec.record(op, some, options)):
            rec.write(x, rec.value(new.bound))
    count_writes(args[0])
    return args[0] if func._schema.returns else None


def _reads_what_it_writes(args: tuple, kwargs: dict) -> bool:
    """Whether a tensor of a list that is written shares memory with one that is read or written after it: eager goes through the
    lists in order. Raises: CannotNormalise where eager may refuse one write, for memory that is partly the same."""
    written: set[Root] = set()
    given = [*args, *kwargs.values()]
    lists = [x for x in given if isinstance(x, (list, tuple)) and x and isinstance(x[0], Fake)]
    single = [x for x in given if isinstance(x, Fake)]
    for together in zip(*lists):
        x, *read = (t for t in (*together, *single) if isinstance(t, Fake))
        if any(t is not x and t.bound.root is x.bound.root for t in read):
            raise CannotNormalise("a list that is written shares memory with what is read together with it")
        if any(t.bound.root in written for t in (x, *read)):
            return True
        written.add(x.bound.root)
    return False


def _part(i: int, n: int, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """The arguments of the i-th of n tensors, as lists of one."""

    def of(x: Any) -> Any:
        per_tensor = isinstance(x, (list, tuple)) or isinstance(x, torch.Tensor) and tuple(x.shape) == (n,)
        return x[i : i + 1] if per_tensor else x

    return tuple(map(of, args)), {k: of(v) for k, v in kwargs.items()}


def _out(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    schema = func._schema
    outs = [a.name for a in schema.arguments if a.is_out]
    given = {a.name: v for a, v in zip(schema.arguments, args)} | kwargs
    targets = [given[name] for name in outs]
    if any(isinstance(target, (list, tuple)) for target in targets):
        raise CannotNormalise(f"{func}: writes into a list of tensors")
    rest = {k: v for k, v in kwargs.items() if k not in outs}
    inner = args[: sum(not a.is_out and i < len(args) for i, a in enumerate(schema.arguments))]
    op = functional_of(func)
    news = rec.record(op, inner, rest | as_out(op, targets[0].m.dtype, targets[0].m.device))
    infer(func, args, kwargs)
    for target, new in zip(targets, news if isinstance(news, (list, tuple)) else (news,)):
        _holds(func, target, new)
        if isinstance(new, Fake) and new.m.dtype is not target.m.dtype:  # some operators cast, some refuse
            raise CannotNormalise(f"{func}: an out= of another dtype than the result's")
        at = target.bound
        spec = at.root.spec if at.parent is None else at.spec
        if not same(target.m.shape, spec.shape):
            if at.parent is not None or 0 not in spec.shape:  # what shares its memory would see what is written
                raise CannotNormalise(f"{func}: resizes an out= that holds elements")
            if at.root.index is not None:
                raise CannotNormalise(f"{func}: resizes an input given as out=")
            target.bound = Bound(Root(fitted(rec, rec.value(new.bound), spec_of(target)), target))
        else:
            rec.write(target, rec.value(new.bound))
    return targets[0] if len(targets) == 1 else tuple(targets)


def _reshape_in_place(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    x = args[0]
    if x.bound.root.index is not None:
        of = "an input" if x.bound.parent is None else "a view of an input, which counts that as a write"
        raise CannotNormalise(f"{func}: changes the shape of {of}")
    if rec.follows and (x.viewed or x._is_view()):  # autograd makes views of fakes again from the base as it is then
        if x.requires_grad:
            raise CannotNormalise(f"{func}: changes the shape of what has views, with gradients")
        x.bound.root.reshaped = True
    packet = getattr(aten, RESHAPING[func._schema.name])
    wanted = [str(a.type) for a in func._schema.arguments]
    op = next(
        o
        for o in (getattr(packet, name) for name in packet.overloads())  # its __getattr__ would make another object
        if [str(a.type) for a in o._schema.arguments] == wanted and not o._schema.is_mutable
    )
    view = _view(rec, op, args, kwargs) if is_view(op) else rec.record(op, args, kwargs)
    infer(func, args, kwargs)
    x.bound = view.bound
    return x


def _copy(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    rec.write(args[0], rec.value(args[1].bound))
    return args[0]


def _fill(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    x = args[0]
    value = args[1] if len(args) > 1 else 0
    if isinstance(value, Fake):
        rec.write(x, rec.value(value.bound))
        return x
    spec = spec_of(x)
    rec.write(x, rec.emit(aten.full.default, (list(spec.shape), value), {"dtype": spec.dtype, "device": spec.device}))
    return x


def _same(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    return args[0]


def _resize(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    x, size = args[0], tuple(args[1])
    if same(x.m.shape, size):
        return x
    if x.bound.root.index is not None or x.bound.parent is not None or 0 not in x.m.shape:
        raise CannotNormalise("resize_: of a tensor that holds something")
    infer(func, args, kwargs)
    node = rec.emit(aten.empty.memory_format, (list(size),), {"dtype": x.m.dtype, "device": x.m.device})
    x.bound = Bound(Root(node, x))
    return x


def _physical(rec: GraphWriter, func: Any, args: tuple, kwargs: dict) -> Any:
    """A lazily conjugated or negated view is computed at once, so that no value of the graph is lazy. It shares no memory with
    what it views: where that would show, read after a write or in two outputs, the graph is refused."""
    op = aten.neg.default if func is aten._neg_view.default else aten.conj_physical.default
    out = rec.record(op, args, kwargs)
    base, own = args[0].bound.root, out.bound.root
    own.lazy = base.lazy or base
    own.lazy_version = own.lazy.version
    return out


_SPECIAL = {
    "aten::_conj": _physical,
    "aten::_neg_view": _physical,
    "aten::bernoulli_": _drawn,
    "aten::normal_": _drawn,
    "aten::copy_": _copy,
    "aten::fill_": _fill,
    "aten::zero_": _fill,
    "aten::detach_": _same,
    "aten::requires_grad_": _same,
    "aten::resize_": _resize,
}
