"""Weak collections from outside that a compiled function writes, and weak references with callbacks."""

from __future__ import annotations

import gc
import weakref

import torch

import bytejit

X = torch.arange(4.0)


class Owner:
    pass


def compiled(f, fullgraph=True):
    return bytejit.compile(f, backend="aot_eager", fullgraph=fullgraph)


def test_a_weak_key_dictionary_is_written():
    cache, owners = weakref.WeakKeyDictionary(), [Owner(), Owner()]

    def f(x, owner):
        cache[owner] = x * 2
        return cache[owner] + 1

    c = compiled(f)
    for owner in (*owners, owners[0]):
        assert torch.equal(c(X, owner), X * 2 + 1) and torch.equal(cache[owner], X * 2)
    assert len(cache) == 2
    del owner, owners[0]
    gc.collect()
    assert len(cache) == 1
    owners.clear()
    gc.collect()
    assert len(cache) == 0


def test_a_weak_set_is_written():
    seen, owners = weakref.WeakSet(), [Owner(), Owner()]

    def f(x, owner):
        if owner in seen:
            return x
        seen.add(owner)
        return x + len(seen)

    c = compiled(f)
    assert [c(X, o)[0].item() for o in (*owners, *owners)] == [1, 2, 0, 0]
    assert set(seen) == set(owners)
    owners.clear()
    gc.collect()
    assert len(seen) == 0


def test_callbacks_of_weak_references():
    owner, gone = Owner(), []

    def f(x, owner):
        return x + 1, weakref.ref(owner, gone.append), weakref.ref(owner, None)

    y, ref, plain = compiled(f, fullgraph=False)(X, owner)
    assert torch.equal(y, X + 1) and ref() is plain() is owner and plain.__callback__ is None
    del owner
    gc.collect()
    assert ref() is plain() is None and gone == [ref]


def test_callbacks_of_weak_references_to_what_the_function_makes():
    gone = []

    def f(x):
        made = Owner()
        made.ref = weakref.ref(made, gone.append)
        return x + 1, made

    y, made = compiled(f, fullgraph=False)(X)
    assert torch.equal(y, X + 1) and made.ref() is made
    ref = made.ref
    del made
    gc.collect()
    assert gone == [ref]


def test_weak_references_to_what_a_class_lets_go():
    def f(x, cls):
        ref = weakref.ref(cls.held)
        cls.held = None
        return x + 1, ref() is None

    for g in (f, compiled(f, fullgraph=False)):
        assert g(X, type("Holder", (), {"held": Owner()}))[1]
