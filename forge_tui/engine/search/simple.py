"""The policies that others are measured against: `greedy` and `round-robin`."""

from __future__ import annotations

import math

from forge_tui.engine.search.policy import Move, Policy, bases, least_used, mendable
from forge_tui.engine.search.strategies import NAMES
from forge_tui.engine.search.tree import Node, Tree


def fastest(nodes: list[Node]) -> Node:
    """The timed one of highest value, the earlier of equals; the first where none is timed."""
    return max(nodes, key=lambda node: node.value if node.value is not None else -math.inf)


class Greedy(Policy):
    """Always builds on the best kernel so far, by a strategy drawn at random from those least used on it."""

    name = "greedy"

    def choose(self, tree: Tree) -> Move | None:
        node = fastest(bases(tree))
        return Move(node.id or None, least_used(node, self.rng(tree)))


class RoundRobin(Policy):
    """Builds on every working kernel in turn, one strategy after the other; mends each failure once it comes up."""

    name = "round-robin"

    def choose(self, tree: Tree) -> Move | None:
        count = len(tree.nodes)
        parents = sorted([*bases(tree), *mendable(tree)], key=lambda node: node.number)
        node = parents[count % len(parents)]
        if node.parent is not None and not node.verified:
            return Move(node.id, node.strategy, "repair")
        return Move(node.id or None, NAMES[count % len(NAMES)])
