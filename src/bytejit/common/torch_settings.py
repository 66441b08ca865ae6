"""What a program sets in the config of torch's own compiler, read for this one. torch's compiler is never imported here."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from bytejit.common import caches

from .options import Options

CONFIG = "torch._dynamo.config"
CONFIG_OF_PASSES = "torch._functorch.config"  # of forward and backward graphs

# fields of torch's config with a meaning here -> their default: only another value is heard
FIELDS = {
    "suppress_errors": False,
    "recompile_limit": 8,
    "verify_correctness": False,
    "error_on_recompile": False,
    "fail_on_recompile_limit_hit": False,
    "assume_static_by_default": True,
    "automatic_dynamic_shapes": True,
    "dynamic_shapes": True,
    "disable": False,
}
# fields that programs set and that do nothing here -> their default, and what is so instead: said once
UNHEARD: dict[str, tuple[object, str]] = {
    "capture_scalar_outputs": (
        False,
        "numbers of tensors are in the graph under fullgraph=True; else the graph breaks where one decides something",
    ),
    "capture_dynamic_output_shape_ops": (
        False,
        "operations whose results' sizes go by values are in the graph under fullgraph=True, and break it else",
    ),
    "accumulated_recompile_limit": (256, "recompile_limit holds for each function"),
    "compiled_autograd": (False, "a backward pass is compiled with its forward pass, or in a compiled function that calls it"),
    "reorderable_logging_functions": (set(), "calls of these break the graph"),
    "trace_numpy": (True, "NumPy is in the graph; bytejit.disable leaves a function as it is"),
}
OFF = ("TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE")  # environment: "1" leaves everything uncompiled


def setting(name: str) -> object:
    """A field of torch's config, where it is not as by default; None else."""
    config = sys.modules.get(CONFIG)
    value = None if config is None else getattr(config, name, None)
    return None if value == FIELDS[name] else value


def with_settings(options: Options, own: Mapping[str, object]) -> Options:
    """The options of a compile with what torch's config says; `own`, given in the call, come first."""
    if CONFIG not in sys.modules:
        return options
    config = sys.modules[CONFIG]
    for name, (default, instead) in UNHEARD.items():
        if getattr(config, name, default) != default:
            caches.warn_once(f"field {name}", f"bytejit: {CONFIG}.{name} does nothing here: {instead}")
    changes = {}
    for name in ("suppress_errors", "recompile_limit", "verify_correctness"):
        value = setting(name)
        if value is not None and name not in own:
            changes[name] = type(getattr(options, name))(value)
    if changes.get("suppress_errors") and "raise_on_backend_error" not in own:  # torch's field speaks of backends, too
        changes["raise_on_backend_error"] = False
    return options.replace(**changes) if changes else options


def memory_budget(options: Options, own: Mapping[str, object]) -> float:
    """The option `activation_memory_budget`, or torch's field of that name where only it has been set. own: given in the call."""
    theirs = getattr(sys.modules.get(CONFIG_OF_PASSES), "activation_memory_budget", 1.0)
    ours = options.activation_memory_budget
    return theirs if ours == 1.0 and "activation_memory_budget" not in own else ours


def dynamic_by(given: bool | None) -> bool | None:
    """Whether sizes are symbolic, as `dynamic` of a compile: what was given, or what torch's config says."""
    if given is not None or CONFIG not in sys.modules:
        return given
    if setting("dynamic_shapes") is not None or setting("automatic_dynamic_shapes") is not None:
        return False
    return True if setting("assume_static_by_default") is not None else None


def switched_off() -> bool:
    """Whether the environment or torch's config says that nothing is to be compiled."""
    return any(os.environ.get(name) == "1" for name in OFF) or bool(setting("disable"))
