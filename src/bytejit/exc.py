"""The errors of bytejit under their public names: `bytejit.exc.Unsupported` and the others."""

from .common.errors import (
    BackendFailed,
    BadSetting,
    BehindWrites,
    Bug,
    BytejitError,
    CannotRewrite,
    ConstraintViolation,
    DeviceFault,
    IncorrectResult,
    MissingPackage,
    NothingFails,
    RecompileError,
    Unsupported,
)

__all__ = [
    "BackendFailed",
    "BadSetting",
    "BehindWrites",
    "Bug",
    "BytejitError",
    "CannotRewrite",
    "ConstraintViolation",
    "DeviceFault",
    "IncorrectResult",
    "NothingFails",
    "MissingPackage",
    "RecompileError",
    "Unsupported",
]
