"""`uct`, the default policy: a tree search whose arms are (kernel, strategy), valued by what another try of them
promises.

Each node backs up the best promise of its subtree, and the descent follows the best: that is the arm of largest promise
anywhere, so it is looked up directly. Constants were chosen on the landscapes of `benchmarks/landscapes` and the
synthetic ones of `tests/landscape.py`; see docs/search.md.
"""

from __future__ import annotations

from random import Random

from forge_tui.engine.search.gains import DOUBLE_WEIGHT, Gains, working_ancestor
from forge_tui.engine.search.policy import DIGITS, Move, Policy, bases, least_used, mendable
from forge_tui.engine.search.strategies import NAMES
from forge_tui.engine.search.tree import Node, Tree

USED = 0.5
"""How much an earlier use of a strategy on the same kernel takes from its promise: the promise is divided by 1 + 0.5 n.
Uses in flight count too (the virtual loss), so that concurrent choices spread."""

USED_ABOVE = 1.0
"""The same for a use on the way from the root: what a strategy has to give it has mostly given."""

REPAIR_SHARE = 0.15
"""Part of a new try's promise that a repair has: it ends where the broken kernel was meant to, and no better."""


class Uct(Policy):
    """New children of every kernel, and repairs of every mendable failure, compete in one currency: expected
    improvement."""

    name = "uct"

    def choose(self, tree: Tree) -> Move | None:
        rng = self.rng(tree)
        broken = mendable(tree)
        if tree.best is None:
            return _first(tree, broken, rng)
        gains = Gains(tree)
        arms = [
            (_promise(gains, node, strategy), rng.random(), Move(node.id or None, strategy))
            for strategy in NAMES
            for node in bases(tree)
        ]
        arms += [(_mending(gains, node), rng.random(), Move(node.id, node.strategy, "repair")) for node in broken]
        return max(arms, key=lambda arm: arm[:2])[2]


def _first(tree: Tree, broken: list[Node], rng: Random) -> Move:
    """While nothing works: the last failure and a fresh start in turn."""
    if broken and (len(tree.nodes) % 2 or tree.root not in bases(tree)):
        return Move(broken[-1].id, broken[-1].strategy, "repair")
    node = bases(tree)[0]
    return Move(node.id or None, least_used(node, rng))


def _promise(gains: Gains, node: Node, strategy: str) -> float:
    used = sum(
        1.0 + DOUBLE_WEIGHT * (child.outcome == "duplicate") for child in node.children if child.strategy == strategy
    )
    above = sum(ancestor.strategy == strategy for ancestor in node.lineage())
    promise = gains.succeeds(strategy) * gains.improvement(node, strategy) / (1.0 + USED * used + USED_ABOVE * above)
    return round(promise, DIGITS)


def _mending(gains: Gains, broken: Node) -> float:
    attempts = sum(child.origin == "repair" for child in broken.children)
    promise = gains.improvement(working_ancestor(broken), broken.strategy)
    return round(REPAIR_SHARE * gains.mends * promise / (1.0 + attempts), DIGITS)
