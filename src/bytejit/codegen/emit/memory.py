"""Memory of a compiled call: the arena, blocks for temps of symbolic size, large outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch

from bytejit.codegen.loops.ir import View
from bytejit.common import large_pages
from bytejit.common.holders import holders_of_memory

LARGE = 32 << 20  # bytes: the C library returns a freed block of this size to the system, and new pages are slow


class SlotMemory:
    """The internal memory of one running call of a plan with symbolic sizes: the arena, and a block for each slot. Blocks grow
    and never shrink. Addresses and views are cached for each combination of sizes.

    layout(*sizes) -> (bytes of each slot, (slot or None, byte offset, dtype, shape, stride) of each view).
    """

    KEPT = 64  # combinations of sizes that are cached

    def __init__(self, arena: int, layout: Callable[..., tuple]) -> None:
        self.layout = layout
        self.blocks: list[torch.Tensor] = []
        self.known: dict[tuple, tuple] = {}
        self.arena = aligned_block(arena)

    def at(self, *sizes: int) -> tuple:
        """(address of the arena, addresses of the slots, the views) for the sizes of a call."""
        found = self.known.get(sizes)
        return found if found is not None else self._make(sizes)

    def _make(self, sizes: tuple) -> tuple:
        wanted, views = self.layout(*sizes)
        for i, n in enumerate(wanted):
            if i == len(self.blocks):
                self.blocks.append(aligned_block(n))
            elif self.blocks[i].numel() < n:
                self.blocks[i] = aligned_block(n)
                self.known.clear()
        if len(self.known) >= self.KEPT:
            self.known.clear()
        made = [view_of(self.arena if slot is None else self.blocks[slot], *rest) for slot, *rest in views]
        out = self.known[sizes] = (self.arena.data_ptr(), *(b.data_ptr() for b in self.blocks), *made)
        return out


def aligned_block(size: int) -> torch.Tensor:
    """Memory of `size` bytes that begins at a multiple of 64."""
    with torch.inference_mode(False), torch.no_grad():
        memory = torch.empty(size + 64, dtype=torch.uint8)
        large_pages.ask_for(memory.data_ptr(), size)
        return memory[-memory.data_ptr() % 64 :]


def view_of(block: torch.Tensor, start: int, dtype: torch.dtype, shape: tuple, stride: tuple) -> torch.Tensor:
    """A tensor in a block. Units: start in bytes."""
    with torch.inference_mode(False), torch.no_grad():
        at = (block.storage_offset() + start) // dtype.itemsize
        return torch.empty(0, dtype=dtype).set_(block.untyped_storage(), at, shape, stride)


def fixed(v: View) -> bool:
    """Whether a view does not depend on symbolic sizes."""
    return all(isinstance(n, int) for n in (v.offset, *v.shape, *v.stride))


def arena_maker(size: int, views: Sequence[tuple[int, torch.dtype, tuple, tuple]]) -> Callable[[], tuple]:
    """A function that makes an arena: (address, memory, *views). views: (offset, dtype, shape, stride). Units: size and offset in
    bytes."""

    def make() -> tuple:
        with torch.inference_mode(False), torch.no_grad():
            base = aligned_block(size)
            return (base.data_ptr(), base, *(view_of(base, *v) for v in views))

    return make


class OutputMemory:
    """Memory of a large output. Others may refer to it too: tensors, or the storage itself."""

    def __init__(self, made: list[torch.Tensor]) -> None:
        self.storage = made.pop().untyped_storage()
        self.address, self.alone = self.storage.data_ptr(), self.holders()
        large_pages.ask_for(self.address, self.storage.nbytes())

    def holders(self) -> tuple[int, int]:
        """The numbers of references in C++, and in Python."""
        return holders_of_memory(self.storage)

    def is_free(self) -> bool:
        """Whether nothing else refers to it."""
        return self.holders() == self.alone

    def is_whole(self) -> bool:
        """Whether it has its first address: a storage that was resized, or moved to memory shared between processes, has not."""
        return self.storage.data_ptr() == self.address


class LargeOutput:
    """Allocates a large output, in the memory of an earlier one if nothing refers to that any more. The system needs as long to
    map pages for a gradient of 100 MB as an optimizer needs to read and write it. At most `KEPT` outputs are kept: a gradient
    lives until the next one has replaced it."""

    KEPT = 2

    def __init__(self, new: Callable[[tuple, tuple], torch.Tensor], dtype: torch.dtype) -> None:
        self.new, self.plain = new, torch.empty(0, dtype=dtype)
        self.kept: list[OutputMemory] = []

    def __call__(self, shape: tuple, stride: tuple) -> torch.Tensor:
        found = None
        for _ in range(len(self.kept)):
            try:
                row = self.kept.pop(0)  # removed first, so that no other thread takes it
            except IndexError:
                break
            if row.is_free():
                if row.is_whole():
                    found = row
                    break
            else:
                self.kept.append(row)
        found = found or OutputMemory([self.new(shape, stride)])
        made = self.plain.new_empty(0).set_(found.storage, 0, shape, stride)
        self.kept.append(found)
        del self.kept[: -self.KEPT]
        return made

    def let_go(self, storage: torch.UntypedStorage) -> None:
        """Keep this memory no longer."""
        for row in list(self.kept):
            if row.storage._cdata == storage._cdata:
                with contextlib.suppress(ValueError):  # another thread has just taken it
                    self.kept.remove(row)
