"""Which tiles a matrix product on the tensor cores is cut into: a rough model of the time on a Hopper, to begin the search well."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

# Of an H200 (NVIDIA H100 Tensor Core GPU Architecture, 2022, table 3), and latencies rounded from its usual measurements.
MULTIPROCESSORS = 132
SHARED_BYTES = 227 << 10
HALF_SHARED_BYTES = 110 << 10
"""What a block may ask for that shares its multiprocessor with another."""
THREADS = 2048
PRODUCTS_A_CYCLE = {4: 512, 2: 1024}
"""Products of one multiprocessor by bytes of an element: tf32 and half types through `mma.sync`, about half the peak."""
START_CYCLES, STAGE_CYCLES, SPLIT_CYCLES, SHARE_CYCLES = 2500, 100, 600, 60
"""From a block's start to its first stage and from its last one to the end; a barrier; a cluster's sum, and each block's part in it."""
MEMORY_CYCLES = 900
"""From a copy's start to its end, hidden behind the stages in flight."""
ALONE_RATE, FULL_RATE = 0.5, 0.8
"""Instructions a cycle of one scheduler: of a single warp, and of many."""


class Product(Struct, frozen=True):
    """rows x columns results, each a sum of depth products."""

    rows: int
    columns: int
    depth: int
    itemsize: int
    plain: bool
    """Whether columns lie side by side in memory."""
    vector: int = 1
    """Elements of one copy of them."""


class Tiles(Struct, frozen=True):
    """One setting of `conv_mma`, fields named as its tunables are."""

    TILE_M: int
    TILE_N: int
    TILE_K: int
    WARPS_M: int
    WARPS_N: int
    SPLIT: int
    STAGES: int

    def items(self) -> list[tuple[str, int]]:
        return [(name, getattr(self, name)) for name in self.__struct_fields__]


SHAPES = [(16, 32, 1, 2), (16, 64, 1, 4), (32, 32, 2, 2), (32, 64, 1, 4), (32, 64, 2, 4), (64, 32, 2, 2), (64, 32, 4, 2), (64, 64, 2, 2),
          (64, 64, 2, 4), (64, 64, 4, 2), (128, 64, 4, 2), (64, 128, 2, 4)]
"""TILE_M, TILE_N, WARPS_M, WARPS_N."""


def best_tiles(work: Product, count: int) -> list[Tiles]:
    """The settings of least modelled time, best first: of the same tile and split the best, of the best tile every TILE_K."""
    ranked = sorted(_legal(work), key=lambda tiles: cycles(work, tiles))
    chosen: dict[tuple[int, ...], Tiles] = {}
    for tiles in ranked:
        same = (tiles.TILE_M, tiles.TILE_N, tiles.SPLIT)
        first = same == (ranked[0].TILE_M, ranked[0].TILE_N, ranked[0].SPLIT)
        chosen.setdefault((*same, tiles.TILE_K * first), tiles)
    return list(chosen.values())[:count]


def _legal(work: Product) -> Iterator[Tiles]:
    for rows, columns, warps_m, warps_n in SHAPES:
        for tile_k in (32, 16, 64) if rows * columns <= 4096 else (16,):       # larger ones of more do not fit the registers
            for split in (1, 2, 4, 8):
                chunks = ceil(work.depth / tile_k)
                steps = ceil(chunks / split)
                tiles = Tiles(rows, columns, tile_k, warps_m, warps_n, split, min(max(steps, 2), 4))
                if shared_bytes(work, tiles) > HALF_SHARED_BYTES:
                    tiles = replace(tiles, STAGES=min(tiles.STAGES, 3))
                if (split - 1) * steps < chunks and shared_bytes(work, tiles) <= HALF_SHARED_BYTES:
                    yield tiles


def shared_bytes(work: Product, tiles: Tiles) -> int:
    """What the kernel's plan asks for."""
    stage = tiles.TILE_M * (tiles.TILE_K + 16 // work.itemsize) + tiles.TILE_K * (tiles.TILE_N + 8)
    return max(tiles.STAGES * stage * work.itemsize, tiles.TILE_M * (tiles.TILE_N + 8) * 4)


def cycles(work: Product, tiles: Tiles) -> float:
    """Modelled cycles of the launch."""
    warps = tiles.WARPS_M * tiles.WARPS_N
    blocks = ceil(work.rows / tiles.TILE_M) * ceil(work.columns / tiles.TILE_N) * tiles.SPLIT
    resident = min(SHARED_BYTES // (shared_bytes(work, tiles) + 2048), THREADS // (warps * 32))
    waves = ceil(blocks / (MULTIPROCESSORS * resident))
    together = min(resident, ceil(blocks / MULTIPROCESSORS))
    steps = ceil(ceil(work.depth / tiles.TILE_K) / tiles.SPLIT)
    block = max(steps * max(_alone(work, tiles), together * _shared(work, tiles)), (steps - 1) / (tiles.STAGES - 1) * MEMORY_CYCLES)
    return waves * (START_CYCLES + block + (SPLIT_CYCLES + SHARE_CYCLES * tiles.SPLIT) * (tiles.SPLIT > 1))


def _instructions(work: Product, tiles: Tiles) -> float:
    """What a warp issues for a stage, counted in the machine code."""
    threads, words = tiles.WARPS_M * tiles.WARPS_N * 32, 16 // work.itemsize
    frags_m, frags_n = tiles.TILE_M // tiles.WARPS_M // 16, tiles.TILE_N // tiles.WARPS_N // 8
    if work.itemsize == 4:                                  # a fragment's number is loaded and split by four instructions
        products = (5 * frags_m * frags_n + 4 * (4 * frags_m + 2 * frags_n)) * tiles.TILE_K / 8
    else:
        products = (frags_m * frags_n + frags_m + frags_n) * tiles.TILE_K / 16
    narrow = work.vector * work.itemsize < 4                # loaded and stored, not copied
    copies = tiles.TILE_K * tiles.TILE_N / work.vector / threads * (2 + 3 * (not work.plain) + 3 * narrow)
    return products + copies + tiles.TILE_M * tiles.TILE_K / words / threads * 3 + 50


def _alone(work: Product, tiles: Tiles) -> float:
    """Cycles of a stage in a block that has the multiprocessor to itself."""
    return STAGE_CYCLES + _instructions(work, tiles) / ALONE_RATE


def _shared(work: Product, tiles: Tiles) -> float:
    """Cycles of a stage that no other block can use: of the tensor cores, or of the four schedulers."""
    products = tiles.TILE_M * tiles.TILE_N * tiles.TILE_K * (3 if work.itemsize == 4 else 1) / PRODUCTS_A_CYCLE[work.itemsize]
    return max(products, tiles.WARPS_M * tiles.WARPS_N * _instructions(work, tiles) / 4 / FULL_RATE)
