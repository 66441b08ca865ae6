"""A module with one Linear and a relu: the compiled module is still what it was."""

import copy
import io

import torch

import bytejit


class MyModule(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = torch.nn.Linear(100, 10)

    def forward(self, x):
        return torch.nn.functional.relu(self.lin(x))


def main():
    model = MyModule()
    compiled = bytejit.compile(model)
    x = torch.randn(10, 100)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        assert isinstance(compiled, MyModule) and list(compiled.state_dict()) == list(model.state_dict())

        model.lin.weight.mul_(2)  # one state: a change of the original shows in the compiled one
        torch.testing.assert_close(compiled(x), model(x))

        copied = copy.deepcopy(compiled)
        copied.lin.weight.zero_()
        assert not torch.equal(copied(x), compiled(x))

        file = io.BytesIO()
        torch.save(compiled, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)  # a plain MyModule
        torch.testing.assert_close(loaded(x), model(x))
    print(compiled)


if __name__ == "__main__":
    main()
