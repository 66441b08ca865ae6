"""`explain`'s page and the commands: what they tell, and one line where something is wrong."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch

import bytejit
from bytejit.commands import COMMANDS
from bytejit.tools.loading import CannotLoad, load

HERE = Path(__file__)
VOID = {"meta", "br"}


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x).relu()
        bytejit.graph_break()  # the <break>
        return torch.sigmoid(y) * 2


class Balanced(HTMLParser):
    """Which elements were left open or closed too often."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(html: str) -> Balanced:
    page = Balanced()
    page.feed(html)
    assert not page.open
    return page


def line_of(text: str) -> int:
    return next(i for i, line in enumerate(HERE.read_text().splitlines(), 1) if text in line)


BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), "")


@pytest.mark.skipif(not BROWSER, reason="no headless browser: chromium or google-chrome")
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """It is laid out without a network, and the browser has nothing to say about it."""
    file = tmp_path / "report.html"
    with torch.no_grad():
        bytejit.explain(Net(), torch.ones(2, 8), html=str(file))
    quiet = ["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr"]
    command = [BROWSER, *quiet, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "CONSOLE" not in done.stderr and "ERR_" not in done.stderr, done.stderr
    assert "Net.forward" in "".join(parsed(done.stdout).text) and "<svg" in done.stdout


def test_the_page(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    with torch.no_grad():
        old = bytejit.compile(lambda x, n: x * n, backend="eager", dynamic=False)
        for n in (1, 2):
            old(torch.ones(2), n)
        report = bytejit.explain(Net(), torch.randn(16, 8), html=file)
    html = file.read_text()
    page = parsed(html)
    text = "\n".join(page.text)
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|src=|@import|url\(", html)  # it needs no network
    assert page.seen.count("svg") == 2 and {"graph0", "graph1"} <= set(re.findall(r"id=(\w+)", html))
    assert str(line_of("# the <break>")) in page.text and "the &lt;break&gt;" in html
    assert "break: bytejit.graph_break()" in text
    assert re.search(rf"class=break><td class=g>.*?<td class=l>{line_of('# the <break>')}<", html)
    # the kernels beside the lines that they come from
    sigmoid = line_of("return torch.sigmoid(y)")
    assert re.search(rf"test_pages.py:{sigmoid} return torch.sigmoid\(y\) \* 2</td><td class=c>.*sigmoid", html)
    # a box for the library call and one for each kernel
    assert html.count('<g class="library">') == 1 and html.count('<g class="kernel">') == 2
    assert "linear" in text and "relu" in text and "f32[16, 8]" in text
    # inputs have the program's names: of the forward, and of what it goes on with after the break
    assert re.findall(r'<g class="input"><title>(\w+)</title>', html) == ["x", "y"]
    assert text.count("guards: what it relies on") == 2 and "TYPE_IS self: Net" in text
    assert (
        re.search(r"\d \N{MICRO SIGN}s<", html) and re.search(r"\d kB<", html) and html.count("GB/s") == 1
    )  # of the graph without library calls
    assert "Compiled again in this process, and why" in text and "n was 1, is 2" in text
    assert report._repr_html_().startswith("<style>") and parsed(report._repr_html_()).seen.count("svg") == 2
    rules = re.search("<style>(.*?)</style>", report._repr_html_(), re.S)[1].splitlines()
    assert all(part.startswith((".bytejit", "@media")) for rule in rules for part in rule.partition("{")[0].split(","))


def test_a_page_without_graphs_and_of_torch() -> None:
    nothing = bytejit.explain(lambda: 3, *())
    assert all("No graph was made: the call holds no work for one." in text for text in (nothing.html(), str(nothing)))
    with torch.no_grad():
        html = bytejit.explain(bytejit.compile(lambda x: x.sin(), backend="eager"), torch.ones(2)).html()
    assert parsed(html).seen.count("svg") == 0 and "The graph as traced" in html


def test_a_file_that_cannot_be_written_is_said_before_the_call(tmp_path: Path) -> None:
    called = []
    with pytest.raises(OSError):
        bytejit.explain(lambda x: called.append(1), torch.ones(2), html=tmp_path / "none" / "r.html")
    with pytest.raises(ZeroDivisionError):
        bytejit.explain(lambda x: x / (1 // 0), torch.ones(2), html=tmp_path / "r.html")
    assert not called and not list(tmp_path.iterdir())


CODE = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x + 1

def case():
    return Net(), (torch.ones(2),)

def alone():
    return torch.ones(2) * 2

def raises():
    raise ValueError("first line\\nsecond")

def takes(x):
    return x

def asserts():
    assert False

def leaves():
    raise SystemExit(0)

def bare():
    return net

net = Net()
number = 3
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    file = tmp_path / "code_of_a_user.py"
    file.write_text(CODE)
    return file


def test_the_command(code: Path, capsys: pytest.CaptureFixture) -> None:
    assert COMMANDS["explain"]([f"{code.name}:alone"]) == 0
    assert capsys.readouterr().out.startswith("alone: 1 graph, 0 breaks, ")
    case = load(f"{code.name}:case")
    assert case.name == "Net" and case.args[0].tolist() == [1, 1] and case.target(*case.args).tolist() == [2, 2]


WRONG = {
    "{}:raises": (1, "{0}:raises raised ValueError: first line at {0}:15"),
    "{}:asserts": (1, "{0}:asserts raised AssertionError at {0}:21"),
    "{}:takes": (2, "{}:takes takes arguments: name a function without any, which may return (function, (x, y))"),
    "{}:none": (2, "{} has no function none; it has case, alone, raises, takes, asserts, leaves, bare"),
    "{}:number": (2, "number of {} is no function but of the type int; it has case, alone, raises, takes, asserts, leaves, bare"),
    "{}:net": (2, "{}:net takes arguments: name a function without any, which may return (function, (x, y))"),
    "{}:bare": (2, "{}:bare returned a module without inputs: let it return (module, (x, y))"),
    "{}:leaves": (1, "{0}:leaves raised SystemExit: 0 at {0}:24"),
    "{}": (2, "{0}: name a function of the file, as {0}:FUNCTION"),
    "missing.py:f": (2, "no such file: missing.py"),
    "{}:alone --html none/r.html": (2, "none/r.html cannot be written: No such file or directory"),
    "{}:alone --device nothing": (2, "the device nothing cannot be used: "),
    "other/resnet18": (2, "other/resnet18: models come from torchvision, timm, transformers; your own code: FILE.py:FUNCTION"),
}


@pytest.mark.parametrize("arguments", WRONG)
def test_one_line_and_a_status_where_something_is_wrong(code: Path, arguments: str, capsys: pytest.CaptureFixture) -> None:
    status, said = WRONG[arguments]
    before = sorted(code.parent.iterdir())
    assert COMMANDS["explain"](arguments.format(code.name).split()) == status
    err = capsys.readouterr().err
    assert err.startswith(f"bytejit explain: {said.format(code.name)}") and err.count("\n") == 1
    assert sorted(p for p in code.parent.iterdir() if p.name != "__pycache__") == before


def test_the_cause_of_what_is_raised_is_said(tmp_path: Path) -> None:
    """A library that another one does not fit says only that it cannot be imported."""
    file = tmp_path / "caused.py"
    file.write_text(
        "try:\n    raise RuntimeError('no such operator')\n"
        "except RuntimeError as e:\n    raise ModuleNotFoundError('no Model') from e\n"
    )
    with pytest.raises(CannotLoad) as caught:
        load(f"{file}:case")
    said = "raised ModuleNotFoundError: no Model, because of RuntimeError: no such operator at "
    assert said in str(caught.value) and str(caught.value).endswith("caused.py:4")


def test_a_model_s_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first library that has it; what cannot be imported is named."""

    class Library:
        @staticmethod
        def is_model(name: str) -> bool:
            return name == "small"

        @staticmethod
        def create_model(name: str, pretrained: bool) -> torch.nn.Module:
            assert not pretrained
            net = torch.nn.Conv2d(3, 4, 3)
            net.default_cfg = {"input_size": (3, 8, 8)}
            return net

    def imported(name: str):
        if name != "timm":
            raise RuntimeError("operator torchvision::nms does not exist")
        return Library

    monkeypatch.setattr("bytejit.tools.loading.importlib.import_module", imported)
    case = load("small")
    assert case.args[0].shape == (1, 3, 8, 8) and not case.target.training
    with pytest.raises(CannotLoad, match=r"^no model 'large' .*cannot be imported: torchvision: operator"):
        load("large")


def test_compiled_functions_and_modules_in_a_notebook() -> None:
    def f(x, n):
        y = x * n  # <first>
        bytejit.graph_break()
        return y + 1

    compiled = bytejit.compile(f, backend="eager", dynamic=False)
    assert "nothing compiled yet" in compiled._repr_html_()
    for n in (2, 3):
        compiled(torch.ones(2), n)
    html = compiled._repr_html_()
    parsed(html)
    first = line_of("# <first>")
    assert re.search(rf"<td class=g><span[^>]*>2</span></td><td class=l>{first}</td>", html) and "# &lt;first&gt;" in html
    assert "compiled again: n was 2, is 3" in html and "return y + 1" in html and "guards" in html

    net = bytejit.compile(Net(), backend="eager")
    assert "Net.forward, " in net._repr_html_() and "nothing compiled yet" in net._repr_html_()
    with torch.no_grad():
        net(torch.ones(2, 8))
    html = net._repr_html_()
    parsed(html)
    assert "Net.forward, " in html and "return torch.sigmoid(y) * 2" in html and "class Balanced" not in html
    assert repr(net) == repr(Net())

    class Own(torch.nn.Module):
        def _repr_html_(self) -> str:
            return "own"

    assert bytejit.compile(Own(), backend="eager")._repr_html_() == "own"
