"""The classes of objects in annotations, such as `Callable[[T], Any]`. Their instances do not change."""

from __future__ import annotations

import collections.abc
import typing

_T, _P, _Ts = typing.TypeVar("_T"), typing.ParamSpec("_P"), typing.TypeVarTuple("_Ts")
_NAMED = tuple(getattr(typing, name) for name in ("Optional", "Literal", "List", "Tuple", "Callable", "Annotated"))
FORMS = frozenset(
    map(
        type,
        (_T, _P, _P.args, _P.kwargs, _Ts, typing.ForwardRef("_T"), typing.NewType("_N", int), *_NAMED)
        + tuple(form[int] for form in _NAMED[:-2])
        + (typing.Annotated[int, 1], typing.Callable[[int], int], typing.Concatenate[int, _P], typing.Unpack[_Ts])
        + (list[int], collections.abc.Callable[[int], int], int | str),
    )
) - {type}
