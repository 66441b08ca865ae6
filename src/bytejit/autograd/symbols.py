"""Which symbolic sizes and floats a value holds: the backward graph gets those that it reads."""

from __future__ import annotations

import re

from bytejit.codegen.aten.graph import Alias
from bytejit.codegen.loops import index as ix
from bytejit.codegen.loops.sizes import Real
from bytejit.common.spec import Spec


def symbols_of(x: object) -> dict[str, ix.Sym]:
    """The size symbols anywhere in a value, by name."""
    if isinstance(x, ix.Index):
        return ix.symbols(x)
    if isinstance(x, Spec):
        return symbols_of((x.shape, x.stride))
    if isinstance(x, Alias):
        return symbols_of((x.size, x.stride, x.offset, x.inside, x.behind))
    if isinstance(x, (tuple, list)):
        return {k: v for y in x for k, v in symbols_of(y).items()}
    if isinstance(x, dict):
        return symbols_of(tuple(x.values()))
    if isinstance(x, slice):
        return symbols_of((x.start, x.stop, x.step))
    return {}


def names_in(x: object) -> set[str]:
    """The names of the symbolic sizes and floats in a value. A computed one counts by the names that it is computed from."""
    found = set()
    for name, symbol in symbols_of(x).items():
        found |= set(re.findall(r"\b[sf]\d+\b", symbol.text)) if symbol.text else {name}
    for real in reals_in(x):
        found |= set(re.findall(r"\b[sf]\d+\b", real.text))
    return found


def reals_in(x: object) -> list[Real]:
    """The symbolic floats anywhere in a value."""
    if isinstance(x, dict):
        x = tuple(x.values())
    if isinstance(x, (tuple, list)):
        return [r for y in x for r in reals_in(y)]
    return [x] if isinstance(x, Real) else []
