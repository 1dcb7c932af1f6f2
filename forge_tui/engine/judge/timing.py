"""What a candidate takes: measured on a GPU, modelled from counts on the host target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch

from forge_tui.cuda.target import Target
from forge_tui.engine.judge.trial import Trial
from forge_tui.engine.judge.tuning import Setting
from forge_tui.engine.judge.verdict import Timing

Interval = tuple[float, float]


class Timer(Protocol):
    """How a target times one setting on one call."""

    noisy: bool
    """Whether timing the same again gives another figure."""

    def quick(self, setting: Setting, trial: Trial, effort: int = 1) -> tuple[float, Interval | None]:
        """Microseconds of one call, for the comparison of settings. The trial's arena still holds the last inputs
        run. effort: so many times the usual number of samples."""
        ...

    def full(self, setting: Setting, trial: Trial, samples: Sequence[Mapping[str, torch.Tensor]]) -> Timing:
        """The timing of the winner, paired with eager and torch.compile where the target can run them.

        Outputs of timed launches are checked like all others. Raises Failed, CandidateFault.
        """
        ...


class ModelledTimer:
    """The host target: microseconds from counts, for the device named in `target.facts`. Nothing is timed against
    eager."""

    noisy = False

    def __init__(self, target: Target) -> None:
        from forge_tui.cuda.host.model import modelled_us

        self._modelled_us = modelled_us
        self.facts = target.facts

    def quick(self, setting: Setting, trial: Trial, effort: int = 1) -> tuple[float, Interval | None]:
        return float(self._modelled_us(setting.counts, self.facts)), None

    def full(self, setting: Setting, trial: Trial, samples: Sequence[Mapping[str, torch.Tensor]]) -> Timing:
        return Timing("modelled", self.quick(setting, trial)[0])


def open_timer(target: Target) -> Timer:
    """The timer of a target."""
    if target.kind == "host":
        return ModelledTimer(target)
    from forge_tui.engine.judge.device_timing import DeviceTimer

    return DeviceTimer(target)
