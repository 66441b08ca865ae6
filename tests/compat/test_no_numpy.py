"""A process in which NumPy cannot be imported compiles and runs, on each backend."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numpy":
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Absent())
import random, torch, bytejit

def f(x, n, seen):
    seen.append((n, [x.shape[0]] * 2))
    scale = sum({"a": 1, "b": 2}.values()) + len(seen)
    y = torch.tensor([1.0, 2.0, 3.0]) * scale + x.view(-1, 3).sin()
    print("broken here", end="")
    return torch.nn.functional.gelu(y) + torch.arange(3)[::2].sum() / max(n, 2) + random.random() * 0, {"k": y * 2}

model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.LayerNorm(8), torch.nn.GELU(), torch.nn.Linear(8, 2)).eval()
x = torch.randn(4, 3)
for backend, inference in [("eager", False), ("aot_eager", True), ("inductor", True), ("inductor", False)]:
    with torch.set_grad_enabled(not inference):
        compiled, net = bytejit.compile(f, backend=backend), bytejit.compile(model, backend=backend)
        for n in range(3):
            torch.testing.assert_close(compiled(x, n, []), f(x, n, []))
            torch.testing.assert_close(net(x), model(x))
        torch.testing.assert_close(compiled(x[:2], 1, []), f(x[:2], 1, []))
assert "numpy" not in sys.modules and bytejit.counters.total("graphs") and not bytejit.counters.total("faults")
print("fine")
"""


@pytest.mark.cxx
def test_without_numpy() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and done.stdout.endswith("fine\n"), done.stdout + done.stderr
