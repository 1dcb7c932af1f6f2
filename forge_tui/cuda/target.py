"""The two places a program can run, behind one interface: `host` (the PTX interpreter) and `cuda:N`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct

from forge_tui.cuda.device import DeviceFacts
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.program import Image, Program

if TYPE_CHECKING:
    import torch


GPU_DEADLINE_S = 10.0
"""Longest that one run may take on a GPU: a thousand times what any operator worth a kernel takes."""
BUILD_DEADLINE_S = 30.0
"""Longest that one build may take: hundreds of times the usual."""


class InstructionClass(Struct, frozen=True):
    """Instructions of one kind."""

    name: str
    """`float32`, `integer`, `global`, `shared`, `special` ... (`cuda.host.classes`)."""
    threads: int
    """Executed by threads."""
    warps: int
    """Executed by warps, whatever part of their lanes took part."""


class LoadStep(Struct, frozen=True):
    """Loads from global memory that could be in flight together, if there were registers for all of them."""

    warps: int
    """How often warps come to it."""
    values: int
    """Registers of a thread that they fill."""
    live: int
    """Registers of a thread that hold, at its beginning, what is needed later."""


class LineCounts(Struct, frozen=True):
    """What one line of the kernel file did, where it took more than it had to or might have."""

    line: int
    kind: str
    """`global load`, `global store`, `shared load`, `shared store`, `atomic` or `branch`."""
    requests: int
    """Warp-wide accesses; of a branch: how often a warp came to it."""
    passes: int
    """What they took: 32-byte sectors (global), passes over the banks (shared), updates of one address in turn (atomic), warps that
    split (branch)."""
    least: int
    """The fewest passes that could do: sectors that hold the bytes asked for, one pass a request, no split warp."""
    worst: int
    """Most passes of one request."""


class LaunchCounts(Struct, frozen=True):
    """What one launch did, counted by the host target (whole launch, extrapolated where a check was sampled)."""

    kernel: str
    blocks: int
    threads: int
    """Threads of one block."""
    thread_instructions: int
    warp_instructions: int
    global_requests: int
    """Warp-wide global loads, stores and atomics."""
    global_sectors: int
    """32-byte sectors those requests touch."""
    global_bytes: int
    """Bytes the lanes asked for."""
    shared_requests: int
    shared_waves: int
    """Passes over the 32 banks; equal to `shared_requests` when no bank conflicts."""
    barriers: int
    shared_bytes: int
    """Static and dynamic, of one block."""
    global_least: int = 0
    """Sectors that would do for the bytes the lanes asked for, request by request."""
    global_loaded: int = 0
    """Distinct sectors that each block reads, added up over blocks: what has to come from beyond the caches of a multiprocessor."""
    global_stored: int = 0
    """The same of stores, at most the launch's memory."""
    global_common: int = 0
    """Of `global_loaded`, what the L2 has already: weights that every block reads at the same place of its way, and what goes beyond the
    launch's memory."""
    load_rounds: int = 0
    """How often warps wait for global memory: loads that need no other's result count together (`cuda.host.rounds`)."""
    store_sectors: int = 0
    """Of `global_sectors`, those of stores and atomics: each goes on to the L2, where what loads touch again comes from the L1."""
    async_sectors: int = 0
    """Of `global_sectors`, those that `cp.async` and the copy engine bring: they need no registers on the way."""
    load_steps: tuple[LoadStep, ...] = ()
    """Where warps load from global memory into registers."""
    issued: int = 0
    """Machine instructions that warps issue, by an estimate for each of PTX (`cuda.host.costs`)."""
    code: int = 0
    """Machine instructions that were executed at all, each once: what has to be fetched."""
    chain_cycles: int = 0
    """Cycles of warps, each taken alone, from instruction to instruction that needs its result; waits for global memory apart."""
    cluster: int = 1
    """Blocks of a cluster."""
    branches: int = 0
    """Conditional branches that warps came to."""
    divergent_branches: int = 0
    """Those at which the lanes of a warp parted."""
    atomics: int = 0
    """Warp-wide atomics and reductions, global and shared."""
    atomic_passes: int = 0
    """Lanes of a warp that update one address go in turn: the longest queue of each atomic, added up; at least `atomics`."""
    atomic_hottest: int = 0
    """Updates of the address that got the most of each atomic instruction, over all blocks, added up."""
    local_bytes: int = 0
    """Local memory of one thread that the PTX asks for (arrays with a varying index); spills are the compiler's (`KernelInfo`)."""
    classes: tuple[InstructionClass, ...] = ()
    """Most executed first."""
    lines: tuple[LineCounts, ...] = ()
    """Most wasteful first, at most 16."""


class RunReport(Struct, frozen=True):
    """What `Target.run` observed besides the outputs it wrote."""

    counts: tuple[LaunchCounts, ...] = ()
    """Empty on `cuda`."""


class Target(Protocol):
    """Where programs are built and run. Not thread-safe: one owner at a time, except `build`, which is."""

    kind: Literal["host", "cuda"]
    facts: DeviceFacts
    """On `host`: of the device whose time is modelled."""
    build_deadline_s: float
    deadline_s: float
    lost: CandidateFault | None
    """What left this process unable to run or build anything more; another process must be started."""

    def build(self, program: Program) -> Image:
        """Compile. Raises CandidateFault: `compile` with the compiler's words, lines being file lines; `endless` past the deadline."""
        ...

    def expect(self, programs: Sequence[Program]) -> None:
        """These will be built, in this order: a target may begin at once. What an earlier call announced is dropped."""
        ...

    def under_load(self) -> AbstractContextManager[None]:
        """While it lasts the device has other work too, where it is one on which that changes the order of things."""
        ...

    def run(self, program: Program, image: Image, tensors: dict[str, torch.Tensor],
            workspaces: dict[str, torch.Tensor] | None = None) -> RunReport:
        """Run every launch in order on `tensors` (inputs, and outputs already allocated), and wait for the end.

        Fills workspaces that have a `fill`; allocates (as garbage) those not passed in. Outputs are written in place.
        Raises CandidateFault.
        """
        ...


def open_target(name: str, images: Path | None = None) -> Target:
    """`host`, `cuda`, `cuda:N`, or `auto` (the first GPU, else host). Raises MissingEnvironment naming the cure.

    images: folder that compiled images are kept in (a project's `build`); by default this user's own.
    """
    from forge_tui.cuda.cache import ImageCache, user_folder
    from forge_tui.cuda.device import find_gpu

    cache = ImageCache(images or user_folder())
    if name == "auto":
        name = "cuda:0" if find_gpu() else "host"
    if name == "host":
        from forge_tui.cuda.host.target import HostTarget

        return HostTarget(cache=cache)
    from forge_tui.cuda.gpu import GpuTarget

    return GpuTarget(int(name.partition(":")[2] or 0), cache=cache)
