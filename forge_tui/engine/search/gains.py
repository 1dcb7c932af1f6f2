"""What a tree has shown of its strategies: how much each gains, how often it fails, and what another try of it
promises."""

from __future__ import annotations

import math

from forge_tui.engine.search.strategies import NAMES
from forge_tui.engine.search.tree import Node, Tree

SPREAD = 0.25
"""Deviation of a gain (log ratio of times) expected before anything is known: steps of a quarter are usual, of two
rare."""

SPREAD_WEIGHT = 2.0
"""How many observations that expectation is worth."""

ROOT_DEFICIT = 0.3
"""A kernel written from nothing is expected to be this much (log ratio) slower than the best known, with the weight of
one observation, until the root's own children say otherwise."""

FAIL_WEIGHT = 2.0
"""A strategy's rate of failure leans on the rate of all with the weight of so many tries."""

DOUBLE_WEIGHT = 3.0
"""A kernel that was there already counts as so many failures: the strategy has probably nothing left to change."""


class Gains:
    """The posterior of one tree, in log ratios of times: differences of values only, so no unit enters.

    A strategy's gain is normal, with mean and deviation leaning on those of all strategies in the tree, and these on
    `SPREAD`. What a try promises is the expected improvement on the best kernel (Mockus 1975; Jones, Schonlau and Welch
    1998).
    """

    def __init__(self, tree: Tree) -> None:
        self.best = tree.best.value if tree.best is not None else 0.0
        self.gains: dict[str, list[float]] = {name: [] for name in NAMES}
        self.bad = dict.fromkeys(NAMES, 0.0)
        self.tries = dict.fromkeys(NAMES, 0.0)
        self.repairs = self.mended = 0
        for node in tree.nodes.values():
            if node.settled:
                self._learn(node)
        self.roots = [node.value for node in tree.root.children if node.value is not None]
        self.fails = (0.5 + sum(self.bad.values())) / (2.0 + sum(self.tries.values()))
        every = [gain for gains in self.gains.values() for gain in gains]
        self.mean = sum(every) / (2.0 + len(every))
        self.variance = (SPREAD_WEIGHT * SPREAD**2 + sum((gain - self.mean) ** 2 for gain in every)) / (
            SPREAD_WEIGHT + len(every)
        )

    def _learn(self, node: Node) -> None:
        if node.origin == "repair":
            self.repairs += 1
            self.mended += node.verified
        if node.strategy not in self.gains:
            return  # a person's own kernel
        weight = DOUBLE_WEIGHT if node.outcome == "duplicate" else 1.0
        self.tries[node.strategy] += weight
        if node.value is None:
            self.bad[node.strategy] += weight
            return
        start = working_ancestor(node)
        if start.value is not None:
            self.gains[node.strategy].append(node.value - start.value)

    def succeeds(self, strategy: str) -> float:
        """Probability that a try gives a new working kernel."""
        return 1.0 - (FAIL_WEIGHT * self.fails + self.bad[strategy]) / (FAIL_WEIGHT + self.tries[strategy])

    @property
    def mends(self) -> float:
        """Probability that a repair works."""
        return (1 + self.mended) / (2 + self.repairs)

    def improvement(self, start: Node, strategy: str) -> float:
        """Expected improvement of a working kernel made from `start` on the best, as a log ratio."""
        mean, deviation = self._from_nothing() if start.value is None else self._gain(strategy)
        above = mean + (0.0 if start.value is None else start.value) - self.best
        z = above / deviation
        return above * 0.5 * (1.0 + math.erf(z / math.sqrt(2.0))) + deviation * math.exp(-z * z / 2.0) / math.sqrt(
            2.0 * math.pi
        )

    def _from_nothing(self) -> tuple[float, float]:
        """Mean and deviation of the value of a kernel written from nothing."""
        mean = (self.best - ROOT_DEFICIT + sum(self.roots)) / (1 + len(self.roots))
        variance = (2.0 * SPREAD**2 + sum((value - mean) ** 2 for value in self.roots)) / (2.0 + len(self.roots))
        return mean, math.sqrt(variance)

    def _gain(self, strategy: str) -> tuple[float, float]:
        seen = self.gains.get(strategy, [])
        weight = SPREAD_WEIGHT + len(seen)
        mean = (SPREAD_WEIGHT * self.mean + sum(seen)) / weight
        variance = (SPREAD_WEIGHT * self.variance + sum((gain - mean) ** 2 for gain in seen)) / weight
        return mean, math.sqrt(variance * (1.0 + 1.0 / weight))


def working_ancestor(node: Node) -> Node:
    """The nearest working kernel above; the root where there is none. What a repair began as counts from there."""
    above = node.parent
    while above.parent is not None and above.value is None:
        above = above.parent
    return above
