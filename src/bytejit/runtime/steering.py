"""Asks torch's stance and config, before anything is compiled, what to do with a call that has no compiled code yet."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bytejit.common import torch_controls, torch_settings
from bytejit.common.errors import RecompileError
from bytejit.common.overriding import answers_as_torch
from bytejit.common.where import Where
from bytejit.runtime.dispatch import SiteState
from bytejit.runtime.live_values import holds_work

RUNS_ONLY = (torch_controls.EAGER, "eager_on_recompile")
FIRST_IN_EAGER = ("eager_then_compile", "aot_eager_then_compile")


class Steering:
    """The sites of one function that ran in eager once, and the sizes seen then."""

    __slots__ = ("first",)

    def __init__(self) -> None:
        self.first: dict[int, dict[tuple[str, int], int]] = {}

    def leaves_alone(self, state: SiteState, args: tuple, where: Where, note: Callable[[int, str, int, int], None]) -> bool:
        """Whether this call must not be compiled. note(site, local, dimension, size) is called for each size that has changed.

        Raises: RecompileError under the stance "fail_on_recompile".
        """
        if not torch_controls.loaded():
            return False
        if torch_controls.within_disabled() or torch_settings.setting("disable"):
            return True
        name = torch_controls.stance().name
        if name in RUNS_ONLY:
            return True
        if name == "fail_on_recompile" and holds_work(args):
            raise RecompileError(
                "a compile under the stance 'fail_on_recompile'",
                where,
                "no compiled code fits this call",
                "call it with such values before the stance is set",
            )
        return name in FIRST_IN_EAGER and self.is_first(state, args, note)

    def is_first(self, state: SiteState, args: tuple, note: Callable[[int, str, int, int], None]) -> bool:
        """Whether a site is reached for the first time. At the second, sizes that differ from then are known to change."""
        point = state.point
        sizes = {
            (name, i): n
            for name, a in zip(point.live, args[point.values :])
            if isinstance(a, torch.Tensor) and answers_as_torch(type(a)) and a.layout is torch.strided
            for i, n in enumerate(a.shape)
        }
        if point.id not in self.first:
            self.first[point.id] = sizes
            return True
        for (name, i), n in self.first[point.id].items():
            if sizes.get((name, i), n) != n:
                note(point.id, name, i, n if n > 1 else 0)
        return False
