"""Which of several language models writes next: a bandit over gain per dollar."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from forge_tui.engine.search.tree import Node, Tree

PRIOR = 0.1
"""Gain (log ratio of times) expected of a reply before there was any, worth one reply: a tenth is what a step usually
brings."""

EXPLORE = 0.1
"""Weight of the confidence term, of the size of a usual gain."""


def choose_llm(llms: Sequence[str], trees: Iterable[Tree]) -> str:
    """The next one to ask. Each is asked once first, in the order given; then the upper confidence bound of its gain
    over what its replies cost decides. Where a cost is unknown, or nothing costs anything, gain alone does. Replies in
    flight count as such that gained nothing. A function of the trees alone."""
    nodes = [node for tree in trees for node in tree.nodes.values() if node.llm in llms]
    by_llm = {llm: [node for node in nodes if node.llm == llm] for llm in llms}
    costs = {llm: _mean_cost(found) for llm, found in by_llm.items()}
    known = all(cost for cost in costs.values())

    def bound(llm: str) -> float:
        found = by_llm[llm]
        if not found:
            return math.inf
        mean = (PRIOR + sum(_gain(node) for node in found)) / (1 + len(found))
        value = mean + EXPLORE * math.sqrt(math.log(1 + len(nodes)) / (1 + len(found)))
        return value / costs[llm] if known else value

    return max(llms, key=bound)  # the first of equals


def _gain(node: Node) -> float:
    """Positive part of the log gain over the parent, at most 1; what began from nothing gains what is usual."""
    if node.value is None:
        return 0.0
    return PRIOR if node.parent.value is None else min(1.0, max(0.0, node.value - node.parent.value))


def _mean_cost(nodes: list[Node]) -> float | None:
    """Dollars of a reply; None while none has a known one, or any has an unknown one."""
    replied = [node.replied.cost_usd for node in nodes if node.replied is not None]
    if not replied or None in replied:
        return None
    return sum(replied) / len(replied)
