"""The policies that others are measured against: `greedy`, `round-robin`, `linear`, `beam`, `evolve`."""

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


class Linear(Policy):
    """One chain: builds on the latest working kernel, be it better or worse; mends the latest failure first. The
    strategies in turn."""

    name = "linear"

    def choose(self, tree: Tree) -> Move | None:
        latest = max(bases(tree), key=lambda node: node.number)
        broken = mendable(tree)
        if broken and broken[-1].number > latest.number:
            return Move(broken[-1].id, broken[-1].strategy, "repair")
        return Move(latest.id or None, NAMES[len(tree.nodes) % len(NAMES)])


BEAM_WIDTH = 3
BEAM_BRANCH = 2
"""Children of each kernel of the beam: with 3 kernels, 20 tries are three generations."""


class Beam(Policy):
    """Generation by generation: the best kernels of all generations so far get as many children each."""

    name = "beam"

    def choose(self, tree: Tree) -> Move | None:
        asked = [node for node in tree.nodes.values() if node.origin != "human"]
        size = BEAM_WIDTH * BEAM_BRANCH
        generation, place = divmod(len(asked) - BEAM_WIDTH, size)
        older = {node.id for node in asked[: max(0, BEAM_WIDTH + generation * size)]}
        open_to = bases(tree)
        beam = [node for node in open_to if node.value is not None and (node.id in older or node.origin == "human")]
        beam = sorted(beam, key=lambda node: -node.value)[:BEAM_WIDTH] or [fastest(open_to)]
        if generation < 0 and tree.root in open_to:
            beam = [tree.root]
        node = beam[place // BEAM_BRANCH % len(beam)]
        return Move(node.id or None, least_used(node, self.rng(tree)))


ISLANDS = 3
POPULATION = 4
"""Kernels of an island that may be parents."""
MIGRATION = 9
"""Tries between migrations: three an island."""


class Evolve(Policy):
    """Islands that take turns. On each, the better of two kernels drawn from its best is changed by a random strategy;
    after every few tries the best kernel of one island may be a parent on the next. Crossing is left to the writer, who
    is told of the siblings' ideas."""

    name = "evolve"

    def choose(self, tree: Tree) -> Move | None:
        rng, count, open_to = self.rng(tree), len(tree.nodes), bases(tree)
        timed = [node for node in open_to if node.value is not None]
        island = count % ISLANDS
        settled_before = count - count % MIGRATION
        members = [node for node in timed if (node.number - 1) % ISLANDS == island]
        neighbours = [
            node
            for node in timed
            if (node.number - 1) % ISLANDS == (island - 1) % ISLANDS and node.number <= settled_before
        ]
        if neighbours:
            members.append(fastest(neighbours))
        members.sort(key=lambda node: -node.value)
        if not members:
            node = tree.root if tree.root in open_to else fastest(open_to)
        else:
            population = members[:POPULATION]
            node = fastest([rng.choice(population) for _ in range(2)])
        return Move(node.id or None, rng.choice(NAMES))
