"""`f2(x, 3)`: a Python int is part of the compiled code, and guarded: another int compiles again."""

import torch

import bytejit


def f2(x, y):
    return x + y


def main():
    compiled = bytejit.optimize("inductor", nopython=True)(f2)
    x = torch.randn(10)
    for y in (3, 3, 4, -1, 2.5, True):
        torch.testing.assert_close(compiled(x, y), f2(x, y))
    ints = torch.arange(5)
    result = compiled(ints, 3)
    assert result.dtype == torch.int64 and torch.equal(result, ints + 3)
    print("recompiles:", bytejit.counters.total("recompiles"))


if __name__ == "__main__":
    main()
