"""Each graph break comes with a line that says what the user can do about it"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import bytejit
from bytejit.tools.advice import ADVICE, ANY, advice

SRC = Path(bytejit.__file__).parent
X = torch.linspace(-1, 2, 8)


def shows(x):
    y = x.sin()
    print(end="")
    return y * 2


def opens(x):
    y = x.sin()
    open(os.devnull).close()
    return y * 2


def writes(x):
    with open(os.devnull, "w") as file:
        file.write(f"{x.sum()}")
    return x * 2


def waits(x):
    y = x.sin()
    time.sleep(0)
    return y * 2


def lists(x):
    y = x.sin()
    for v in y.tolist():
        y = y + v
    return y


def places(x):
    y = x.sin()
    return y[y.nonzero()[:, 0]] * 2


def masked(x):
    y = x.sin()
    return y[y > 0] * 2


def different(x):
    return torch.unique(x.sin()) * 2


def number(x):
    return x * torch.tensor(x.sum().item())


def whole(x):
    return torch.zeros(abs(int(x.sum()))) + x[0]


def text(x):
    y = x.sin()
    return y * 2, f"{y}"


def array(x):
    y = x.sin()
    return y * 2, str(y.numpy())


def decides(x):
    y = x.sin()
    return y * 2 if y.sum() > 0 else y


def raises(x):
    y = x.sin()
    try:
        y.view(3)
    except RuntimeError as e:
        return y * 2, str(e)


WORDS = {
    shows: "print after the call",
    opens: "read and write files",
    writes: "read and write files",
    waits: "before or after the compiled function",
    lists: "compute with the tensor itself",
    places: "torch.where(mask, a, b)",
    masked: "multiply by the mask",
    different: "sizes do not depend on values",
    number: "compute with the tensor itself",
    whole: "compute with the tensor itself",
    text: "return the tensor",
    array: "make the text",
    decides: "torch.where",
}


@pytest.mark.parametrize("f", [*WORDS, raises], ids=lambda f: f.__name__)
def test_each_break_says_what_to_do(f: Callable) -> None:
    found = bytejit.explain(f, X)
    assert all(b.do for b in found.break_reasons) and (found.break_reasons or f is raises)
    lines = str(found).splitlines()
    for b in found.break_reasons:
        assert "\n" not in b.do and f"    do: {b.do}" == lines[lines.index(f"  {b}") + 1]
        assert b.reason.count("depends") <= 1 and "the result depends" not in b.reason
    assert f is raises or any(WORDS[f] in b.do for b in found.break_reasons)


def test_a_break_of_code_that_stands_for_a_function_is_not_the_program_s() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        logging.getLogger("a logger that nobody has made").disabled
        return x + 1

    (found,) = bytejit.explain(f, X).break_reasons
    assert found.reason == "a logger that does not exist yet" and found.do.startswith("make loggers")


def test_a_whole_graph_says_it_as_well() -> None:
    with pytest.raises(bytejit.exc.Unsupported) as e:
        bytejit.compile(shows, fullgraph=True)(X)
    assert e.value.do.startswith("print after the call") and "leave nopython (fullgraph) off" in e.value.do
    assert len(str(e.value).splitlines()) == 4


CLASSES = {
    "torch.cond of branches that have side effects": "let each function return new tensors",
    "torch.func.grad of a function that writes into its arguments": "takes tensors and returns new ones",
    "torch.utils.checkpoint of a function that has side effects": "use_reentrant=False",
    "the backward pass with these arguments": "go backward from one loss",
    "iterating a set whose order depends on addresses": "sorted(...)",
    "a key with its own __hash__ (Key)": "as keys",
    "a call of NumPy's median, which has no tensor version,": "the torch function of that purpose",
    "a long loop without tensor work": "one operation on a whole tensor",
    "warnings.catch_warnings that records, or was entered before": "outside of the compiled function",
    "a torch.sparse_coo tensor": ".to_dense()",
    "a tensor's grad_fn, which the region has changed": "after the call",
    "a call of print": "print after the call",
    "a call of io.open": "read and write files",
    "a call of cffi.load": "torch.library.custom_op",
    "an iterator from outside that changes": "make a list of the items",
    "a lock from outside": "make and take locks",
    "a call of _thread.start_new_thread": "start threads",
    "a call of __import__": "import at the top",
    "a nested tensor": ".to_padded_tensor()",
    "nested_tensor: no way to infer its result without data": "register_fake",
}


@pytest.mark.parametrize("reason", CLASSES)
def test_classes_of_reasons(reason: str) -> None:
    assert CLASSES[reason] in advice(reason)


def reasons() -> list[str]:
    """The reasons that stand in the source, with a word for each part that is filled in."""
    found = re.findall(r'(?:Break|graph_break)\(\s*f?"([^"]*)"', "".join(p.read_text() for p in SRC.rglob("*.py")))
    return [re.sub(r"\{[^{}]*\}", "name", reason) for reason in found]


def test_all_reasons_get_a_line() -> None:
    assert len(reasons()) > 300
    own = [r for r in reasons() if advice(r) != ANY]
    assert len(own) > len(reasons()) * 0.8
    for pattern, do in ADVICE:
        re.compile(pattern)
        assert 10 < len(do) < 125 and "\n" not in do and not do.endswith(".")


def test_every_row_is_used() -> None:
    """A row that no reason reaches any more was made for one that is gone."""
    seen = {advice(r) for r in reasons()} | {
        advice(f"a call of {name}") for name in ("print", "io.open", "time.sleep", "time.time")
    }
    seen |= {advice(f"what {name} returns depends on a tensor's values") for name in ("nonzero", "getitem", "unique")}
    seen |= {advice("text made of a tensor's values is needed after the graph"), advice("int() of a tensor needs its value")}
    seen.add(advice("sort: no way to infer its result without data"))
    assert {do for _, do in ADVICE} <= seen
