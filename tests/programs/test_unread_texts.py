# ruff: noqa - the programs are as users write them
"""Text made of tensors: where nobody reads it the graph goes on, else it breaks before the text is made"""

import dataclasses
import logging
import warnings

import torch

from .harness import F, Turn, case, program

log = logging.getLogger("bytejit.tests.unread")
log.addHandler(logging.NullHandler())
log.propagate = False
log.setLevel(logging.WARNING)


@dataclasses.dataclass
class Pair:
    a: object
    b: int


def logs(x, n):
    y = x * 2
    log.debug(f"y {y} {y.sum():.3f} {y.sum()!r:>9} {n}")
    log.info("y " + str(y) + "!")
    log.info("%s and %r, %5s" % (y, "a", y))
    log.debug("{} {a!r} {b:.2f}".format(y, a=y, b=y.sum()))
    log.debug(", ".join([str(y), "a", ascii(y)]))
    log.debug(f"{[y, {'a': y}]} {(y,)} {Pair(y, 1)}")
    return y + 1


test_logged_at_no_level = case(F(4), 3, graphs=1)(logs)
test_logged_at_no_level.__doc__ = "Messages with tensors in them that no logger says"
test_logged_at_no_level_inductor = case(F(4), 3, graphs=1, backend="inductor")(logs)
test_logged_at_no_level_inductor.__doc__ = "The same, compiled to kernels"


@case(F(4), graphs=1)
def test_message_of_a_caught_exception(x):
    """The message of an exception that is caught and not looked at"""
    try:
        raise ValueError(f"bad {x}")
    except ValueError:
        y = x + 1
    return y


@case(F(4), Turn(1, 2), calls=4)
def test_message_of_an_exception(x, n):
    """The message of an exception that leaves the function, or is looked at"""
    y = x * n
    try:
        if n == 1:
            raise KeyError(f"bad {y}")
    except KeyError as e:
        return y, str(e), e.args
    x.add_(1)
    raise ValueError(f"bad {y} {x}")


@case(F(4), breaks=True)
def test_text_before_a_write(x):
    """The text has the values of the moment it was made, whoever reads it later"""
    y = x + 1
    text = f"v {y}"
    y.add_(1)
    return y * 2, text, len(text)


@case(F(4), breaks=True)
def test_text_printed(x):
    """Printed between operations, in a callee too"""

    def helper(y):
        text = "%s" % y
        y = y * 2
        print(text)
        return y

    y = x + 1
    print(f"v {y}")
    y = helper(y * 2)
    print(f"v {y.sum():.2f}", y)
    return y


@program(F(4), calls=2)
def test_text_kept():
    """Text that is stored, in an attribute, a key, an instance of a subclass"""

    class S(str):
        pass

    class A:
        pass

    a = A()

    def f(x):
        a.said = f"{x.sum()}"
        return x + 1, {f"{x.sum()}": 1}, S(f"{x.sum()}")

    return f, lambda: a.said


@case(F(4), breaks=True)
def test_text_compared(x):
    """Text that decides a branch"""
    text = f"{x.sum():.1f}"
    if text == "0.0" or text.startswith("q"):
        return x + 2
    return x + 1, "0" in text, text[0], text.upper()


@case(F(4))
def test_formats_that_torch_refuses(x):
    """Formats that raise for a tensor do so where nobody reads them"""
    said = []
    for make in (
        lambda: f"{x:.2f}",
        lambda: f"{x.sum():q}",
        lambda: "%d %d" % (x, x),
        lambda: "%s %s" % x,
        lambda: "{:>5}".format(x),
        lambda: "{} {}".format(x),
        lambda: "" + x,
        lambda: f"{(x > 0).any():.1f}",
        lambda: f"{x.long().sum():d}{x.sum():d}",
        lambda: f"{x.sum():x}",
    ):
        try:
            make()
        except Exception as e:
            said.append((type(e).__name__, str(e)))
    return x + 1, said


@case(F(4), calls=2)
def test_text_in_a_warning(x):
    """A warning with a tensor's values"""
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        warnings.warn(f"x is {x}")
    return x + 1, [str(w.message) for w in given]


@program(F(4), calls=2)
def test_text_of_a_subclass():
    """A tensor's class with text of its own, which has effects"""
    heard = []

    class Spoken(torch.Tensor):
        def __repr__(self):
            heard.append(1)
            return "spoken"

    def f(x):
        log.debug(f"{x.as_subclass(Spoken)}")
        return x + 1, len(heard)

    return f, lambda: heard
