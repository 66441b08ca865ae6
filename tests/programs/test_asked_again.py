"""What library functions say while tracing may be different in a later call: the current directory, limits, signatures."""

from __future__ import annotations

import inspect
import os
import pathlib
import sys

import pytest
import torch

import bytejit


def test_a_path_follows_the_current_directory(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x):
        return x + 1, os.path.abspath("name"), os.path.abspath("/a/../name")

    compiled = bytejit.compile(f, backend="eager")
    for place in (tmp_path, os.sep):
        monkeypatch.chdir(place)
        assert repr(compiled(torch.ones(1))) == repr(f(torch.ones(1)))


def test_an_absolute_path_is_no_break() -> None:
    compiled = bytejit.compile(lambda x: (x + 1, os.path.abspath("/a/../name")), backend="eager", fullgraph=True)
    assert compiled(torch.ones(1))[1] == os.path.abspath("/name")


def test_the_recursion_limit_is_the_programs() -> None:
    def f(x):
        return x + sys.getrecursionlimit()

    compiled, limit = bytejit.compile(f, backend="eager"), sys.getrecursionlimit()
    try:
        for more in (0, 0, 100):
            sys.setrecursionlimit(limit + more)
            assert torch.equal(compiled(torch.ones(1)), f(torch.ones(1)))
    finally:
        sys.setrecursionlimit(limit)


def test_a_signature_that_changes() -> None:
    def asked(a, b=1, *, c=2):
        return a

    def f(x):
        found = inspect.signature(asked).parameters
        return x + 1, [(p.name, p.default) for p in found.values()], inspect.getfullargspec(asked).defaults

    compiled = bytejit.compile(f, backend="eager", options={"recompile_limit": 20})

    def same() -> None:
        assert repr(compiled(torch.ones(1))) == repr(f(torch.ones(1)))

    same()
    asked.__defaults__ = (7,)
    same()
    asked.__kwdefaults__ = {"c": 5}
    same()
    asked.__signature__ = inspect.signature(lambda q, r=3: q)
    same()
    del asked.__signature__
    same()


def test_paths_are_joined_in_the_graph() -> None:
    def f(x):
        return x + len(str(pathlib.PurePosixPath("a") / "b" / "c.txt")), (pathlib.PurePosixPath("a") / "b.c").suffix

    assert repr(bytejit.compile(f, backend="eager", fullgraph=True)(torch.ones(1))) == repr(f(torch.ones(1)))
