"""Code that asks whether it is being compiled"""

import pytest
import torch

from . import targets

needs_compiler = pytest.mark.skipif(targets.TARGET != "bytejit", reason="the plain function is not being compiled")


@needs_compiler
def test_is_compiling_seen():
    """`torch.compiler.is_compiling` and kin take the compiled path, in one graph"""

    def f(x):
        if torch.compiler.is_compiling():
            x = x + 1
        if torch.compiler.is_dynamo_compiling():
            x = x + 10
        if torch._utils_internal is not None and torch.jit.is_tracing():
            x = x + 100
        return x

    counter = targets.Counter()
    x = torch.zeros(2)
    assert torch.equal(targets.compiled(f, counter, nopython=True)(x), torch.full((2,), 11.0))
    assert counter.count == 1
    assert torch.equal(f(x), x), "the plain function is not affected"
    assert not torch.compiler.is_compiling()


@needs_compiler
def test_bytejit_is_compiling():
    """`bytejit.is_compiling` is True in traced code only"""
    import bytejit

    def f(x):
        return x + (1 if bytejit.is_compiling() else 2)

    x = torch.zeros(2)
    assert torch.equal(targets.compiled(f, "eager")(x), torch.ones(2))
    assert torch.equal(f(x), torch.full((2,), 2.0))


@needs_compiler
def test_transformers_asks():
    """transformers' is_torchdynamo_compiling takes the compiled path"""
    utils = pytest.importorskip("transformers.utils")
    ask = utils.is_torchdynamo_compiling

    def f(x):
        return x + (1 if ask() else 2)

    assert torch.equal(targets.compiled(f, "eager", nopython=True)(torch.zeros(2)), torch.ones(2))


@needs_compiler
def test_disable_honoured():
    """`bytejit.disable` and `torch.compiler.disable` keep a callee out of the graph"""
    import bytejit

    seen = []

    @bytejit.disable
    def own(x):
        seen.append(torch.compiler.is_compiling())
        return x * 2

    def f(x):
        return own(x + 1) + 1

    counter = targets.Counter()
    g = targets.compiled(f, counter)
    assert torch.equal(g(torch.zeros(2)), torch.full((2,), 3.0))
    assert torch.equal(g(torch.ones(2)), torch.full((2,), 5.0))
    assert seen == [False, False]
    assert counter.count == 2
    with pytest.raises(targets.unsupported()):
        targets.compiled(f, "eager", nopython=True)(torch.zeros(2))


@needs_compiler
def test_graph_break_call():
    """`bytejit.graph_break()` breaks there"""
    import bytejit

    def f(x):
        y = x + 1
        bytejit.graph_break()
        return y * 2

    counter = targets.Counter()
    assert torch.equal(targets.compiled(f, counter)(torch.zeros(2)), torch.full((2,), 2.0))
    assert counter.count == 2


@needs_compiler
def test_backend_sees_the_graph():
    """A backend of one's own gets a GraphModule and example inputs, and its result is used"""
    seen = []

    def backend(gm, inputs):
        seen.append((type(gm), len(inputs)))
        return lambda *a: tuple(t + 100 for t in gm.forward(*a))

    f = targets.compiled(lambda x: x + 1, backend)
    assert torch.equal(f(torch.zeros(2)), torch.full((2,), 101.0))
    assert issubclass(seen[0][0], torch.fx.GraphModule) and seen[0][1] == 1


@needs_compiler
def test_unsupported_message():
    """`Unsupported` says what, file:line, why and what to do"""

    def f(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    with pytest.raises(targets.unsupported()) as e:
        targets.compiled(f, "eager", nopython=True)(torch.ones(2))
    text = str(e.value)
    assert "test_flags.py:" in text and f"{f.__code__.co_firstlineno + 1}" in text, text
    assert "if x.sum() > 0" in text, text
