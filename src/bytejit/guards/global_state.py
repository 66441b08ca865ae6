"""torch's global state as guards know it: a getter by name, and the source that reads it."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import torch

from bytejit.common import ambient_kinds, given_warnings, profiler_ranges, saved_tensors, torch_controls
from bytejit.common.light_dataclass import light_dataclass

from . import library_flags
from .references import SourcePrinter
from .source import Source


def _autocast(device: str) -> tuple[bool, torch.dtype]:
    return torch._C.is_autocast_enabled(device), torch._C.get_autocast_dtype(device)


_C, _AD = torch._C, torch.autograd.forward_ad
# name -> (getter, text of its call; "{f}" is the getter itself)
STATES: dict[str, tuple[Callable[[], Any], str]] = {
    "grad_mode": (_C.is_grad_enabled, "{f}()"),
    "inference_mode": (_C.is_inference_mode_enabled, "{f}()"),
    "autocast": (_C._is_any_autocast_enabled, "{f}()"),
    "function_modes": (_C._len_torch_function_stack, "{f}()"),  # torch.device as a context is one of them
    "function_enabled": (_C._is_torch_function_enabled, "{f}()"),  # matters to tensor subclasses only
    "dispatch_modes": (_C._len_torch_dispatch_stack, "{f}()"),
    # vmap, torch.func.grad: a plain type hides wrappers
    "functorch_level": (_C._functorch.maybe_current_level, "{f}()"),
    "jit_tracing": (_C._is_tracing, "{f}()"),  # torch.jit.trace, with which torch.onnx and tensorboard look at models
    "forward_ad_level": (lambda: _AD._current_level, "_AD._current_level"),
    "default_dtype": (torch.get_default_dtype, "{f}()"),
    "deterministic": (_C._get_deterministic_algorithms, "{f}()"),
    "deterministic_warns": (_C._get_deterministic_algorithms_warn_only, "{f}()"),
    "anomaly": (_C.is_anomaly_enabled, "{f}()"),
    "anomaly_nan": (_C.is_anomaly_check_nan_enabled, "{f}()"),
    "autocast_cache": (_C.is_autocast_cache_enabled, "{f}()"),
    "autocast_nesting": (ambient_kinds.autocast_nesting, "{f}()"),
    "autocast_cpu": (lambda: _autocast("cpu"), "{f}()"),
    "autocast_cuda": (lambda: _autocast("cuda"), "{f}()"),
    "cuda_device": (lambda: _C._cuda_getDevice() if torch.cuda.is_initialized() else 0, "{f}()"),  # where "cuda" names no index
    "saved_hooks_refusal": (saved_tensors.refusal, "{f}()"),
    "saved_hooks": (saved_tensors.hooks_state, "{f}()"),
    "stance": (torch_controls.forced, ""),
    "warnings": (given_warnings.manner, "{f}()"),
    "profiler": (profiler_ranges.profiled, "{f}()"),
    **library_flags.STATES,
}
ALWAYS = (
    "grad_mode",
    "inference_mode",
    "autocast",
    "function_modes",
    "dispatch_modes",
    "functorch_level",
    "jit_tracing",
    "forward_ad_level",
    "default_dtype",
    "deterministic",
    "stance",
)


@light_dataclass(frozen=True, slots=True, repr=False)
class GlobalState(Source):
    """A piece of torch's global state, by its name in STATES."""

    which: str

    __hash__ = Source.__hash__

    def expr(self, at: SourcePrinter) -> str:
        if self.which == "stance":
            return torch_controls.forced_text(at.bind)
        getter, text = STATES[self.which]
        at.env["_AD"] = _AD
        return text.format(f=at.bind(getter, "f")) if "{" in text else text

    @property
    def getter(self) -> Callable[[], Any] | None:
        """The function of torch's own that returns it; None where more than its call is needed."""
        getter, text = STATES[self.which]
        return getter if text == "{f}()" and isinstance(getter, BuiltinFunctionType) else None

    def name(self) -> str:
        return f"torch's {self.which}" if self.which != "warnings" else "what becomes of warnings"
