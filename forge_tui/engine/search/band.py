"""`band`: the published hardware-masked bandit over clusters of kernels and strategies, with its constants.

D. Ran et al., "KernelBand: Steering LLM-based Kernel Optimization via Hardware-Aware Multi-Armed Bandits",
arXiv:2511.18868. Two departures: among a cluster's kernels one is drawn in proportion to its speed, since a choice by
milliseconds would depend on the unit; and `split`, which is no strategy there, is an arm like the others, so that
policies differ in nothing but choices.
"""

from __future__ import annotations

import math
from random import Random
from typing import Literal

from forge_tui.engine.search.policy import DIGITS, Move, Policy, bases
from forge_tui.engine.search.simple import fastest
from forge_tui.engine.search.strategies import NAMES
from forge_tui.engine.search.tree import Node, Tree

CLUSTERS = 3
RECLUSTER = 10
"""Tries between clusterings; kernels that come in between join the nearest cluster."""
SATURATED = 0.75
"""A strategy is masked where the resource it works on is used this much by the cluster's representative."""
UCB = 2.0
PRIOR = 0.5
"""Reward expected of an arm before it is tried, worth one observation."""
LLOYD_STEPS = 20

TARGETS: dict[str, Literal["sm", "dram", "l2"]] = {
    "tiling": "l2",
    "vectorization": "dram",
    "fusion": "dram",
    "pipelining": "sm",
    "reordering": "sm",
    "access": "l2",
    "split": "sm",
}
"""The resource each strategy works on."""

Point = tuple[float, ...]


class Band(Policy):
    """Arms are pairs of cluster and strategy; the upper confidence bound over those that are not masked decides."""

    name = "band"

    def choose(self, tree: Tree) -> Move | None:
        rng = self.rng(tree)
        allowed = bases(tree)
        kernels = [node for node in tree.nodes.values() if node.value is not None]
        if not kernels or not any(node.value is not None for node in allowed):
            return Move(fastest(allowed).id or None, rng.choice(NAMES))
        clusters, representatives = self._clusters(tree, kernels)
        cluster, strategy = _best_arm(
            tree, clusters, representatives, {clusters[node.id] for node in allowed if node.id in clusters}, rng
        )
        members = [node for node in allowed if clusters.get(node.id) == cluster]
        top = fastest(members).value
        node = rng.choices(members, [math.exp(member.value - top) for member in members])[0]
        return Move(node.id, strategy)

    def _clusters(self, tree: Tree, kernels: list[Node]) -> tuple[dict[str, int], dict[int, Node]]:
        """Cluster by kernel, and each cluster's representative: the kernel nearest to its centre."""
        epoch = len(tree.nodes) // RECLUSTER * RECLUSTER
        points = dict(
            zip((node.id for node in kernels), _standardized([features(node) for node in kernels]), strict=True)
        )
        known = [node for node in kernels if node.number <= epoch] or kernels[:1]
        centres = _k_means([points[node.id] for node in known], CLUSTERS, Random(f"{self.seed}/{tree.variant}/{epoch}"))
        clusters = {name: _nearest(point, centres) for name, point in points.items()}
        representatives = {
            index: min(
                (node for node in kernels if clusters[node.id] == index),
                key=lambda node: _distance(points[node.id], centres[index]),
            )
            for index in set(clusters.values())
        }
        return clusters, representatives


def _best_arm(
    tree: Tree, clusters: dict[str, int], representatives: dict[int, Node], open_clusters: set[int], rng: Random
) -> tuple[int, str]:
    rewards: dict[tuple[int, str], list[float]] = {(index, name): [] for index in representatives for name in NAMES}
    for node in tree.nodes.values():
        arm = (clusters.get(node.parent.id, -1), node.strategy)
        if arm in rewards:
            rewards[arm].append(gain(node))
    tried = 1 + sum(len(seen) for seen in rewards.values())
    arms = [arm for arm in rewards if arm[0] in open_clusters and not masked(representatives[arm[0]], arm[1])]

    def bound(arm: tuple[int, str]) -> tuple[float, float]:
        seen = rewards[arm]
        return (PRIOR + sum(seen)) / (1 + len(seen)) + UCB * math.sqrt(
            math.log(1 + tried) / (1 + len(seen))
        ), rng.random()

    return max(arms or [arm for arm in rewards if arm[0] in open_clusters], key=bound)


def gain(node: Node) -> float:
    """The positive part of the relative gain over the parent, 0 to 1; failures and what is not settled gain nothing."""
    if node.value is None or node.parent.value is None:
        return 0.0
    return round(max(0.0, 1.0 - math.exp(node.parent.value - node.value)), DIGITS)


def masked(representative: Node, strategy: str) -> bool:
    """Whether the resource that the strategy works on is saturated already; no, where nothing is known of it."""
    behaviour = representative.verdict.behaviour
    used = getattr(behaviour, TARGETS[strategy]) if behaviour is not None else None
    return used is not None and used >= SATURATED


def features(node: Node) -> Point:
    """log time (up to a constant), registers, shared KB, log2 threads, occupancy."""
    behaviour = node.verdict.behaviour
    if behaviour is None:
        return (round(-node.value, DIGITS), 0.0, 0.0, 0.0, 0.0)
    return (
        round(-node.value, DIGITS),
        float(behaviour.registers or 0),
        behaviour.shared_bytes / 1024,
        math.log2(max(1, behaviour.threads)),
        behaviour.occupancy,
    )


def _standardized(points: list[Point]) -> list[Point]:
    """Each feature with mean 0 and deviation 1 (0 where it is constant)."""
    columns = []
    for column in zip(*points, strict=True):
        mean = sum(column) / len(column)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in column) / len(column))
        columns.append([(value - mean) / deviation if deviation > 1e-9 else 0.0 for value in column])
    return list(zip(*columns, strict=True))


def _k_means(points: list[Point], count: int, rng: Random) -> list[Point]:
    """Centres by Lloyd's algorithm from k-means++ starts; fewer where there are fewer distinct points."""
    centres = [rng.choice(points)]
    while len(centres) < count:
        away = [min(_distance(point, centre) for centre in centres) for point in points]
        if sum(away) <= 0.0:
            break
        centres.append(rng.choices(points, away)[0])
    for _ in range(LLOYD_STEPS):
        groups: list[list[Point]] = [[] for _ in centres]
        for point in points:
            groups[_nearest(point, centres)].append(point)
        moved = [
            tuple(sum(column) / len(group) for column in zip(*group, strict=True)) if group else centre
            for group, centre in zip(groups, centres, strict=True)
        ]
        if moved == centres:
            break
        centres = moved
    return centres


def _nearest(point: Point, centres: list[Point]) -> int:
    return min(range(len(centres)), key=lambda index: _distance(point, centres[index]))


def _distance(a: Point, b: Point) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
