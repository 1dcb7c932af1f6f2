"""The policies that others are measured against: `greedy` and `round-robin`."""

from __future__ import annotations

from forge_tui.engine.search.policy import Move, Policy, repairable
from forge_tui.engine.search.strategies import NAMES
from forge_tui.engine.search.tree import Tree


class Greedy(Policy):
    """Always builds on the best kernel so far, by a strategy drawn at random from those least used on it."""

    name = "greedy"

    def select(self, tree: Tree) -> Move | None:
        node = tree.best or tree.root
        used = [child.strategy for child in node.children]
        least = min(used.count(name) for name in NAMES)
        strategy = self.rng(tree).choice([name for name in NAMES if used.count(name) == least])
        return Move(node.id or None, strategy)


class RoundRobin(Policy):
    """Builds on every working kernel in turn, one strategy after the other; mends each failure once it comes up."""

    name = "round-robin"

    def select(self, tree: Tree) -> Move | None:
        count = len(tree.nodes)
        parents = [tree.root, *(node for node in tree.nodes.values() if node.verified or repairable(node))]
        node = parents[count % len(parents)]
        if node.parent is not None and not node.verified:
            return Move(node.id, node.strategy, "repair")
        return Move(node.id or None, NAMES[count % len(NAMES)])
