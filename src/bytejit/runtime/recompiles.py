"""Decides whether a site gets another entry: the recompile limit, counted for each module; finds and reports what changed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any

from bytejit.common import logs, profiling, registry, torch_settings
from bytejit.common.errors import RecompileError
from bytejit.common.options import Options
from bytejit.common.where import Where

from .dispatch import SiteState
from .entry import Args, Entry
from .live_values import modules_among
from .region_names import Named

MODULES_LIMIT = 8  # recompile_limit counts for each module; a site holds at most this multiple of it
MANY_MODULES = 4  # entries of a site for other modules, with which a module that shares it for its looks gets sites of its own
# entries with which it is known that a number which changes cannot be a symbol, or that a class is made anew in each call
LEAST_ENTRIES = 3
# entries of one call each, made one after the other, by which it is known that a value differs in each call
ONE_CALL_ENTRIES = 3
# a site makes at most this multiple of it, of which objects may have died that the code was compiled for; fewer where the last
# recompile_limit of them fit in one call each: the object is made anew in each call
MADE_LIMIT = 32


def same_objects(refs: tuple[weakref.ref, ...], objects: tuple) -> bool:
    """Whether these are the very objects referred to, all alive."""
    return len(refs) == len(objects) and all(r() is o for r, o in zip(refs, objects))


class Recompiles:
    """Recompiles of one function: their causes, and the modules for which its sites no longer compile."""

    def __init__(self, named: Callable[[], Named], place: Callable[[int], Where], dynamic: Callable[[], bool | None]) -> None:
        self.named, self.place = named, place  # what the function and a resume point of it are called in messages
        self.dynamic = dynamic  # whether sizes are symbolic at once: None once they changed, as other numbers
        self.given_up: list[tuple[weakref.ref, ...]] = []
        self.failures: dict[int, str] = {}  # point id -> the guards that failed last
        # point id -> sizes and ints seen to change between calls there, with a size above 1 that each had, or 0
        self.changed: dict[int, dict[Any, int]] = {}
        self.unlike: dict[int, set[Any]] = {}  # point id -> sources of what differs in each call: no guard is to have a value
        self.anew = False  # whether a site stopped compiling because a class is made anew in each call
        self.of_modules: dict[int, set[Any]] = {}  # point id -> integers that differ between modules of one class
        self.spent: dict[int, set[Any]] = {}  # point id of a site that reached the limit -> what differed from all its entries

    def clear(self) -> None:
        """Forget all."""
        self.given_up.clear()
        self.failures.clear()
        self.changed.clear()
        self.unlike.clear()
        self.of_modules.clear()
        self.spent.clear()
        self.anew = False

    def gave_up_on(self, modules: tuple) -> bool:
        """Whether the code is no longer compiled for calls on these modules."""
        return any(same_objects(known, modules) for known in self.given_up)

    def crowded(self, state: SiteState, modules: tuple) -> bool:
        """Whether a site has entries for several other modules, and none for the one whose code it is."""
        made_for = [e.modules[:1] for e in state.entries if e.modules]
        return len(made_for) >= MANY_MODULES and not any(same_objects(known, modules[:1]) for known in made_for)

    def leave(self, args: Args) -> bool:
        """Whether calls that fit no entry run the original code, for the modules among these values."""
        return bool(self.given_up) and self.gave_up_on(modules_among(args))

    def note_size(self, point: int, source: Hashable, size: int) -> None:
        """A size was seen to change at a site; it had been `size`, or 0."""
        self.changed.setdefault(point, {}).setdefault(source, size)

    def note_dead(self, point: int, entry: Entry) -> None:
        """An object that an entry knew has died: the next call brings another. So it is of none where a module died, which
        brings code of its own."""
        if self.dynamic() is not False and all(r() is not None for r in entry.modules):
            for source in entry.dead_objects():
                self.note_size(point, source, 0)

    def allowed(self, state: SiteState, args: Args, modules: tuple, options: Options) -> bool:
        """Whether a site may get another entry. The limit counts apart for each module that the code is called on.

        A forward that many modules share compiles once for each of them; each may then recompile as often as any function.
        Raises: RecompileError where the program wants no recompile.
        """
        entries = [e for e in state.entries if not e.negative]
        alike = [e for e in entries if same_objects(e.modules, modules)]
        changed = self._note(state, alike, args, options) if alike else set()
        if modules and not alike and self.dynamic() is not False:
            self._note_modules(state, entries, args, modules)
        limit = self._limit_of(state, changed, options)
        if state.in_vain >= options.recompile_limit or state.died + len(entries) >= limit * MADE_LIMIT:
            state.freeze()
            self._too_many(state, state.died + len(entries), "objects that it was compiled for died")
            return False
        if not modules and alike and all(e.fails_by_class(args) for e in alike):
            state.counts = True
            if self.anew or state.in_vain + sum(bool(e.of_one_call) for e in alike) >= LEAST_ENTRIES - 1:
                self.anew = True
                state.freeze()
                self._too_many(state, state.died + len(alike))
                return False
        if len(alike) < limit and len(entries) < limit * MODULES_LIMIT:
            return True
        if modules and len(entries) < limit * MODULES_LIMIT:
            self.given_up.append(tuple(weakref.ref(m) for m in modules))
        else:
            state.freeze()
            self.spent.setdefault(state.point.id, changed)
        self._too_many(state, len(alike) if len(alike) >= limit else len(entries))
        return False

    def _note_modules(self, state: SiteState, entries: list[Entry], args: Args, modules: tuple) -> None:
        """Note in which integers a module differs from others of its class that the site has entries for: its number in the
        model, say. They are left open where they are only keys. So are lengths: that of a cache of all modules, say."""
        point = state.point.id
        for e in entries:
            first = e.modules[0]() if e.modules else None
            if type(first) is type(modules[0]):
                numbers, lengths = e.between_modules(args)
                self.of_modules.setdefault(point, set()).update(numbers)
                for source in lengths:
                    self.note_size(point, source, 0)

    def _note_unlike(self, state: SiteState, entries: list[Entry], changed: list[dict[Hashable, int]]) -> None:
        """Note what was another value for each of the last entries of a site, where these fit in one call each."""
        if self.dynamic() is False or not any(changed):
            return
        state.counts = True
        alone = [set(differing) for e, differing in zip(entries, changed) if e.of_one_call]
        if len(alone) >= ONE_CALL_ENTRIES:
            self.unlike.setdefault(state.point.id, set()).update(set.intersection(*alone))

    def _limit_of(self, state: SiteState, changed: set[Any], options: Options) -> int:
        """Returns how many entries a site may have.

        A site gets fewer if a number or a length keeps changing there and other sites have reached the limit already; it
        gets one entry if the same number brought them there. Without this rule the length of a list in a loop would bring
        one site after another to the limit."""
        before = [s for point, s in self.spent.items() if point != state.point.id]
        if not changed or not before:
            return options.recompile_limit
        if any(changed & s for s in before):
            return min(options.recompile_limit, 1)
        return min(options.recompile_limit, max(options.recompile_limit >> len(before), LEAST_ENTRIES))

    def _note(self, state: SiteState, entries: list[Entry], args: Args, options: Options) -> set[Any]:
        """Report a recompile. Returns the sources of numbers and lengths that differ from what they were for every entry."""
        point = state.point.id
        named = self.named()
        reason = named.reworded("; ".join(dict.fromkeys(e.explain_failure(args) for e in entries[:3])))
        registry.count("recompiles", f"{named.where.short} {reason}")
        self.failures[point] = reason
        profiling.event(f"bytejit recompile {named.where.function} {named.where.short}: {reason}")
        logs.log("recompiles", reason, self.place(point), options)
        if torch_settings.setting("error_on_recompile"):
            raise RecompileError("a recompile under torch._dynamo.config.error_on_recompile", named.where, reason)
        changed = [entry.changed_numbers(args) for entry in entries]
        self._note_unlike(state, entries, changed)
        if self.dynamic() is not False:
            known = self.changed.setdefault(point, {})
            for numbers in changed:
                for source, size in numbers.items():
                    known[source] = size or known.get(source, 0)
        return set.intersection(*map(set, changed))

    def _too_many(self, state: SiteState, times: int, reason: str = "") -> None:
        reason = reason or self.failures.get(state.point.id, "the module that it is called on")
        where = self.named().where
        if torch_settings.setting("fail_on_recompile_limit_hit"):
            raise RecompileError(f"compiled {times} times, the recompile limit", where, reason)
        registry.count("fallbacks", f"recompile limit in {where.function}")
        logs.warn_once(
            f"limit {where.short} {state.point.id}",
            f"{where.function} ({where.short}): compiled {times} times; what fits none of these runs in the original code "
            f"from now on (more compiles: option recompile_limit); what kept changing: {reason}",
        )
