"""Measures the rounding errors of a choice's candidates. One that rounds much more than eager's call is not taken.

Libraries differ by up to 5 times in their distance from float64: one adds thousands of products to one accumulator,
another in parts. Which does so depends on the shape, the layout and the machine's instructions, so it is measured: all
run once on the same random operands, and a part of the result is computed in float64 by the call that eager makes.

A call is not taken when it is further from float64 than eager's by a factor of 1.6 (root mean square) or 1.8 (largest). With
the sums of `codegen/cpu/accumulation.py` and of our own products this holds that no output is further off than twice eager's
distance. The CPU capability that torch reads from its variable ATEN_CPU_CAPABILITY holds for our kernels too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from bytejit.common.spec import Spec

LIMITS = (1.6, 1.8)  # root mean square and largest distance, times those of eager's call: networks then stay below 2
LEAST = 2.0**-26  # of the result's root mean square: closer than a rounded float32 nothing can be told apart
SEED = 20211


def too_far(
    specs: Sequence[Spec],
    calls: Mapping[str, tuple[Callable, Callable | None]],
    base: str,
    sample: int,
    along: Sequence[int] = (0,),
) -> dict[str, str]:
    """The candidates whose errors exceed LIMITS, each with the errors measured.

    calls: name -> (call, prepare or None), as in `tune.Candidate`. base: the name of the call that eager makes. sample:
    how many rows (of dimension 0 of the result, and of the operands `along`) are computed in float64. A candidate that
    refuses the operands is left to whoever times it. Raises: what `base` raises.
    """
    operands = _operands(specs)
    few = [t[:sample] if i in along else t for i, t in enumerate(operands)]
    with torch.no_grad():
        exact = calls[base][0](*(t.double() for t in few))
        found = {base: _distance(_run(*calls[base], operands), exact)}
        for name, call in calls.items():
            try:
                found[name] = found[base] if name == base else _distance(_run(*call, operands), exact)
            except (RuntimeError, NotImplementedError):
                continue  # timing meets the same error, and keeps it
    least = LEAST * exact.square().mean().sqrt().item()
    times = {name: [f / max(n, least) for f, n in zip(far, found[base], strict=True)] for name, far in found.items()}
    return {
        name: f"{t[0]:.1f} times as far from float64 as {base}, {t[1]:.1f} at most"
        for name, t in times.items()
        if not all(x <= limit for x, limit in zip(t, LIMITS, strict=True))
    }


def _operands(specs: Sequence[Spec]) -> list[torch.Tensor]:
    """Random operands: the first mostly positive, as activations are; the program's random numbers are not touched."""
    generator = torch.Generator().manual_seed(SEED)
    made = []
    for i, spec in enumerate(specs):
        last = sum((n - 1) * s for n, s in zip(spec.shape, spec.stride, strict=True))
        flat = torch.empty(last + 1, dtype=spec.dtype).uniform_(-0.25 if i == 0 else -1.0, 1.0, generator=generator)
        made.append(flat.as_strided(spec.shape, spec.stride))
    return made


def _run(call: Callable[..., torch.Tensor], prepare: Callable[..., tuple] | None, operands: list[torch.Tensor]) -> torch.Tensor:
    return call(*(prepare(*operands) if prepare else operands))


def _distance(result: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """Root mean square and largest difference, over the rows that `exact` has."""
    off = result[: exact.shape[0]].double() - exact
    return off.square().mean().sqrt().item(), off.abs().max().item()
