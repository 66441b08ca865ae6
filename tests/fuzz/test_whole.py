"""What whole programs found: made small. Each compares kernels with eager."""
import pytest
import torch

from ..programs import targets


def windows(x):
    """Complex numbers seen in a temp's memory, with other temps made while they live."""
    a = (x @ x).sin()
    z = torch.view_as_complex(a.view(4, 2, 2))
    b = (x @ x.t()).cos()
    c = (b @ x).exp()
    return torch.view_as_real(z * z) + c.view(4, 2, 2), b, c


MADE = {
    "gru cell": (lambda: torch.nn.GRUCell(7, 4), (2, 7)),
    "lstm cell": (lambda: torch.nn.LSTMCell(7, 4), (2, 7)),
    "gru": (lambda: torch.nn.GRU(7, 4, batch_first=True), (2, 3, 7)),
    "windows": (lambda: windows, (4, 4)),
}


@pytest.mark.cxx
@pytest.mark.parametrize("name", MADE)
def test_views_that_libraries_answer(name):
    """What a library call answers may lie in the memory of what it was given, said (view_as_complex) or not (unsafe_split)"""
    torch.manual_seed(0)
    make, shape = MADE[name]
    plain = make()
    ours = targets.compiled(plain, "inductor")
    with targets.strict(), torch.no_grad():
        for _ in range(2):
            x = torch.randn(shape)
            torch.testing.assert_close(ours(x), plain(x))
