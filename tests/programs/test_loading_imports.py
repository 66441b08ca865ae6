"""Imports within a function of modules that are not loaded yet: packages, submodules, what fails, what the body sets"""

import sys
import warnings

import pytest
import torch

import bytejit

SUB = {"__init__.py": "", "sub.py": "K = 2.0"}
# the program after `y = x + 1`, the package's files, graphs over all calls (None: it breaks)
CASES = {
    "module": ("import PKG\n return y * PKG.K", {"__init__.py": "K = 2.0"}, 1),
    "name": ("from PKG import K as k\n return y * k", {"__init__.py": "K = 2.0"}, 1),
    "submodule": ("from PKG import sub\n return y * sub.K", SUB, 1),
    "dotted": ("import PKG.sub\n return y * PKG.sub.K", SUB, 1),
    "of a loaded one": ("import PKG.other\n return y * PKG.other.K", {**SUB, "other.py": "from . import sub\nK = sub.K"}, 1),
    "by name": ("return y * importlib.import_module('PKG').K", {"__init__.py": "K = 2.0"}, 1),
    "prints": ("import PKG\n return y * PKG.K", {"__init__.py": "print('loaded')\nK = 2.0"}, 1),
    "sets state": (
        "import PKG\n return y * torch.rand(3)",
        {"__init__.py": "import torch, warnings\ntorch.manual_seed(7)\nwarnings.simplefilter('ignore', ImportWarning)"},
        1,
    ),
    "sees what was written": (
        "seen['a'] = 3\n import PKG\n return y * PKG.K",
        {"__init__.py": "import sys\nK = sys.modules['the_program'].seen['a']"},
        None,
    ),
    "torch's own": ("torch._check_is_size(x.shape[0])\n return y", {}, 1),
    "fails": (
        "try:\n  import PKG\n except ImportError as e:\n  return y, e.name\n return x",
        {"__init__.py": "import PKG.none"},
        None,
    ),
    "no such module": ("try:\n  import PKG.none\n except ImportError as e:\n  return y, e.name\n return x", SUB, None),
    "own names": (
        "from PKG import sub\n return y * sub.K",
        {**SUB, "__init__.py": "def __getattr__(n):\n raise AttributeError(n)"},
        None,
    ),
    "no such name": ("from PKG import none\n return y", SUB, None),
}


def outcomes(source, name, files, folder, monkeypatch, compile, capsys):
    """What three calls give, and what they leave: the program imports a package of this name, which nothing has loaded."""
    (folder / name).mkdir(parents=True)
    for file, text in files.items():
        (folder / name / file).write_text(text.replace("PKG", name))
    program = type(sys)("the_program")
    monkeypatch.setitem(sys.modules, "the_program", program)
    program.__dict__.update(torch=torch, importlib=__import__("importlib"), seen={})
    exec(f"def f(x):\n y = x + 1\n {source.replace('PKG', name)}", program.__dict__)
    found, f = [], compile(program.f)
    with warnings.catch_warnings():
        torch.manual_seed(0)
        for x in range(3):
            try:
                found.append(f(torch.full((3,), float(x))))
            except ImportError as e:
                found.append(e.msg)
        found += [
            program.seen,
            torch.rand(2),
            any(rule[2] is ImportWarning and not rule[4] for rule in warnings.filters[:1]),
            sorted(m for m in sys.modules if m.startswith(name)),
        ]
    for loaded in [m for m in sys.modules if m.startswith(name)]:
        del sys.modules[loaded]
    return str(found).replace(name, "PKG").replace(str(folder), ""), capsys.readouterr().out


@pytest.mark.parametrize("case", CASES)
def test_imports_that_load(case, tmp_path, monkeypatch, capsys):
    source, files, count = CASES[case]
    monkeypatch.syspath_prepend(str(tmp_path))
    graphs = []

    def counted(gm, examples):
        graphs.append(gm)
        return gm.forward

    ours = lambda f: bytejit.compile(f, backend=counted, fullgraph=count is not None)  # noqa: E731
    want = outcomes(source, "as_it_is", files, tmp_path, monkeypatch, lambda f: f, capsys)
    assert outcomes(source, "compiled", files, tmp_path, monkeypatch, ours, capsys) == want
    assert count is None or len(graphs) == count


AGAIN = {
    "import": "import the_module\n return x * the_module.k",
    "name": "from the_module import k\n return x * k",
    "by name": "return x * importlib.import_module('the_module').k",
    "dotted": "import the_module.sub as sub\n return x * sub.k",
    "submodule": "from the_module import sub\n return x * sub.k",
}


@pytest.mark.parametrize("name", AGAIN)
def test_another_module_in_its_place(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test puts a module of its own into sys.modules, or takes one out"""

    def put(k: float) -> None:
        module, sub = type(sys)("the_module"), type(sys)("the_module.sub")
        module.k, module.sub, module.__path__, sub.k = k, sub, [], k + 1
        monkeypatch.setitem(sys.modules, "the_module", module)
        monkeypatch.setitem(sys.modules, "the_module.sub", sub)

    space = {"importlib": __import__("importlib")}
    exec(f"def f(x):\n {AGAIN[name]}", space)
    f, x = space["f"], torch.ones(2)
    compiled = bytejit.compile(f, backend="eager")
    for k in (2.0, 2.0, 3.0, 4.0):
        put(k)
        assert torch.equal(compiled(x), f(x))
    monkeypatch.delitem(sys.modules, "the_module")
    monkeypatch.delitem(sys.modules, "the_module.sub")
    for g in (f, compiled):
        with pytest.raises(ModuleNotFoundError, match="No module named 'the_module"):
            g(x)
