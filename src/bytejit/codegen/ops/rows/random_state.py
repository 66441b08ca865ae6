"""Ops that read and set the state of the CPU's random number generator, so that a checkpointed part draws the same numbers
again.

They act, so no pass moves a draw past them.
"""

from __future__ import annotations

import torch

from bytejit.common.own_operators import OPERATORS

SEEDED = (torch.Tag.nondeterministic_seeded,)
OPERATORS.define("random_state() -> Tensor", tags=SEEDED)
OPERATORS.define("set_random_state(Tensor state) -> ()", tags=SEEDED)


@torch.library.impl(OPERATORS, "random_state", "CompositeExplicitAutograd")
def random_state() -> torch.Tensor:
    """The state of the generator. Shapes: u8[some 5,000]."""
    return torch.default_generator.get_state()


@torch.library.impl(OPERATORS, "set_random_state", "CPU")
def set_random_state(state: torch.Tensor) -> None:
    """Set the state of the generator."""
    torch.default_generator.set_state(state)


GET, SET = torch.ops.bytejit.random_state.default, torch.ops.bytejit.set_random_state.default
