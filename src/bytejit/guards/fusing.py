"""Steps of a guard program put together: an item that is only looked at is one step, and so is all that is asked of one
object's `__dict__`, a WALK. It reads all keys in their order, which costs less than to look for each.

A walk knows the keys of a dict by a shape: the very objects, in their order, with what is asked of each. In a dict with other
keys each key is looked for, and the shape is learnt for the next calls. Modules of one class share their shapes.
"""

from __future__ import annotations

import array
import collections
from typing import Any

from bytejit.compat import layouts

from .native_checker import OP

Step = tuple[int, ...]

MAKERS = {OP[name] for name in ("ARG", "CONST", "WEAK", "ATTR", "ITEM", "TUPLE_ITEM", "TYPE_OF", "OWN_DICT")}
NO_SLOT = {OP["STATE"], OP["FLAG"], OP["KEYED"], OP["ARG"], OP["CONST"], OP["WEAK"]}
TWO_SLOTS = {OP["ALIAS"], OP["CLASS_IS"]}
MANY_SLOTS = {OP["DONE"]: 2, OP["DISTINCT"]: 3}  # step -> the word from which on all are slots
DICTS = (id(dict), id(collections.OrderedDict))  # classes that never die
WALKED = {OP[name] for name in ("HAS", "ITEM", "ITEM_EQUALS", "ITEM_IS", "ITEM_EMPTY")}
FEWEST = 4  # steps in one dict: for fewer a walk saves nothing
MOST_KEYS = 64  # of a dict
MOST_SHAPES = 32  # of walks that ask for the same keys


def _read(step: Step) -> tuple[int, ...]:
    """The positions of the operands of a step that are slots."""
    if step[0] in MANY_SLOTS:
        return tuple(range(MANY_SLOTS[step[0]], len(step)))
    return () if step[0] in NO_SLOT else (1, 2) if step[0] in TWO_SLOTS else (1,)


def _empty_dict(seen: list[Step]) -> int | None:
    """The class of dicts that these steps, all of one slot, ask for, where they ask for no more than that it is empty."""
    if len(seen) < 2 or seen[0][0] != OP["TYPE_IS"] or seen[0][2] not in DICTS:
        return None
    return seen[0][2] if all(s[0] in (OP["TRUE"], OP["LEN"]) and s[2] == 0 for s in seen[1:]) else None


class Shapes:
    """The shapes of walks that ask for the same keys. Called with a dict: the address of its shape, 0 where it gets none."""

    def __init__(self, asked: tuple[tuple[str, bool], ...]) -> None:
        self.asked = asked  # each entry's key, and whether it is in the dict
        self._made: dict[tuple[int, ...], tuple[array.array, list[str]]] = {}

    def __call__(self, found: dict) -> int:
        place = layouts.dict_values()
        read = None if place is None or len(found) > MOST_KEYS else layouts.read_dict(found, place)
        if read is None:
            return 0
        named = tuple(key for key, _ in read)  # of objects that the shape keeps alive
        if named not in self._made:
            keys = sorted(found, key=lambda k: named.index(id(k)))
            if len(self._made) == MOST_SHAPES or any(type(k) is not str for k in keys):
                return 0
            if any((key in found) is not there for key, there in self.asked):
                return 0  # it has changed just now
            entry = {key: i for i, (key, there) in enumerate(self.asked) if there}
            words = [word for key in keys for word in (id(key), 3 * entry[key] if key in entry else -1)]
            self._made[named] = array.array("q", [len(keys), *words]), keys
        return self._made[named][0].buffer_info()[0]


class Fusing:
    """The steps of one program, at their places, with the slots that each makes. `keep`: the objects that they name."""

    def __init__(self, steps: list[Step], keep: list[Any]) -> None:
        self.keep = keep
        self.steps = dict(enumerate(steps))
        makers = [i for i, step in enumerate(steps) if step[0] in MAKERS]
        self.made = {i: [slot] for slot, i in enumerate(makers)}  # place -> slots
        self.readers: list[list[int]] = [[] for _ in makers]
        for i, step in enumerate(steps):
            for word in _read(step):
                self.readers[step[word]].append(i)

    def fuse_items(self) -> None:
        """Check an item that is only looked at in one step, without a slot."""
        for i, (slot,) in list(self.made.items()):
            if self.steps[i][0] != OP["ITEM"]:
                continue
            by = self.readers[slot]
            seen = [self.steps[reader] for reader in by]
            if len(seen) == 1 and seen[0][0] == OP["EQUALS"]:
                name, want = "ITEM_EQUALS", seen[0][2]
            elif len(seen) == 1 and seen[0][0] == OP["IS"] and seen[0][3] == 1:
                name, want = "ITEM_IS", seen[0][2]
            elif (kind := _empty_dict(seen)) is not None:
                name, want = "ITEM_EMPTY", kind
                for reader in by[:-1]:
                    del self.steps[reader]
            else:
                continue
            self.steps[by[-1]] = (OP[name], *self.steps.pop(i)[1:], want)
            del self.made[i]

    def fuse_walks(self) -> None:
        """Make what is asked of one object's `__dict__` one WALK, where the first of it was asked."""
        keys = {id(obj): obj for obj in self.keep if type(obj) is str}
        dicts: dict[int, dict[int, int]] = {self.made[i][0]: {} for i, step in self.steps.items() if step[0] == OP["OWN_DICT"]}
        for i, step in self.steps.items():
            if step[0] in WALKED and step[1] in dicts and step[2] in keys and step[0::3] != (OP["HAS"], 1):
                dicts[step[1]].setdefault(step[2], i)  # a key's second step stays what it is
        shapes: dict[tuple, Shapes] = {}
        for places in dicts.values():
            if len(places) < FEWEST:
                continue
            members = sorted(places.values())
            asked = tuple((keys[self.steps[i][2]], self.steps[i][0] != OP["HAS"]) for i in members)
            if asked not in shapes:
                shapes[asked] = Shapes(asked)
                self.keep.append(shapes[asked])
            self._walk(members, shapes[asked])

    def _walk(self, members: list[int], shapes: Shapes) -> None:
        entries: list[int] = []
        slots: list[int] = []
        base = self.steps[members[0]][1]
        for i in members:
            op, _, key, *want = self.steps.pop(i)
            if op == OP["ITEM"]:
                want = [len(slots)]
                slots += self.made.pop(i)
            entries += (op, key, want[0])
        self.steps[members[0]] = (OP["WALK"], base, 0, id(shapes), 0, len(slots), len(members), *entries)
        self.made[members[0]] = slots

    def numbered(self) -> tuple[list[Step], int]:
        """The steps in order, with their slots numbered in the order in which they are made; and the number of slots."""
        order = sorted(self.steps)
        number = {slot: n for n, slot in enumerate(slot for i in order for slot in self.made.get(i, ()))}
        left = []
        for i in order:
            words = list(self.steps[i])
            for word in _read(self.steps[i]):
                words[word] = number[words[word]]
            left.append(tuple(words))
        return left, len(number)


def fused(steps: list[Step], keep: list[Any]) -> tuple[list[Step], int]:
    """Fewer steps that check the same, and the number of slots. `keep`: the objects that steps name; what is made is added."""
    fusing = Fusing(steps, keep)
    fusing.fuse_items()
    if layouts.dict_values() is not None:
        fusing.fuse_walks()
    return fusing.numbered()
