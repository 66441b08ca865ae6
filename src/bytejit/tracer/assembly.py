"""A tracer with all its parts, and the tables of handlers and models filled."""

from __future__ import annotations

from bytejit.tracer.builtins.arrays import Arrays
from bytejit.tracer.builtins.traced_arrays import TracedArrays
from bytejit.tracer.core.component import Component
from bytejit.tracer.core.deferred_calls import DeferredCalls
from bytejit.tracer.core.job import Job
from bytejit.tracer.core.names import Names
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.objects.attribute_writes import AttributeWrites
from bytejit.tracer.objects.attributes import Attributes
from bytejit.tracer.objects.calls import Calls
from bytejit.tracer.objects.classes import Classes
from bytejit.tracer.objects.comparisons import Comparisons
from bytejit.tracer.objects.context_variables import ContextVariables
from bytejit.tracer.objects.instance_attributes import InstanceAttributes
from bytejit.tracer.objects.instantiation import Instantiation
from bytejit.tracer.objects.iterators import Iteration
from bytejit.tracer.objects.known_attributes import KnownAttributes
from bytejit.tracer.objects.operators import Operators
from bytejit.tracer.objects.subscript_writes import SubscriptWrites
from bytejit.tracer.objects.subscripts import Subscripts
from bytejit.tracer.objects.wrap import Wrapping
from bytejit.tracer.sizes.computed_numbers import ComputedNumbers
from bytejit.tracer.sizes.copies import Copies
from bytejit.tracer.sizes.drawn import DrawnNumbers
from bytejit.tracer.sizes.dynamic import Symbols
from bytejit.tracer.sizes.inference import SymbolicInference
from bytejit.tracer.sizes.measured import Measured
from bytejit.tracer.sizes.numbers import SymbolicNumbers
from bytejit.tracer.sizes.read_numbers import ReadNumbers
from bytejit.tracer.sizes.size_hysteresis import SizeHysteresis
from bytejit.tracer.sizes.symbol_guards import SymbolGuards
from bytejit.tracer.sizes.tensor_values import TensorValues
from bytejit.tracer.sizes.unit_strides import UnitStrides
from bytejit.tracer.torch.backward import Backward
from bytejit.tracer.torch.checks import Checks
from bytejit.tracer.torch.composed_tensors import ComposedTensors
from bytejit.tracer.torch.drawn_tensors import DrawnTensors
from bytejit.tracer.torch.indexing import Indexing
from bytejit.tracer.torch.marks import Marks
from bytejit.tracer.torch.overrides import Overrides
from bytejit.tracer.torch.program_operators import ProgramOperators
from bytejit.tracer.torch.tensor_attributes import TensorAttributes
from bytejit.tracer.torch.tensor_inputs import TensorInputs
from bytejit.tracer.torch.tensors import Tensors

from . import registrations  # noqa: F401 (fills the tables of handlers and models)

PARTS: dict[str, type[Component]] = {
    "deferred": DeferredCalls,
    "drawn": DrawnNumbers,
    "reads": ReadNumbers,
    "context_variables": ContextVariables,
    "values": Wrapping,
    "names": Names,
    "attributes": Attributes,
    "instance_attributes": InstanceAttributes,
    "known_attributes": KnownAttributes,
    "attribute_writes": AttributeWrites,
    "operators": Operators,
    "comparisons": Comparisons,
    "subscripts": Subscripts,
    "subscript_writes": SubscriptWrites,
    "iteration": Iteration,
    "calls": Calls,
    "instantiation": Instantiation,
    "classes": Classes,
    "tensors": Tensors,
    "tensor_inputs": TensorInputs,
    "drawn_tensors": DrawnTensors,
    "composed_tensors": ComposedTensors,
    "tensor_attributes": TensorAttributes,
    "indexing": Indexing,
    "backward": Backward,
    "checks": Checks,
    "overrides": Overrides,
    "program_operators": ProgramOperators,
    "marks": Marks,
    "numpy_arrays": Arrays,
    "traced_arrays": TracedArrays,
    "tensor_values": TensorValues,
    "computed_numbers": ComputedNumbers,
    "measures": Measured,
    "sizes": Symbols,
    "numbers": SymbolicNumbers,
    "size_inference": SymbolicInference,
    "symbol_guards": SymbolGuards,
    "hysteresis": SizeHysteresis,
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
