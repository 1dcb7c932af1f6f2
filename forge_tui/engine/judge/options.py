"""How thorough a judgement is. Free of torch: the engine sets these, a worker obeys them."""

from __future__ import annotations

from msgspec import Struct

PROXY_ELEMENTS = 1 << 17
"""Most elements of a reduced call's largest tensor: tens of milliseconds of interpretation a launch."""


class JudgeOptions(Struct, frozen=True):
    """Limits of one judgement. All but `tune_seconds` and the deadlines are counts, so that a seed gives the same judgement on any machine."""

    tune_points: int = 16
    """Most settings tried."""
    finalists: int = 3
    """Settings that may go through the full checks before the file is given up."""
    repeats: int = 2
    """Runs of captured samples at the end, for races and for results that depend on what ran before."""
    proxy_elements: int = PROXY_ELEMENTS
    """On the host target, larger calls are verified on reduced ones of about this size."""
    tune_seconds: float = 2.0
    """Where timing is noisy: settings may hold the device so long before the rest is left out. 0: no limit."""
    time: bool = True
    """Whether what passes is timed."""
    sanitize: bool = False
    """Whether what passes is run under NVIDIA's sanitizer too (minutes, on a GPU)."""
    profile: bool = False
    """Whether what passes is profiled."""
    launch_deadline_s: float = 30.0
    """A launch takes well under a second; one that takes this long does not end. On a GPU ten seconds at the most."""
    build_deadline_s: float = 30.0
    """Of one build; past it the worker, which holds the compiler, is replaced."""
