"""Which kernels go into a package: wins that are safe, those that beat eager alone, all that are right, or those named."""

from __future__ import annotations

from forge_tui.engine.judge.verdict import Timing
from forge_tui.engine.package.winner import Winner
from forge_tui.engine.selection import named_by
from forge_tui.errors import ProjectError

SAFE_MARGIN = 1.02
"""A win is safe when even the low end of its interval is this much faster: the guard and what timing alone does not show
(a colder cache, another neighbour) cost a model about that."""


def select(winners: list[Winner], choice: str) -> tuple[list[Winner], list[tuple[Winner, str]]]:
    """Kernels to export, and those left out with the reason.

    choice: `safe`, `eager` (as safe, over eager alone), `all`, or variant keys and operator patterns with commas between. On a machine without a GPU, where
    nothing is timed against eager, every verified kernel is safe. Raises ProjectError where a name fits nothing.
    """
    if choice == "all":
        return winners, []
    if choice in ("safe", "eager"):
        why = why_unsafe if choice == "safe" else why_not_over_eager
        reasons = [(winner, why(winner.verdict.timing)) for winner in winners]
        return [winner for winner, reason in reasons if not reason], [(winner, reason) for winner, reason in reasons if reason]
    names = [name.strip() for name in choice.split(",") if name.strip()]
    for name in names or [""]:
        if not any(_named(winner, name) for winner in winners if name):
            known = ", ".join(f"{winner.variant.key} {winner.variant.operator}" for winner in winners) or "none"
            raise ProjectError(f"no verified kernel is called {name!r}", where="--select",
                               cure=f"write safe, eager or all (each on its own), or some of: {known}")
    chosen = [winner for winner in winners if any(_named(winner, name) for name in names)]
    return chosen, [(winner, "not among those named") for winner in winners if winner not in chosen]


def _named(winner: Winner, name: str) -> bool:
    operator = winner.variant.operator
    return winner.variant.key.startswith(name) or named_by(name, operator)


def why_unsafe(timing: Timing | None) -> str:
    """Why a win is not one to rely on; empty where it is, or where nothing is timed against eager."""
    if timing is None or timing.kind == "modelled":
        return ""
    return _too_near(timing.speedup_interval)


def why_not_over_eager(timing: Timing | None) -> str:
    """As `why_unsafe`, over eager: of use to models that run without torch.compile, whatever that would make of the call."""
    return "" if timing is None or timing.kind == "modelled" else _too_near(timing.over_eager)


def _too_near(interval: tuple[float, float] | None) -> str:
    if interval is None:
        return "not timed against eager"
    return "" if interval[0] >= SAFE_MARGIN else f"its interval begins at {interval[0]:.3f}x, below {SAFE_MARGIN}x"
