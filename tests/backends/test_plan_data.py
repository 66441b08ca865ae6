"""Plans as data: what comes back is what was kept; what is not of the form is refused, and nothing of it runs."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import pickle
import random
from pathlib import Path

import pytest
import torch

import bytejit
from bytejit import counters
from bytejit.backends import plan_cache, plan_data
from bytejit.backends.plan_data import Damaged, NotKept
from bytejit.codegen.cuda.source import Arg, Launch, LaunchConfig, TritonSource
from bytejit.codegen.loops import index as ix
from bytejit.codegen.ops.extern import resolve
from bytejit.common.options import config
from bytejit.kernels.disk import disk_of

from ..ids import written

VALUES = [
    None,
    True,
    0,
    -1,
    1 << 70,
    0.1,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    "",
    'quoted " \u2028 \ud800',
    1 - 2j,
    complex(math.nan, -0.0),
    torch.float32,
    torch.complex64,
    torch.device("cpu"),
    torch.device("cuda:3"),
    torch.strided,
    torch.channels_last,
    (),
    [],
    (1, (2, [3, None, ()])),
    [torch.int8, (torch.bool,)],
]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list:
    """(plan, source) of each graph that is kept; the cache's folder is empty."""
    seen: list = []
    plain = plan_cache.keep

    def keep(key, plan, source, options):
        seen.append((plan, source))
        plain(key, plan, source, options)

    monkeypatch.setattr(plan_cache, "keep", keep)
    with config.patch(cache_dir=str(tmp_path)):
        yield seen
    bytejit.reset()


def program(x, w, i):
    y = torch.nn.functional.conv2d(x, w, padding=1)
    z = torch.nn.functional.scaled_dot_product_attention(y, y, y, scale=0.3).softmax(-1)
    x.mul_(2)
    moved = x.to(memory_format=torch.channels_last)
    return z.to(torch.float64), y.flatten(2)[..., i], torch.fft.rfft(y), torch.full((3,), math.inf), moved


ARGS = torch.linspace(-2, 3, 2 * 3 * 8 * 8).view(2, 3, 8, 8), torch.linspace(0, 1, 81).view(3, 3, 3, 3), torch.tensor([4, 0])


def compiled(fn=program, args=ARGS):
    bytejit.reset()
    with torch.no_grad():
        return bytejit.compile(fn)(*[a.clone() for a in args])


def same(value: object, other: object) -> bool:
    """Equal to the last bit and of one type, all the way down."""
    if isinstance(value, (tuple, list)):
        return type(value) is type(other) and len(value) == len(other) and all(map(same, value, other))
    return type(value) is type(other) and repr(value) == repr(other)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back(value) -> None:
    assert same(plan_data.VALUE.read(json.loads(json.dumps(plan_data.VALUE.pack(value)))), value)


@pytest.mark.cxx
def test_a_plan_comes_back(kept: list) -> None:
    compiled()
    ((plan, source),) = kept
    got, text = plan_data.read(plan_data.pack(plan, source))
    steps = tuple(
        dataclasses.replace(s, schedule=(), kernel=dataclasses.replace(s.kernel, axes=(), nests=()))
        if hasattr(s, "kernel")
        else s
        for s in plan.steps
    )
    assert text == source and got == dataclasses.replace(plan, steps=steps)
    assert any(getattr(b.where, "line", 0) for b in plan.buffers.values())
    assert [b.where for b in got.buffers.values()] == [b.where for b in plan.buffers.values()]
    assert list(got.buffers) == list(plan.buffers) and not counters["cache"]


def test_a_source_for_a_gpu_comes_back() -> None:
    args = Arg("buffer", "x", "*fp32"), Arg("scratch", "", "*i8", 64), Arg("size", "s0", "i64")
    config = LaunchConfig((("X", 64), ("FLAG", True)), 4, 2, (3, 1))
    source = TritonSource("def k(): pass", (Launch(0, "k", args, config, (config,), True),), 128, 1, 99)
    assert plan_data.TRITON.read(json.loads(json.dumps(plan_data.TRITON.pack(source)))) == source


@pytest.mark.parametrize(
    "value", [ix.index(ix.Sym("s0")), torch.ones(1), object(), {1: 2}, {1}, print, b"", torch.int], ids=written
)
def test_what_has_no_form_is_not_kept(value) -> None:
    if value is torch.int:  # an alias: a dtype as others
        assert plan_data.VALUE.read(plan_data.VALUE.pack(value)) is torch.int32
        return
    for form in (plan_data.VALUE, plan_data.INTS, plan_data.NAME, plan_data.PLAN):
        with pytest.raises(NotKept):
            form.pack((value,) if form is plan_data.INTS else value)


def places(data: object, way: tuple = ()) -> list[tuple]:
    """The ways to all parts of JSON data."""
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [way, *(w for k, v in inner for w in places(v, (*way, k)))]


OTHERS = [None, True, 7, 0.5, "x", "a b", "x; import os", "__import__('os')", [], {}, ["view", []], ["call", 3], [1, 2], {"a": 1}]


@pytest.mark.cxx
def test_other_data_is_refused_or_means_what_it_says(kept: list) -> None:
    """Any part is put in the place of any other: it is refused, or read as a plan that would be kept as just this."""
    compiled()
    whole = json.loads(plan_data.pack(*kept[0]))
    ways, draw, refused = places(whole), random.Random(0), 0
    for way in (w for w in ways if w):
        changed = copy.deepcopy(whole)
        at = changed
        for part in way[:-1]:
            at = at[part]
        what = draw.choice(OTHERS)
        if draw.random() < 0.2 and isinstance(at, list):
            at.append(what) if draw.random() < 0.5 else at.pop()
        else:
            at[way[-1]] = what
        raw = json.dumps(changed, separators=(",", ":")).encode()
        try:
            assert plan_data.pack(*plan_data.read(raw)) == raw
        except Damaged:
            refused += 1
    assert refused > len(ways) / 2


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"[" * 100_000, b"\xff", b"null", b"[[],[]]", b'"x"', b"[NaN,1]"])
def test_other_text_is_refused(raw: bytes) -> None:
    with pytest.raises(Damaged):
        plan_data.read(raw)


class Runs:
    """What a pickle can do."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


@pytest.mark.cxx
def test_a_pickle_for_a_plan_does_not_run(kept: list, tmp_path: Path) -> None:
    """Even where it is sealed as ours: it is counted and replaced."""
    compiled()
    (place,) = tmp_path.rglob("*.plan")
    disk_of(config.current.cache_path, config.current.cache_mb).write(place.name, pickle.dumps(Runs(tmp_path / "ran")))
    torch.testing.assert_close(compiled(), program(*[a.clone() for a in ARGS]))
    assert len(kept) == 2 and not (tmp_path / "ran").exists() and counters.total("cache") == 1
    compiled()
    assert len(kept) == 2


def test_nothing_that_is_read_is_run_by_reading() -> None:
    """No module of the sources imports what makes objects, or code, of bytes."""
    src = Path(bytejit.__file__).parent
    for path in src.rglob("*.py"):
        text = path.read_text()
        assert not any(f"import {m}" in text or f"from {m}" in text for m in ("pickle", "marshal", "shelve", "dill")), path
        assert "torch.load(" not in text and "spec_from_file_location" not in text, path


@pytest.mark.parametrize(
    "target",
    ["aten.mm", "aten.mm.nothing", "load_library.__call__.__self__", "aten.__class__.__init__", "aten.mm.default.__call__"],
)
def test_an_operator_is_torchs(target: str) -> None:
    with pytest.raises(AttributeError):
        resolve(target)
    assert callable(resolve("aten.mm.out")) and callable(resolve("aten.mm.default"))
