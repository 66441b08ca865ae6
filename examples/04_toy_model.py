"""`ToyModel` of two Linears, compiled as one graph: `nopython=True` does not raise."""

import torch
from torch import nn

import bytejit


class ToyModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net1 = nn.Linear(10, 10)
        self.relu = nn.ReLU()
        self.net2 = nn.Linear(10, 5)

    def forward(self, x):
        return self.net2(self.relu(self.net1(x)))


def main():
    model = ToyModel().eval()
    compiled = bytejit.optimize("inductor", nopython=True)(model)
    with torch.no_grad():
        for batch in (20, 20, 7, 1):  # the second size makes the batch symbolic; size 1 is compiled by itself
            x = torch.randn(batch, 10)
            torch.testing.assert_close(compiled(x), model(x))
    print("recompiles:", dict(bytejit.counters["recompiles"]))
    assert bytejit.counters.total("breaks") == 0


if __name__ == "__main__":
    main()
