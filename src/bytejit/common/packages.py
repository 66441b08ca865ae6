"""Packages that only some backends need. `NEEDS` has a row for each such backend; nothing here imports one of them.

`registry.lookup_backend` calls `require` before it imports a backend, so a backend's file imports its packages at its top.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re

from bytejit.common.light_dataclass import light_dataclass

from .errors import MissingPackage


@light_dataclass(frozen=True)
class Package:
    """name: as it is imported; least: the oldest version that has what is used; project: what pip installs, if not that."""

    name: str
    least: str
    project: str = ""

    @property
    def wanted(self) -> str:
        """Returns the requirement as pip takes it."""
        return f"{self.project or self.name}>={self.least}"

    def fault(self) -> str:
        """Returns why it cannot be used: it is not there, or too old; "" when it can be."""
        try:
            found = importlib.util.find_spec(self.name) is not None
        except ValueError:  # a module without a spec stands for it
            found = True
        if not found:
            return "is not installed"
        try:
            version = importlib.metadata.version(self.project or self.name)
        except importlib.metadata.PackageNotFoundError:  # a build of it under another name: what it is shows on use
            return ""
        return "" if numbers(version) >= numbers(self.least) else f"is version {version}"


ONNX = Package("onnx", "1.15")
NEEDS: dict[str, tuple[Package, ...]] = {
    "onnxrt": (ONNX, Package("onnxruntime", "1.17")),
    "openvino": (ONNX, Package("openvino", "2024.0")),
    "tvm": (ONNX, Package("tvm", "0.27", "apache-tvm")),
}


def numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: (1, 15, 0) for "1.15.0rc1"."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def missing(backend: str) -> dict[Package, str]:
    """The packages that a backend needs and that cannot be used, each with the reason."""
    return {package: reason for package in NEEDS.get(backend, ()) if (reason := package.fault())}


def require(backend: str) -> None:
    """Raises: MissingPackage where a backend needs what is not there."""
    if found := missing(backend):
        faults = tuple(f"{package.name} {reason}, {package.least} or newer is needed" for package, reason in found.items())
        raise MissingPackage(backend, faults, "pip install " + " ".join(f'"{package.wanted}"' for package in found))
