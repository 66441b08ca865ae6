"""`eval(model, inp)`: the model is an argument of the compiled function; two models, two compiled entries."""

import torch

import bytejit


@bytejit.optimize("inductor", nopython=True)
def evaluate(model, inp):
    return model(inp).softmax(-1)


def main():
    a = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4)).eval()
    b = torch.nn.Linear(16, 4).eval()
    x = torch.randn(3, 16)
    with torch.no_grad():
        for model in (a, b, a):
            torch.testing.assert_close(evaluate(model, x), model(x).softmax(-1))
    print("graphs:", bytejit.counters.total("graphs"))


if __name__ == "__main__":
    main()
