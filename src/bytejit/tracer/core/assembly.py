"""A tracer with all its parts, and the tables of handlers and models filled."""
from __future__ import annotations

from bytejit.tracer.builtins.arrays import Arrays
from bytejit.tracer.core.deferred_calls import DeferredCalls
from bytejit.tracer.core.wrap import Wrapping
from bytejit.tracer.objects.attributes import Attributes
from bytejit.tracer.objects.calls import Calls
from bytejit.tracer.objects.classes import Classes
from bytejit.tracer.objects.iterators import Iteration
from bytejit.tracer.objects.operators import Operators
from bytejit.tracer.sizes.copies import Copies
from bytejit.tracer.sizes.dynamic import Symbols
from bytejit.tracer.sizes.measured import Measured
from bytejit.tracer.sizes.size_hysteresis import StandIns
from bytejit.tracer.sizes.tensor_values import TensorValues
from bytejit.tracer.sizes.unit_strides import UnitStrides
from bytejit.tracer.torch.marks import Marks
from bytejit.tracer.torch.overrides import Overrides
from bytejit.tracer.torch.tensors import Tensors

from . import registrations  # noqa: F401 (fills the tables of handlers and models)
from .component import Component
from .job import Job
from .tracer import Tracer

PARTS: dict[str, type[Component]] = {
    "deferred": DeferredCalls,
    "values": Wrapping,
    "attributes": Attributes,
    "operators": Operators,
    "iteration": Iteration,
    "calls": Calls,
    "classes": Classes,
    "tensors": Tensors,
    "overrides": Overrides,
    "marks": Marks,
    "numpy_arrays": Arrays,
    "tensor_values": TensorValues,
    "measures": Measured,
    "sizes": Symbols,
    "hysteresis": StandIns,
    "copying": Copies,
    "unit_strides": UnitStrides,
}


def new_tracer(job: Job, stop_at: int | None = None) -> Tracer:
    """A tracer at the start of its work. stop_at: the step at which the region ends at the latest."""
    t = Tracer(job, stop_at)
    for name, part in PARTS.items():
        t.parts.append(part(t))
        setattr(t, name, t.parts[-1])
    t.sizes.start_symbols(job.dynamic)
    return t
