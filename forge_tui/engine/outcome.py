"""What an operator's search came to: the value of a verdict, and the status and sentence of a finished search."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

from forge_tui.engine.judge.verdict import Verdict
from forge_tui.engine.search.tree import Node, Tree

Status = Literal["won", "no_gain", "failed", "skipped", "pending", "verified"]

AT_FLOOR = 1.05
"""A kernel within 5 % of the least the device needs is left alone: timing noise is of that order."""


def value_of(verdict: Verdict, first_us: float | None) -> float | None:
    """log speed-up over the baseline; over the first verified kernel (`first_us`) where nothing is timed against eager.

    None when not verified or not timed. Only ratios of times enter.
    """
    timing = verdict.timing
    if not verdict.verified or timing is None:
        return None
    if timing.speedup is not None:
        return math.log(timing.speedup)
    return math.log((first_us or timing.us) / timing.us)


def conclude(tree: Tree, problem: str = "") -> tuple[Status, str, Node | None]:
    """Status, sentence and winner of a search that is over. problem: why nothing was tried, if nothing was."""
    best = tree.best
    tried = len(tree.nodes)
    if best is None:
        if not tried:
            return "skipped", problem or "no kernel is on offer for this call", None
        failures = Counter(node.outcome for node in tree.nodes.values() if node.outcome != "pending")
        counts = ", ".join(f"{count} {name}" for name, count in failures.most_common())
        last = next(node for node in reversed(tree.nodes.values()) if node.settled)
        sentence = last.verdict.sentence if last.verdict else last.replied.problem
        status: Status = "skipped" if set(failures) == {"skipped"} else "failed"
        return status, f"no kernel passed ({counts}); the last: {sentence}", None
    timing = best.verdict.timing
    if timing.speedup is None:
        return "verified", f"{timing.us:.4g} us {timing.kind}; nothing is timed against eager on this target", best
    low, high = timing.speedup_interval or (timing.speedup, timing.speedup)
    if low > 1.0:
        return "won", f"{timing.speedup:.2f}x over {timing.baseline} [{low:.2f}, {high:.2f}]", best
    sentence = f"the best is {timing.speedup:.2f}x {timing.baseline} [{low:.2f}, {high:.2f}], not surely faster"
    if beats_eager(best) and timing.baseline != "eager":
        sentence += "; over eager [{:.2f}, {:.2f}]".format(*timing.over_eager)
    return "no_gain", sentence, best


def beats_eager(node: Node | None) -> bool:
    """Whether a kernel is surely faster than eager, whatever torch.compile makes of the call: of use to models that run eager."""
    timing = None if node is None or node.verdict is None else node.verdict.timing
    return timing is not None and timing.over_eager is not None and timing.over_eager[0] > 1.0
