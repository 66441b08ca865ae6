"""bytejit compiles PyTorch programs in pure Python: `bytejit.compile(fn_or_module)` or `@bytejit.optimize("inductor")`.

Importing this package loads no compiler: the tracer and the code generators are imported by the first compiled call.
"""

from bytejit.common.registry import counters, graph_break, is_compiling, list_backends, register_backend

from . import exc
from .api import (
    allow_in_graph,
    assume_constant_result,
    compile,
    disable,
    disallow_in_graph,
    explain,
    export,
    mark_dynamic,
    mark_static,
    optimize,
    reset,
    run,
)
from .options import Options, config

__version__ = "0.1.0"

__all__ = [
    "Options",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "config",
    "counters",
    "disable",
    "disallow_in_graph",
    "exc",
    "explain",
    "export",
    "graph_break",
    "is_compiling",
    "list_backends",
    "mark_dynamic",
    "mark_static",
    "optimize",
    "register_backend",
    "reset",
    "run",
]
