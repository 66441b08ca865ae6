"""What compiles the programs, by BYTEJIT_TEST_TARGET: bytejit, nothing (`plain`) or torch.compile (`torch`)."""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field

TARGET = os.environ.get("BYTEJIT_TEST_TARGET", "bytejit")
if TARGET not in ("bytejit", "plain", "torch"):
    raise ValueError(f"BYTEJIT_TEST_TARGET={TARGET!r}: one of bytejit, plain, torch")


@dataclass
class Counter:
    """A backend that counts the graphs it is given, and runs them as they are unless `inner` says otherwise."""

    inner: str = "eager"
    graphs: list = field(default_factory=list)

    def __call__(self, gm, example_inputs):
        self.graphs.append(gm)
        if self.inner == "eager":
            return gm.forward
        return lookup(self.inner)(gm, example_inputs)

    @property
    def count(self) -> int:
        return len(self.graphs)


def lookup(name: str) -> Callable:
    """The backend of that name."""
    if TARGET == "torch":
        from torch._dynamo import lookup_backend

        return lookup_backend(name)
    from bytejit.common import registry

    return registry.lookup_backend(name)


def compiled(fn, backend, nopython: bool = False, dynamic=None):
    """`fn` compiled by the target."""
    if TARGET == "plain":
        return fn
    if TARGET == "torch":
        import torch

        return torch.compile(fn, backend=backend, fullgraph=nopython, dynamic=dynamic)
    import bytejit

    if dynamic is not None:
        return bytejit.compile(fn, backend=backend, fullgraph=nopython, dynamic=dynamic)
    return bytejit.optimize(backend, nopython=nopython)(fn)


def unsupported() -> type[BaseException]:
    """The error that a break raises under nopython=True."""
    if TARGET == "torch":
        from torch._dynamo.exc import TorchDynamoException

        return TorchDynamoException
    from bytejit import exc

    return exc.Unsupported


def reset() -> None:
    """Forget everything compiled so far."""
    if TARGET == "torch":
        import torch

        torch._dynamo.reset()
    elif TARGET == "bytejit":
        import bytejit

        bytejit.reset()


def breaks() -> dict:
    """Of what was compiled since the last reset: where it is more than one graph."""
    if TARGET != "bytejit":
        return {}
    import bytejit

    return bytejit.counters["breaks"]


def strict() -> contextlib.AbstractContextManager:
    """Faults of the compiler raise instead of falling back to the plain function."""
    if TARGET == "bytejit":
        import bytejit

        return bytejit.config.patch(suppress_errors=False)
    return contextlib.nullcontext()
