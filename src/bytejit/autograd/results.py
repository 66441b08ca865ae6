"""A program's outputs, made from the results of its forward graph and from its inputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch

from bytejit.common.gradients import CREATION, made_as

from .recipes import Apart, Given, JointView, Made, MadeLeaf, Recipe


def maker(recipe: Recipe) -> Callable[[Sequence, Sequence], object]:
    """The function that makes an output of the program from the results and the inputs."""
    if isinstance(recipe, JointView):
        return functools.partial(view, maker(recipe.base), recipe.like, recipe.followed, recipe.kind)
    index = recipe.index
    if isinstance(recipe, Made) or isinstance(recipe, Apart) and recipe.made:
        return lambda made, inputs: made[index]
    if isinstance(recipe, Given):
        return lambda made, inputs: inputs[index]
    if isinstance(recipe, MadeLeaf):
        return lambda made, inputs: made[index].requires_grad_()
    return lambda made, inputs: made[index].detach()


def view(base: Callable, like: int, followed: bool, kind: str | None, made: Sequence, inputs: Sequence) -> torch.Tensor:
    """A view laid out as a result. followed: whether autograd follows it."""
    t, of = made[like], base(made, inputs)
    if followed:
        found = of.as_strided(t.shape, t.stride(), t.storage_offset())
    else:
        with torch.no_grad():
            found = of.as_strided(t.shape, t.stride(), t.storage_offset())
    return found if kind is None else made_as(found, getattr(CREATION, kind))


def primal_of(index: int, recipes: Sequence[Recipe], outs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result that the outputs of a traced graph show, or are views of."""
    for recipe, out in zip(recipes, outs):
        if recipe == Made(index):
            return out
    return next(out._base for recipe, out in zip(recipes, outs) if isinstance(recipe, JointView) and recipe.base == Made(index))
