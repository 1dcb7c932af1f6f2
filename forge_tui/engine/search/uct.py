"""`uct`, the default policy: upper confidence bounds down the tree, widening as an arm of its own, learned strategies.

Its constants were chosen on the synthetic landscapes of `tests/landscape.py` (means over 150 seeds at 20 iterations).
"""

from __future__ import annotations

import math
from random import Random

from forge_tui.engine.search.policy import Move, Policy, bases, mendable
from forge_tui.engine.search.strategies import NAMES
from forge_tui.engine.search.tree import Node, Tree

EXPLORE = 0.1
"""Weight of the confidence term of a node. Rewards are fractions of the best speed known, and kernels worth telling
apart differ by 0.05 to 0.3 of it: 0.4 makes 20 iterations a round-robin, 0.02 cannot leave a local optimum."""

MEAN_SHARE = 0.3
"""Part of a subtree's mean in its score; the rest is its maximum. The search wants one best kernel, so the maximum
matters most; the mean keeps a lucky child of a branch that mostly fails from drawing every visit."""

ROOT_REWARD = 0.5
"""What a kernel written from nothing is worth, as a fraction of the best speed, once a working one is known."""

ARM_EXPLORE = 0.5
"""Weight of the confidence term of a strategy: large, because a strategy that gained once has often given all it has."""

ARM_PRIOR = 0.1
"""Gain expected of a strategy before it was tried, worth one observation: a tenth faster is what a step usually brings.
(An optimistic prior such as 0.5 against gains of 0.1 is a round-robin for the first 20 iterations.)"""

USED_UP = 0.5
"""How much a strategy on the way from the root counts as a use of it at the node: a child of the node counts 1."""


class Uct(Policy):
    """At each node of the way down, making a new child competes with the children that are there."""

    name = "uct"

    def choose(self, tree: Tree) -> Move | None:
        rng = self.rng(tree)
        broken = self._worth_repair(tree)
        if broken is not None:
            return Move(broken.id, broken.strategy, "repair")
        node = self._descend(tree, rng)
        return Move(node.id or None, self._strategy(tree, node, rng))

    @staticmethod
    def _worth_repair(tree: Tree) -> Node | None:
        """The latest mendable failure, while repairs succeed at least as often as new kernels do (both from one
        success in two tries to begin with)."""
        settled = [node for node in tree.nodes.values() if node.settled]
        repairs = [node.verified for node in settled if node.origin == "repair"]
        others = [node.verified for node in settled if node.origin != "repair"]
        if (1 + sum(repairs)) / (2 + len(repairs)) < (1 + sum(others)) / (2 + len(others)):
            return None
        return next(iter(mendable(tree)[::-1]), None)

    @staticmethod
    def _descend(tree: Tree, rng: Random) -> Node:
        """The node to build on: the root or a working kernel."""
        best, scores, allowed = tree.best, subtree_scores(tree), {node.id for node in bases(tree)}
        ways = {above.id for name in allowed if name for above in tree.nodes[name].lineage()}
        node = tree.root
        while True:
            inner = [child for child in node.children if child.id in scores and child.id in ways]
            if not inner:
                return node
            log_total = math.log(1 + node.visits + node.pending)
            bounds = [(_bound(scores[child.id], log_total, child.visits + child.pending), rng.random(), child)
                      for child in inner]
            top, _, child = max(bounds, key=lambda bound: bound[:2])
            if node.id in allowed and (node.parent is None or node.value is not None):
                own = ROOT_REWARD if node.parent is None else math.exp(node.value - best.value)
                if _bound(own, log_total, 1 + len(node.children)) >= top:
                    return node
            node = child

    @staticmethod
    def _strategy(tree: Tree, node: Node, rng: Random) -> str:
        """The most promising by its gains in this tree, less what this node and its ancestors used of it."""
        gains = strategy_gains(tree)
        log_total = math.log(1 + sum(len(seen) for seen in gains.values()))
        children = [child.strategy for child in node.children]
        line = [ancestor.strategy for ancestor in node.lineage()]

        def score(name: str) -> tuple[float, float]:
            seen = gains[name]
            mean = (ARM_PRIOR + sum(seen)) / (1 + len(seen))
            bonus = ARM_EXPLORE * math.sqrt(log_total / (1 + len(seen)))
            return (mean + bonus) / (1 + children.count(name) + USED_UP * line.count(name)), rng.random()

        return max(NAMES, key=score)


def _bound(score: float, log_total: float, visits: int) -> float:
    return score + EXPLORE * math.sqrt(log_total / visits)


def subtree_scores(tree: Tree) -> dict[str, float]:
    """By node id: how good the subtree is, 0 to 1, for subtrees that hold a verified kernel.

    A kernel's reward is its speed over the best speed (exp of the difference of values), a failure's is 0.
    """
    best = tree.best
    if best is None:
        return {}
    sums: dict[str, float] = {}
    tops: dict[str, float] = {}
    scores: dict[str, float] = {}
    for node in reversed(tree.nodes.values()):  # children come before their parents
        reward = math.exp(node.value - best.value) if node.value is not None else 0.0
        total, top = sums.get(node.id, 0.0) + reward, max(tops.get(node.id, 0.0), reward)
        if top > 0.0:
            scores[node.id] = MEAN_SHARE * total / max(1, node.visits) + (1 - MEAN_SHARE) * top
        above = node.parent.id
        sums[above] = sums.get(above, 0.0) + total
        tops[above] = max(tops.get(above, 0.0), top)
    return scores


def strategy_gains(tree: Tree) -> dict[str, list[float]]:
    """By strategy: relative gain over the parent of every settled try, 0 to 1; failures and losses count as 0.

    A first kernel (child of the root) has no parent to gain over: it counts as the prior.
    """
    gains: dict[str, list[float]] = {name: [] for name in NAMES}
    for node in tree.nodes.values():
        if node.strategy not in gains or not node.settled:
            continue
        if node.value is None:
            gains[node.strategy].append(0.0)
        elif node.parent.value is None:
            gains[node.strategy].append(ARM_PRIOR)
        else:
            gains[node.strategy].append(min(1.0, max(0.0, math.exp(node.value - node.parent.value) - 1.0)))
    return gains
