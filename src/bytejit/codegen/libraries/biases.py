"""Biases of convolutions on a GPU as operations of their own: cuDNN through torch runs a kernel of its own for them anyway, and
ours is one with what stands beside it."""

from __future__ import annotations

import operator

from torch import fx

from bytejit.codegen.aten.rewrite import aten, call_before, replace, spec_of
from bytejit.common.spec import Spec

from .choices import Choices, choose_each
from .convolution import ConvNode, match_conv


def split_biases(graph: fx.Graph, choices: Choices) -> None:
    """The bias of each convolution as an addition. Changes `graph`."""

    def split(conv: ConvNode, b: fx.Node) -> None:
        node, spec, bias = conv.node, spec_of(conv.node), spec_of(b)
        bare = call_before(graph, node, node.target, (conv.x, conv.w, None, *node.args[3:]), spec)
        column = Spec((bias.shape[0], 1, 1), (bias.stride[0], 1, 1), bias.dtype, bias.device)
        converted = call_before(graph, node, aten.view.default, (b, list(column.shape)), column)
        replace(node, call_before(graph, node, aten.add.Tensor, (bare, converted), spec))

    choose_each(graph, match_conv, lambda conv: conv.b, split)


def split_bias_gradients(graph: fx.Graph, choices: Choices) -> None:
    """The gradient of each convolution's bias as a sum over all but the channels. Changes `graph`."""

    def split(node: fx.Node, mask: list[bool]) -> None:
        grad = node.args[0]
        rest = [d for d in range(len(spec_of(grad).shape)) if d != 1]
        for user in list(node.users):
            if user.target is operator.getitem and user.args[1] == 2:
                replace(user, call_before(graph, user, aten.sum.dim_IntList, (grad, rest), spec_of(user)))
        if any(mask[:2]):
            node.args = (*node.args[:-1], [*mask[:2], False])
            node.meta["spec"] = (*node.meta["spec"][:2], None)

    choose_each(graph, _backward, lambda node: node.args[-1] if node.args[-1][2] else None, split)


def _backward(node: fx.Node) -> fx.Node | None:
    return node if node.target is aten.convolution_backward.default else None
