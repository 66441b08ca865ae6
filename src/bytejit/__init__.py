"""bytejit compiles PyTorch programs in pure Python: `bytejit.compile(fn_or_module)` or `@bytejit.optimize("inductor")`.

Importing this package loads no compiler: the tracer and the code generators are imported by the first compiled call.
"""

from bytejit.common.counters import counters
from bytejit.common.dims import mark_dynamic, mark_static
from bytejit.common.registry import backends_table, graph_break, is_compiling, list_backends, register_backend, register_target
from bytejit.runtime.marks import allow_in_graph, assume_constant_result, disable, disallow_in_graph

from . import exc
from .api import (
    compile,
    explain,
    export,
    minify,
    optimize,
    reset,
    run,
)
from .common.options import Options, config
from .patching import patch_torch_compile

__version__ = "0.1.0"

if config.replace_torch_compile:
    patch_torch_compile()

__all__ = [
    "Options",
    "allow_in_graph",
    "assume_constant_result",
    "backends_table",
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
    "minify",
    "optimize",
    "patch_torch_compile",
    "register_backend",
    "register_target",
    "reset",
    "run",
]
