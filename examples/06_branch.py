"""`f1`: a tensor decides a branch. The graph breaks there, both sides are compiled, both signs are right."""

import torch

import bytejit


def f1(x, y):
    if x.sum() < 0:
        return -y
    return y


def main():
    compiled = bytejit.optimize("inductor")(f1)
    y = torch.randn(10)
    for x in (torch.ones(10), -torch.ones(10), torch.ones(10)):
        torch.testing.assert_close(compiled(x, y), f1(x, y))
    report = bytejit.explain(f1, torch.ones(10), y)
    print(report)
    assert any("06_branch.py" in str(reason) for reason in report.break_reasons)


if __name__ == "__main__":
    main()
