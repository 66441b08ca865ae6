"""What the backend `inductor` begins before the graph is known: its import alone takes as long as this compiler run."""

from __future__ import annotations

import torch

from bytejit.common.options import Options
from bytejit.compat.probes import PROBES
from bytejit.guards.native_checker import CHECKER, unit
from bytejit.kernels import build_cpp


def install_checks(options: Options) -> None:
    """Let guards check tensors through a compiled unit; without a compiler they stay in Python."""
    if CHECKER.built:
        return
    first = not CHECKER.installed
    CHECKER.install(lambda text: build_cpp.build([text], options).calls[0])  # with the settings of this graph
    if first and getattr(torch.Tensor, "__dlpack_c_exchange_api__", None) is not None:
        PROBES.start("layouts")
        build_cpp.ahead(unit(), options)  # its compiler runs beside the trace and the lowering of the first graph
