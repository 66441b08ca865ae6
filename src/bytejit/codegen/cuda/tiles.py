"""Chooses the tile of a program and the number of warps."""

from __future__ import annotations

from bytejit.codegen.loops.ir import Axis, LoopNest
from bytejit.codegen.loops.plan import Machine
from bytejit.codegen.loops.simplify import known, points
from bytejit.common.light_dataclass import light_dataclass

ROW = 512  # elements: a program takes one row only if it has at least so many
TILE = 2048  # elements of a program's tile
LOOP = 2048  # elements of one iteration of a loop
COLUMNS = 64  # columns of a tile when the outer axis has stride 1: two cache lines of f32
MOST_WARPS = 32  # of a program
WIDE_LOOP = 8192, 32  # elements of an iteration, warps, where nests read a long row again: few rows at a time, which stay in L2
TWO_LOOPS = 4096, 16  # the same where two rows an SM fit L2: one computes while the other waits for memory
TWO_NARROW_LOOPS = 8192, 16  # the same for elements of two bytes and fewer, where little remains after whole iterations
STAYS = 0.6  # the part of L2 that such rows may fill
SECTOR = 32  # bytes of the smallest transfer from memory


@light_dataclass(frozen=True)
class Tile:
    """Block sizes by name (powers of two) and warps. Names: X (outer points), Y (second side of a square), R, R1, ...
    (points of the inner axes)."""

    blocks: tuple[tuple[str, int], ...]
    warps: int
    stages: int = 1

    def __getitem__(self, name: str) -> int:
        return dict(self.blocks).get(name, 1)


def power(n: int) -> int:
    """The least power of two that is n or more."""
    return 1 << max(0, n - 1).bit_length()


def stretches(n: int, width: int, machine: Machine) -> tuple[Tile, ...]:
    """Tiles of the mode `points`: each load of a thread is 16 bytes; smaller tiles for small ranges, so that every SM has work.
    width: bytes of the widest element."""
    block = 2048 if width <= 2 else 1024
    while block > 128 and -(-n // block) < 2 * machine.threads:
        block //= 2
    block = min(block, power(n))
    return tuple(
        Tile((("X", b),), min(8, max(1, b // per)))
        for b, per in dict.fromkeys(((block, 256), (min(2 * block, power(n)), 256), (block, 128), (max(1, block // 2), 128)))
    )


def squares(p: LoopNest) -> tuple[Tile, ...]:
    """Tiles of the mode `tiles`: Y along the slower axis of the stores, X along the faster one."""
    y, x = (power(points([a])) for a in p.axes[-2:])
    shapes = ((64, 64, 8), (32, 64, 4), (32, 32, 4))
    if y < 32:
        shapes = ((y, 4096 // y, 8), (y, 2048 // y, 4), (y, 1024 // y, 4))
    elif x < 32:
        shapes = ((4096 // x, x, 8), (2048 // x, x, 4), (1024 // x, x, 4))
    return tuple(Tile((("Y", min(a, y)), ("X", min(b, x))), w) for a, b, w in shapes)


def row_tiles(rows: int, longest: int, machine: Machine) -> list[tuple[int, int]]:
    """(rows of a program, warps) for persistent rows, the best guess first."""
    r = power(longest)
    x = 1
    if r < ROW:
        x = max(1, min(TILE // r, power(rows)))
        while x > 1 and -(-rows // x) < 2 * machine.threads:
            x //= 2
    warps = max(1, min(MOST_WARPS, x * r // (256 if x > 1 or r <= 1024 else 512)))
    out = [(x, warps), (x, max(1, warps // 2)), (x, min(MOST_WARPS, warps * 2))]
    return list(dict.fromkeys(out + ([(x * 2, warps)] if x > 1 else [])))


def shared_tiles(x: int, longest: int) -> list[tuple[int, int]]:
    """The same for rows that share work: few warps, each with enough loads in flight."""
    warps = max(1, min(16, x * power(longest) // 1024))
    return list(dict.fromkeys([(x, warps), (x, min(MOST_WARPS, warps * 2)), (max(1, x // 2), warps), (2 * x, warps)]))


def across_tiles(rows: int, longest: int, width: int, room: int, machine: Machine) -> list[tuple[int, int]]:
    """The same for operands with stride 1 across rows: enough rows to fill a sector. width: bytes of an element; room: points
    that a program may hold."""
    r = power(longest)
    x = max(1, min(SECTOR // width, power(rows), power(room // r + 1) // 2))
    while x > 1 and -(-rows // x) < machine.threads:
        x //= 2
    warps = max(1, min(MOST_WARPS, x * r // 512))
    return list(dict.fromkeys([(x, warps), (x, min(MOST_WARPS, warps * 2)), (max(1, x // 2), max(1, warps // 2))]))


def column_tiles(rows: int, longest: int, machine: Machine) -> list[tuple[int, int]]:
    """The same for columns that are reduced whole."""
    r = power(longest)
    x = max(16, min(COLUMNS, 4 * TILE // r))
    while x > 16 and -(-rows // x) < 2 * machine.threads:
        x //= 2
    x = min(x, power(rows))
    warps = max(1, min(MOST_WARPS, x * r // 1024))
    return list(dict.fromkeys([(x, warps), (max(1, x // 2), max(1, warps // 2)), (x, min(MOST_WARPS, warps * 2))]))


def looped_tiles(x: int, longest: int, again: tuple[int, int] | None) -> list[tuple[int, int, int]]:
    """(rows, warps, inner points of an iteration) of loops. again: points and warps of the first choice, where several nests read
    the row."""
    out = []
    for size, warps in ((again,) if again else ()) + ((LOOP, 8), (2 * LOOP, 16), (LOOP // 2, 4)):
        r = max(1, min(power(longest), size // x))
        out.append((x, max(1, min(warps, x * r // 128)), r))
    return list(dict.fromkeys(out))


def turn_of_rows_read_again(longest: int, widths: list[int], machine: Machine) -> tuple[int, int]:
    """Loop size for a program whose nests read a long row more than once. widths: bytes per element of the buffers that are
    read again. Returns (elements per iteration, warps). If the rows of all programs fit into the cache, the loop is
    narrower, so that they stay there."""
    if 2 * machine.threads * longest * sum(widths) > STAYS * machine.cache_bytes:
        return WIDE_LOOP
    wide = max(widths, default=4) > 2 or longest % TWO_NARROW_LOOPS[0] > longest // 8
    return TWO_LOOPS if wide else TWO_NARROW_LOOPS


def blocks(tiles: list[tuple], spaces: tuple[tuple[Axis, ...], ...], looped: bool = False) -> tuple[Tile, ...]:
    """The tiles, with a block for each of `spaces` (`CudaSchedule.spaces`)."""
    out = []
    for x, warps, *turn in tiles:
        sizes = [min(turn[0], power(points(s)) if known(s) else turn[0]) if looped else power(points(s)) for s in spaces]
        names = [("R" + (str(i) if i else ""), r) for i, r in enumerate(sizes)]
        out.append(Tile((("X", x), *names), warps))
    return tuple(dict.fromkeys(out))
