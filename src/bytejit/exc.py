"""The errors of bytejit under their public names: `bytejit.exc.Unsupported` and the others."""

from .errors import BackendFailed, Bug, BytejitError, CannotRewrite, ConstraintViolation, RecompileError, Unsupported

__all__ = ["BackendFailed", "Bug", "BytejitError", "CannotRewrite", "ConstraintViolation", "RecompileError", "Unsupported"]
