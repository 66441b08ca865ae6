"""A sample of torch's operator table at each run; `make opinfo` runs all of it."""

from __future__ import annotations

import pytest

from . import plan
from .__main__ import main, verdict
from .harness import Row, operators, run_row
from .known import KNOWN, reason

pytest.importorskip("expecttest", reason="torch's operator table needs expecttest")
SEED = 1
ROWS = {"": 5, "twisted": 1}  # rows a setting: as samples are, and changed


def check(rows: list[tuple[str, plan.Setting]], samples: int = 1) -> None:
    """Every row is right, or known."""
    found = [run_row(name, setting, samples) for name, setting in rows]
    wrong = [f"{r.op} [{r.setting}]: {r.bad}" for r in found if verdict(r) in ("wrong", "stale")]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.cxx
@pytest.mark.parametrize("setting", plan.SETTINGS, ids=lambda s: s.name)
def test_a_sample_of_operators(setting: plan.Setting) -> None:
    """As eager on torch's own samples"""
    check(plan.sample(ROWS[""], SEED, [setting]))


@pytest.mark.cxx
@pytest.mark.parametrize("setting", plan.TWISTED, ids=lambda s: s.name)
def test_a_sample_of_twisted_inputs(setting: plan.Setting) -> None:
    """As eager on other layouts, contents, shapes and dtypes than torch's samples have"""
    check(plan.sample(ROWS["twisted"], SEED, [setting]))


@pytest.mark.parametrize("row", plan.ONCE_WRONG, ids=lambda row: f"{row[0]} {row[1].name}")
def test_rows_that_were_wrong(row: tuple[str, plan.Setting]) -> None:
    """Rows that once differed stay in the sample"""
    check([row], 3)


def test_a_difference_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness notices values, strides and aliases that are not eager's"""
    from . import harness

    right = harness.callable_of
    changes = (lambda t: t + 1, "not close"), (lambda t: t.t().contiguous().t(), "strides"), (lambda t: t.double(), "float64")
    for wrong, what in changes:
        made = []

        def callable_of(op: object, setting: plan.Setting, wrong=wrong, made=made):
            made.append(op)
            f = right(op, setting)
            return f if len(made) == 1 else lambda *a, **k: wrong(f(*a, **k))

        monkeypatch.setattr(harness, "callable_of", callable_of)
        row = run_row("abs", plan.Setting(), 1)
        assert what in row.bad[0], row.bad


def test_known_rows_name_operators_and_say_why() -> None:
    """The table of known rows: a stale one is told by its verdict"""
    for (name, where), why in KNOWN.items():
        assert name in operators() and len(why) > 20, name
        assert set(where.split()) <= {w for s in (*plan.SETTINGS, *plan.TWISTED) for w in s.name.split()} | {"cuda"}, where
    name, where = next(iter(KNOWN), ("", ""))
    if name:
        assert reason(name, where) and verdict(Row(name, where, ok=1)) == "stale"
        assert verdict(Row(name, where, bad=["x"])) == "known"


def test_the_command(tmp_path, capsys: pytest.CaptureFixture) -> None:
    """Runs rows in a process of its own, writes them down, and does not run them again"""
    store = tmp_path / "rows.jsonl"
    argv = ["--only", "abs", "neg", "--dtypes", "float32", "--samples", "1", "--json", str(store), "--jobs", "1"]
    assert main(argv) == 0
    assert len(store.read_text().splitlines()) == 2
    before = store.read_text()
    assert main(argv) == 0 and store.read_text() == before
    assert "float32" in capsys.readouterr().out
