"""The tables of what stands for a real callable while tracing: a model of it, or Python code that is inlined in its place.

The files that `registrations.py` lists fill them when they are imported; `tracer/objects/calls.py` looks callables up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bytejit.common.identity import IdentityMap

MODELS: dict = {}  # callable -> handler(t, args, kwargs) -> Var
CALLED: dict = {}  # C class -> handler(t, instance, args, kwargs) -> Var of a call of an instance from outside
POLYFILLS: dict = {}  # callable -> Python function that is inlined in its place
BY_NAME: dict[tuple[str, str], object] = {}  # the same for (module, name) of Python functions that may not be imported here
OPERATORS: dict[str, object] = {}  # the same for the names of torch's higher-order operators
REPLACED: IdentityMap[Any] = IdentityMap()  # the code of a function of POLYFILLS -> what it stands for
STEPPED: IdentityMap[bool] = IdentityMap()  # code that stands for a C iterator -> whether it goes on after an exception
STAYING: IdentityMap[bool] = IdentityMap()  # code of functions that replace others while tracing, and must not leave a region


def models(*callables: object) -> Callable:
    """Register `handler(t, args: list[Var], kwargs: dict[str, Var]) -> Var` for real callables."""

    def register(handler: Callable) -> Callable:
        for c in callables:
            MODELS[c] = handler
        return handler

    return register


def replaces(*callables: object) -> Callable:
    """Register a Python function to be inlined in place of C callables."""

    def register(function: Callable) -> Callable:
        for c in callables:
            POLYFILLS[c] = function
            REPLACED.set(function.__code__, c)
        return function

    return register


def replaces_named(module: str, name: str) -> Callable:
    """Register a Python function to be inlined in place of one of a module that only the program imports."""

    def register(function: Callable) -> Callable:
        BY_NAME[module, name] = function
        return function

    return register


def replaces_operator(name: str) -> Callable:
    """Register a Python function to be inlined in place of one of torch's higher-order operators."""

    def register(function: Callable) -> Callable:
        OPERATORS[name] = function
        return function

    return register
