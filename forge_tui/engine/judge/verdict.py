"""The verdict: one frozen record of what was checked, what failed, and the sentence for people and language models."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from forge_tui.cuda.faults import FaultKind
from forge_tui.cuda.profile import Profile
from forge_tui.cuda.program import KernelInfo
from forge_tui.cuda.target import LaunchCounts
from forge_tui.engine.judge.behaviour import Behaviour

Outcome = Literal[
    "verified",    # every check passed
    "wrong",       # results differ from the reference by more than allowed
    "fault",       # the device code did something forbidden or crashed
    "refused",     # the kernel file itself: syntax, plan, forbidden construct, or it does not take this call
    "no_build",    # the compiler refused it
    "skipped",     # this target cannot interpret it: neither a pass nor a failure
]


class Worst(Struct, frozen=True):
    """The worst element found."""

    output: str
    index: tuple[int, ...]
    expected: float
    got: float
    allowed: float
    """Largest absolute difference allowed at this element."""


class Check(Struct, frozen=True):
    """One thing that was checked."""

    name: str
    """`samples`, `draw large`, `memory`, `repeat`, ..."""
    passed: bool
    figure: float | None = None
    """What was measured, e.g. the relative error in norm."""
    allowed: float | None = None
    detail: str = ""
    inputs: str = ""
    """Which inputs it was run on: 64 bits of all of them, in hex, the same wherever a seed made the same bits."""
    eager: float | None = None
    """Eager's own relative error in norm on these inputs."""


class Point(Struct, frozen=True):
    """One tuning point, built and timed."""

    settings: dict[str, int]
    us: float | None
    """Time of one call; None where it failed."""
    interval: tuple[float, float] | None = None
    reason: str = ""
    """Why it failed."""
    kernels: tuple[KernelInfo, ...] = ()
    image: str = ""
    """Key of the compiled image."""


class Timing(Struct, frozen=True):
    """What the winner of the tuning takes."""

    kind: Literal["device", "modelled"]
    us: float
    interval: tuple[float, float] | None = None
    baseline_us: float | None = None
    baseline: Literal["eager", "compile"] | None = None
    speedup: float | None = None
    """Median of paired ratios; None where nothing was timed against eager."""
    speedup_interval: tuple[float, float] | None = None
    over_eager: tuple[float, float] | None = None
    """Interval of the speed-up over eager, whichever baseline is the better one."""
    notes: tuple[str, ...] = ()
    """What disturbed the measurement (throttling, foreign load), or what it lacks (`no torch.compile baseline:
    ...`)."""


class Verdict(Struct, frozen=True):
    """Everything the judge says of one kernel file on one variant."""

    outcome: Outcome
    sentence: str
    """One sentence: what is wrong and where, or what was verified."""
    checks: tuple[Check, ...] = ()
    """In the order made; the last one is the failed one when not verified."""
    fault: FaultKind | None = None
    line: int | None = None
    """In the kernel file, where known."""
    worst: Worst | None = None
    seed: int = 0
    """Reproduces every fresh draw."""
    settings: dict[str, int] = {}
    """The tuning point judged: the best one when verified."""
    points: tuple[Point, ...] = ()
    timing: Timing | None = None
    image: str = ""
    """Key of the winning image: the same image twice is one node."""
    counts: tuple[LaunchCounts, ...] = ()
    proxy: str = ""
    """What was run instead of the full size, e.g. `rows 16384 -> 64`; empty when it was the captured size."""
    profile: Profile | None = None
    """Where asked for: how the winning setting uses the device."""
    build_log: str = ""
    """The compiler's own words."""
    judged_s: float = 0.0
    behaviour: Behaviour | None = None
    """Of the winning setting; None unless verified."""

    @property
    def verified(self) -> bool:
        return self.outcome == "verified"


EAGER_OFF = 0.01
"""A relative error of eager's own that a person should hear of: twice what rounding to bfloat16 once makes."""


def eager_off(verdict: Verdict) -> str:
    """Where eager's own result on the captured inputs is far from the truth, a sentence that says so; else empty."""
    errors = [check.eager for check in verdict.checks if check.eager is not None and check.name.startswith("captured sample")]
    worst = max(errors, default=0.0)
    if not worst >= EAGER_OFF:
        return ""
    return f"eager itself is {worst:.1%} off on the captured inputs, and kernels are allowed a small factor of that"
