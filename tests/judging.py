"""Shared by the judging tests: a target that runs Python in place of kernels, for what does not depend on the
interpreter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext

import torch

from forge_tui.cuda.device import H200
from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.target import LaunchCounts, RunReport
from forge_tui.engine.judge.verdict import Timing


class PythonTarget:
    """A `Target` whose kernels are Python functions, by the kernel's name."""

    kind = "host"
    facts = H200

    def __init__(self, **kernels: Callable[..., None]) -> None:
        self.kernels = kernels
        self.settings: list[dict[str, str]] = []
        """Macros of every run."""

    def expect(self, programs) -> None:
        pass

    def under_load(self):
        return nullcontext()

    def build(self, program: Program) -> Image:
        return Image("ptx", "sm_90", b"", program.build_key())

    def run(self, program: Program, image: Image, tensors: dict[str, torch.Tensor],
            workspaces: dict[str, torch.Tensor] | None = None) -> RunReport:
        self.settings.append(dict(program.macros))
        counts = []
        for launch in program.launches:
            everything = {**tensors, **(workspaces or {})}
            values = [everything[a.name] if a.name in everything else a.value for a in launch.arguments]
            self.kernels[launch.kernel](*values)
            blocks = launch.grid[0] * launch.grid[1] * launch.grid[2]
            counts.append(LaunchCounts(launch.kernel, blocks, launch.block[0], 1000 * blocks, 40 * blocks, 10 * blocks,
                                       40 * blocks, 4096 * blocks, 0, 0, 0, 0))
        return RunReport(tuple(counts))


class CountingTimer:
    """Threads, as if each took a nanosecond: enough to rank settings."""

    noisy = False

    def quick(self, setting, trial, effort=1):
        return sum(count.threads * count.blocks for count in setting.counts) / 1000, None

    def full(self, setting, trial, samples):
        return Timing("modelled", self.quick(setting, trial)[0])
