"""The dispatch mode that writes the graph: a node for each operation, and the present value of each storage."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from bytejit.codegen.aten.recorded_values import Bound, Root, hashable
from bytejit.fake.redirected import as_made
from bytejit.fake.rules.core import FakeStorage
from bytejit.fake.tensor import Fake, fake_like, fake_of_spec, infer, spec_of
from bytejit.shapes import symbols

from .float_marks import FloatMarks
from .mutation import (
    CannotNormalise,
    fitted,
    overlaps,
    put_back,
    relayout,
    reshaped,
)
from .refused_calls import check_call

aten = torch.ops.aten
SEEDED = torch.Tag.nondeterministic_seeded


class GraphWriter(TorchDispatchMode):
    """The dispatch mode under which a graph is run to record it. `graph` grows; `where` is the user's line that runs now."""

    def __init__(
        self, decompositions: dict, instead: Mapping[Callable, Callable] | None = None, marks: FloatMarks | None = None
    ) -> None:
        super().__init__()
        self.marks = marks  # the numbers that stand for symbolic floats in torch's C++
        self.instead = instead or {}  # the caller's functions, which are run in place of operators
        self.graph = torch.fx.Graph()
        self.where = None
        self.decompositions = decompositions
        self.inputs: list[Root | None] = []
        self.of_store: dict[FakeStorage, list[Root]] = {}  # inputs by their storage
        self.wrote: list[int] = []  # the input of each write into one
        self.constants: list[torch.Tensor] = []
        self.known: dict[int, Fake] = {}
        self.kept: list[torch.Tensor] = []
        self.seen: dict[tuple, torch.fx.Node] = {}
        self.stores: dict = {}
        self.masks: dict[torch.fx.Node, str | None] = {}  # masks of attention -> what is known of them (`known_masks.py`)
        self.asked = False  # `GraphInfo.asked`
        self.around: list = []  # checkpointed parts that are being recorded, the innermost last (`checkpointed_parts.py`)
        self.last_placeholder: torch.fx.Node | None = None
        self.follows = False  # autograd follows what is recorded

    # --- values -----------------------------------------------------------------------------------

    def placeholder(self, name: str, fake: object) -> None:
        """Add an input: a fake, which stands for it from then on, or a value that is no tensor."""
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
        self.of_store.setdefault(root.store, []).append(root)

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
        """The fake of a real tensor that the program holds, which becomes one more input. fresh: each call of the graph gets a
        new copy.
        """
        fake = self.known.get(id(real))
        if fake is not None and not fresh:
            return fake
        fake = fake_like(real.detach(), self.stores)
        if fresh and real.numel() == 1 and real.dtype in (torch.float32, torch.float64, torch.int64, torch.bool):
            node = self.emit(aten.full.default, (list(real.shape), real.item()), {"dtype": real.dtype, "device": real.device})
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

    def fake(self, x: Any) -> Any:
        """`x` with real tensors replaced by fakes."""
        if isinstance(x, torch.Tensor):
            return x if type(x) is Fake and hasattr(x, "bound") else self.constant(x) if type(x) is not Fake else self._stray(x)
        if isinstance(x, (list, tuple)):
            return type(x)(map(self.fake, x))
        return x

    def _stray(self, fake: Fake) -> Fake:
        raise CannotNormalise(f"{fake!r} was made outside the graph that uses it")

    def node(self, x: Any) -> Any:
        """`x` with fakes replaced by the graph nodes of their present values."""
        if type(x) is Fake:
            return self.value(x.bound)
        if isinstance(x, (list, tuple)):
            return [self.node(y) for y in x]
        return x

    def value(self, bound: Bound) -> torch.fx.Node:
        """The node that holds a bound's present value; views are made when they are read."""
        root = bound.root
        if root.stale():
            raise CannotNormalise("a view that is conjugated or negated is read after a write into its memory")
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
        if bound.func is aten.view.default and bound.spec is not None:
            return reshaped(self, base, bound.spec.shape)
        return self.emit(bound.func, (base, *bound.args))

    # --- nodes ------------------------------------------------------------------------------------

    def emit(self, func: Any, args: tuple, kwargs: dict | None = None) -> torch.fx.Node:
        """A node for `func` on nodes, its spec inferred."""
        kwargs = kwargs or {}
        key = self._key(func, args, kwargs)
        node = self.seen.get(key) if key is not None else None
        if node is None:
            out = infer(func, _shadow(args), {k: _shadow(v) for k, v in kwargs.items()})
            node = self._create(func, args, kwargs, key, out)
        return node

    def _key(self, func: Any, args: tuple, kwargs: dict) -> Any:
        if SEEDED in func.tags:
            return None
        key = (func, hashable(args), tuple((k, hashable(v)) for k, v in kwargs.items()))
        try:
            hash(key)
        except TypeError:
            return None
        return key

    def _create(self, func: Any, args: tuple, kwargs: dict, key: Any, out: Any) -> torch.fx.Node:
        if self.marks is not None:
            args, kwargs = self.marks.name_all(tuple(args), kwargs, out)
        node = self.graph.create_node("call_function", func)
        node.args, node.kwargs = tuple(args), kwargs  # afterwards: create_node warns of symbolic numbers
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

    def call(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """Run an ATen op on fakes and record it: what decompositions are written with."""
        return self.record(func, args, kwargs)

    # --- ops --------------------------------------------------------------------------------------

    def record(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Record an op of the program. Returns its results: fakes bound to nodes."""
        if func in self.instead:
            with self:
                return self.instead[func](*args, **kwargs)
        plan = self.plan_of(func)
        check_call(func, args, kwargs)
        if any(isinstance(a, torch.Tensor) and type(a) is not Fake or isinstance(a, (list, tuple)) for a in args) or kwargs:
            if func is aten.lift_fresh.default and type(args[0]) is not Fake:
                return self.constant(args[0], fresh=True)
            args = self.fake(args)
            kwargs = {k: self.fake(v) for k, v in kwargs.items()}
        return plan(self, func, args, kwargs)

    def plan_of(self, func: Any) -> Callable[[GraphWriter, Any, tuple, dict], Any]:
        """Returns how an op is recorded."""
        raise NotImplementedError

    def new(self, func: Any, args: tuple, kwargs: dict, out: Any = None) -> Any:
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

    def bind(self, out: Any, node: torch.fx.Node) -> Any:
        """Bind new fakes to a node's results."""
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
        if root.index is not None and any(r is not root and root.meets(r) for r in self.of_store[root.store]):
            raise CannotNormalise("a write into an input that shares memory with another input")
        if root.lazy is not None:
            raise CannotNormalise("a write into memory that is conjugated or negated when it is read")
        if root.reshaped:
            raise CannotNormalise("a write into what was given another shape while it had views, with gradients")
        if root.index is not None and overlaps(root.spec):
            raise CannotNormalise("a write into an input whose elements share memory with one another")
        at = bound
        first = new = fitted(self, new, root.spec if at.parent is None else at.spec, layout=False)
        while at.parent is not None:
            if overlaps(at.spec):
                raise CannotNormalise("a write through a view whose elements share memory with one another")
            new = put_back(self, at.func, at.args, self.value(at.parent), new)
            at = at.parent
        root.node = fitted(self, new, root.spec)
        root.version += 1
        if root.index is not None:
            self.wrote.append(root.index)
        if bound.parent is not None:
            bound.node, bound.version = relayout(self, first, bound.spec), root.version


def _dispatch(self: GraphWriter, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
    if func is not aten._efficientzerotensor.default:
        func, args, kwargs = as_made(func, args, kwargs or {})
    return self.record(func, args, kwargs or {})


# Assigned here since TorchDispatchMode wraps a method found in the class body by what imports torch._dynamo.
GraphWriter.__torch_dispatch__ = _dispatch


def _shadow(x: Any) -> Any:
    """Fakes with the specs of nodes."""
    if isinstance(x, torch.fx.Node):
        return fake_of_spec(x.meta["spec"])
    if isinstance(x, (list, tuple)):
        return type(x)(map(_shadow, x))
    return x


def _specs(out: Any) -> Any:
    if isinstance(out, Fake):
        return spec_of(out)
    if isinstance(out, (list, tuple)):
        return tuple(map(_specs, out))
    return out
