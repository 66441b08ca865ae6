"""Tables by identity: an entry belongs to one object, whatever becomes of it."""

from __future__ import annotations

import gc
import weakref

import torch

from bytejit.common.identity import IdentityMap


class Thing:
    def __eq__(self, other: object) -> bool:  # as code objects do, which compare by value
        return True

    __hash__ = None


def test_set_get_pop() -> None:
    table, a, b = IdentityMap(), Thing(), Thing()
    table.set(a, 1)
    assert table.get(a) == 1 and table.get(b) is None and table.get(b, 5) == 5 and a in table and b not in table
    table.set(a, 2)
    assert table.get(a) == 2 and len(table) == 1 and list(table.values()) == [2]
    table.pop(b)
    table.pop(a)
    assert not table and a not in table


def test_an_entry_goes_with_its_object() -> None:
    table, a = IdentityMap(), Thing()
    ref = weakref.ref(table.set(a, Thing()))
    del a
    gc.collect()
    assert not table and ref() is None


def test_an_address_used_again_is_another_object() -> None:
    """Also where the callback that removes the entry did not run"""
    table, a, b = IdentityMap(), Thing(), Thing()
    table.set(a, "a")
    table._table[id(b)] = table._table.pop(id(a))  # as if b were where a was
    assert table.get(b) is None and b not in table and list(table.values()) == ["a"]
    table.pop(b)
    assert len(table) == 1
    table.set(b, "b")
    del a  # the callback of a finds the entry of b
    gc.collect()
    assert table.get(b) == "b"


def test_objects_without_weak_references() -> None:
    table = IdentityMap()
    table.set(torch.erf, 1)
    table.set(key := {}, 2)
    assert table.get(torch.erf) == 1 and table.get(key) == 2 and table.get({}) is None
