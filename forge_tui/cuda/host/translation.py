"""What a chunk is run from: the launch's geometry, and a kernel's translations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from forge_tui.cuda.host.analyse import Analysis
from forge_tui.cuda.host.generate import Code
from forge_tui.cuda.host.lower import Kernel

COLLECTIVES = {"shfl", "vote", "match", "redux", "elect"}


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
    sizes: list[int] = field(init=False)
    collective: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = [len(b.instructions) for b in self.kernel.blocks]
        self.collective = [any(i.root in COLLECTIVES or "warp" in i.parts for i in b.instructions) for b in self.kernel.blocks]
