"""All that generated kernels may call. Only they import this file."""

from .triton_math import *  # noqa: F403
from .triton_reductions import *  # noqa: F403
