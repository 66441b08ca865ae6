"""Loops -> plan: the loop over all steps. How a kernel runs is the target's to say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytejit.codegen.loops.expr import Cons
from bytejit.codegen.loops.ir import Buffer, Kernel, Loops
from bytejit.codegen.loops.memory import Memory
from bytejit.codegen.loops.plan import Call, ExternCall, Machine, Plan
from bytejit.codegen.loops.uses import reads, writes
from bytejit.common.interrupts import poll


def plan_kernels(
    loops: Loops,
    machine: Machine,
    memory: Memory,
    schedule_kernel: Callable[[Kernel, dict[str, Buffer], Cons, Machine], tuple[Kernel, Any]],
    parts_of: Callable[[Kernel, dict[str, Buffer], Cons], list[Kernel]] = lambda kernel, buffers, cons: [kernel],
) -> Plan:
    """The plan for a machine. schedule_kernel: returns a kernel in its final loops, and how they run; parts_of: the kernels that
    run in a kernel's place. Deterministic."""
    steps: list[Any] = []
    for i, step in enumerate(loops.steps):
        poll()
        free = memory.free.get(i, ())
        if isinstance(step, Kernel):
            parts = parts_of(step, loops.buffers, loops.cons)
            for part in parts:
                kernel, sched = schedule_kernel(part, loops.buffers, loops.cons, machine)
                out = writes(part)
                near = [b for b in reads(part) if loops.buffers[b].kind != "local" and b not in out]
                done = free if part is parts[-1] else ()
                steps.append(Call(kernel, sched, tuple(near), tuple(b for b in out if loops.buffers[b].kind != "local"), done))
        else:
            steps.append(ExternCall(step, free))
    return Plan(
        loops.inputs,
        loops.buffers,
        tuple(steps),
        loops.outputs,
        loops.mutations,
        memory.offsets,
        memory.arena,
        machine.name,
        memory.slots,
        memory.slot_bytes,
        loops.symbols,
    )
