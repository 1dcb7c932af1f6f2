"""Which tiles a matrix product on the tensor cores is cut into: a rough model of the time on a Hopper, to begin the search well."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

# Of an H200 (NVIDIA H100 Tensor Core GPU Architecture, 2022, table 3).
CLUSTER_MULTIPROCESSORS = {1: 132, 2: 132, 4: 120, 8: 112}
"""On how many of the 132 multiprocessors blocks of clusters of that size can be: a cluster lies within one GPC, and few of these have a
multiple of 8. Measured with one block a multiprocessor: 112 blocks in clusters of 4 or 8 run together, and 128 in clusters of 2; of 128 in
larger ones some come after the others."""
SHARED_BYTES = 227 << 10
HALF_SHARED_BYTES = 110 << 10
"""What a block may ask for that shares its multiprocessor with another."""
THREADS, REGISTERS = 2048, 65536
PRODUCTS_A_CYCLE = {4: 512, 2: 1024}
"""Products of one multiprocessor by bytes of an element: tf32 and half types through `mma.sync`, about half the peak."""

# Fitted to the device times, caches cold, of 400 settings on 27 convolutions of ResNet-50 at batch 1 on an H200 (benchmarks/convolutions.py):
# at 1755 cycles a microsecond 13 % off in the root mean square. Fitted to four fifths of the layers, the first setting of those left out is within
# 10 % of the best measured on 25 of 27. The constants stand for each other to a degree; what is compared is their sum.
LAUNCH_CYCLES, START_CYCLES, STAGE_CYCLES, SPLIT_CYCLES = 9400, 1450, 190, 2300
"""Of a launch; of a block, from its start to its first stage and from its last one to the end; a barrier; a cluster's sum."""
MEMORY_CYCLES = 975
"""From a copy's start to its end, hidden behind the stages in flight."""
CACHE_BYTES, MEMORY_BYTES = 30, 3400
"""A cycle: from the second level to one multiprocessor, and from memory to all."""
ALONE_RATE, FULL_RATE = 0.23, 0.55
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
          (64, 64, 2, 4), (128, 64, 4, 2), (64, 128, 2, 4)]
"""TILE_M, TILE_N, WARPS_M, WARPS_N; of 64 x 64 and eight warps one arrangement: the model sees no difference."""


def best_tiles(work: Product, count: int) -> list[Tiles]:
    """The settings of least modelled time, best first."""
    return sorted(_legal(work), key=lambda tiles: cycles(work, tiles))[:count]


def _legal(work: Product) -> Iterator[Tiles]:
    for rows, columns, warps_m, warps_n in SHAPES:
        depths = (32, 16, 64) if rows * columns < 4096 or work.itemsize == 2 else (32, 16)
        for tile_k in depths if rows * columns <= 4096 else (16,):             # larger ones of more do not fit the registers
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
    """Modelled cycles of the launch, from the event before it to the one after it."""
    warps = tiles.WARPS_M * tiles.WARPS_N
    blocks = ceil(work.rows / tiles.TILE_M) * ceil(work.columns / tiles.TILE_N) * tiles.SPLIT
    resident = min(SHARED_BYTES // (shared_bytes(work, tiles) + 2048), THREADS // (warps * 32), REGISTERS // (registers(work, tiles) * warps * 32))
    places = CLUSTER_MULTIPROCESSORS[tiles.SPLIT]
    waves = ceil(blocks / (places * resident))
    together = min(resident, ceil(blocks / places))
    steps = ceil(ceil(work.depth / tiles.TILE_K) / tiles.SPLIT)
    block = max(steps * max(_alone(work, tiles), together * _shared(work, tiles)), ceil(steps / (tiles.STAGES - 1)) * MEMORY_CYCLES)
    moved = (work.rows * work.depth + work.depth * work.columns + work.rows * work.columns) * work.itemsize
    return LAUNCH_CYCLES + waves * (START_CYCLES + block + SPLIT_CYCLES * (tiles.SPLIT > 1)) + moved / MEMORY_BYTES


def registers(work: Product, tiles: Tiles) -> int:
    """About what NVRTC 13.0 gives a thread; the launch bounds limit it to what three blocks of a multiprocessor have, two of 256 threads."""
    threads = tiles.WARPS_M * tiles.WARPS_N * 32
    frags = tiles.TILE_M // tiles.WARPS_M // 16 * (tiles.TILE_N // tiles.WARPS_N // 8)
    wanted = 30 + (12 * frags + 2 * tiles.TILE_K if work.itemsize == 4 else 8 * frags)
    return min(ceil(wanted / 8) * 8, REGISTERS // (2 if threads > 128 else 3) // threads // 8 * 8)


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
    """Cycles of a stage that no other block can use: of the tensor cores, of the four schedulers, or of the way from the second level."""
    products = tiles.TILE_M * tiles.TILE_N * tiles.TILE_K * (3 if work.itemsize == 4 else 1) / PRODUCTS_A_CYCLE[work.itemsize]
    issue = tiles.WARPS_M * tiles.WARPS_N * _instructions(work, tiles) / 4 / FULL_RATE
    return max(products, issue, (tiles.TILE_M + tiles.TILE_N) * tiles.TILE_K * work.itemsize / CACHE_BYTES)
