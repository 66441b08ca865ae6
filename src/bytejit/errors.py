"""The errors of bytejit: `bytejit.errors.Unsupported` and the others. `bytejit.exc` has the same, by the name of torch's own."""

from .exc import *  # noqa: F403
from .exc import __all__ as __all__
