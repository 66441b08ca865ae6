"""Records the ATen ops of a running program as a functional graph: writes become new versions of a storage's value.

Each fake carries a `Bound`: where its value comes from. A `Root` is one storage with the graph node of its present
value; a view is a
parent bound and a view op. A write through a view puts the new value back up to the root and bumps the root's
version; other views
of it are made again from the root when they are next read.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bytejit.codegen.loops.sizes import same
from bytejit.common.spec import Spec, contiguous_stride
from bytejit.fake.tensor import Fake, as_made, fake_like, fake_of_spec, infer, spec_of
from bytejit.shapes import symbols

from .mutation import (
    REFUSED,
    RESHAPING,
    CannotNormalise,
    fitted,
    functional_of,
    overlaps,
    put_back,
    reshaped,
    same_stride,
    with_defaults,
)

aten = torch.ops.aten
SEEDED = torch.Tag.nondeterministic_seeded


class Root:
    """One storage. `node` holds its value, seen as `spec`; `offset` is where that begins in the storage,
    in elements. `fake`: the tensor that came with it; others that are bound to it are views.
    """

    __slots__ = ("node", "spec", "offset", "version", "index", "store", "fake")

    def __init__(self, node, fake: Fake, index: int | None = None) -> None:
        self.node, self.spec, self.offset, self.fake = node, spec_of(fake), fake.m.offset, fake
        self.version, self.index, self.store = 0, index, fake.m.store


class Bound:
    """A fake's value: the root's (parent None) or a view op of the parent's. `node` is valid at `version`
    of the root.
    """

    __slots__ = ("root", "parent", "func", "args", "spec", "node", "version", "where")

    def __init__(self, root: Root, parent=None, func=None, args=(), spec: Spec | None = None, where=None) -> None:
        self.root, self.parent, self.func, self.args, self.spec, self.where = root, parent, func, args, spec, where
        self.node = root.node if parent is None else None
        self.version = root.version


def is_view(func) -> bool:
    """Whether an op's result shares its argument's storage, by its schema."""
    returns = func._schema.returns
    return bool(returns) and returns[0].alias_info is not None and not func._schema.is_mutable


def _frozen(value):
    """A hashable form of an op's argument in which 1, 1.0 and True differ."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_frozen, value))
    if symbols.is_symbolic(value):
        return "size", symbols.expr(value)
    return value if isinstance(value, torch.fx.Node) else (type(value), value)


class Recorder(TorchDispatchMode):
    """The mode under which a graph is executed to record it. `graph` grows; `where` is the user's line of
    what runs now.
    """

    def __init__(self, decompositions: dict, instead: Mapping[Callable, Callable] | None = None) -> None:
        super().__init__()
        self.instead = instead or {}        # the caller's functions, which are run in place of operators
        self.graph = torch.fx.Graph()
        self.where = None
        self.decompositions = decompositions
        self.inputs: list[Root | None] = []
        self.constants: list[torch.Tensor] = []
        self.known: dict[int, Fake] = {}
        self.kept: list[torch.Tensor] = []
        self.seen: dict[tuple, torch.fx.Node] = {}
        self.stores: dict = {}
        self.last_placeholder: torch.fx.Node | None = None

    # --- values -----------------------------------------------------------------------------------

    def placeholder(self, name: str, fake: object) -> None:
        """The next input: a fake, which from then on stands for it, or a value that is no tensor."""
        node = self._placeholder(name)
        if not isinstance(fake, Fake):
            if symbols.is_symbolic(fake):
                node.meta["spec"] = fake
            self.inputs.append(None)
            return
        root = Root(node, fake, len(self.inputs))
        node.meta["spec"] = root.spec
        fake.bound = Bound(root)
        self.inputs.append(root)

    def _placeholder(self, name: str) -> torch.fx.Node:
        after = self.last_placeholder
        if after is None:
            with self.graph.inserting_before(next(iter(self.graph.nodes), None)):
                node = self.graph.placeholder(name)
        else:
            with self.graph.inserting_after(after):
                node = self.graph.placeholder(name)
        self.last_placeholder = node
        return node

    def constant(self, real: torch.Tensor, fresh: bool = False) -> Fake:
        """The fake of a real tensor that the program holds: a further input. fresh: each call of the graph
        has a new copy.
        """
        fake = self.known.get(id(real))
        if fake is not None and not fresh:
            return fake
        fake = fake_like(real.detach(), self.stores)
        if fresh and real.numel() == 1 and real.dtype in (torch.float32, torch.float64, torch.int64, torch.bool):
            node = self.emit(
                aten.full.default, (list(real.shape), real.item()), {"dtype": real.dtype, "device": real.device}
            )
            fake.bound = Bound(Root(node, fake))
            return fake
        self.placeholder(f"const{len(self.constants)}", fake)
        self.constants.append(real)
        self.kept.append(real)
        if fresh:
            fake.bound.root.index = None
        else:
            self.known[id(real)] = fake
        return fake

    def fake(self, x):
        """`x` with real tensors replaced by fakes."""
        if isinstance(x, torch.Tensor):
            return (
                x
                if type(x) is Fake and hasattr(x, "bound")
                else self.constant(x)
                if type(x) is not Fake
                else self._stray(x)
            )
        if isinstance(x, (list, tuple)):
            return type(x)(map(self.fake, x))
        return x

    def _stray(self, fake: Fake) -> Fake:
        raise CannotNormalise(f"{fake!r} was made outside the graph that uses it")

    def node(self, x):
        """`x` with fakes replaced by the graph nodes of their present values."""
        if type(x) is Fake:
            return self.value(x.bound)
        if isinstance(x, (list, tuple)):
            return [self.node(y) for y in x]
        return x

    def value(self, bound: Bound) -> torch.fx.Node:
        """The node that holds a bound's present value; views are made when they are read."""
        root = bound.root
        if bound.parent is None:
            return root.node
        if bound.node is None or bound.version != root.version:
            base = self.value(bound.parent)
            where, self.where = self.where, bound.where
            bound.node = self._view(base, bound)
            bound.version = root.version
            self.where = where
        return bound.node

    def _view(self, base: torch.fx.Node, bound: Bound) -> torch.fx.Node:
        if bound.func is aten.view.default:
            return reshaped(self, base, bound.spec.shape)
        return self.emit(bound.func, (base, *bound.args))

    # --- nodes ------------------------------------------------------------------------------------

    def emit(self, func, args: tuple, kwargs: dict | None = None) -> torch.fx.Node:
        """A node for `func` on nodes, its spec inferred."""
        kwargs = kwargs or {}
        key = self._key(func, args, kwargs)
        node = self.seen.get(key) if key is not None else None
        if node is None:
            out = infer(func, _shadow(args), {k: _shadow(v) for k, v in kwargs.items()})
            node = self._create(func, args, kwargs, key, out)
        return node

    def _key(self, func, args: tuple, kwargs: dict):
        if SEEDED in func.tags:
            return None
        key = (func, _frozen(args), tuple((k, _frozen(v)) for k, v in kwargs.items()))
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def _create(self, func, args: tuple, kwargs: dict, key, out) -> torch.fx.Node:
        node = self.graph.create_node("call_function", func)
        node.args, node.kwargs = tuple(args), kwargs       # afterwards: create_node warns of symbolic numbers
        node.meta["spec"] = _specs(out)
        node.meta["where"] = self.where
        if key is not None:
            self.seen[key] = node
        return node

    def item(self, node: torch.fx.Node, i: int) -> torch.fx.Node:
        """Element `i` of a node with several results."""
        key = (operator.getitem, node, i)
        found = self.seen.get(key)
        if found is None:
            found = self.graph.create_node("call_function", operator.getitem, (node, i))
            found.meta["spec"] = node.meta["spec"][i]
            found.meta["where"] = node.meta.get("where")
            self.seen[key] = found
        return found

    def call(self, func, *args, **kwargs):
        """Run an ATen op on fakes and record it: what decompositions are written with."""
        return self.record(func, args, kwargs)

    # --- ops --------------------------------------------------------------------------------------

    def record(self, func, args: tuple, kwargs: dict):
        """What the program's op gives: fakes bound to nodes."""
        if func in self.instead:
            with self:
                return self.instead[func](*args, **kwargs)
        plan = _PLANS.get(func)
        if plan is None:
            plan = _PLANS[func] = _plan(func)
        if (
            any(isinstance(a, torch.Tensor) and type(a) is not Fake or isinstance(a, (list, tuple)) for a in args)
            or kwargs
        ):
            if func is aten.lift_fresh.default and type(args[0]) is not Fake:
                return self.constant(args[0], fresh=True)
            args = self.fake(args)
            kwargs = {k: self.fake(v) for k, v in kwargs.items()}
        return plan(self, func, args, kwargs)

    def new(self, func, args: tuple, kwargs: dict, out=None):
        """Record an op whose results are new storages. `out`: its results where known."""
        if out is None:
            out = infer(func, args, kwargs)
        nodes = tuple(self.node(a) for a in args)
        options = {k: self.node(v) for k, v in kwargs.items()}
        key = self._key(func, nodes, options)
        node = self.seen.get(key) if key is not None else None
        if node is None:
            node = self._create(func, nodes, options, key, out)
        return self.bind(out, node)

    def bind(self, out, node: torch.fx.Node):
        """Make fresh fakes stand for a node's results."""
        if isinstance(out, Fake):
            out.bound = Bound(Root(node, out))
        elif isinstance(out, (list, tuple)):
            for i, x in enumerate(out):
                if isinstance(x, Fake):
                    self.bind(x, self.item(node, i))
        return out

    def write(self, fake: Fake, new: torch.fx.Node) -> None:
        """Give a fake's storage a new value through it."""
        bound = fake.bound
        root = bound.root
        if root.index is not None and any(
            r is not None and r is not root and r.store is root.store for r in self.inputs
        ):
            raise CannotNormalise("a write into an input that shares its storage with another input")
        if root.index is not None and overlaps(root.spec):
            raise CannotNormalise("a write into an input whose elements share memory with one another")
        at = bound
        first = new = fitted(self, new, root.spec if at.parent is None else at.spec, layout=False)
        while at.parent is not None:
            new = put_back(self, at.func, at.args, self.value(at.parent), new)
            at = at.parent
        root.node = fitted(self, new, root.spec)
        root.version += 1
        if bound.parent is not None:
            bound.node, bound.version = first, root.version


def _dispatch(self, func, types, args=(), kwargs=None):
    return self.record(*as_made(func, args, kwargs or {}))


# Assigned here since TorchDispatchMode wraps a method found in the class body by what imports torch._dynamo.
Recorder.__torch_dispatch__ = _dispatch


def _shadow(x):
    """Fakes that look like nodes."""
    if isinstance(x, torch.fx.Node):
        return fake_of_spec(x.meta["spec"])
    if isinstance(x, (list, tuple)):
        return type(x)(map(_shadow, x))
    return x


def _specs(out):
    if isinstance(out, Fake):
        return spec_of(out)
    if isinstance(out, (list, tuple)):
        return tuple(map(_specs, out))
    return out


# --- how each op is recorded ----------------------------------------------------------------------

_PLANS: dict[object, Callable] = {}
# views that do not say so in their schemas (torch's own cells of LSTM and GRU are written with them)
_UNSAFE = ("aten::_unsafe_view", "aten::unsafe_split", "aten::unsafe_split_with_sizes")


def _plan(func) -> Callable:
    schema = func._schema
    if schema.name in REFUSED:
        return _refuse
    if not torch._C._dispatch_has_kernel(func.name()):
        return _asked
    if schema.name in _SPECIAL:
        return _SPECIAL[schema.name]
    if schema.name in RESHAPING:
        return _reshape_in_place
    if schema.is_mutable:
        return _out if any(a.is_out for a in schema.arguments) else _in_place
    if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
        return _composite              # from within another op's decomposition; `to` and `contiguous` only sometimes are views
    if is_view(func) or schema.name in _UNSAFE:
        return _view
    return _functional


def _asked(rec: Recorder, func, args, kwargs):
    """What torch's C++ asks of a tensor with symbolic sizes (`aten.size`, `aten.stride`): no op of the graph."""
    return infer(func, args, kwargs)


def _refuse(rec: Recorder, func, args, kwargs):
    raise CannotNormalise(f"{func}: changes which storage a tensor has")


def _functional(rec: Recorder, func, args, kwargs):
    rule = rec.decompositions.get(func)
    if rule is not None:
        out = rule(rec, *args, **kwargs)
        if out is not NotImplemented:
            return out
    return rec.new(func, args, kwargs)


def _composite(rec: Recorder, func, args, kwargs):
    """An op that torch itself defines by others; only inference mode hands it over whole."""
    with rec:
        return func.decompose(*args, **kwargs)


def _view(rec: Recorder, func, args, kwargs):
    x = args[0]
    out = infer(func, args, kwargs)
    if kwargs:
        args = args + tuple(kwargs.values())
    name = func._schema.name.replace("::unsafe_", "::")
    if isinstance(out, (list, tuple)):
        _pieces(rec, x, name, args, out)
        return out
    if name in ("aten::alias", "aten::detach", "aten::lift_fresh"):
        out.bound = x.bound
        return out
    parent, rest = x.bound, args[1:]
    if name == "aten::as_strided":
        root = parent.root
        offset = out.m.offset - root.offset
        if offset < 0:
            raise CannotNormalise("as_strided: reaches before the first element of its base")
        if same(offset, 0) and same(out.m.shape, root.spec.shape) and same_stride(out.m.shape, out.m.stride, root.spec.stride):
            out.bound = _root_bound(parent)
            return out
        parent, rest = _root_bound(parent), (list(args[1]), list(args[2]), offset)
    elif name in ("aten::_unsafe_view", "aten::_reshape_alias"):
        func, rest = aten.view.default, (list(args[1]),)
    out.bound = Bound(parent.root, parent, func, rest, spec_of(out), rec.where)
    return out


def _root_bound(bound: Bound) -> Bound:
    while bound.parent is not None:
        bound = bound.parent
    return bound


def _pieces(rec: Recorder, x: Fake, name: str, args: tuple, out) -> None:
    """split and unbind: each piece a slice or a select, so that unused ones cost nothing."""
    dim = args[-1] if len(args) == (2 if name == "aten::unbind" else 3) else 0
    parent = x.bound
    start = 0
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


def _in_place(rec: Recorder, func, args, kwargs):
    rule = rec.decompositions.get(func)
    if rule is not None:
        return rule(rec, *args, **kwargs)
    schema = func._schema
    written = [a for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    if len(written) != 1 or schema.arguments[0] not in written:
        raise CannotNormalise(f"{func}: writes into {', '.join(a.name for a in written)}")
    x = args[0]
    if not isinstance(x, Fake):
        return _foreach(rec, func, args, kwargs)
    op = functional_of(func)
    new = rec.record(op, with_defaults(func, op, args, kwargs), kwargs)
    _holds(func, x, new)
    rec.write(x, rec.value(new.bound))
    return x


def _holds(func, x: Fake, new: Fake) -> None:
    """Raises: CannotNormalise where eager refuses to write floats into whole numbers, in its own words."""
    if not torch.can_cast(new.m.dtype, x.m.dtype):
        raise CannotNormalise(f"{func}: {x.m.dtype} cannot hold its result")


def _drawn(rec: Recorder, func, args, kwargs):
    """bernoulli_(p) draws in the order of memory, and its functional op in that of the sizes. normal_ draws in another way
    into memory with gaps, which its functional op's result does not have."""
    x, rest = args[0], args[1:]
    strides = [symbols.hint(s) for s in x.m.stride]
    order = sorted(range(len(strides)), key=lambda d: -strides[d])
    turned = order != list(range(len(order)))
    if func is aten.bernoulli_.float and turned:
        _in_place(rec, func, (_view(rec, aten.permute.default, (x, order), {}), *rest), kwargs)
        return x
    if func is aten.normal_.default and not turned and not same_stride(x.m.shape, x.m.stride, contiguous_stride(x.m.shape)):
        raise CannotNormalise("normal_: draws into a view with gaps")
    return _in_place(rec, func, args, kwargs)


def _foreach(rec: Recorder, func, args, kwargs):
    out = rec.record(functional_of(func), args, kwargs)
    for x, new in zip(args[0], out):
        rec.write(x, rec.value(new.bound))
    return args[0] if func._schema.returns else None


def _out(rec: Recorder, func, args, kwargs):
    schema = func._schema
    outs = [a.name for a in schema.arguments if a.is_out]
    given = {a.name: v for a, v in zip(schema.arguments, args)} | kwargs
    targets = [given[name] for name in outs]
    if any(isinstance(target, (list, tuple)) for target in targets):
        raise CannotNormalise(f"{func}: writes into a list of tensors")
    rest = {k: v for k, v in kwargs.items() if k not in outs}
    inner = args[: sum(not a.is_out and i < len(args) for i, a in enumerate(schema.arguments))]
    news = rec.record(functional_of(func), inner, rest)
    infer(func, args, kwargs)
    for target, new in zip(targets, news if isinstance(news, (list, tuple)) else (news,)):
        _holds(func, target, new)
        if not same(target.m.shape, target.bound.root.spec.shape) and target.bound.parent is None:
            if target.bound.root.index is not None:
                raise CannotNormalise(f"{func}: resizes an input given as out=")
            target.bound = Bound(Root(fitted(rec, rec.value(new.bound), spec_of(target)), target))
        else:
            rec.write(target, rec.value(new.bound))
    return targets[0] if len(targets) == 1 else tuple(targets)


def _reshape_in_place(rec: Recorder, func, args, kwargs):
    x = args[0]
    if x.bound.parent is None and x.bound.root.index is not None:
        raise CannotNormalise(f"{func}: changes an input's shape")
    packet = getattr(aten, RESHAPING[func._schema.name])
    wanted = [str(a.type) for a in func._schema.arguments]
    op = next(
        o
        for o in map(packet.__getattr__, packet.overloads())
        if [str(a.type) for a in o._schema.arguments] == wanted and not o._schema.is_mutable
    )
    view = _view(rec, op, args, kwargs) if is_view(op) else rec.record(op, args, kwargs)
    infer(func, args, kwargs)
    x.bound = view.bound
    return x


def _copy(rec: Recorder, func, args, kwargs):
    rec.write(args[0], rec.value(args[1].bound))
    return args[0]


def _fill(rec: Recorder, func, args, kwargs):
    x = args[0]
    value = args[1] if len(args) > 1 else 0
    if isinstance(value, Fake):
        rec.write(x, rec.value(value.bound))
        return x
    spec = spec_of(x)
    rec.write(x, rec.emit(aten.full.default, (list(spec.shape), value), {"dtype": spec.dtype, "device": spec.device}))
    return x


def _same(rec: Recorder, func, args, kwargs):
    return args[0]


def _resize(rec: Recorder, func, args, kwargs):
    x, size = args[0], tuple(args[1])
    if same(x.m.shape, size):
        return x
    if x.bound.root.index is not None or x.bound.parent is not None or 0 not in x.m.shape:
        raise CannotNormalise("resize_: of a tensor that holds something")
    infer(func, args, kwargs)
    node = rec.emit(aten.empty.memory_format, (list(size),), {"dtype": x.m.dtype, "device": x.m.device})
    x.bound = Bound(Root(node, x))
    return x


def _physical(rec: Recorder, func, args, kwargs):
    """A lazily conjugated or negated view: computed at once, so that no graph value carries such a mark."""
    op = aten.neg.default if func is aten._neg_view.default else aten.conj_physical.default
    return rec.record(op, args, kwargs)


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
