"""What a candidate takes: measured on a GPU, modelled from counts on the host target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from forge_tui.cuda.program import Image, Program
from forge_tui.cuda.target import LaunchCounts, Target
from forge_tui.engine.judge.verdict import Timing

Baseline = Callable[[dict[str, torch.Tensor]], object]
"""Runs the operator itself on a set of input tensors."""


class Timer(Protocol):
    """How a target times one program on one call."""

    kind: str
    """As `Timing.kind`."""

    def quick(self, program: Program, image: Image, tensors: dict[str, torch.Tensor],
              counts: Sequence[LaunchCounts]) -> tuple[float, tuple[float, float] | None]:
        """Microseconds of one call, for the comparison of tuning points, with an interval where there is one."""
        ...

    def full(self, program: Program, image: Image, inputs: Sequence[dict[str, torch.Tensor]],
             counts: Sequence[LaunchCounts], baselines: dict[str, Baseline]) -> Timing:
        """The timing of the winner, paired with the baselines where the target can run them.

        inputs: several sets of the tensors (outputs included), rotated between repetitions. Raises CandidateFault.
        """
        ...


class ModelledTimer:
    """The host target: microseconds from counts, for the device named in `target.facts`. Nothing is timed against eager."""

    kind = "modelled"

    def __init__(self, target: Target) -> None:
        from forge_tui.cuda.host.model import modelled_us

        self._modelled_us = modelled_us
        self.facts = target.facts

    def quick(self, program: Program, image: Image, tensors: dict[str, torch.Tensor],
              counts: Sequence[LaunchCounts]) -> tuple[float, tuple[float, float] | None]:
        return float(self._modelled_us(tuple(counts), self.facts)), None

    def full(self, program: Program, image: Image, inputs: Sequence[dict[str, torch.Tensor]],
             counts: Sequence[LaunchCounts], baselines: dict[str, Baseline]) -> Timing:
        return Timing("modelled", self.quick(program, image, {}, counts)[0])


def open_timer(target: Target) -> Timer:
    """The timer of a target."""
    if target.kind == "host":
        return ModelledTimer(target)
    from forge_tui.cuda.timing import PairedTimer

    return PairedTimer(target)
