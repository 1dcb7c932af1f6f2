"""The host target: builds programs to PTX and runs them on the CPU, every access checked and counted."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from forge_tui.cuda.device import H200, DeviceFacts, largest_cluster
from forge_tui.cuda.faults import CandidateFault
from forge_tui.cuda.host.launch import LoadedModule, run_launch
from forge_tui.cuda.host.memory import Buffer
from forge_tui.cuda.host.orders import IN_STEP
from forge_tui.cuda.program import Image, KernelInfo, Launch, Program, Workspace
from forge_tui.cuda.target import BUILD_DEADLINE_S, RunReport

if TYPE_CHECKING:
    from forge_tui.cuda.cache import ImageCache

BUDGET = 4_000_000
"""Instructions a thread may execute in one launch before it is called endless."""
DEADLINE_S = 60.0
"""Longest that one launch may take."""
KEPT_IMAGES = 32
"""Parsed images kept, least recently used first out."""
MAX_THREADS = 1024
GARBAGE = 0xA5
"""What memory that nothing wrote holds."""


class HostTarget:
    """A machine without a GPU as a target. `facts` are those of the device whose time is modelled."""

    kind: Literal["host", "cuda"] = "host"

    def __init__(self, facts: DeviceFacts = H200, budget: int = BUDGET, deadline_s: float = DEADLINE_S, *,
                 cache: ImageCache | None = None) -> None:
        self.facts = facts
        self.cache = cache
        self.build_deadline_s = BUILD_DEADLINE_S
        self.lost: CandidateFault | None = None
        self.budget = budget
        self.deadline_s = deadline_s
        self.schedule = IN_STEP
        """Order of warps and blocks of the next runs (`orders`)."""
        self._loaded: OrderedDict[str, LoadedModule] = OrderedDict()

    def build(self, program: Program) -> Image:
        """Compile to PTX. Raises CandidateFault('compile', 'endless')."""
        from forge_tui.cuda.compile import compile_program

        try:
            return compile_program(program, kind="ptx", arch=f"sm_{self.facts.cc}", cache=self.cache, deadline_s=self.build_deadline_s)
        except CandidateFault as fault:
            self.lost = fault if fault.kind == "endless" else self.lost
            raise

    def resources(self, program: Program) -> tuple[KernelInfo, ...]:
        """Registers and spills of each kernel by NVRTC's own ptxas, which needs no device; empty where it cannot say.

        Raises MissingEnvironment where there is no compiler.
        """
        from forge_tui.cuda.compile import compile_program

        try:
            return compile_program(program, kind="cubin", arch=f"sm_{self.facts.cc}", cache=self.cache,
                                   deadline_s=self.build_deadline_s).kernels
        except CandidateFault as fault:      # what the interpreter runs ptxas may refuse (too much shared memory): the PTX was built
            self.lost = fault if fault.kind == "endless" else self.lost
            return ()

    def expect(self, programs: Sequence[Program]) -> None:
        """Nothing is begun: the cores are needed for the interpreter."""

    def under_load(self) -> AbstractContextManager[None]:
        """Nothing: the order of warps is this target's own, and it takes several."""
        return nullcontext()

    def run(self, program: Program, image: Image, tensors: dict[str, torch.Tensor],
            workspaces: dict[str, torch.Tensor] | None = None) -> RunReport:
        """Run every launch in order on CPU tensors; outputs are written in place. Raises CandidateFault.

        Counts are made for every launch. Workspaces not passed in are allocated as garbage; reading what nothing wrote
        in one of them, or in an output, is a fault.
        """
        loaded = self._load(image, program.filename)
        buffers = self._buffers(program, tensors, workspaces or {})
        counts = []
        for launch in program.launches:
            if 0 in launch.grid:
                continue
            self._check_limits(loaded, launch.kernel, launch.block, launch.grid, launch.shared)
            self._check_cluster(launch)
            counts.append(run_launch(loaded, launch, buffers, self.budget, self.deadline_s, self.schedule))
        return RunReport(tuple(counts))

    def _load(self, image: Image, filename: str) -> LoadedModule:
        key = hashlib.sha256(image.code).hexdigest() + filename       # the image's own key leaves the line tables out
        if key not in self._loaded:
            self._loaded[key] = LoadedModule.parse(image.code.decode(errors="replace").rstrip("\0"), filename)
            if len(self._loaded) > KEPT_IMAGES:
                self._loaded.popitem(last=False)
        self._loaded.move_to_end(key)
        return self._loaded[key]

    def _buffers(self, program: Program, tensors: dict[str, torch.Tensor], workspaces: dict[str, torch.Tensor]) -> dict[str, Buffer]:
        buffers: dict[str, Buffer] = {}
        in_place = {source: result for result, source in program.aliases.items()}
        for name, tensor in tensors.items():
            writable = name in program.outputs or name in in_place
            fresh = name in program.outputs and name not in program.aliases
            buffers[name] = Buffer(name, storage_bytes(tensor, name), len(buffers), writable, tensor.element_size(), tracked=fresh)
        for workspace in program.workspaces:
            tensor = workspaces.get(workspace.name)
            data = _garbage(workspace) if tensor is None else storage_bytes(tensor, workspace.name)
            if workspace.fill is not None:
                data[:] = workspace.fill & 0xFF
            unit = torch.empty(0, dtype=getattr(torch, workspace.dtype)).element_size()
            buffers[workspace.name] = Buffer(workspace.name, data, len(buffers), True, unit, tracked=workspace.fill is None)
        for result, source in program.aliases.items():
            if result not in buffers and source in buffers:
                buffers[result] = buffers[source]
        return buffers

    def _check_limits(self, loaded: LoadedModule, kernel: str, block: tuple[int, int, int], grid: tuple[int, int, int],
                      shared: int) -> None:
        """What the driver would refuse."""
        threads = block[0] * block[1] * block[2]
        static = loaded.kernel(kernel).static_shared
        if not 0 < threads <= MAX_THREADS or block[2] > 64:
            raise CandidateFault("launch", f"a block of {block} threads: 1 to {MAX_THREADS} are possible, at most 64 along z",
                                 kernel=kernel)
        if min(grid) < 0 or grid[0] >= 1 << 31 or max(grid[1:]) >= 1 << 16:
            raise CandidateFault("launch", f"a grid of {grid} blocks is more than a device takes", kernel=kernel)
        if static + shared > self.facts.max_shared:
            raise CandidateFault("launch", f"{static + shared} bytes of shared memory a block; the device has {self.facts.max_shared}",
                                 kernel=kernel)


    def _check_cluster(self, launch: Launch) -> None:
        """What the driver would refuse of a cluster."""
        cluster = launch.cluster or (1, 1, 1)
        if min(cluster) < 1 or any(g % c for g, c in zip(launch.grid, cluster, strict=True)):
            raise CandidateFault("launch", f"a grid of {launch.grid} blocks cannot be divided into clusters of {cluster}",
                                 kernel=launch.kernel)
        size, limit = cluster[0] * cluster[1] * cluster[2], largest_cluster(self.facts.cc)
        if size > limit:
            raise CandidateFault("launch", f"a cluster of {size} blocks; the device takes {limit}", kernel=launch.kernel)


def storage_bytes(tensor: torch.Tensor, name: str) -> NDArray[np.uint8]:
    """The bytes from a CPU tensor's first element to past its last one, as a view."""
    if tensor.device.type != "cpu":
        raise ValueError(f"{name}: the host target runs on CPU tensors, this one is on {tensor.device}")
    if tensor.numel() == 0:
        return np.zeros(0, np.uint8)
    size = tensor.element_size()
    span = (sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1) * size
    raw = torch.empty(0, dtype=torch.uint8)
    raw.set_(tensor.detach().untyped_storage(), tensor.storage_offset() * size, (span,), (1,))
    return raw.numpy()


def _garbage(workspace: Workspace) -> NDArray[np.uint8]:
    """Fresh memory of a workspace, aligned to 256 bytes."""
    size = int(np.prod(workspace.shape, dtype=np.int64)) * torch.empty(0, dtype=getattr(torch, workspace.dtype)).element_size()
    raw = np.full(size + 256, GARBAGE, np.uint8)
    start = -raw.ctypes.data % 256
    return raw[start:start + size]
