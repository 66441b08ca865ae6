"""Views of dicts that come from outside (`names = table.keys()`): the dict that they look at is what is read and guarded."""

from __future__ import annotations

import gc
from typing import Any

from bytejit.guards.references import Ref
from bytejit.guards.sources import Computed, Source
from bytejit.tracer.core.tracer import Tracer
from bytejit.tracer.core.values import VIEWS, DictVar, DictView

KINDS = {cls: kind for (_, kind), cls in VIEWS.items()}


def viewed(view: Any) -> Any:
    """The dict that a view looks at: all that it refers to."""
    (of,) = gc.get_referents(view)
    return of


def external_view(t: Tracer, view: Any, source: Source) -> DictView | None:
    """The view of a dict as it stands; None for one of an instance of a subclass, which may have methods of its own."""
    owner = t.values.wrap(viewed(view), Computed(Ref(viewed), (source,)))
    if not isinstance(owner, DictVar):
        return None
    t.values.complete(owner)
    return DictView(owner, KINDS[type(view)], source)
