"""`bar` of the TorchDynamo documents: three graphs after calls with both signs, seen by a backend of one's own."""

import torch

import bytejit

graphs = []


def my_compiler(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]):
    print("my_compiler() called with FX graph:")
    print(gm.code)
    graphs.append(gm)
    return gm.forward  # any callable that takes the inputs


def bar(a, b):
    x = a / (torch.abs(a) + 1)
    if b.sum() < 0:
        b = b * -1
    return x * b


def main():
    compiled = bytejit.optimize(my_compiler)(bar)
    for _ in range(3):
        for sign in (1, -1):
            a, b = torch.randn(10), sign * torch.rand(10)
            torch.testing.assert_close(compiled(a, b), bar(a, b))
    assert len(graphs) == 3, len(graphs)

    try:
        bytejit.optimize(my_compiler, nopython=True)(bar)(torch.randn(10), torch.randn(10))
    except bytejit.exc.Unsupported as error:
        print(f"Unsupported: {error}")
        assert "09_three_graphs.py" in str(error)
    else:
        raise AssertionError("nopython=True did not raise")


if __name__ == "__main__":
    main()
