"""The ambient state of torch and Python: each kind is captured and put back, whatever happened and however often."""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
from collections.abc import Callable, Iterator

import pytest
import torch

from bytejit.common import ambient, ambient_kinds
from bytejit.fake.tensor import FakeMode


class Told(torch.overrides.TorchFunctionMode):
    """A mode that does nothing."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


KEPT: list = []  # managers that lose their effect with their object


def entered(manager: object) -> None:
    KEPT.append(manager)
    manager.__enter__()


def hooks() -> None:
    torch._C._autograd._push_saved_tensors_default_hooks(lambda x: x, lambda x: x)


CHANGES: dict[str, Callable[[], object]] = {
    "dispatch modes": lambda: entered(FakeMode()),
    "function transforms": lambda: torch._C._functorch._vmap_increment_nesting(3, "error"),
    "inference mode": lambda: entered(torch.inference_mode()),
    "dispatch keys": lambda: entered(torch._C._DisableTorchDispatch()),
    "torch functions asked": lambda: entered(torch._C.DisableTorchFunction()),
    "function modes": lambda: entered(Told()),
    "grad mode": lambda: torch.set_grad_enabled(False),
    "forward grad mode": lambda: torch._C._set_fwd_grad_enabled(False),
    "forward levels": torch.autograd.forward_ad.enter_dual_level,
    "multithreading": lambda: torch._C._set_multithreading_enabled(False),
    "saved tensors hooks": hooks,
    "anomaly": lambda: torch.set_anomaly_enabled(True, False),
    "autocast cpu": lambda: torch.set_autocast_enabled("cpu", True),
    "autocast cuda": lambda: torch.set_autocast_dtype("cuda", torch.bfloat16),
    "autocast cache": lambda: torch.set_autocast_cache_enabled(False),
    "autocast nesting": torch.autocast_increment_nesting,
    "attention": lambda: (torch._C._set_sdp_use_math(False), torch._C._set_sdp_priority_order([2, 1, 0, 3, 4])),
    "warnings": lambda: entered(warnings.catch_warnings()),
    "collector": gc.disable,
    "recursion limit": lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 100),
}


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """What a failing test leaves is no other test's business."""
    before = ambient.capture()
    yield
    before.restore()
    KEPT.clear()
    before.restore()


@pytest.mark.parametrize("name", CHANGES)
def test_a_kind_is_put_back(name: str) -> None:
    before = ambient.capture()
    CHANGES[name]()
    assert name in before.differences()
    before.restore()
    assert not before.differences()
    assert (torch.ones(2, requires_grad=True) + 1).requires_grad


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_set_before_is_kept(name: str) -> None:
    CHANGES[name]()
    before = ambient.capture()
    for other in CHANGES:
        if other != name and {name, other} != {"dispatch modes", "inference mode"}:
            CHANGES[other]()
    before.restore()
    assert not before.differences()


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("name", CHANGES)
def test_an_interrupted_restore_is_made_again(name: str, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt may end a call of `restore`, and the one that follows."""
    restore, left = ambient.Ambient.restore, [times]

    def interrupted(self: ambient.Ambient) -> None:
        if left[0]:
            left[0] -= 1
            raise Interrupt
        restore(self)

    monkeypatch.setattr(ambient.Ambient, "restore", interrupted)
    before = ambient.capture()
    with pytest.raises(Interrupt):
        ambient.preserved(CHANGES[name])
    assert not before.differences()


def test_every_kind_can_be_captured_in_a_new_thread() -> None:
    import threading

    found: list = []
    thread = threading.Thread(
        target=lambda: found.append(ambient.capture(ambient_kinds.KINDS + ambient_kinds.WATCHED).differences())
    )
    thread.start()
    thread.join()
    assert found == [{}]


def test_all_kinds_are_tested() -> None:
    known = {k.name for k in ambient_kinds.KINDS if not k.name.startswith("autocast ")}
    assert known - set(CHANGES) == {"dispatch mode flags", "view replay", "cuda"}


def test_an_exception_out_of_the_compiler_keeps_no_objects() -> None:
    """Managers that end with their object (inference mode's) end when the exception does, not at a collection."""
    import signal
    import weakref

    from bytejit.common import interrupts

    held: list[weakref.ref] = []

    class Manager:
        pass

    def handler(*_: object) -> None:
        raise Interrupt

    def compiling() -> None:
        signal.raise_signal(signal.SIGALRM)
        interrupts.poll()

    def program() -> None:
        manager = Manager()
        held.append(weakref.ref(manager))
        interrupts.uninterrupted(compiling)

    before, collects = signal.signal(signal.SIGALRM, handler), gc.isenabled()
    gc.disable()
    try:
        with contextlib.suppress(Interrupt):
            program()
        assert held[0]() is None
    finally:
        signal.signal(signal.SIGALRM, before)
        if collects:
            gc.enable()
