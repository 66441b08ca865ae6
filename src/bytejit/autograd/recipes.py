"""How the program's outputs are made from what the forward graph returns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from bytejit.codegen.aten.applied_functions import TracedFunction
from bytejit.codegen.aten.graph import Alias, Out
from bytejit.codegen.aten.mutation import CannotNormalise, overlaps
from bytejit.codegen.aten.outputs import Outputs, counts_apart, out_of
from bytejit.codegen.aten.recorded_values import Root
from bytejit.codegen.aten.recorder import Recorder
from bytejit.common.gradients import CREATION, refused
from bytejit.common.light_dataclass import light_dataclass
from bytejit.fake.tensor import Fake


@light_dataclass(frozen=True)
class Made:
    """Result `index` of the forward graph itself."""

    index: int


@light_dataclass(frozen=True)
class Given:
    """Input `index` itself."""

    index: int


@light_dataclass(frozen=True)
class JointView:
    """A view of `base`, laid out as result `like`. followed: autograd follows it, because it was made with gradients on.
    kind: how it was made, where that is neither with gradients nor without."""

    base: Made | Given
    like: int
    followed: bool
    kind: str | None = None


@light_dataclass(frozen=True)
class Apart:
    """Result `index`. It shares memory with another, but autograd does not see it as a view of that. made: the forward graph
    has made it so."""

    index: int
    made: bool = False


@light_dataclass(frozen=True)
class MadeLeaf:
    """Result `index`, which the graph has made a leaf: `requires_grad_()` of what was made inside."""

    index: int


Recipe = Made | Given | JointView | Apart | MadeLeaf

NO_GRAD, WITH_GRAD = CREATION.NO_GRAD_MODE.name, CREATION.DEFAULT.name
FUNCTION = f"{TracedFunction.__name__}Backward"


class Results:
    """The results of the forward graph, and how the program's outputs are made from them. If a storage has one output, the
    graph returns that output. If it has several, the graph returns the storage, and the outputs are made as views of it, so
    that autograd knows them as views.
    """

    def __init__(self, rec: Recorder, flat: Sequence, kinds: Sequence[str | None]) -> None:
        self.rec, self.found = rec, Outputs(rec, flat, kinds)
        self.primals: list[Fake] = []  # of the results that have gradients, which come first
        self.grown: list[Out] = []
        self.plain: list[Out] = []  # the other results; counted from -1 downwards until all are known
        self.bases: dict[Root, Made] = {}
        self.known: dict[int, Recipe] = {}
        self.shown: dict[Root, dict[int, Fake]] = {}
        self.flat = flat
        for x in flat:
            if type(x) is Fake:
                self.shown.setdefault(x.bound.root, {})[id(x)] = x
        raw = [self.recipe(rec.fake(x) if isinstance(x, torch.Tensor) else x) for x in flat]
        self.recipes = [self.counted(r) for r in raw]

    def outs(self) -> tuple[Out, ...]:
        """Returns all results."""
        return (*self.grown, *self.plain)

    def recipe(self, x: object) -> Recipe:
        """Returns how to make one output of the program."""
        if type(x) is not Fake:
            return self.other(out_of(self.rec, self.found, x))
        if id(x) not in self.known:
            self.known[id(x)] = self.of_tensor(x)
        return self.known[id(x)]

    def of_tensor(self, x: Fake) -> Recipe:
        if refused(x):
            raise CannotNormalise("an output is a view that autograd refuses to use: what it views was written")
        root = x.bound.root
        if is_made_leaf(x) and root.index is None and len(self.shown[root]) == sum(y is x for y in self.flat) == 1:
            return MadeLeaf(self.other(out_of(self.rec, self.found, x)).index)
        of = x._base if x._is_view() else x
        if x.requires_grad and of is not root.fake and of.requires_grad and not is_made_leaf(of):
            # its own for autograd, or a view of such: as torch.unsafe_chunk's are, and reshape's where it copies
            alone = of is x or len(self.shown[root]) == 1
            return self.differentiable(x, out_of(self.rec, self.found, x)) if alone else self.alias(x, self.base_of(of), of)
        if root.index is not None:
            return self.alias(x, Given(root.index), root.fake)
        if len(self.shown[root]) == 1:
            out = out_of(self.rec, self.found, x)
            return self.differentiable(x, out) if x.requires_grad else self.other(out)
        if root not in self.bases:
            base = out_of(self.rec, self.found, root.fake)
            self.bases[root] = self.differentiable(root.fake, base) if root.fake.requires_grad else self.other(base)
        return self.alias(x, self.bases[root], root.fake)

    def base_of(self, of: Fake) -> Made:
        """The result that is its own for autograd, and of which outputs are views."""
        found = self.recipe(of)
        assert isinstance(found, Made), found
        return found

    def alias(self, x: Fake, base: Made | Given, of: Fake) -> Recipe:
        """An output in the memory of a result or of an input."""
        if x is of:
            return base
        refuse_leaf(x)
        if x.m.dtype is not of.m.dtype:
            raise CannotNormalise(f"an output views a {of.m.dtype} tensor, which is an output as well, as {x.m.dtype}")
        result = out_of(self.rec, self.found, x)
        if x.requires_grad and not of.requires_grad:
            raise CannotNormalise("an output needs a gradient and what it is a view of does not")
        if not x.requires_grad and (not x._is_view() or counts_apart(x, of) or x._base is not of):
            return Apart(self.other(result).index, made=True)
        like = self.other(replace(result, kind=None) if isinstance(result, Alias) else result).index
        if x.requires_grad != of.requires_grad:
            return Apart(like)
        if by_function(x, of):
            raise CannotNormalise("an output is a view that an autograd function of the program's made")
        if x.requires_grad and x._base is not of:
            raise CannotNormalise("an output is a view of a leaf: requires_grad_() of what was made inside")
        if x.requires_grad and overlaps(x.bound.root.spec):  # as_strided shares a gradient among elements of one place
            raise CannotNormalise("an output is a view of an expanded tensor, or of windows, that needs a gradient")
        followed, kind = x.grad_fn is not None or not x.requires_grad, self.found.kinds.get(id(x)) or NO_GRAD
        return JointView(base, like, followed, None if kind == (WITH_GRAD if followed else NO_GRAD) else kind)

    def differentiable(self, x: Fake, out: Out) -> Made:
        refuse_leaf(x)
        self.primals.append(x)
        self.grown.append(out)
        return Made(len(self.grown) - 1)

    def other(self, out: Out) -> Made:
        self.plain.append(out)
        return Made(-len(self.plain))

    def counted(self, recipe: Recipe) -> Recipe:
        """A recipe with the other results counted behind those that have gradients."""

        def at(index: int) -> int:
            return index if index >= 0 else len(self.grown) - index - 1

        def base(recipe: Made | Given) -> Made | Given:
            return Made(at(recipe.index)) if isinstance(recipe, Made) else recipe

        if isinstance(recipe, JointView):
            return replace(recipe, base=base(recipe.base), like=at(recipe.like))
        if isinstance(recipe, (Apart, MadeLeaf)):
            return replace(recipe, index=at(recipe.index))
        return base(recipe)


def by_function(x: Fake, of: Fake) -> bool:
    """Whether an autograd function of the program's is between a view and its base."""
    node = x.grad_fn
    while node is not None and node is not of.grad_fn:
        if node.name() == FUNCTION:
            return True
        node = node.next_functions[0][0] if node.next_functions else None
    return False


def own(recipe: Recipe) -> bool:
    """Whether an output is in the memory of a result that autograd follows."""
    return isinstance(recipe, Made) or isinstance(recipe, JointView) and isinstance(recipe.base, Made)


def is_made_leaf(x: Fake) -> bool:
    """Whether an output is a leaf that the graph itself makes."""
    return x.requires_grad and x.is_leaf


def refuse_leaf(x: Fake) -> None:
    """Raises: CannotNormalise where an output is a leaf that the graph itself would have to make."""
    if is_made_leaf(x):
        raise CannotNormalise("an output is a leaf: requires_grad_() of what was made inside")
