"""`foo` of the TorchDynamo documents: a decorator, two fused pointwise ops."""

import torch

import bytejit


@bytejit.optimize("inductor")
def foo(x, y):
    a = torch.sin(x)
    b = torch.cos(y)
    return a + b


def main():
    x, y = torch.randn(10, 10), torch.randn(10, 10)
    torch.testing.assert_close(foo(x, y), torch.sin(x) + torch.cos(y))
    torch.testing.assert_close(foo(y, x), torch.sin(y) + torch.cos(x))
    report = bytejit.explain(foo, x, y)
    print(report)
    assert bytejit.counters.total("breaks") == 0
    assert len(report.graphs) == 1
    assert bytejit.compile(foo.__wrapped__) is foo  # compiled twice: compiled once


if __name__ == "__main__":
    main()
