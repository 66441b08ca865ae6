"""`f3`: scipy in the middle of a function. It runs as it is; what is before and after it is compiled."""

import scipy.fft
import torch

import bytejit


def f3(x):
    x = x * 2
    x = scipy.fft.dct(x.numpy())
    x = torch.from_numpy(x)
    x = x * 2
    return x


def main():
    compiled = bytejit.optimize("inductor")(f3)
    for size in (16, 64):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), f3(x))
    print("breaks:", *bytejit.counters["breaks"], sep="\n  ")


if __name__ == "__main__":
    main()
