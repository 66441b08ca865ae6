"""Keys that are gone at a later call: why the site compiles again is said without code of the program's"""

from __future__ import annotations

import torch

import bytejit


class Key:
    shown = 0

    def __repr__(self) -> str:
        Key.shown += 1
        return "two\nlines"


def test_a_key_is_not_shown() -> None:
    for key, said in (
        (Key(), "KeyError: a Key"),
        (torch.ones(2), "KeyError: a Tensor"),
        ("a", "KeyError: 'a'"),
        (7, "KeyError: 7"),
    ):
        kept = {key: 2.0}

        def f(x: torch.Tensor) -> torch.Tensor:
            try:
                return x * kept[key]
            except KeyError:
                return x

        bytejit.counters.clear()
        compiled, x = bytejit.compile(f, backend="eager"), torch.ones(2)
        assert torch.equal(compiled(x), x * 2)
        kept.clear()
        assert torch.equal(compiled(x), x)
        reason = "; ".join(bytejit.counters["recompiles"])
        assert said in reason and "\n" not in reason, (said, reason)
    assert not Key.shown
