"""Masks of another shape than what they pick from, selections from no elements, and backends of the program's own in between"""

import pytest
import torch

from bytejit.common import registry

from . import targets
from .harness import Rand, check

PICKS = {
    "read": lambda x, m: x[m],
    "written": lambda x, m: x.__setitem__(m, 5),
    "changed": lambda x, m: x.__setitem__(m, x[m] + 1),
    "after an ellipsis": lambda x, m: x[..., m],
    "after None": lambda x, m: x[None, m],
    "in the second dimension": lambda x, m: x[:, m],
    "with a number": lambda x, m: x[m, 0],
    "twice": lambda x, m: x[m, m],
    "counted": lambda x, m: x.__setitem__(m, torch.ones(int(m.sum()))),
}
MASKS = ((3,), (2,), (3, 2), (2, 3), (1,), (2, 3, 2), (3, 1), ())


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("how", PICKS)
def test_a_mask_that_does_not_fit_is_refused(how: str, backend: str) -> None:
    """The places of a mask's Trues may all be there: eager refuses its shape"""

    def f(x, m):
        try:
            made = PICKS[how](x, m)
        except (IndexError, RuntimeError) as e:
            return str(e), x * 1
        return made, x * 2

    shapes = ((3,), (3, 2), (2, 3, 2))
    of_kernels = list(PICKS).index(how) % 3
    for shape in shapes if backend == "eager" else shapes[of_kernels : of_kernels + 1]:
        for mask in MASKS:
            targets.reset()
            for value in (True, False):

                def args(r: Rand, shape=shape, mask=mask, value=value) -> tuple:
                    return r.f(*shape), torch.full(mask, value)

                check(f, args=args, backend=backend, calls=1)


SELECTIONS = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "max of rows": lambda x: x.max(0),
    "min of rows": lambda x: x.min(0),
    "max of nothing's rows": lambda x: x.max(1),
    "mode": lambda x: x.mode(0),
    "median": lambda x: x.median(0),
    "kthvalue": lambda x: x.kthvalue(1, 0),
    "aminmax": lambda x: torch.aminmax(x),
    "amax": lambda x: x.amax(),
    "argmin": lambda x: x.argmin(),
    "cummin": lambda x: torch.cat([v * 2 for v in x.chunk(3, 1)], 1).cummin(0)[1],
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("what", SELECTIONS)
def test_selections_from_no_elements(what: str, backend: str) -> None:
    """torch's meta kernels take what eager refuses"""

    def caught(x):
        try:
            made = SELECTIONS[what](x)
        except (RuntimeError, IndexError) as e:
            return type(e).__name__, str(e), x + 1
        return made, x + 1

    for shape in ((0, 3), (0,), (0, 9, 2), (2, 0)):
        for f in (caught, lambda x: SELECTIONS[what](x))[: 2 if backend == "eager" else 1]:
            targets.reset()
            check(f, args=lambda r, shape=shape: (r.f(*shape),), backend=backend, calls=2)


class Refused(ValueError):
    pass


def test_a_check_in_a_backend_of_the_programs() -> None:
    """What bytejit's own backends make, run for a backend of the program's, raises what the program raises"""

    def f(x, y):
        if y.sum() > 0:
            raise Refused(3)
        return x * 2

    def g(x, i):
        try:
            return x[i] * 2
        except IndexError as e:
            return str(e), x

    for name in ("inductor", "aot_eager", "eager"):

        def wrapped(gm, examples, name=name):
            return registry.lookup_backend(name)(gm, examples)

        targets.reset()
        check(f, args=lambda r: (r.f(3), r.f(3).abs() * (-1 if r.call % 2 else 1)), backend=name, calls=4)
        for fn, args in ((f, (torch.ones(2), torch.ones(2))), (g, (torch.ones(2), torch.tensor([5])))):
            compiled = targets.compiled(fn, wrapped)
            for _ in range(2):
                if fn is f:
                    with pytest.raises(Refused) as info:
                        compiled(*args)
                    assert info.value.args == (3,)
                else:
                    assert compiled(*args)[0] == fn(*args)[0]


def test_a_flag_decides_whether_all_is_written() -> None:
    """Writes under a bool tensor without dimensions: numbers, NaN, tensors, gradients; eager refuses another dtype"""

    def other(x):
        y = x * 2
        y[x.sum() > 0] = x.double()
        return y

    def f(x, b):
        total, y, whole, kept = x.sum() * 1, x * 2, (x * 3).long(), b.clone()
        total[total <= 0] = float("nan")
        y[y.sum() > 0] = x[0]
        y[b.any()] = y + 1
        whole[x.sum() > 0] = 1.5
        whole[x.sum() > 1] = whole[0] + 1
        kept[x.sum() > 0] = False
        return total, y, whole, kept

    def given(r: Rand) -> tuple:
        x = r.f(3, 4).abs() * (-1 if r.call % 2 else 1)
        return x.requires_grad_(), r.i(0, 2, 4).bool()

    def trained(f, x, b):
        found = f(x, b)
        found[1].sin().sum().backward()
        return found, x.grad

    check(f, args=given, graphs=1, drive=trained)
    check(f, args=given, graphs=1, drive=trained, backend="inductor", tol=(1e-6, 1e-6))
    check(other, args=lambda r: (r.f(3, 4),))
