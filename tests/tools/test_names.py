"""What people read about compiled code: names of regions, the debug folder, words of messages."""

from __future__ import annotations

import functools
import logging
import re
import runpy
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import bytejit
from bytejit.common.graph_script import NoText, imports_text, value_text
from bytejit.runtime.region_names import forward_of, parameters_of

HERE = __file__


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, n: int = 1) -> torch.Tensor:
        return self.inner(x).relu() * n


class Below(Net):
    pass


class OwnSequence(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(torch.nn.ReLU())


def decorated(fn):
    @functools.wraps(fn)
    def wrapper(*args):
        return fn(*args)

    return wrapper


class Decorated(torch.nn.Module):
    @decorated
    def forward(self, x):
        return x + 1


def line_of(fn) -> int:
    return fn.__code__.co_firstlineno


def test_a_module_s_region_is_its_forward() -> None:
    report = bytejit.explain(bytejit.compile(Net(), backend="eager"), torch.randn(2, 8))
    assert [r.function for r in report.regions] == ["Net.forward"]
    assert report.regions[0].where.file == HERE and report.regions[0].where.line == line_of(Net.forward)
    assert not any("args[0]" in g for g in report.regions[0].guards) and any(" x:" in g for g in report.regions[0].guards)


def test_places_of_forwards() -> None:
    given = Net()
    given.forward = lambda y: y  # type: ignore[method-assign]
    found = {
        name: (w.function, w.file == HERE, w.line)
        for name, w in {
            "below": forward_of(Below()),
            "sequence": forward_of(OwnSequence()),
            "decorated": forward_of(Decorated()),
            "given": forward_of(given),
            "compiled": forward_of(bytejit.compile(Below())),
        }.items()
    }
    assert found["below"] == found["compiled"] == ("Below.forward", True, line_of(Net.forward))
    assert found["sequence"] == ("OwnSequence.forward", True, line_of(OwnSequence.__init__))
    assert found["decorated"] == ("Decorated.forward", True, line_of(Decorated.forward.__wrapped__) + 1)  # its `def`
    assert found["given"][1:] == (True, line_of(given.forward))
    assert forward_of(torch.nn.ReLU()).short.startswith("torch/nn/modules/")
    assert parameters_of(Net()) == ("x", "n") and parameters_of(given) == ("y",)


def test_recompiles_name_the_forward_s_arguments(capfd: pytest.CaptureFixture) -> None:
    net = bytejit.compile(Net(), backend="eager", options={"recompile_limit": 2, "logs": "recompiles"}, dynamic=False)
    with torch.no_grad(), pytest.warns(RuntimeWarning, match=r"^bytejit: Net.forward \(.*\): compiled 2 times.*n was 2, is 3"):
        for n in (1, 2, 3):
            net(torch.randn(2, 8), n)
    said = capfd.readouterr().err
    assert "in Net.forward: def forward" in said and "n was 1, is 2" in said and "_wrapped_call_impl" not in said


def test_files_of_code_run_or_say_that_they_do_not(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    options = {"debug": True, "debug_dir": str(tmp_path)}
    with torch.no_grad():
        bytejit.compile(Net(), options=options)(torch.randn(4, 8).t().contiguous().t())
    (folder,) = (f for f in tmp_path.iterdir() if (f / "1_graph.py").exists())
    assert folder.name.startswith("Net.forward_L")
    code = sorted(f for f in folder.iterdir() if f.suffix in (".py", ".cpp"))
    heads = {f.name: f.read_text().splitlines()[0] for f in code}
    assert heads.pop("1_graph.py").startswith("# Runs by itself. ")
    assert heads and all(h.lstrip("#/ ").startswith("To be read only: ") for h in heads.values()), heads
    text = (folder / "1_graph.py").read_text()
    assert f'"{HERE}"' in text or f"File: {HERE}" in text
    assert "as_strided((4, 8), (1, 4))" in text
    with torch.no_grad():
        runpy.run_path(str(folder / "1_graph.py"), run_name="__main__")
    said = capsys.readouterr().out
    assert "output 0, eager and compiled: largest difference" in said
    assert float(said.split()[-1]) < 1e-5


def test_a_backward_pass_is_in_the_folder_once_it_ran(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    @bytejit.compile(options={"debug": True, "debug_dir": str(tmp_path), "logs": ("code",)})
    def f(x):
        return (x.sin() * 2).softmax(-1)

    y = f(torch.ones(4, 5, requires_grad=True))
    (folder,) = tmp_path.iterdir()
    before = {path.name for path in folder.iterdir()}
    y.square().sum().backward()
    made = {path.name for path in folder.iterdir()} - before
    assert "9_backward.txt" in before and {"9_backward_aten.txt", "9_backward_kernel.cpp", "9_backward_call.py"} <= made
    assert "softmax" in (folder / "9_backward_aten.txt").read_text()
    assert capsys.readouterr().err.count("void k0") >= 2  # of both passes


def test_kernels_of_all_parts_of_a_graph_are_in_the_folder(tmp_path: Path) -> None:
    """torch makes a call in the middle of the graph, and a backward pass goes through each part beside it."""

    @bytejit.compile(options={"debug": True, "debug_dir": str(tmp_path)})
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x.sin() * 2).softmax(-1)
        torch.manual_seed(0)
        return y, (x.cos() + torch.rand_like(x)).softmax(-1)

    sum(f(torch.ones(4, 5, requires_grad=True))).square().sum().backward()
    (folder,) = tmp_path.iterdir()
    made = {path.name.partition("_")[2] for path in folder.iterdir()}
    for part in ("part0", "part2"):
        assert {f"{part}_kernel.cpp", f"{part}_backward.txt", f"{part}_backward_kernel.cpp"} <= made, made


def test_a_graph_that_holds_the_program_s_objects_is_to_be_read_only(tmp_path: Path) -> None:
    @bytejit.allow_in_graph
    def local(x):
        return x + 1

    bytejit.compile(lambda x: local(x) * 2, backend="eager", options={"debug": True, "debug_dir": str(tmp_path)})(torch.ones(2))
    first = next(tmp_path.glob("*/1_graph.py")).read_text().splitlines()[0]
    assert first.startswith("# To be read only: ") and "local" in first


TENSORS = [
    torch.randn(3, 4),
    torch.rand(3, 4, dtype=torch.float64),
    torch.randn(4, 3).t(),
    torch.randn(1, 3).expand(4, 3),
    torch.randn(()),
    torch.randn(0, 3),
    torch.tensor([5, 7]),
    torch.arange(100),
    torch.ones(3, dtype=torch.bool),
    torch.randn(2, dtype=torch.complex64),
    torch.randn(4).to(torch.bfloat16),
    torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    torch.randn(8)[::2],
]


@pytest.mark.parametrize("x", TENSORS)
def test_text_of_a_tensor_makes_one_like_it(x: torch.Tensor) -> None:
    made = eval(value_text(x))
    assert (made.shape, made.stride(), made.dtype) == (x.shape, x.stride(), x.dtype)
    if x.dtype == torch.int64:
        assert made.min() >= x.min() and made.max() <= x.max()


def test_text_of_values() -> None:
    for value in (None, True, 3, 2.5, float("inf"), "a", (1, 2), (1,), [1, None], torch.float32, torch.device("cpu"), 1j):
        assert eval(value_text(value)) == value
    with pytest.raises(NoText, match="a object"):
        value_text(object())
    with pytest.raises(NoText, match="of the program"):
        imports_text({"f": lambda x: x})


def test_a_debug_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.warns(RuntimeWarning, match="debug folder cannot be written"):
        found = bytejit.compile(lambda x: x + 1, backend="eager", options={"debug": True, "debug_dir": str(file / "in")})(
            torch.ones(2)
        )
    assert found.tolist() == [2, 2] and file.read_text() == ""


def test_messages_have_the_program_s_words() -> None:
    """No class of bytejit's, no record of pybind's, no address."""

    def f(x, d):
        torch.autograd.graph.saved_tensors_hooks(abs, abs).__enter__()
        torch._C._autograd._pop_saved_tensors_default_hooks()
        torch.accelerator.current_accelerator()
        print(d)
        return x + 1

    report = bytejit.explain(bytejit.compile(f, backend="eager"), torch.ones(2), {1: Net()})
    texts = [b.reason for b in report.break_reasons] + [g for r in report.regions for g in r.guards]
    assert any("_push_saved_tensors_default_hooks" in t for t in texts)
    assert not [t for t in texts if re.search(r"pybind11|Var\(|Known\(|<class|\b0x[0-9a-f]{6}", t)]
    report = bytejit.explain(bytejit.compile(Net(), backend="eager"), torch.ones(2, 8))
    guards = [g for r in report.regions for g in r.guards]
    assert any(g.startswith("FUNCTION ") and "Net.forward at " in g for g in guards)
    assert not [g for g in guards if re.search(r"\b0x[0-9a-f]{6}", g)]


def test_a_numpy_function_is_called_by_its_own_name() -> None:
    """No name of a graph's node, and no advertisement of torch's."""

    def f(x):
        found = [np.bincount(x.numpy().argmax(0)), np.unique(x.numpy())]
        np.histogram(x.numpy())
        return found

    report = bytejit.explain(bytejit.compile(f, backend="eager"), torch.rand(2, 3))
    texts = [b.reason for b in report.break_reasons]
    assert [t.partition(" ")[2].partition(" ")[0] for t in texts[:2]] == ["numpy.bincount", "numpy.unique"]
    assert texts[2].startswith("numpy.histogram: ") and len(texts[2]) < 200


def breaks_of(fn, *args) -> list[str]:
    """Where a call breaks, and how often, in the second of two calls that are compiled anew."""
    for _ in range(2):
        bytejit.reset()
        bytejit.counters.clear()
        bytejit.compile(fn, backend="eager")(*args)
    return [f"{n} {what.rpartition(':')[2]}" for what, n in bytejit.counters["breaks"].items()]


def test_messages_break_once_at_the_users_line(capsys) -> None:
    logger, records = logging.Logger("eco"), []
    keep = logging.Handler()
    keep.emit = records.append
    logger.addHandler(keep)

    def f(x):
        y = x.sin()
        logger.info("sum %s", y.sum())
        y = y + 1
        logger.warning("shape %s", tuple(y.shape))
        y = y * 2
        warnings.warn("careful", stacklevel=1)
        y = y.exp()
        print("y is", tuple(y.shape))
        return y.cos()

    first = line_of(f)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert breaks_of(f, torch.ones(3)) == [f"1 {first + n}" for n in (2, 4, 8)]  # a warning is none
    assert [(w.filename, w.lineno) for w in said] == [(HERE, first + 6)] * 2
    assert [(r.pathname, r.lineno, r.funcName) for r in records] == [(HERE, first + 2, "f"), (HERE, first + 4, "f")] * 2
    assert capsys.readouterr().out == "y is (3,)\n" * 2
    assert bytejit.counters["graphs"]["eager"] == 4


def test_a_message_that_is_not_said_breaks_nothing() -> None:
    logger = logging.Logger("eco", logging.ERROR)

    def f(x):
        logger.info("sum %s", x.sum())
        if logger.isEnabledFor(logging.DEBUG):
            print(x)
        return x + 1

    bytejit.compile(f, backend="eager", fullgraph=True)(torch.ones(3))


def test_filters_of_warnings_break_at_the_users_lines() -> None:
    def f(x):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            y = x.sin()
            warnings.warn("inside", stacklevel=1)
        return y + 1, [str(w.message) for w in said]

    filters = list(warnings.filters)
    assert bytejit.compile(f, backend="eager")(torch.ones(3))[1] == ["inside"]
    assert warnings.filters == filters
    lines = {line.split()[1] for line in breaks_of(f, torch.ones(3))}
    assert lines == {str(line_of(f) + n) for n in (1, 4)}


def test_what_torch_warns_of_is_said_of_the_users_line() -> None:
    def f(x):
        y = x.sin()
        return torch.nn.functional.mse_loss(y, torch.zeros(1))

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        bytejit.compile(f)(torch.ones(3))
    assert [(w.filename, w.lineno) for w in said] == [(HERE, line_of(f) + 2)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="target size"):
            bytejit.compile(f)(torch.ones(3))
    registry = globals().setdefault("__warningregistry__", {})
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.warn_explicit("once", UserWarning, HERE, 1, registry=registry)
        before = registry["version"]
        bytejit.compile(lambda x: torch.nn.functional.relu(x) + 1)(torch.ones(3))
        warnings.warn_explicit("again", UserWarning, HERE, 1, registry=registry)
        assert registry["version"] == before  # what was said is not said anew
