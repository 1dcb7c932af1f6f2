"""The two places a program can run, behind one interface: `host` (the PTX interpreter) and `cuda:N`."""

from __future__ import annotations

from collections.abc import Sequence
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
