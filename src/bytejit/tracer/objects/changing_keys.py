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

if TYPE_CHECKING:
    from bytejit.tracer.core.tracer import Tracer

KINDS = (dict, list, tuple, collections.deque)
NAMESPACES = (InstanceDict, PastDict, Scope)  # writes to these are modelled in another place as well


def picked(t: Tracer, container: Var, key: Var) -> Var | None:
    """container[key] for a key that changes between calls; None where the key must be a constant."""
    source = _source_for(t, container, key)
    if source is None or not isinstance(container, (DictVar, SeqVar)):
        return None
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
    """Where the key comes from, if it changes and the container is as it was before the region."""
    if not changes(t, key) or not isinstance(container, (DictVar, SeqVar)) or not isinstance(container.real, KINDS):
        return None
    if container.source is None or isinstance(container.source, NAMESPACES) or id(container) in t.effects.dirty:
        return None
    return source_of(t, key)
