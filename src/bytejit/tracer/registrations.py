"""Imports every module that registers opcode handlers or models of functions when it is imported."""

# ruff: noqa: F401
from bytejit.tracer.builtins import (
    arrangements,
    bound_functions,
    copying,
    dicts,
    given_warnings,
    heaps,
    iterators,
    json_texts,
    lazy_iterators,
    legacy_constructors,
    namespaces,
    numbers,
    patterns,
    polyfills,
    sequences,
    sets,
    types,
    warning_filters,
)
from bytejit.tracer.objects import caching, classes, library, raising
from bytejit.tracer.opcodes import arithmetic, build, call, imports, iteration, stack
from bytejit.tracer.torch import (
    autograd_functions,
    backward,
    checkpoints,
    checks,
    control_flow,
    distributions,
    higher_order,
    hooks,
    inference_mode,
    library_settings,
    machine_questions,
    made_wrappers,
    optimizers,
    override_models,
    parameters,
    process_groups,
    recurrent,
    scans,
    scripted,
    spectral,
    state,
    transforms,
)
