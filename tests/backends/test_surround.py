"""What stands around a graph's callable leaves torch's state as it was, whenever a signal's handler raises"""

import dis
import sys

import pytest
import torch
from torch import fx

from bytejit.backends import surround
from bytejit.common.ambient import capture
from bytejit.common.graph_info import INFO, GraphInfo


class Cut(BaseException):
    """What the handler raises."""


def ends_of_calls(code) -> set[int]:
    """Offsets of the instructions behind a call: there Python looks for signals."""
    ins = list(dis.get_instructions(code))
    return {b.offset for a, b in zip(ins, ins[1:]) if a.opname.startswith(("CALL", "BEFORE_WITH", "WITH_EXCEPT"))}


def cut_at(fn, place: int):
    """Call fn, and raise Cut before the instruction `place`."""
    cut = False

    def trace(frame, event, arg):
        nonlocal cut
        if frame.f_code is not fn.__code__:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti == place and not cut:
            cut = True
            raise Cut
        return trace

    sys.settrace(trace)
    try:
        fn(torch.ones(2, 2))
    except Cut:
        pass
    finally:
        sys.settrace(None)
    return cut


@pytest.mark.parametrize("how", ["autocast", "inference", "no inference", "grads_off"])
def test_cut_short(how):
    """An exception behind any call: autocast, inference mode and grad mode are as before"""
    gm = fx.GraphModule({}, fx.Graph())
    info = {"autocast": {"autocast": True}, "grads_off": {"grads_off": True}}.get(how, {"inference": how == "inference"})
    gm.meta[INFO] = GraphInfo(**info)
    wrap = surround.without_autocast if how == "autocast" else surround.in_mode
    fn = wrap(gm, lambda x: (x,))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode(how == "no inference"):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
        before, cuts = capture(), 0
        for place in ends_of_calls(fn.__code__):
            cuts += cut_at(fn, place)
            assert not before.differences(), (how, place)
            assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is product.dtype
    assert cuts >= 3
