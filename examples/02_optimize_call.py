"""`fn` with cos and sin: `optimize(...)` called on a function, in place of a decorator."""

import torch

import bytejit


def fn(x, y):
    a = torch.cos(x)
    b = torch.sin(y)
    return a + b


def main():
    compiled = bytejit.optimize("inductor")(fn)
    x, y = torch.randn(10000), torch.randn(10000)
    torch.testing.assert_close(compiled(x, y), fn(x, y))
    assert compiled.__name__ == "fn" and compiled.__wrapped__ is fn
    print("fn: same as eager on", x.numel(), "elements")


if __name__ == "__main__":
    main()
