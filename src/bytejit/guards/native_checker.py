"""Guards of a whole module tree in one call of a compiled function, which goes through a table of steps.

A step from Python costs 15 to 40 ns, and a full check of a tensor 150 to 250 ns, most of it in making shape and
stride tuples. A unit of our own goes through a table of such steps: fetch an attribute, fetch a dict's item, check a
type, an identity, a tensor. It looks at tensors through `__dlpack_c_exchange_api__`, torch's stable C table (DLPack
1.3). Each call fetches everything anew and holds it until it ends: only the versions of classes (class_lookups.py) and the
keys of modules (fusing.py) are remembered between calls. Nothing here imports the compiler: `install(build)` is given one by
the pipeline. Without it, or on a torch without that table, `usable` is False and guards are checked from Python.
"""

from __future__ import annotations

import array
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bytejit.common.errors import BytejitError
from bytejit.common.registry import count
from bytejit.compat import layouts, torch_functions
from bytejit.compat.probes import PROBES

DEVICES = {"cpu": 1, "cuda": 2}
TYPES = (torch.Tensor, torch.nn.Parameter)
GRAD = torch.Tensor.requires_grad  # a descriptor, asked directly: no look-up by name

# Steps, in the order of their numbers. In a table of int64 words a step is its number, then its operands. Slots are
# numbered in the order in which the steps of the first group make them; objects are given by address. Every object that a
# table names is held, strongly, by whoever holds the table: an address in it never is that of a dead object. What must not
# be kept alive is named by its weak reference, and in a slot, alive, while the program compares with it.
OPS = (
    "DONE",  # count, slots: the program returns these as a tuple
    "STATE",  # function, object: what the function returns is it
    "FLAG",  # address of a C function without arguments, number: what it returns is it, in its low byte
    "KEYED",  # function, object, library, 0, 0, 0: as STATE, of a function whose result follows from the thread's dispatch keys,
    # which the library has. The last words: whether it has returned the object, and for which keys
    "ARG",  # argument -> slot
    "CONST",  # object -> slot
    "WEAK",  # weak reference: the object behind it -> slot; fails where it is dead
    "ATTR",  # slot, name: getattr -> slot
    "ITEM",  # slot, key, hint: x[key] -> slot
    "TUPLE_ITEM",  # slot, index: tuple.__getitem__ -> slot
    "TYPE_OF",  # slot -> slot
    "OWN_DICT",  # slot: __dict__ of an object whose class fetches it as `object` does -> slot
    "IS",  # slot, object, whether it must be it
    "TYPE_IS",  # slot, type: exactly
    "CLASS_IS",  # slot, slot: the first is an instance of the second, exactly
    "EQUALS",  # slot, object: it, or `same` says so
    "TRUE",  # slot, truth
    "LEN",  # slot, length
    "KEYS",  # slot, list: [*x] == list
    "HAS",  # slot, key, whether it must be there
    "ALIAS",  # slot, slot, whether they must be the same
    "DISTINCT",  # count, count of others, slots: each of the first is another object than all the rest
    "FUNCTION",  # slot, code, number of defaults: of a function without keyword defaults
    "ITEM_EQUALS",  # slot, key, object, hint: ITEM, then EQUALS
    "ITEM_IS",  # slot, key, object, hint: ITEM, then IS
    "ITEM_EMPTY",  # slot, key, type, hint: ITEM, then TYPE_IS (dict or OrderedDict) and TRUE 0
    "WALK",  # slot, shape or 0, function that returns a dict's shape, how often it was asked, count of ITEM entries, count,
    # entries: HAS 0, ITEM, ITEM_EQUALS, ITEM_IS, ITEM_EMPTY of one dict, each its op, key and last operand (fusing.py)
    "CLASS",  # slot, place of a class's version or 0, the version for which all holds or 0, function that looks and returns
    # it: ClassCheck.again
    "TENSOR",  # slot, type, device type, device index, dtype word, requires_grad (-1: not checked), rank, sizes,
    # strides. A size -n: n or more. A stride -1-k: size k times the stride wanted there; ANY: not
    # checked, as where a size that may be any (-1) is 1
)
OP = {name: number for number, name in enumerate(OPS)}
HINTED = (OP["ITEM"], OP["ITEM_EQUALS"], OP["ITEM_IS"], OP["ITEM_EMPTY"])
ANY = -(2**62)  # word of a stride that is not checked


@functools.cache
def unit() -> str:
    """The C++ that runs tables of steps."""
    steps = ", ".join(f"OP_{name}" for name in OPS)
    texts = [Path(__file__).with_name(name).read_text() for name in ("new_tensors.h", "guard_program.h")]
    return "\n".join(['#include "glue.h"', f"enum Op : long long {{ {steps} }};", *texts])


class Checker:
    """The compiled check, built on first use. One per process: `CHECKER`."""

    def __init__(self) -> None:
        self._build: Callable[[str], dict[str, Callable]] | None = None
        self._calls: dict[str, Callable[..., Any]] | None = None
        self._exact: bool | None = None

    def install(self, build: Callable[[str], dict[str, Callable]] | None) -> None:
        """Give the compiler: C++ text -> its functions by name. None takes it away (checks are made from Python
        again)."""
        self._build, self._calls = build, None

    @property
    def installed(self) -> bool:
        """Whether a compiler was given."""
        return self._build is not None

    @property
    def built(self) -> bool:
        """Whether the compiler has already built the unit."""
        return self._calls is not None

    @property
    def usable(self) -> bool:
        """Whether checks can be compiled: a compiler was given and works, and this torch has the exchange table.
        Builds on first use."""
        if self._calls is None and self._build is not None and exchange_fill() is not None:
            try:
                self._calls = self._build(unit())
            # no compiler, or one that refuses the unit: as right from Python, only slower. A graph with kernels says itself
            # what is wrong with its settings, and the next one brings its own.
            except BytejitError as error:
                self._build = None
                count("fallbacks", f"guards are checked from Python: {type(error).__name__}")
        return self._calls is not None

    @property
    def _built(self) -> dict[str, Callable[..., Any]]:
        assert self._calls is not None, "asked before `usable`"
        return self._calls

    @property
    def run(self) -> Callable[..., tuple | None]:
        """`run(table address, *args) -> the values wanted, or None where a guard fails`, where `usable`.

        Cost: 100 ns, and about 30 a tensor or attribute, 10 a dict's item.
        """
        return self._built["run"]

    @property
    def fit(self) -> Callable[[bytes, int, Any], bool]:
        """`fit(words, at, tensor)`: whether it is as the words of a TENSOR step, from `at` on, say, where `usable`. The first
        word is `exchange_fill()`. Cost: 55 ns."""
        return self._built["fit"]

    def maker(self, dtype: torch.dtype) -> Callable[[tuple, tuple], torch.Tensor]:
        """The function that allocates tensors of the CPU: called with shape and stride. Cost: 0.4 us; torch's own, which it is
        where nothing can be compiled, 1.1."""
        plain = torch.empty(0, dtype=dtype).new_empty_strided
        found, number = torch_functions.makers(), torch_functions.number_of(dtype)
        if found is None or number is None or not self.usable:
            return plain
        return self._built["maker"](*found, number, plain)

    def exact(self) -> bool:
        """Whether the exchange table gives the strides of sizes 0 and 1 as `stride()` does. Some versions put 1
        there."""
        if self._exact is None:
            flat = torch.zeros(8)
            odd = [flat.as_strided((2, 1), (1, 5)), flat.as_strided((2, 0), (3, 7)), torch.zeros(())]
            steps: list[int] = []
            for i, t in enumerate(odd):
                tensor = [id(torch.Tensor), 1, 0, 2 | 32 << 8 | 1 << 16, -1, t.dim(), *t.shape, *t.stride()]
                steps += [OP["ARG"], i, OP["TENSOR"], i, *tensor]
            words = table([*steps, OP["DONE"], 0], len(odd), None)  # in a local: the call reads its memory
            self._exact = self.run(words.buffer_info()[0], *odd) is not None
        return self._exact


CHECKER = Checker()


@functools.cache
def exchange_fill() -> int | None:
    """Address of torch's function that fills a DLTensor. None if this torch has none, or if the probe "layouts" failed. Where
    the probe is a child process it runs once on a machine, and this waits for it."""
    offered = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None) is not None
    return layouts.exchange_fill() if offered and not PROBES.failed("layouts") else None


def row(check: Any, neg_possible: bool = False) -> list[int] | None:
    """The words of a tensor's check (a TensorCheck); None when it must be made from Python.

    These are checked from Python: other types and dtypes; tensors that may be lazily negated (`is_neg`); sizes 0 and 1, if
    torch's table gives strides for them that differ from `stride()`.
    """
    c = check
    if c.type not in TYPES or c.dtype not in layouts.CODES or c.device is None or c.device.type not in DEVICES:
        return None
    if c.shape is None or c.stride is None or neg_possible:
        return None
    if any(-2 < s < 2 for s in c.shape) and not CHECKER.exact():
        return None
    if c.conj or c.neg:
        return None
    code, bits = layouts.CODES[c.dtype]
    flag = -1 if c.requires_grad is None else int(c.requires_grad)
    # the class is one of TYPES, which this module holds
    head = [id(c.type), DEVICES[c.device.type], c.device.index or 0, code | bits << 8 | 1 << 16, flag, len(c.shape)]
    return [*head, *c.shape, *(ANY if s is None else s for s in c.stride)]


def table(steps: list[int], slots: int, same: Any) -> array.array:
    """The table of a guard program: its head, then the steps, the last of which is DONE. `slots`: how many the steps make.

    `same(a, b) -> bool` is called where EQUALS meets another object. Keep the table, `same`, and all objects that the steps
    name, alive as long as its address (`buffer_info()[0]`) is used.
    """
    # dict never dies, GRAD is this module's
    return array.array("q", [exchange_fill(), id(GRAD), id(dict), id(same), layouts.dict_values() or 0, slots, *steps])
