"""Is a result right? What a program computes beside eager and float64: one rule for the accuracy mode and for `minify`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from bytejit.common.light_dataclass import light_dataclass
from bytejit.runtime.rollback import random_states
from bytejit.runtime.verification import DEFAULT_TOLERANCE, TOLERANCE, copied

TWICE = 2.0  # times as far from float64 as eager is: further is off
LOW = (torch.float16, torch.bfloat16, torch.float32)
TO_LOW = frozenset(("float", "half", "bfloat16"))  # methods that would leave float64


@light_dataclass(frozen=True)
class Difference:
    """How a value is off. distance: the largest over its elements, from float64 or from eager; eager: eager's own."""

    what: str
    distance: float = float("nan")
    eager: float = float("nan")

    def __str__(self) -> str:
        return self.what


class InFloat64(torch.fx.Interpreter):
    """Runs a graph with every number of lower precision in float64: weights, inputs, and what the graph casts to."""

    def run_node(self, n: torch.fx.Node) -> Any:
        """Runs one node, with its dtypes raised."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        target = "double" if n.op == "call_method" and n.target in TO_LOW else n.target
        args, kwargs = torch.fx.node.map_aggregate((args, kwargs), _raised)  # type: ignore[misc]
        return getattr(self, n.op)(target, args, kwargs)


def _raised(x: Any) -> Any:
    if isinstance(x, torch.dtype):
        return torch.float64 if x in LOW else x
    return x.double() if isinstance(x, torch.Tensor) and x.dtype in LOW else x


def run(call: Callable, inputs: Sequence) -> tuple[list, bool]:
    """What a call on copies of the inputs returns, then the inputs as it leaves them; and whether it drew random numbers."""
    before = random_states()
    given = [copied(x) for x in inputs]
    try:
        result = call(*given)
        drew = any(not torch.equal(state, generator.get_state()) for generator, state in before)
    finally:
        for generator, state in before:
            generator.set_state(state)
    result = result if isinstance(result, (tuple, list)) else (result,)
    return [*result, *(x for x in given if isinstance(x, torch.Tensor))], drew


def in_float64(gm: torch.fx.GraphModule, inputs: Sequence) -> list | None:
    """What a graph returns in float64, as `run` does; None where it cannot be run so: random numbers, bits of numbers."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        found, drew = run(lambda *given: InFloat64(gm).run(*map(_raised, given), enable_io_processing=False), inputs)
        return None if drew else found
    except Exception:  # whatever an operation says of another dtype: eager is what there is to compare with
        return None
    finally:
        torch.set_default_dtype(default)


def difference(got: object, eager: object, exact: object = None, tolerance: float | None = None) -> Difference | None:
    """Compare a result. Returns None if it is right: its distance from the exact value is within the tolerance, or at most
    twice that of eager's result. exact: eager's result if None."""
    if not isinstance(got, torch.Tensor) or not isinstance(eager, torch.Tensor):
        return None if type(got) is type(eager) and got == eager else Difference(f"is {got!r:.60}, in eager {eager!r:.60}")
    if (got.shape, got.dtype, got.device) != (eager.shape, eager.dtype, eager.device):
        return Difference(f"is {form(got)}, in eager {form(eager)}")
    return _of_tensors(got.detach(), eager.detach(), exact, tolerance)


def _of_tensors(got: torch.Tensor, eager: torch.Tensor, exact: object, tolerance: float | None) -> Difference | None:
    """The same of tensors of one shape, dtype and device."""
    reference = exact.detach() if isinstance(exact, torch.Tensor) and exact.shape == eager.shape else eager
    if not (eager.is_floating_point() or eager.is_complex()):
        wrong = int(((got != eager) & (got != reference)).sum())
        return Difference(f"differs from eager in {wrong} of {got.numel()} elements", wrong, 0.0) if wrong else None
    near = tolerance if tolerance is not None else TOLERANCE.get(eager.dtype, DEFAULT_TOLERANCE)
    mine, own = distances(got, reference), distances(eager, reference)
    bound = wide(reference).abs().nan_to_num(0.0, 0.0, 0.0) * near + near
    if not bool((mine > bound).any()) or float(mine.max()) <= TWICE * float(own.max()):
        return None
    name = "eager" if reference is eager else "float64"
    beside = "" if reference is eager else f", eager {float(own.max()):.3g}"
    return Difference(f"is {float(mine.max()):.3g} from {name} at most{beside}", float(mine.max()), float(own.max()))


def wide(x: torch.Tensor) -> torch.Tensor:
    """The tensor in the widest dtype of its kind."""
    return x.to(torch.complex128) if x.is_complex() else x.double()


def distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The distance of each element; 0 for equal infinities and for two NaN, infinite for one NaN."""
    a, b = wide(a), wide(b)
    same = (a == b) | (torch.isnan(a) & torch.isnan(b))
    return torch.where(same, 0.0, (a - b).abs().nan_to_num(torch.inf, torch.inf, torch.inf))


def form(x: torch.Tensor) -> str:
    """Dtype, shape and device of a tensor."""
    return f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)} on {x.device}"
