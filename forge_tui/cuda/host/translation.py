"""What a chunk is run from: the launch's geometry, and a kernel's translations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from forge_tui.cuda.host.analyse import Analysis
from forge_tui.cuda.host.generate import Code
from forge_tui.cuda.host.lower import Kernel, waits

COLLECTIVES = {"shfl", "vote", "match", "redux", "elect", "mma", "wmma", "ldmatrix", "stmatrix", "movmatrix"}
EFFECTS = {"st", "atom", "red", "bar", "barrier", "mbarrier", "cp"}


def coordinate(linear: NDArray[np.int64], sizes: tuple[int, ...], axis: int) -> NDArray[np.int64]:
    """One coordinate of linear indices, x fastest."""
    return (linear % sizes[0], linear // sizes[0] % sizes[1], linear // (sizes[0] * sizes[1]))[axis]


@dataclass(frozen=True, slots=True)
class Geometry:
    """One launch. Sizes as in CUDA."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    """Dynamic shared memory, bytes."""
    parameters: bytes
    budget: int
    """Vector instructions a chunk may execute before it is called endless."""
    deadline: float
    """`time.monotonic()` after which it is called endless."""
    schedule: str = "in step"
    """Order of warps and blocks (`orders`)."""
    cluster: tuple[int, int, int] = (1, 1, 1)

    def block_ids(self, first: int, count: int) -> NDArray[np.int64]:
        """Linear index in the grid of the blocks at positions `first` on: in order, the blocks of a cluster together."""
        position = np.arange(first, first + count)
        if self.cluster == (1, 1, 1):
            return position
        size = self.cluster[0] * self.cluster[1] * self.cluster[2]
        clusters = tuple(g // c for g, c in zip(self.grid, self.cluster, strict=True))
        x, y, z = (coordinate(position // size, clusters, axis) * self.cluster[axis] + coordinate(position % size, self.cluster, axis)
                   for axis in range(3))
        return (z * self.grid[1] + y) * self.grid[0] + x

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(slots=True)
class Variant:
    """One translation of a kernel: narrow registers where the analysis allows, or everything wide."""

    analysis: Analysis
    code: Code


@dataclass(slots=True)
class Translations:
    """A kernel and its translations, made when first needed."""

    kernel: Kernel
    narrow: Variant
    make_wide: Callable[[], Variant]
    granule: int
    """Smallest size of a shared memory access, bytes, at most 4."""
    local_granule: int
    ordered: bool
    """Whether more than barriers of a block order its accesses to shared memory."""
    sizes: list[int] = field(init=False)
    collective: list[bool] = field(init=False)
    effects: list[bool] = field(init=False)
    """Of each block, whether something it does may be what other lanes wait for."""

    def __post_init__(self) -> None:
        self.sizes = [len(b.instructions) for b in self.kernel.blocks]
        self.effects = [any(i.root in EFFECTS and not waits(i) for i in b.instructions) for b in self.kernel.blocks]
        self.collective = [any(i.root in COLLECTIVES or "warp" in i.parts for i in b.instructions) for b in self.kernel.blocks]
