"""A large arena in blocks, each needed from one step to another. `call.py` allocates and frees them.

In a training step most of the arena holds what the forward pass saved. It dies in the backward pass, and its blocks hold the
gradients and the results of library calls from then on. `codegen/loops/memory.py` places no temp across two blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from bytejit.codegen.loops.memory import extent
from bytejit.codegen.loops.plan import Call, Plan
from bytejit.codegen.loops.uses import reads, writes
from bytejit.common.light_dataclass import light_dataclass

BLOCK = 64 << 20  # bytes: an arena of at most this size is one piece, and kept between calls
ALIGN = 256  # bytes: scratch begins at a multiple of it


@light_dataclass(frozen=True)
class Block:
    """A part of the arena. start, size: in bytes; first, last: the steps that it is needed from and to."""

    start: int
    size: int
    first: int
    last: int


def scratch_base(plan: Plan) -> int:
    """Returns where the launches' scratch begins in the arena. Units: bytes."""
    return -(-plan.arena // ALIGN) * ALIGN


def blocks_of(plan: Plan, scratch: Any = 0) -> tuple[Block, ...]:
    """Where the blocks of a plan's arena start; empty if the arena is one piece. A block ends at a multiple of `BLOCK` that
    no temp crosses. scratch: bytes behind the arena, which are a block of their own; scratch of symbolic size is not in the
    arena."""
    if plan.arena <= BLOCK:
        return ()
    life = steps_of_temps(plan)
    spans = [(at, at + int(extent(plan.buffers[name])), name) for name, at in plan.offsets.items() if name in life]
    crossed = {at for low, high, _ in spans for at in range((low // BLOCK + 1) * BLOCK, high, BLOCK)}
    starts = [at for at in range(0, plan.arena, BLOCK) if at not in crossed]
    used: list[list[int]] = [[] for _ in starts]
    for low, _, name in spans:
        used[bisect_right(starts, low) - 1] += life[name]
    found = [Block(a, b - a, min(us), max(us)) for a, b, us in zip(starts, [*starts[1:], plan.arena], used) if us]
    if scratch and isinstance(scratch, int):
        found.append(Block(scratch_base(plan), scratch, 0, len(plan.steps) - 1))
    return tuple(found)


def steps_of_temps(plan: Plan) -> dict[str, list[int]]:
    """The first and the last step that touches each temp in the arena."""
    found: dict[str, list[int]] = {}
    for i, step in enumerate(plan.steps):
        touched = (*step.reads, *step.writes) if isinstance(step, Call) else (*reads(step.extern), *writes(step.extern))
        for name in touched:
            if name in plan.offsets:
                found.setdefault(name, [i, i])[1] = i
    return found


def place_in(blocks: tuple[Block, ...], at: int) -> tuple[int, int]:
    """(number of the block, byte offset in it) of a byte offset in the arena."""
    k = bisect_right(blocks, at, key=lambda b: b.start) - 1
    return k, at - blocks[k].start
