"""Errors of inference without data."""

from __future__ import annotations


class DataDependent(Exception):
    """An op asked for data that a fake tensor does not have. `op` is its short name, as `item` or `nonzero`."""

    def __init__(self, op: str) -> None:
        super().__init__(f"{op}: the result depends on a tensor's data")
        self.op = op


class NoFake(NotImplementedError):
    """An op that neither a row nor a meta kernel of torch can infer. `op` is its qualified name."""

    def __init__(self, op: str, reason: str = "") -> None:
        super().__init__(f"{op}: no way to infer its result without data{': ' + reason if reason else ''}")
        self.op = op
