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
def test_views_that_libraries_return(name):
    """What a library call returns may lie in the memory of what it was given, said (view_as_complex) or not (unsafe_split)"""
    torch.manual_seed(0)
    make, shape = MADE[name]
    plain = make()
    ours = targets.compiled(plain, "inductor")
    with targets.strict(), torch.no_grad():
        for _ in range(2):
            x = torch.randn(shape)
            torch.testing.assert_close(ours(x), plain(x))


def put_again(table, x):
    """A key that goes and comes again is the last one."""
    table["a"] = table.pop("a", 1) + 1
    del table["b"]
    table["b"] = 7
    return x * len(table), list(table)


def counted(n, x):
    """What a symbolic int decides is asked again when it is another."""
    seen = []
    for _ in range(4):
        seen.append(f"{n} of {x.dim()}")
        n = torch.arange(n % 5).sum().item()
    return seen, n, x + n


@pytest.mark.parametrize(
    "make",
    [lambda k: (put_again, ({"b": k, "a": 2, "t": 3}, torch.ones(2))), lambda k: (counted, (k + 2, torch.ones(2)))],
    ids=["put again", "counted"],
)
def test_small_programs(make):
    """Programs that random ones led to"""
    plain = make(0)[0]
    ours = targets.compiled(plain, "eager")
    with targets.strict():
        for k in (0, 1, 2, 2, 4, 7):
            expected, got = make(k)[1], make(k)[1]
            a, b = plain(*expected), ours(*got)
            assert str(a) == str(b) and [str(v) for v in expected] == [str(v) for v in got]
