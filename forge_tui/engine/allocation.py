"""Operators share a budget: what the next try of each is expected to save, and at what cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from forge_tui.engine.cards import Variant
from forge_tui.engine.outcome import AT_FLOOR
from forge_tui.engine.search.tree import Tree
from forge_tui.engine.state import OperatorState

FIRST_SHARE = 0.2
"""Part of what can still be saved that a try is expected to bring, before there was any."""

SHARE_WEIGHT = 2.0
"""How many tries that expectation is worth."""

MEMORY = 0.8
"""What a try counts for less than the next one: gains shrink as a search goes on, and the latest tries say most."""


@dataclass(eq=False)
class Search:
    """One operator's search while the run lasts; everything lasting is in its tree."""

    variant: Variant
    state: OperatorState
    exhausted: set[str] = field(default_factory=set)
    """Providers that said so themselves."""
    confirming: bool = False
    finished: bool = False

    @property
    def tree(self) -> Tree:
        return self.state.tree

    @property
    def saving_us(self) -> float:
        """What a forward would still save at the floor."""
        best = self.tree.best
        now = best.us if best is not None and best.us is not None else self.variant.time_us
        return self.variant.open_calls * max(0.0, now - self.variant.floor_us)

    @property
    def expected_us(self) -> float:
        """What the next try is expected to save of a forward, in microseconds. Tries in flight share it."""
        return self.saving_us * self._share() / (1 + self.tree.root.pending)

    @property
    def mean_cost_usd(self) -> float:
        """Of this operator's replies that cost something known; 0 before the first."""
        paid = [node.replied.cost_usd for node in self.tree.nodes.values() if node.replied and node.replied.cost_usd]
        return sum(paid) / len(paid) if paid else 0.0

    def _share(self) -> float:
        """Part of what could be saved that a try saved, the latest ones counting most."""
        total, weight = FIRST_SHARE * SHARE_WEIGHT, SHARE_WEIGHT
        floor, now = self.variant.floor_us, None
        for node in self.tree.nodes.values():
            if not node.settled:
                continue
            gained = 0.0
            if node.us is not None and (now is None or node.us < now):
                before = now if now is not None else max(self.variant.time_us, node.us)
                gained = (before - node.us) / (before - floor) if before > floor else 0.0
                now = node.us
            total, weight = MEMORY * total + min(1.0, gained), MEMORY * weight + 1.0
        return total / weight

    @property
    def at_floor(self) -> bool:
        best = self.tree.best
        return best is not None and best.us is not None and best.us <= AT_FLOOR * self.variant.floor_us


def worth_of(search: Search, other_cost_usd: float = 0.0) -> float:
    """What the next try is expected to save per dollar. other_cost_usd: of a reply to any operator, where this one has
    none yet; where no cost is known at all, every try counts the same."""
    return search.expected_us / (search.mean_cost_usd or other_cost_usd or 1.0)


def too_little(search: Search, least_us_per_usd: float) -> bool:
    """Whether another dollar saves less than the user wants. No, while its cost is unknown or nothing was tried."""
    cost = search.mean_cost_usd
    return (
        bool(least_us_per_usd and cost)
        and search.tree.root.pending == 0
        and search.expected_us / cost < least_us_per_usd
    )
