"""torch.compile's options and kinds of logs, told in bytejit's. Those without a meaning here are warned of and left."""

from __future__ import annotations

import ast
import functools
import itertools
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from . import caches

# an option of torch.compile's -> the value that it has no effect with, and the fields of bytejit's that another one sets
OURS: dict[str, tuple[object, dict[str, object]]] = {
    "max_autotune": (False, {"mode": "max-autotune-no-cudagraphs"}),
    "max_autotune_gemm": (False, {"mode": "max-autotune-no-cudagraphs"}),
    "triton.cudagraphs": (None, {}),  # cudagraphs: what was given
    "freezing": (False, {"freeze": True}),
    "fallback_random": (False, {"fused_rng": False}),
    "trace.enabled": (False, {"debug": True}),
    "debug": (False, {"debug": True}),
}
# what torch.compile takes out of its options before the compiler that they are for sees them
TAKEN = frozenset({"guard_filter_fn", "use_aoti"})
LOGGING = "torch._logging._internal"
# a kind of bytejit's logs -> torch's kinds (TORCH_LOGS, torch._logging.set_logs) that ask for it
LOGS = {
    "graph": frozenset({"graph", "graph_code"}),
    "breaks": frozenset({"graph_breaks"}),
    "recompiles": frozenset({"recompiles", "recompiles_verbose"}),
    "guards": frozenset({"guards", "verbose_guards"}),
    "code": frozenset({"output_code", "kernel_code"}),
}


@functools.cache
def names_of_torch() -> frozenset[str]:
    """The options that torch's own compiler knows, read from its source as text: `max_autotune`, `triton.cudagraphs`.

    Without that file there are none, and every name that is not bytejit's is an error.
    """
    file = Path(torch.__file__).parent / "_inductor" / "config.py"
    return frozenset(_assigned(ast.parse(file.read_text()).body, "", {})) | TAKEN if file.exists() else frozenset()


def _assigned(body: list[ast.stmt], prefix: str, classes: dict[str, list[ast.stmt]]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            bases = (classes.get(base.id, []) for base in node.bases if isinstance(base, ast.Name))
            classes[node.name] = [*itertools.chain(*bases), *node.body]
            yield from _assigned(classes[node.name], f"{prefix}{node.name}.", {})
        elif isinstance(node, ast.If):
            yield from _assigned(node.body + node.orelse, prefix, classes)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield prefix + target.id


def told(options: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Options with torch.compile's names in bytejit's; `own`: the fields of bytejit's. Unknown names stay, for an error.

    Warns, once a process, of each of torch's that does nothing here.
    """
    found: dict[str, object] = {}
    translated: dict[str, object] = {}
    for given, value in options.items():
        name = given.replace("-", "_") if isinstance(given, str) else given
        if given in own:
            found[given] = value
        elif name == "triton.cudagraphs":
            translated["cudagraphs"] = bool(value)
        elif name in OURS:
            without, fields = OURS[name]
            translated.update(fields if value != without else {})
        elif name in names_of_torch():
            caches.warn_once(f"option {name}", f"bytejit: {name!r} is an option of torch's own compiler, and does nothing here")
        else:
            found[given] = value
    return translated | found


def asked_of_torch(kind: str) -> bool:
    """Whether the program, or TORCH_LOGS, has asked torch for logs of a kind."""
    state = getattr(sys.modules.get(LOGGING), "log_state", None)
    return not LOGS.get(kind, frozenset()).isdisjoint(getattr(state, "artifact_names", ()))
