"""Items of containers from outside under keys that change between calls: each call looks its item up before the graph runs,
and guards what it is. So one more key, with an item like the others, costs no compile.

That holds where the region has not written the container, and the key is there. All else makes the key a constant.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from bytejit.guards.changing_sources import Looked
from bytejit.guards.kinds import SizeCondition
from bytejit.guards.sources import InstanceDict, PastDict, Scope, Source
from bytejit.tracer.core.values import DictVar, SeqVar, Var
from bytejit.tracer.sizes.called_anew import changes, hint, source_of

from .open_writes import ExternalDict, OpenWrites

if TYPE_CHECKING:
    from bytejit.tracer.core.tracer import Tracer

KINDS = (dict, list, tuple, collections.deque)
TWO = "len({key, other}) == 2"  # as a dict tells its keys apart
NAMESPACES = (InstanceDict, PastDict, Scope)  # writes to these are modelled in another place as well


def picked(t: Tracer, container: Var, key: Var) -> Var | None:
    """container[key] for a key that changes between calls; None where the key must be a constant."""
    source = _source_for(t, container, key)
    if source is None or not isinstance(container, (DictVar, SeqVar)):
        return None
    if isinstance(container, OpenWrites) and source == container.last:
        return container.late[source][1]
    kind = next(k for k in KINDS if isinstance(container.real, k))
    try:
        item = kind.__getitem__(container.real, hint(t, key))
    except (LookupError, TypeError):  # for who looks at the constant
        return None
    return t.values.memo_lazy(("item", id(container), source), item, lambda: Looked(container.origin, source, kind))


def lacks(t: Tracer, container: DictVar, key: Var) -> bool:
    """Whether a dict from outside has no such key, which changes between calls; guarded where it is so."""
    source = _source_for(t, container, key)
    if source is None or dict.__contains__(container.real, hint(t, key)):
        return False
    t.guard("EXPR", container.origin, SizeCondition("key not in table", (("key", source), ("table", container.origin))))
    return True


def _source_for(t: Tracer, container: Var, key: Var) -> Source | None:
    """Where the key comes from, if it changes and the container has under it what it had before the region, or what was written
    last."""
    if not changes(t, key) or not isinstance(container, (DictVar, SeqVar)) or not isinstance(container.real, KINDS):
        return None
    if container.source is None or isinstance(container.source, NAMESPACES):
        return None
    source = source_of(t, key)
    if isinstance(container, OpenWrites) and container.late:
        return source if source is not None and (source == container.last or _told_apart(t, container, key, source)) else None
    return source if id(container) not in t.effects.dirty else None


def _told_apart(t: Tracer, container: OpenWrites, key: Var, source: Source) -> bool:
    """Whether a key is none of those written, guarded."""
    now, written = hint(t, key), [(of, hint(t, other)) for of, (other, _) in container.late.items()]
    if not isinstance(container, DictVar) and min(now, *(n for _, n in written)) < 0:
        return False
    if any(len({now, other}) == 1 for _, other in written):
        return False
    text = TWO if isinstance(container, DictVar) else "0 <= key != other >= 0"
    for of, _ in written:
        t.guard("EXPR", source, SizeCondition(text, (("key", source), ("other", of))))
    return True


def all_new(t: Tracer, d: ExternalDict) -> bool:
    """Whether what was written under open keys are items that a dict did not have, guarded."""
    keys = [(source, hint(t, key)) for source, (key, _) in d.late.items()]
    if len({now for _, now in keys}) < len(keys) or any(dict.__contains__(d.real, now) for _, now in keys):
        return False
    for i, (source, _) in enumerate(keys):
        t.guard("EXPR", d.origin, SizeCondition("key not in table", (("key", source), ("table", d.origin))))
        for other, _ in keys[:i]:
            t.guard("EXPR", source, SizeCondition(TWO, (("key", source), ("other", other))))
    return True
