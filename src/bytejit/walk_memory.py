"""What a walk over a table of guards remembers, so that the next one looks only at what may have changed.

A walk over a module tree makes thousands of look-ups in dicts that hardly ever change. CPython 3.11 and 3.12 give a
dict a new version, unique in the process, at each change of its contents. So a walk that held notes, for each dict
that it looked into, where its version lies and what it was; for each object, where its `__dict__` and its class lie.
While all those words are the same, every object that the walk fetched through them is the same and alive, and all
that it learned from identities, keys and classes holds. What they do not tell (tensors, attributes fetched by code,
functions' code and defaults, what `same` compares) is checked anew each time.

Nothing here keeps an object alive: a word is read only after those that its own object hangs on. A dict that changes
between all calls (a script's globals) is marked and looked into each time. Where Python keeps no versions, `usable`
is False and each walk makes all its steps.
"""

from __future__ import annotations

import array
import ctypes
import functools
from collections.abc import Callable

FEWEST_STEPS = 24      # of a table: below, all its steps cost no more than remembering
FIELDS = 9             # words of Memory before its marks
VERSION = 24           # byte offset in a dict of its version, and of the number of its items
USED = 16

MEMORY = r"""
extern "C" {
extern char PyCell_Type, PyMethod_Type, PyFunction_Type, PyUnicode_Type, PyTuple_Type;
PyObject* PyCell_Get(PyObject*);
PyObject** _PyObject_GetDictPtr(PyObject*) __attribute__((weak));
}
enum Kind : Word { WORD_IS, ITEM_IS, CELL_IS, ARG_IS };
enum Mark : Word { CHANGES = 1, MOVES = 2 };      // a slot: its dict's contents, or which object it holds
// A note is (kind, mark and slot to blame), two operands, what was found.
struct Note { Word what, a, b, found; };
struct Memory {
    Word made, notes, held, makers, busy, runs, at_notes, at_held, at_steps;
    Word* marks() { return (Word*)this + 9; }
    Note* note() { return (Note*)((Word*)this + at_notes); }
    Word* hold() { return (Word*)this + at_held; }
    Word* steps() { return (Word*)this + at_steps; }
};

static Word word_at(Word address) { return *(const Word*)address; }
static Word length(const Word* w) {
    switch (*w) {
    case OP_DONE: return 2 + w[1];
    case OP_ARG: case OP_CONST: case OP_TYPE_OF: case OP_OWN_DICT: return 2;
    case OP_IS: case OP_HAS: case OP_ALIAS: case OP_FUNCTION: case OP_ITEM_EQUALS: case OP_ITEM_EMPTY: return 4;
    case OP_TENSOR: return 8 + 2 * w[7];
    default: return 3;
    }
}
static bool makes_slot(Word op) { return op >= OP_ARG && op <= OP_OWN_DICT; }

// Whether all that was noted is as it was; else `blame` is the note that is not. Runs no code of the user's.
static Answer unchanged(Memory* m, PyObject* const* args, Word* blame) {
    const Note* note = m->note();
    for (Word i = 0; i < m->notes; ++i, ++note) {
        Word now;
        switch (note->what & 15) {
        case WORD_IS: now = word_at(note->a); break;
        case ITEM_IS:
            now = (Word)PyDict_GetItemWithError((PyObject*)note->a, (PyObject*)note->b);
            if (!now && PyErr_Occurred()) return ERROR;
            break;
        case CELL_IS:
            now = (Word)PyCell_Get((PyObject*)note->a);
            if (now) Py_DecRef((PyObject*)now);      // the cell holds it
            break;
        default: now = (Word)args[1 + note->a];
        }
        if (now != note->found) {
            *blame = note->what;
            return NO;
        }
    }
    return YES;
}

// Makes the notes of a walk that held. All is looked up again: code that ran during the walk may have changed it.
struct Noting {
    const Head* head;
    Memory* m;
    PyObject* const* at;
    bj::Scratch memory;
    Word *live, *versioned, *fetched_through;      // a slot each: made anew by each walk; version noted; a base
    bool lost = false;

    Noting(const Head* h, Memory* into, PyObject* const* slots)
        : head(h), m(into), at(slots), memory(24 * h->slots), live(memory.as<Word>()),
          versioned(live + h->slots), fetched_through(versioned + h->slots) {
        for (Word i = 0; i < 3 * h->slots; ++i) live[i] = 0;
    }
    bool marked(Word slot, Word mark) { return m->marks()[slot] & mark; }
    bool note(Word kind, Word mark, Word slot, Word a, Word b, Word found) {
        m->note()[m->notes++] = Note{kind | mark << 4 | slot << 8, a, b, found};
        return true;
    }
    bool word(Word mark, Word slot, Word address, Word expected) {
        if (word_at(address) != expected) lost = true;
        return note(WORD_IS, mark, slot, address, 0, expected);
    }
    bool is_dict(Word slot) { return type_of(at[slot]) == head->dict; }
    bool text(Word key) { return type_of((PyObject*)key) == (Word)&PyUnicode_Type; }
    bool version(Word slot) {      // false: its contents change all the time
        if (marked(slot, CHANGES)) return false;
        if (!versioned[slot]) word(CHANGES, slot, (Word)at[slot] + 24, word_at((Word)at[slot] + 24));
        return versioned[slot] = 1;
    }
    PyObject* look(Word slot, Word key) {
        PyObject* found = PyDict_GetItemWithError(at[slot], (PyObject*)key);
        if (!found && PyErr_Occurred()) { PyErr_Clear(); lost = true; }
        return found;
    }
    bool fixed_attribute(PyObject* x, Word name) {      // cannot be set, and is not made anew
        static Word self = (Word)PyUnicode_InternFromString("__self__"), func = (Word)PyUnicode_InternFromString("__func__"),
                    closure = (Word)PyUnicode_InternFromString("__closure__");
        if (type_of(x) == (Word)&PyMethod_Type) return name == self || name == func;
        return type_of(x) == (Word)&PyFunction_Type && name == closure;
    }
    // Whether the object in slot k, made by this step, is the same as long as the notes hold.
    bool made_firmly(const Word* w, Word k) {
        static Word contents = (Word)PyUnicode_InternFromString("cell_contents");
        if (*w == OP_CONST) return true;
        if (marked(k, MOVES)) return false;
        Word found = (Word)at[k];
        if (*w == OP_ARG) {      // a call's own tuple of arguments: the next one may lie at its address
            if (type_of(at[k]) == (Word)&PyTuple_Type) return false;
            return fetched_through[k] && note(ARG_IS, MOVES, k, w[1], 0, found);
        }
        Word slot = w[1];
        PyObject* x = at[slot];
        if (live[slot]) return false;
        switch (*w) {
        case OP_ATTR:
            if (type_of(x) == (Word)&PyCell_Type && w[2] == contents) return note(CELL_IS, MOVES, k, (Word)x, 0, found);
            return fixed_attribute(x, w[2]);
        case OP_ITEM:
            if (type_of(x) == (Word)&PyTuple_Type) return true;
            if (!is_dict(slot) || !text(w[2])) return false;
            if (!version(slot)) note(ITEM_IS, MOVES, k, (Word)x, w[2], found);
            if ((Word)look(slot, w[2]) != found) lost = true;
            return true;
        case OP_TUPLE_ITEM: return true;
        case OP_TYPE_OF: return word(MOVES, k, (Word)x + 8, found);
        case OP_OWN_DICT: {
            PyObject** place = _PyObject_GetDictPtr(x);
            return place && word(MOVES, k, (Word)place, found);
        }
        }
        return false;
    }
    // Whether a check that held does so as long as the notes hold.
    bool holds_firmly(const Word* w) {
        Word slot = w[1];
        PyObject* x = at[slot];
        if (live[slot]) return false;
        switch (*w) {
        case OP_IS: return true;
        case OP_ALIAS: return !live[w[2]];
        case OP_TYPE_IS: return word(MOVES, slot, (Word)x + 8, w[2]);
        case OP_EQUALS: return (Word)x == w[2];
        case OP_TRUE: return is_dict(slot) && !w[2] && word(CHANGES, slot, (Word)x + 16, 0);
        case OP_LEN: return is_dict(slot) && word(CHANGES, slot, (Word)x + 16, w[2]);
        case OP_KEYS:
            if (!is_dict(slot) || !version(slot)) return false;
            if (keys_are(x, (PyObject*)w[2]) != YES) lost = true;
            return true;
        case OP_HAS:
            if (!is_dict(slot) || !text(w[2]) || !version(slot)) return false;
            if ((look(slot, w[2]) != nullptr) != w[3]) lost = true;
            return true;
        case OP_ITEM_EQUALS: return is_dict(slot) && text(w[2]) && version(slot) && (Word)look(slot, w[2]) == w[3];
        case OP_ITEM_EMPTY: {
            if (!is_dict(slot) || !text(w[2]) || !version(slot)) return false;
            PyObject* found = look(slot, w[2]);
            if (!found || type_of(found) != w[3]) return lost = true;
            return word(0, slot, (Word)found + 16, 0);
        }
        }
        return false;      // tensors and functions
    }
    // The steps that stay to be made, over slots numbered anew: first the objects that they read, then what they make.
    void copy(const Word* steps, const Word* stays, Word* number) {
        Word* to = m->steps();
        Word at_step = 0, maker = 0, next = m->held;
        for (const Word* w = steps;; w += length(w)) {
            Word op = *w;
            if (stays[at_step++]) {
                Word n = length(w);
                for (Word i = 0; i < n; ++i) to[i] = w[i];
                if (op > OP_CONST) to[1] = number[w[1]];
                if (op == OP_ALIAS) to[2] = number[w[2]];
                if (op == OP_DONE)
                    for (Word i = 0; i < w[1]; ++i) to[2 + i] = number[w[2 + i]];
                if (makes_slot(op)) number[maker] = next++;
                to += n;
            }
            maker += makes_slot(op);
            if (op == OP_DONE) break;
        }
        m->makers = next - m->held;
    }
    void hold(Word slot, Word* number) {
        if (live[slot] || number[slot] >= 0) return;
        number[slot] = m->held;
        m->hold()[m->held++] = (Word)at[slot];
    }
    void run(const Word* steps) {
        Word count = 1, slot = 0;
        for (const Word* w = steps; *w != OP_DONE; w += length(w), ++count) {
            bool through = *w > OP_CONST && makes_slot(*w);
            through = through || *w == OP_KEYS || *w == OP_HAS || *w == OP_ITEM_EQUALS || *w == OP_ITEM_EMPTY;
            if (through) fetched_through[w[1]] = 1;
        }
        m->made = m->notes = m->held = m->runs = 0;
        bj::Scratch more(8 * (count + head->slots));
        Word *stays = more.as<Word>(), *number = stays + count, step = 0;
        for (Word i = 0; i < head->slots; ++i) number[i] = -1;
        for (const Word* w = steps;; w += length(w), ++step) {
            bool firm = false;
            if (makes_slot(*w)) {
                firm = made_firmly(w, slot);
                live[slot++] = !firm;
            } else if (*w != OP_DONE) {
                firm = holds_firmly(w);
            }
            stays[step] = !firm;
            if (!firm && *w > OP_CONST) hold(w[1], number);
            if (!firm && *w == OP_ALIAS) hold(w[2], number);
            if (*w == OP_DONE) {
                for (Word i = 0; i < w[1]; ++i) hold(w[2 + i], number);
                break;
            }
        }
        copy(steps, stays, number);
        m->made = !lost;
    }
};
"""


def room(steps: int, words: int, slots: int) -> array.array | None:
    """Memory for a table of so many steps, words and slots; None where remembering is not possible or does not pay."""
    if steps < FEWEST_STEPS or not usable():
        return None
    at_notes = FIELDS + slots
    at_held = at_notes + 4 * (2 * steps + slots)
    at_steps = at_held + slots
    made = array.array("q", bytes(8 * (at_steps + words)))
    made[FIELDS - 3:FIELDS] = array.array("q", [at_notes, at_held, at_steps])
    return made


def _word(address: int) -> int:
    return ctypes.c_uint64.from_address(address).value


class _Plain:
    """An object whose `__dict__` `usable` looks at."""


def _changes(d: dict, x: _Plain) -> list[Callable[[], object]]:
    """All ways of changing a dict, x.__dict__ is d, in an order in which each of them does."""
    def store() -> None:
        x.b = object()

    def remove() -> None:
        del x.b
    stores = [store] * 40          # often enough for the interpreter to have made its own fast way of it
    return [lambda: d.__setitem__("a", 1), lambda: d.__setitem__("a", 2), lambda: d.update(c=1), lambda: d.update(c=2),
            lambda: d.pop("c"), lambda: d.setdefault("e", 1), lambda: d.__delitem__("e"), *stores, remove, d.popitem,
            lambda: d.__ior__({"a": 3}), d.clear, lambda: setattr(x, "a", 1), lambda: delattr(x, "a")]


@functools.cache
def usable() -> bool:
    """Whether this Python keeps versions of dicts, and a place of `__dict__`, where the walk looks for them."""
    try:
        place = ctypes.pythonapi._PyObject_GetDictPtr
    except AttributeError:
        return False
    place.restype, place.argtypes = ctypes.c_void_p, [ctypes.py_object]
    x, other = _Plain(), {}
    d = x.__dict__
    address = place(x)
    if not address or _word(address) != id(d):
        return False
    seen = {_word(id(other) + VERSION), _word(id(d) + VERSION)}
    if len(seen) < 2:
        return False
    for number, change in enumerate(_changes(d, x), 3):
        change()
        seen.add(_word(id(d) + VERSION))
        if len(seen) < number or _word(id(d) + USED) != len(d) or d.get("a") is d:
            return False
        if _word(id(d) + VERSION) not in seen or _word(address) != id(d):
            return False
    x.__dict__ = other
    return _word(address) == id(other)
