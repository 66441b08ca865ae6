"""The probe "trial", run in a child process on a Python or torch that the suite never ran on: sample functions are
compiled, run and compared. They hold what code objects differ in between versions: loops, handlers, `with`,
comprehensions, closures, generators, calls with keywords, unpacking, formatting, and graph breaks among them."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator

import torch

from .probes import PROBES


def breaks(x: torch.Tensor) -> torch.Tensor:
    """A sample: loops, handlers and managers around a value that is known only when the code runs."""
    seen, total = [], x
    for i, (a, *rest) in enumerate(zip(range(4), "abcd", strict=True)):
        try:
            with torch.no_grad(), contextlib.suppress(KeyError):
                total = total * 2 + a
                if float(total.sum()) > 1e6:
                    raise KeyError(rest)
            if i == 2:
                raise ValueError(f"{i!r:>4} {a}")
        except ValueError as error:
            seen.append(str(error))
            continue
        finally:
            total = total + len(rest)
    while len(seen) < 3:
        seen += [x * k for k in range(2) if k] or [0]  # type: ignore[list-item]
    return total + sum(len(str(s)) for s in seen if not isinstance(s, torch.Tensor))


def closures(x: torch.Tensor, *args: int, scale: float = 2.0, **named: float) -> dict[str, torch.Tensor]:
    """A sample: closures, generators, keywords, unpacking, slices, comparisons."""
    count = 0

    def step(t: torch.Tensor, /, by: float = 1.0, *, again: bool = False) -> torch.Tensor:
        nonlocal count
        count += 1
        return step(t, by=by + 1) if again else t.sin() * by

    def parts(n: int) -> Iterator[torch.Tensor]:
        got = yield x
        for k in range(n):
            got = yield x + k + (got or 0)

    made = {f"k{k}": step(t, **{"by": scale}) for k, t in enumerate(parts(2))}  # type: ignore[arg-type]
    first, *middle, last = args or (1, 2, 3)
    made["rest"] = step(x, again=True) + first + last + sum(middle) + sum(named.values()) + count
    return made | {"slice": x[1:, ::2], "is": x if None is not named and 0 <= first < 9 else -x}


def main() -> None:
    """Compile the samples on a backend that needs no C++ compiler, and compare results. Raises: AssertionError, or what
    the compiler raised."""
    PROBES.child = True
    bytejit = importlib.import_module("bytejit")  # the whole: this program tries it, nothing here is built on it
    x = torch.arange(12.0).view(3, 4)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    with bytejit.config.patch(suppress_errors=False):
        for backend in ("eager", "aot_eager"):
            for f in (breaks, closures, model):
                compiled = bytejit.compile(f, backend=backend)
                for n in range(3):
                    torch.testing.assert_close(compiled(x + n), f(x + n))
    assert bytejit.counters.total("graphs"), "nothing was compiled"
